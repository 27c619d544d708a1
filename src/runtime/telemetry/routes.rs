//! The values of the label `route`, whose number is bounded.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::names::OTHER_ROUTE;

/// Maximum number of values of the label `route` per process, including adapter names: a quarter of
/// the routes that a policy may have. Reloads add values and never remove one.
const ROUTES_MAX: usize = 64;

/// The values of the label `route` in use.
#[derive(Debug, Default)]
pub(super) struct RouteLabelSet(Mutex<BTreeSet<String>>);

// === impl RouteLabelSet ===

impl RouteLabelSet {
    /// Returns the label value of a route. Beyond the maximum, all further routes share one value.
    pub(super) fn take(&self, route: &str) -> String {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(route) && known.len() >= ROUTES_MAX {
            return OTHER_ROUTE.to_owned();
        }
        known.insert(route.to_owned());
        route.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_bounded_and_a_known_route_keeps_its_own() {
        let labels = RouteLabelSet::default();
        let given: BTreeSet<String> = (0..1000).map(|route| labels.take(&format!("/{route}"))).collect();
        assert_eq!(given.len(), ROUTES_MAX + 1);
        assert!(given.contains(OTHER_ROUTE) && labels.take("/3") == "/3" && labels.take("/999") == OTHER_ROUTE);
    }
}
