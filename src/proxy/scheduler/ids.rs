//! Interns the merge keys, tenants, exclusive values and cost classes of calls as numeric ids for
//! the batching core, by full comparison of their bytes.

use std::net::IpAddr;

use super::Submission;
use super::anonymous::AnonymousCallers;
use super::interner::{Interner, RecentInterner};
use crate::batching::{Call, CallId, CostClassId, KeyId, TenantId, Weight};
use crate::protocol::MergeEligibility;

/// Maximum number of interned cost classes: twice the number that the core remembers, so that an
/// evicted one has been unused for long.
const COST_CLASSES_MAX: usize = 512;

/// The tenant of calls without an identity whose clients are light beside a flood from other ones.
/// Interned ids count from 1 and do not reach it.
const LIGHT_CALLERS: TenantId = TenantId(u64::MAX);

/// The interners of one driver.
#[derive(Debug)]
pub(super) struct IdInterner {
    keys: Interner<Box<[u8]>>,
    tenants: Interner<Box<[u8]>>,
    anonymous: AnonymousCallers,
    exclusives: Interner<Box<[u8]>>,
    cost_classes: RecentInterner<Box<[u8]>>,
}

// === impl IdInterner ===

impl IdInterner {
    pub(super) fn new() -> Self {
        Self {
            keys: Interner::new(),
            tenants: Interner::new(),
            anonymous: AnonymousCallers::default(),
            exclusives: Interner::new(),
            cost_classes: RecentInterner::new(COST_CLASSES_MAX),
        }
    }

    /// Converts a call to its form in the core. Returns `true` in addition if its merge key was not
    /// interned before. The ids stay in use until [`IdInterner::release`].
    pub(super) fn intern_call(&mut self, id: CallId, submission: &Submission) -> (Call, bool) {
        let call = &submission.call;
        let (key, new) = match &call.merge {
            MergeEligibility::With(key) if !submission.unbatched => self.keys.acquire_or_insert(&**key),
            _ => (self.keys.next_id(), false),
        };
        let call = Call {
            id,
            key: KeyId(key),
            cost_class: self.intern_class(&call.cost_class),
            // The number of tenant ids is small: only tenants with queued calls, and a few recent
            // ones, hold one.
            tenant: self.intern_tenant(submission),
            tenant_weight: submission.tenant_weight,
            priority: submission.priority,
            scope: submission.scope,
            unmergeable: submission.unbatched || matches!(call.merge, MergeEligibility::Unbatched(_)),
            replayable: submission.endpoint.idempotent,
            deadline: submission.deadline,
            fallback_deadline: submission.later,
            slo: submission.slo,
            items: call.items.max(1),
            weight: Weight { sum: call.weight.sum, max: call.weight.max },
            charged_by_weight: submission.endpoint.is_generation(),
            bytes: call.bytes as u64,
            origin: submission.origin,
            exclusive: call.exclusive.iter().map(|value| self.exclusives.acquire(&**value)).collect(),
        };
        (call, new)
    }

    /// Returns the id of the merge key of a call that is not queued; `None` if it has none. The id
    /// is kept for a while, as after a queued call.
    pub(super) fn key_of(&mut self, call: &crate::protocol::Call) -> Option<KeyId> {
        let MergeEligibility::With(key) = &call.merge else { return None };
        let id = self.keys.acquire(&**key);
        self.keys.release(&**key);
        Some(KeyId(id))
    }

    /// Releases the ids of a call that has left the queue.
    pub(super) fn release(&mut self, submission: &Submission) {
        let call = &submission.call;
        if let MergeEligibility::With(key) = &call.merge
            && !submission.unbatched
        {
            self.keys.release(&**key);
        }
        self.tenants.release(&call.tenant.0[..]);
        if anonymous_client(submission).is_some() {
            self.anonymous.on_leave(call.items.max(1));
        }
        for value in &call.exclusive {
            self.exclusives.release(&**value);
        }
    }

    /// Returns the tenant of a call. Calls without an identity are of one tenant, and those of
    /// light clients beside a flood are of another.
    fn intern_tenant(&mut self, submission: &Submission) -> TenantId {
        let own = TenantId(self.tenants.acquire(&submission.call.tenant.0[..]));
        match anonymous_client(submission) {
            Some(client) if self.anonymous.on_arrival(client, submission.call.items.max(1)) => LIGHT_CALLERS,
            _ => own,
        }
    }

    pub(super) fn intern_class(&mut self, name: &[u8]) -> CostClassId {
        CostClassId(self.cost_classes.get(name))
    }

    pub(super) fn class_name(&self, id: CostClassId) -> Option<&[u8]> {
        self.cost_classes.name(id.0).map(|name| &**name)
    }

    /// Iterates over all interned cost classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = (CostClassId, &[u8])> {
        self.cost_classes.iter().map(|(name, id)| (CostClassId(id), &**name))
    }
}

/// Returns the address of the client of a call without an identity.
fn anonymous_client(submission: &Submission) -> Option<IpAddr> {
    submission.client.filter(|_| submission.call.tenant.is_anonymous())
}

#[cfg(test)]
mod tests {
    use super::super::tests::submission;
    use super::*;
    use crate::protocol::{DigestKey, Tenant};

    #[test]
    fn a_flood_without_an_identity_does_not_delay_other_addresses() {
        let mut interner = IdInterner::new();
        let of = |address: &str, tenant: Tenant| {
            let mut from = Submission { client: Some(address.parse().unwrap()), ..submission() };
            std::sync::Arc::get_mut(&mut from.call).unwrap().tenant = tenant;
            from
        };
        let (named, none) = (DigestKey::from_bytes([7; 32]).tenant(b"a"), Tenant::ANONYMOUS);
        let mut tenant = |call: &Submission| interner.intern_call(CallId(1), call).0.tenant;
        let flood: Vec<_> = (0..200).map(|_| of("10.0.0.1", none)).collect();
        let ids: Vec<_> = flood.iter().map(&mut tenant).collect();
        assert!(ids.iter().all(|id| *id == ids[0] && *id != LIGHT_CALLERS));
        assert_eq!(tenant(&of("10.0.0.2", none)), LIGHT_CALLERS);
        assert_ne!(tenant(&of("10.0.0.2", named)), LIGHT_CALLERS);
        for call in &flood {
            interner.release(call);
        }
        assert_eq!(interner.intern_call(CallId(1), &of("10.0.0.2", none)).0.tenant, ids[0]);
    }
}
