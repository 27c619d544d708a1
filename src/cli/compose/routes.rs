//! Routes of a policy as the rules that `protocol` compiles: the words of one, key by key, in the types of the other.

use http::Method;

use crate::api::v1alpha1 as api;
use crate::config::{self, Policy};
use crate::protocol::{Named, PathPattern, Pointer, RouteRules, generic};

/// Every route that an adapter recognises.
pub(super) fn default(policy: &Policy) -> RouteRules {
    RouteRules {
        path: PathPattern::parse("/*").expect("the pattern of every path is one"),
        method: Method::POST,
        protocol: Named::Auto,
        merge_on_headers: Vec::new(),
        merge_on_fields: Vec::new(),
        merge_over_headers: Vec::new(),
        merge_over_fields: Vec::new(),
        respond_with_headers: Vec::new(),
        generic: None,
        idempotent: None,
        item_bytes_max: policy.limits.item_bytes_max,
        item_nesting_max: policy.limits.item_nesting_max,
        item_count_max: items(policy.limits.batch_items_max),
    }
}

fn items(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A route as the policy writes it.
pub(super) fn written(policy: &Policy, route: &config::Route) -> Result<RouteRules, String> {
    let limits = policy.limits.overridden(&route.limits);
    Ok(RouteRules {
        path: PathPattern::parse(&route.path)?,
        method: route.method.clone(),
        protocol: named(route.protocol)?,
        merge_on_headers: route.merge_on.headers.clone(),
        merge_on_fields: pointers(&route.merge_on.fields)?,
        merge_over_headers: route.merge_over.headers.clone(),
        merge_over_fields: pointers(&route.merge_over.fields)?,
        respond_with_headers: route.respond_with.clone(),
        generic: route.generic.as_ref().map(generic_spec).transpose()?,
        idempotent: match route.idempotent {
            api::Idempotent::Always => Some(true),
            api::Idempotent::Never => Some(false),
            api::Idempotent::Auto => None,
        },
        item_bytes_max: limits.item_bytes_max,
        item_nesting_max: limits.item_nesting_max,
        item_count_max: items(limits.batch_items_max),
    })
}

fn named(protocol: api::Protocol) -> Result<Named, String> {
    Ok(match protocol {
        api::Protocol::Auto => Named::Auto,
        api::Protocol::PassThrough => Named::PassThrough,
        api::Protocol::Generic => Named::Generic,
        api::Protocol::KServeV1 => Named::KServeV1,
        api::Protocol::TFServing => Named::TfServing,
        api::Protocol::OpenAI => Named::OpenAi,
        api::Protocol::TEI => Named::Tei,
        api::Protocol::VLLM => Named::Vllm,
        api::Protocol::SGLang => Named::SgLang,
        api::Protocol::Infinity => Named::Infinity,
        api::Protocol::Ollama => Named::Ollama,
        api::Protocol::Voyage => Named::Voyage,
        api::Protocol::Jina => Named::Jina,
        api::Protocol::LlamaCpp => Named::LlamaCpp,
        other => return Err(format!("protocol {other:?} is not supported yet")),
    })
}

fn pointers(pointers: &[config::Pointer]) -> Result<Vec<Pointer>, String> {
    pointers.iter().map(pointer).collect()
}

fn pointer(pointer: &config::Pointer) -> Result<Pointer, String> {
    Pointer::parse(pointer.as_str())
}

fn generic_spec(declared: &config::Generic) -> Result<generic::Spec, String> {
    let single = &declared.single;
    let optional = |pointer: &Option<config::Pointer>| pointer.as_ref().map(self::pointer).transpose();
    let spec = generic::Spec {
        upstream_path: declared.upstream_path.clone(),
        items: pointers(&declared.items)?,
        single: generic::Single {
            items: optional(&single.items)?,
            results: optional(&single.results)?,
            wrap_scalar: single.wrap_scalar,
            item_is: match single.item_is {
                api::ItemIs::ArrayOfNumbers => generic::ItemIs::ArrayOfNumbers,
                api::ItemIs::Element => generic::ItemIs::Element,
            },
        },
        item_class: match declared.item_class {
            api::ItemClass::Text => generic::ItemClass::Text,
            api::ItemClass::None => generic::ItemClass::None,
            api::ItemClass::Strict => generic::ItemClass::Strict,
        },
        results: pointers(&declared.results)?,
        index: optional(&declared.index)?,
        result_key: declared.result_key.as_deref().map(Pointer::parse_field).transpose()?,
        result_wrap: match declared.result_wrap {
            api::ResultWrap::List => generic::ResultWrap::List,
            api::ResultWrap::None => generic::ResultWrap::None,
        },
        select: match declared.select {
            api::Select::Sorted => generic::Select::Sorted,
            api::Select::None => generic::Select::None,
        },
        per_item_error: declared
            .per_item_error
            .as_ref()
            .map(|error| Ok::<_, String>(generic::PerItemError { field: pointer(&error.field)?, status: error.status }))
            .transpose()?,
        id: pointers(&declared.id)?,
        cost: generic::Cost {
            totals: pointers(&declared.cost.totals)?,
            weights: match &declared.cost.weights {
                config::WeightBy::Chars => generic::CostWeights::Chars,
                config::WeightBy::ListLen => generic::CostWeights::ListLen,
                config::WeightBy::At(at) => generic::CostWeights::At(pointer(at)?),
                config::WeightBy::Bytes | config::WeightBy::Items => generic::CostWeights::Bytes,
            },
            share: match declared.cost.share {
                api::CostShare::Exact => generic::CostShare::Exact,
                api::CostShare::Drop => generic::CostShare::Drop,
                api::CostShare::Proportional => generic::CostShare::Proportional,
            },
        },
        weight: match &declared.weight {
            config::WeightBy::Items => generic::Weigh::Items,
            config::WeightBy::Bytes => generic::Weigh::Bytes,
            config::WeightBy::Chars => generic::Weigh::Chars,
            config::WeightBy::ListLen => generic::Weigh::ListLen,
            config::WeightBy::At(at) => generic::Weigh::At(pointer(at)?),
        },
        too_large: declared
            .too_large
            .iter()
            .map(|sign| generic::TooLargeSign { status: sign.status, body_contains: sign.body_contains.clone() })
            .collect(),
        lenient_numbers: declared.lenient_numbers,
        on_mismatch: match declared.on_mismatch {
            api::OnMismatch::Fail => generic::OnMismatch::Fail,
            api::OnMismatch::Isolate => generic::OnMismatch::Isolate,
        },
    };
    spec.check()?;
    Ok(spec)
}
