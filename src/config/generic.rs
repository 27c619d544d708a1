//! The keys of `routes[].generic`, filled.

use super::fill::{Filled, Unfilled, need, pointers, word};
use super::policy::{Cost, Generic, PerItemError, Pointer, Single, TooLarge, WeightBy};
use crate::api::v1alpha1::{GenericSpec, OneOrMany, TooLargeSpec};

/// A declaration with every default filled in.
pub(super) fn declared(spec: &GenericSpec) -> Filled<Generic> {
    let single = need(spec.single.as_ref(), "generic.single")?;
    let cost = need(spec.cost.as_ref(), "generic.cost")?;
    Ok(Generic {
        upstream_path: spec.upstream_path.clone(),
        items: several(spec.items.as_ref(), "generic.items")?,
        single: Single {
            items: single.items.clone().map(Pointer),
            results: single.results.clone().map(Pointer),
            wrap_scalar: need(single.wrap_scalar, "generic.single.wrapScalar")?,
            item_is: word(single.item_is.as_ref(), "generic.single.itemIs")?,
        },
        item_class: word(spec.item_class.as_ref(), "generic.itemClass")?,
        results: several(spec.results.as_ref(), "generic.results")?,
        index: spec.index.clone().map(Pointer),
        result_key: spec.result_key.clone(),
        result_wrap: word(spec.result_wrap.as_ref(), "generic.resultWrap")?,
        select: word(spec.select.as_ref(), "generic.select")?,
        per_item_error: match &spec.per_item_error {
            Some(error) => Some(PerItemError {
                field: Pointer(need(error.field.clone(), "generic.perItemError.field")?),
                status: need(error.status, "generic.perItemError.status")?,
            }),
            None => None,
        },
        id: pointers(spec.id.as_ref()),
        cost: Cost {
            totals: pointers(cost.totals.as_ref()),
            weights: weight(need(cost.weights.as_deref(), "generic.cost.weights")?),
            share: word(cost.share.as_ref(), "generic.cost.share")?,
        },
        weight: weight(need(spec.weight.as_deref(), "generic.weight")?),
        too_large: spec.too_large.iter().flatten().map(too_large).collect(),
        lenient_numbers: need(spec.lenient_numbers, "generic.lenientNumbers")?,
        on_mismatch: word(spec.on_mismatch.as_ref(), "generic.onMismatch")?,
    })
}

fn several(spec: Option<&OneOrMany>, key: &'static str) -> Filled<Vec<Pointer>> {
    match spec {
        Some(OneOrMany::One(one)) => Ok(vec![Pointer(one.clone())]),
        Some(OneOrMany::Many(many)) if !many.is_empty() => Ok(pointers(Some(many))),
        _ => Err(Unfilled(key)),
    }
}

fn weight(text: &str) -> WeightBy {
    match text {
        "Items" => WeightBy::Items,
        "Bytes" => WeightBy::Bytes,
        "Chars" => WeightBy::Chars,
        "ListLen" => WeightBy::ListLen,
        pointer => WeightBy::At(Pointer(pointer.to_owned())),
    }
}

fn too_large(spec: &TooLargeSpec) -> TooLarge {
    match spec {
        TooLargeSpec::Status(status) => TooLarge { status: *status, body_contains: None },
        TooLargeSpec::Body { status, body_contains } => {
            TooLarge { status: *status, body_contains: body_contains.clone() }
        }
    }
}
