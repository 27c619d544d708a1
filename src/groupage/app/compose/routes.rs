//! Converts the routes of a policy, field by field, to the rules that `protocol` compiles.

use super::tokenizer;
use crate::api::v1alpha1 as api;
use crate::config::{self, Policy};
use crate::protocol::{DIVISIBLE_ITEMS_MAX, MergeRule, PathPattern, RouteProtocol, RouteRules};

/// The default route: every path, with the protocol detected by an adapter, or that of the engine.
pub(super) fn default_route(policy: &Policy) -> RouteRules {
    let (merge, protocol) = policy.default_rules();
    let path = PathPattern::parse("/*").expect("a pattern that matches every path is valid");
    RouteRules {
        merge: to_merge_rule(merge),
        item_bytes_max: policy.limits.item_bytes_max,
        item_nesting_max: policy.limits.item_nesting_max,
        item_count_max: items(policy.limits.batch_items_max),
        ..RouteRules::new(path, protocol)
    }
}

/// A default route that recognizes nothing, for a port of a policy with routes for other ports
/// only.
pub(super) fn relay_route(policy: &Policy) -> RouteRules {
    RouteRules { protocol: RouteProtocol::PassThrough, ..default_route(policy) }
}

/// Returns the number of items up to which a call is read completely: that of a batch, or that of a
/// call that may be divided.
fn items(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).max(DIVISIBLE_ITEMS_MAX)
}

const fn to_merge_rule(merge: api::MergeRule) -> MergeRule {
    match merge {
        api::MergeRule::Auto => MergeRule::Auto,
        api::MergeRule::Always => MergeRule::Always,
        api::MergeRule::Never => MergeRule::Never,
    }
}

/// Converts a route of the policy.
pub(super) fn to_rules(policy: &Policy, route: &config::Route) -> Result<RouteRules, String> {
    let limits = policy.limits.overridden(&route.limits);
    Ok(RouteRules {
        path: PathPattern::parse(&route.path)?,
        method: route.method.clone(),
        protocol: route.protocol,
        merge_on_headers: route.merge_on.headers.clone(),
        merge_on_fields: route.merge_on.fields.clone(),
        merge_over_headers: route.merge_over.headers.clone(),
        merge_over_fields: route.merge_over.fields.clone(),
        respond_with_headers: route.respond_with.headers.clone(),
        respond_with_fields: route.respond_with.fields.clone(),
        generic: route.generic.clone(),
        merge: to_merge_rule(route.merge),
        idempotent: match route.idempotent {
            api::Idempotent::Always => Some(true),
            api::Idempotent::Never => Some(false),
            api::Idempotent::Auto => None,
        },
        item_bytes_max: limits.item_bytes_max,
        item_nesting_max: limits.item_nesting_max,
        item_count_max: items(limits.batch_items_max),
        tokenizer: route.tokenizer.as_deref().map(|file| tokenizer::load(&route.path, file)).transpose()?,
    })
}
