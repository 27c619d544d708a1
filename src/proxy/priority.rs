//! Selection of a call's priority class and tenant weight from its headers.
//!
//! The headers are trusted: authenticating them is the task of the ingress in front of the proxy.
//! The effect of a class on scheduling is defined in `batching`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use strum::VariantArray as _;

use crate::batching::PriorityId;
use crate::telemetry::names::Outcome;

/// The priority classes, in the order of the batching limits.
#[derive(Debug, Clone, Default)]
pub struct PriorityClasses {
    /// The header that names the class. `None`: every call belongs to the first class.
    pub header: Option<HeaderName>,
    /// The first class applies to calls that name no known class.
    pub classes: Vec<PriorityClass>,
}

/// A priority class as configured.
#[derive(Debug, Clone)]
pub struct PriorityClass {
    /// Name of the class, the value of the header.
    pub name: String,
    /// SLO of the class, which replaces the route's.
    pub slo: Option<Duration>,
    /// Outcome counters of its calls.
    pub ended: OutcomeCounters,
}

/// Counters of calls by outcome for one class. The policy bounds the number of classes, and a class
/// keeps its counters when the settings change.
#[derive(Debug, Clone, Default)]
pub struct OutcomeCounters(Arc<[AtomicU64; Outcome::VARIANTS.len()]>);

/// The fair-queueing weights of tenants.
#[derive(Debug, Clone, Default)]
pub struct TenantWeights {
    /// The header that names the tenant.
    pub header: Option<HeaderName>,
    /// Weight by header value; a tenant without an entry has weight 1.
    pub weights: BTreeMap<String, u32>,
}

// === impl PriorityClasses ===

impl PriorityClasses {
    /// Returns the class that a call names, or the first one.
    pub(super) fn resolve(&self, headers: &HeaderMap) -> PriorityId {
        let named = self.header.as_ref().and_then(|name| headers.get(name)).map(|value| value.as_bytes().trim_ascii());
        let place = named.and_then(|named| self.classes.iter().position(|class| class.name.as_bytes() == named));
        PriorityId(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0))
    }

    /// Returns the counters of the class with this name, or new ones if the class is new.
    #[must_use]
    pub fn ended(&self, name: &str) -> OutcomeCounters {
        self.classes.iter().find(|class| class.name == name).map(|class| class.ended.clone()).unwrap_or_default()
    }

    pub(super) fn class(&self, id: PriorityId) -> Option<&PriorityClass> {
        self.classes.get(usize::from(id.0))
    }
}

// === impl OutcomeCounters ===

impl OutcomeCounters {
    pub(super) fn count(&self, outcome: Outcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls by outcome.
    #[must_use]
    pub fn counts(&self) -> [(Outcome, u64); Outcome::VARIANTS.len()] {
        std::array::from_fn(|at| (Outcome::VARIANTS[at], self.0[at].load(Ordering::Relaxed)))
    }
}

// === impl TenantWeights ===

impl TenantWeights {
    pub(super) fn of(&self, headers: &HeaderMap) -> u32 {
        if self.weights.is_empty() {
            return 1;
        }
        let named = self.header.as_ref().and_then(|name| headers.get(name)).and_then(|value| value.to_str().ok());
        named.and_then(|named| self.weights.get(named)).copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn class(name: &str) -> PriorityClass {
        PriorityClass { name: name.to_owned(), slo: None, ended: OutcomeCounters::default() }
    }

    #[test]
    fn an_unknown_class_resolves_to_the_first_one() {
        let header = Some(HeaderName::from_static("x-priority"));
        let known = PriorityClasses { header, classes: vec![class("interactive"), class("bulk")] };
        let of = |pairs| known.resolve(&map(pairs)).0;
        assert_eq!((of(&[("x-priority", "bulk")]), of(&[("x-priority", " bulk ")])), (1, 1));
        assert_eq!((of(&[]), of(&[("x-priority", "Bulk")]), of(&[("x-priority", "no")])), (0, 0, 0));
        let silent = PriorityClasses { header: None, ..known };
        assert_eq!(silent.resolve(&map(&[("x-priority", "bulk")])).0, 0);
    }

    #[test]
    fn a_class_of_the_same_name_keeps_its_counts() {
        let before = PriorityClasses { header: None, classes: vec![class("a"), class("b")] };
        before.classes[1].ended.count(Outcome::Served);
        let of = |name| before.ended(name).counts().map(|(_, count)| count).iter().sum::<u64>();
        assert_eq!((of("a"), of("b"), of("c")), (0, 1, 0));
    }

    #[test]
    fn unnamed_tenant_has_weight_one() {
        let header = Some(HeaderName::from_static("x-team"));
        let weights = TenantWeights { header, weights: BTreeMap::from([("a".to_owned(), 5)]) };
        let of = |pairs| weights.of(&map(pairs));
        assert_eq!((of(&[("x-team", "a")]), of(&[("x-team", "b")]), of(&[])), (5, 1, 1));
    }
}
