//! Conversion of `routes[].generic`, with all defaults filled in, to the declaration that
//! `protocol` compiles.

use serde_json::Value as Json;

use super::defaults;
use super::values::{MissingDefault, ValueResult, pointers, require, word};
use crate::api::v1alpha1::{self as api, GenericSpec, OneOrMany, TooLargeSpec};
use crate::protocol::Pointer;
use crate::protocol::generic::{
    BatchWeight, CostShare, CostWeights, CounterSpec, FlatList, GenericOptions, ItemClass, OnMismatch, PerItemError,
    ResultOrder, ResultWrap, SingleItem, TooLargeSign,
};

/// Converts a generic declaration as written, with defaults filled in; `None` if a value is
/// invalid.
pub(super) fn declaration(written: &Json) -> Option<GenericOptions> {
    let mut json = serde_json::json!({ "routes": [{ "generic": written }] });
    defaults::fill_routes(&mut json);
    let spec: GenericSpec = serde_json::from_value(json["routes"][0]["generic"].take()).ok()?;
    to_spec(&spec).ok()
}

/// Converts a declaration in which every default is filled in.
pub(super) fn to_spec(spec: &GenericSpec) -> ValueResult<GenericOptions> {
    let single = require(spec.single.as_ref(), "generic.single")?;
    let cost = require(spec.cost.as_ref(), "generic.cost")?;
    Ok(GenericOptions {
        upstream_path: spec.upstream_path.clone(),
        items: parse_pointers(spec.items.as_ref(), "generic.items")?,
        single: SingleItem {
            items: optional(single.items.as_ref(), "generic.single.items")?,
            results: optional(single.results.as_ref(), "generic.single.results")?,
            wrap_scalar: require(single.wrap_scalar, "generic.single.wrapScalar")?,
            item_is: match word(single.item_is.as_ref(), "generic.single.itemIs")? {
                api::ItemForm::ArrayOfNumbers => FlatList::ArrayOfNumbers,
                api::ItemForm::Element => FlatList::Element,
            },
        },
        item_class: match word(spec.item_class.as_ref(), "generic.itemClass")? {
            api::ItemClass::Text => ItemClass::Text,
            api::ItemClass::None => ItemClass::None,
            api::ItemClass::Strict => ItemClass::Strict,
        },
        results: parse_pointers(spec.results.as_ref(), "generic.results")?,
        index: optional(spec.index.as_ref(), "generic.index")?,
        result_key: match &spec.result_key {
            Some(key) => Some(Pointer::parse_field(key).map_err(|_| MissingDefault("generic.resultKey"))?),
            None => None,
        },
        result_wrap: match word(spec.result_wrap.as_ref(), "generic.resultWrap")? {
            api::ResultForm::List => ResultWrap::List,
            api::ResultForm::None => ResultWrap::None,
        },
        select: match word(spec.select.as_ref(), "generic.select")? {
            api::ResultOrder::Sorted => ResultOrder::Sorted,
            api::ResultOrder::None => ResultOrder::None,
        },
        per_item_error: match &spec.per_item_error {
            Some(error) => Some(PerItemError {
                field: pointer(
                    require(error.field.as_deref(), "generic.perItemError.field")?,
                    "generic.perItemError.field",
                )?,
                status: require(error.status, "generic.perItemError.status")?,
            }),
            None => None,
        },
        id: pointers(spec.id.as_ref(), "generic.id")?,
        cost: CounterSpec {
            totals: pointers(cost.totals.as_ref(), "generic.cost.totals")?,
            weights: match require(cost.weights.as_deref(), "generic.cost.weights")? {
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
        weight: match require(spec.weight.as_deref(), "generic.weight")? {
            "Items" => BatchWeight::Items,
            "Bytes" => BatchWeight::Bytes,
            "Chars" => BatchWeight::Chars,
            "ListLen" => BatchWeight::ListLen,
            at => BatchWeight::At(pointer(at, "generic.weight")?),
        },
        too_large: spec.too_large.iter().flatten().map(too_large).collect(),
        lenient_numbers: require(spec.lenient_numbers, "generic.lenientNumbers")?,
        on_mismatch: match word(spec.on_mismatch.as_ref(), "generic.onMismatch")? {
            api::OnMismatch::Fail => OnMismatch::Fail,
            api::OnMismatch::Isolate => OnMismatch::Isolate,
        },
    })
}

fn pointer(text: &str, key: &'static str) -> ValueResult<Pointer> {
    Pointer::parse(text).map_err(|_| MissingDefault(key))
}

fn optional(text: Option<&String>, key: &'static str) -> ValueResult<Option<Pointer>> {
    text.map(|text| pointer(text, key)).transpose()
}

fn parse_pointers(spec: Option<&OneOrMany>, key: &'static str) -> ValueResult<Vec<Pointer>> {
    match spec {
        Some(OneOrMany::One(one)) => Ok(vec![pointer(one, key)?]),
        Some(OneOrMany::Many(many)) if !many.is_empty() => pointers(Some(many), key),
        _ => Err(MissingDefault(key)),
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
