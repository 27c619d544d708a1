//! Builds the route table of a port from a policy: the compiled rules, and the settings that apply
//! to the calls of each route.

use super::limits::to_core_late;
use super::routes;
use super::scopes::ScopeRegistry;
use crate::api::v1alpha1::MergeRule;
use crate::batching::{DivisionLimits, ScopeId};
use crate::config::{self, Capture, LimitsOverride, Policy, SettingSource};
use crate::protocol::{RouteProtocol, Routes, SharedHeaderRules};
use crate::proxy::{self, RouteSettings, RoutingTable};

/// Builds the route table of a policy, independently of any port.
pub(crate) fn build_route_table(policy: &Policy) -> Result<RoutingTable, String> {
    let ids = ScopeRegistry::default().register(policy)?;
    build_port_table(policy, &ids, None, None)
}

/// Builds the route table of a port. `scopes` are those of the policy's routes in order, followed
/// by that of the default route. `earlier` is the table that the new one replaces.
pub(super) fn build_port_table(
    policy: &Policy,
    scopes: &[ScopeId],
    capture: Option<&Capture>,
    earlier: Option<&RoutingTable>,
) -> Result<RoutingTable, String> {
    let own: Vec<&config::Route> = policy.routes.iter().filter(|route| route.applies_to(capture)).collect();
    let rules = own.iter().map(|route| routes::to_rules(policy, route)).collect::<Result<Vec<_>, String>>()?;
    // If all routes of the policy are for other ports, this port has no default route and relays
    // everything.
    let relays = rules.is_empty() && !policy.routes.is_empty();
    let default = if relays { routes::relay_route(policy) } else { routes::default_route(policy) };
    let common = SharedHeaderRules {
        tenant_header: policy.tenant_header.clone(),
        deadline_headers: policy.deadline_headers.clone(),
        priority_header: policy.priority.header.clone(),
    };
    Ok(RoutingTable {
        routes: Routes::after(earlier.map(|table| &table.routes), rules, default, common),
        settings: route_settings(policy, scopes, capture),
        relays,
        names_protocol: own.iter().any(|route| {
            route.mode != config::Mode::Passthrough
                && (route.merge == MergeRule::Always
                    || !matches!(route.protocol, RouteProtocol::Auto | RouteProtocol::PassThrough))
        }),
        admits_generation: policy.scheduling.policy == config::SchedulingPolicy::Adaptive,
        shift_permille: policy.shift_permille,
        deadline_headers: policy.deadline_headers.clone(),
        tenant_header: policy.tenant_header.clone(),
        priorities: priority_classes(policy, earlier),
        tenant_weights: proxy::TenantWeights {
            header: policy.tenant_header.clone(),
            weights: policy.tenant_weights.clone(),
        },
        verify_ppm: policy.verify.ppm(),
    })
}

/// Returns the settings of the routes that apply to a port, followed by those of the default route.
fn route_settings(policy: &Policy, scopes: &[ScopeId], capture: Option<&Capture>) -> Vec<RouteSettings> {
    let scope = |index: usize| scopes.get(index).copied().unwrap_or(ScopeId(u16::MAX));
    let settings = |name: &str, index: Option<usize>, (slo, late), timeout, mode, limits| RouteSettings {
        name: name.to_owned(),
        index: index.and_then(|index| u16::try_from(index).ok()),
        scope: scope(index.unwrap_or(policy.routes.len())),
        slo,
        late: to_core_late(late),
        timeout,
        mode: to_route_mode(mode),
        item_bytes_max: policy.limits.overridden(limits).item_bytes_max,
        division: division_limits(policy, limits),
        durations: None,
    };
    let own = policy.routes.iter().enumerate().filter(|(_, route)| route.applies_to(capture));
    let written = own.map(|(index, route)| {
        settings(&route.path, Some(index), (route.slo, route.late), route.timeout, route.mode, &route.limits)
    });
    let promise = (policy.slo, policy.late);
    let own_limits = LimitsOverride::default();
    let default = settings("default", None, promise, None, policy.mode, &own_limits);
    written.chain([default]).collect()
}

/// Returns the sizes above which calls are divided: the limits that the policy or the route states.
/// Defaults divide no call that the server may accept whole.
fn division_limits(policy: &Policy, route: &LimitsOverride) -> DivisionLimits {
    let is_stated = |key: &str| {
        let own = policy.effective().iter().find(|own| own.path == key);
        own.is_some_and(|own| !matches!(own.source, SettingSource::Default | SettingSource::Tuned))
    };
    let limits = policy.limits.overridden(route);
    let items = is_stated("limits.batchItemsMax") || route.batch_items_max.is_some();
    let weight = is_stated("limits.batchWeightMax") || route.batch_weight_max.is_some();
    let bytes = is_stated("limits.batchBytesMax") || route.batch_bytes_max.is_some();
    DivisionLimits {
        items: items.then_some(limits.batch_items_max),
        weight: limits.batch_weight_max.filter(|_| weight),
        bytes: bytes.then_some(limits.batch_bytes_max as u64),
    }
}

const fn to_route_mode(mode: config::Mode) -> proxy::RouteMode {
    match mode {
        config::Mode::Batch => proxy::RouteMode::Batch,
        config::Mode::Observe => proxy::RouteMode::Observe,
        config::Mode::Passthrough => proxy::RouteMode::Passthrough,
    }
}

/// Returns the priority classes. A class that the earlier table has too keeps its counters.
fn priority_classes(policy: &Policy, earlier: Option<&RoutingTable>) -> proxy::PriorityClasses {
    let named = |class: &config::PriorityClass| proxy::PriorityClass {
        name: class.name.clone(),
        slo: class.slo,
        ended: earlier.map(|table| table.priorities.ended(&class.name)).unwrap_or_default(),
    };
    proxy::PriorityClasses {
        header: policy.priority.header.clone(),
        classes: policy.priority.classes.iter().map(named).collect(),
    }
}
