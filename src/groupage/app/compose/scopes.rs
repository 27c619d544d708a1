//! Scope numbers: each route keeps its number for the lifetime of the process, and no other route
//! ever gets it.
//!
//! Queued calls refer to their scope by number. A reload may add, remove and reorder routes; a
//! queued call of a removed route is dispatched under the last limits of that route.

use http::Method;

use super::limits::to_scope_limits;
use crate::api::v1alpha1::PortRef;
use crate::batching::{ScopeId, ScopeLimits};
use crate::config::Policy;

/// Maximum number of different routes in the lifetime of a process: sixteen times the maximum of
/// one policy.
const SCOPES_MAX: usize = 4096;

/// Every route since the start of the process.
#[derive(Debug, Clone, Default)]
pub(super) struct ScopeRegistry {
    /// Method, path and ports as written; `None` is the default route.
    names: Vec<Option<(Method, String, Vec<PortRef>)>>,
    limits: Vec<ScopeLimits>,
}

// === impl ScopeRegistry ===

impl ScopeRegistry {
    /// Registers the routes of a policy and returns their numbers in order. The last one is that of
    /// the default route.
    pub(super) fn register(&mut self, policy: &Policy) -> Result<Vec<ScopeId>, String> {
        let mut ids: Vec<ScopeId> = Vec::with_capacity(policy.routes.len() + 1);
        let written = policy.routes.iter().map(|route| {
            let name = (route.method.clone(), route.path.clone(), route.ports.clone());
            (Some(name), to_scope_limits(&policy.limits.overridden(&route.limits), route.late, route.merge))
        });
        let default = to_scope_limits(&policy.limits, policy.late, policy.default_rules().0);
        for (name, limits) in written.chain([(None, default)]) {
            let known = self.names.iter().position(|other| *other == name);
            let index = match known {
                Some(index) => index,
                None if self.names.len() < SCOPES_MAX => {
                    self.names.push(name);
                    self.limits.push(limits.clone());
                    self.names.len() - 1
                }
                None => {
                    return Err(format!(
                        "more than {SCOPES_MAX} different routes were configured since the start: restart the proxy"
                    ));
                }
            };
            let id = ScopeId(u16::try_from(index).unwrap_or(u16::MAX));
            // Of two routes that are written alike, only the first ever matches, so that its limits
            // apply.
            if !ids.contains(&id)
                && let Some(own) = self.limits.get_mut(index)
            {
                *own = limits;
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns the limits of every number in use.
    pub(super) fn limits(&self) -> &[ScopeLimits] {
        &self.limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, MachineLimits, Overrides};

    fn policy(text: &str) -> Policy {
        config::build(Some(&config::load(text, "p").unwrap()), &Overrides::default(), &MachineLimits::default())
            .unwrap()
    }

    fn numbers(ids: &[ScopeId]) -> Vec<u16> {
        ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_route_keeps_its_number_when_others_are_added_removed_and_moved() {
        let mut scopes = ScopeRegistry::default();
        let of = |scopes: &mut ScopeRegistry, text| numbers(&scopes.register(&policy(text)).unwrap());
        assert_eq!(of(&mut scopes, "routes: [{path: /a, limits: {batchItemsMax: 3}}, {path: /b}]"), [0, 1, 2]);
        assert_eq!(of(&mut scopes, "routes: [{path: /c}, {path: /b}]"), [3, 1, 2]);
        assert_eq!(scopes.limits()[0].batch_items_max, 3, "a call queued from a removed route keeps its limits");
        assert_eq!(of(&mut scopes, "routes: [{path: /b}, {path: /a}, {path: /a, method: PUT}]"), [1, 0, 4, 2]);
        assert_eq!(scopes.limits()[0].batch_items_max, 128, "the route is back with other limits");
    }

    #[test]
    fn equal_routes_share_a_number_and_the_limits_of_the_first() {
        let mut scopes = ScopeRegistry::default();
        let text = "routes: [{path: /a, limits: {batchItemsMax: 3}}, {path: /a, limits: {batchItemsMax: 5}}]";
        assert_eq!(numbers(&scopes.register(&policy(text)).unwrap()), [0, 0, 1]);
        assert_eq!(scopes.limits()[0].batch_items_max, 3);
    }

    #[test]
    fn equal_routes_for_different_ports_have_different_numbers() {
        let mut scopes = ScopeRegistry::default();
        let text = "routes: [{path: /a, ports: [80], limits: {batchItemsMax: 3}}, {path: /a, ports: [81]}]";
        assert_eq!(numbers(&scopes.register(&policy(text)).unwrap()), [0, 1, 2]);
        assert_eq!((scopes.limits()[0].batch_items_max, scopes.limits()[1].batch_items_max), (3, 128));
    }

    #[test]
    fn the_numbers_are_bounded() {
        let mut scopes = ScopeRegistry::default();
        let refused = (0..17).find_map(|turn| {
            let routes: Vec<String> = (0..256).map(|route| format!("{{path: /{turn}/{route}}}")).collect();
            scopes.register(&policy(&format!("routes: [{}]", routes.join(", ")))).err()
        });
        assert!(refused.unwrap().contains("4096"));
    }
}
