//! Conversion of `routes[].generic`, with all defaults filled in, to the declaration that
//! `protocol` compiles.

use super::fill::{Filled, Unfilled, need, pointers, word};
use crate::api::v1alpha1::{self as api, GenericSpec, OneOrMany, TooLargeSpec};
use crate::protocol::Pointer;
use crate::protocol::generic::{
    Cost, CostShare, CostWeights, ItemClass, ItemIs, OnMismatch, PerItemError, ResultWrap, Select, Single, Spec,
    TooLargeSign, Weigh,
};

/// Converts a declaration in which every default is filled in.
pub(super) fn declared(spec: &GenericSpec) -> Filled<Spec> {
    let single = need(spec.single.as_ref(), "generic.single")?;
    let cost = need(spec.cost.as_ref(), "generic.cost")?;
    Ok(Spec {
        upstream_path: spec.upstream_path.clone(),
        items: several(spec.items.as_ref(), "generic.items")?,
        single: Single {
            items: optional(single.items.as_ref(), "generic.single.items")?,
            results: optional(single.results.as_ref(), "generic.single.results")?,
            wrap_scalar: need(single.wrap_scalar, "generic.single.wrapScalar")?,
            item_is: match word(single.item_is.as_ref(), "generic.single.itemIs")? {
                api::ItemIs::ArrayOfNumbers => ItemIs::ArrayOfNumbers,
                api::ItemIs::Element => ItemIs::Element,
            },
        },
        item_class: match word(spec.item_class.as_ref(), "generic.itemClass")? {
            api::ItemClass::Text => ItemClass::Text,
            api::ItemClass::None => ItemClass::None,
            api::ItemClass::Strict => ItemClass::Strict,
        },
        results: several(spec.results.as_ref(), "generic.results")?,
        index: optional(spec.index.as_ref(), "generic.index")?,
        result_key: match &spec.result_key {
            Some(key) => Some(Pointer::parse_field(key).map_err(|_| Unfilled("generic.resultKey"))?),
            None => None,
        },
        result_wrap: match word(spec.result_wrap.as_ref(), "generic.resultWrap")? {
            api::ResultWrap::List => ResultWrap::List,
            api::ResultWrap::None => ResultWrap::None,
        },
        select: match word(spec.select.as_ref(), "generic.select")? {
            api::Select::Sorted => Select::Sorted,
            api::Select::None => Select::None,
        },
        per_item_error: match &spec.per_item_error {
            Some(error) => Some(PerItemError {
                field: pointer(
                    need(error.field.as_deref(), "generic.perItemError.field")?,
                    "generic.perItemError.field",
                )?,
                status: need(error.status, "generic.perItemError.status")?,
            }),
            None => None,
        },
        id: pointers(spec.id.as_ref(), "generic.id")?,
        cost: Cost {
            totals: pointers(cost.totals.as_ref(), "generic.cost.totals")?,
            weights: match need(cost.weights.as_deref(), "generic.cost.weights")? {
                "Bytes" => CostWeights::Bytes,
                "Chars" => CostWeights::Chars,
                "ListLen" => CostWeights::ListLen,
                at => CostWeights::At(pointer(at, "generic.cost.weights")?),
            },
            share: match word(cost.share.as_ref(), "generic.cost.share")? {
                api::CostShare::Exact => CostShare::Exact,
                api::CostShare::Drop => CostShare::Drop,
                api::CostShare::Proportional => CostShare::Proportional,
            },
        },
        weight: match need(spec.weight.as_deref(), "generic.weight")? {
            "Items" => Weigh::Items,
            "Bytes" => Weigh::Bytes,
            "Chars" => Weigh::Chars,
            "ListLen" => Weigh::ListLen,
            at => Weigh::At(pointer(at, "generic.weight")?),
        },
        too_large: spec.too_large.iter().flatten().map(too_large).collect(),
        lenient_numbers: need(spec.lenient_numbers, "generic.lenientNumbers")?,
        on_mismatch: match word(spec.on_mismatch.as_ref(), "generic.onMismatch")? {
            api::OnMismatch::Fail => OnMismatch::Fail,
            api::OnMismatch::Isolate => OnMismatch::Isolate,
        },
    })
}

fn pointer(text: &str, key: &'static str) -> Filled<Pointer> {
    Pointer::parse(text).map_err(|_| Unfilled(key))
}

fn optional(text: Option<&String>, key: &'static str) -> Filled<Option<Pointer>> {
    text.map(|text| pointer(text, key)).transpose()
}

fn several(spec: Option<&OneOrMany>, key: &'static str) -> Filled<Vec<Pointer>> {
    match spec {
        Some(OneOrMany::One(one)) => Ok(vec![pointer(one, key)?]),
        Some(OneOrMany::Many(many)) if !many.is_empty() => pointers(Some(many), key),
        _ => Err(Unfilled(key)),
    }
}

fn too_large(spec: &TooLargeSpec) -> TooLargeSign {
    match spec {
        TooLargeSpec::Status(status) => TooLargeSign { status: *status, body_contains: None },
        TooLargeSpec::Body { status, body_contains } => {
            TooLargeSign { status: *status, body_contains: body_contains.clone() }
        }
    }
}
