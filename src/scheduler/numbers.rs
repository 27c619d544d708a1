//! Calls in the core's numbers: keys, tenants, exclusive values and cost classes by full comparison of their bytes.

use super::Submission;
use super::interner::{Interner, RecentInterner};
use crate::batching::{Call, CallId, CostClassId, KeyId, TenantId, Weight};
use crate::protocol::Merge;

/// Cost classes numbered at once: twice what the core remembers, so a forgotten one was long unused.
const COST_CLASSES_MAX: usize = 512;

/// The numbers that are in use.
#[derive(Debug)]
pub(super) struct Numbers {
    keys: Interner<Box<[u8]>>,
    tenants: Interner<Box<[u8]>>,
    exclusives: Interner<Box<[u8]>>,
    cost_classes: RecentInterner<Box<[u8]>>,
}

// === impl Numbers ===

impl Numbers {
    pub(super) fn new() -> Self {
        Self {
            keys: Interner::new(),
            tenants: Interner::new(),
            exclusives: Interner::new(),
            cost_classes: RecentInterner::new(COST_CLASSES_MAX),
        }
    }

    /// The call as the core sees it, and whether it has a merge key that was not known. Its numbers are in use until [`Numbers::release`].
    pub(super) fn call(&mut self, id: CallId, submission: &Submission) -> (Call, bool) {
        let call = &submission.call;
        let (key, new) = match &call.merge {
            Merge::With(key) if !submission.alone => self.keys.acquire_told(&**key),
            _ => (self.keys.fresh(), false),
        };
        let call = Call {
            id,
            key: KeyId(key),
            cost_class: self.class(&call.cost_class),
            // Numbers of tenants are small: as many as are queued at once.
            tenant: TenantId(self.tenants.acquire(&call.tenant.0[..])),
            tenant_weight: submission.tenant_weight,
            priority: submission.priority,
            scope: submission.scope,
            alone: submission.alone || matches!(call.merge, Merge::Alone(_)),
            replayable: submission.endpoint.idempotent,
            deadline: submission.deadline,
            later: submission.later,
            slo: submission.slo,
            items: call.items.max(1),
            weight: Weight { sum: call.weight.sum, max: call.weight.max },
            bytes: call.bytes as u64,
            exclusive: call.exclusive.iter().map(|value| self.exclusives.acquire(&**value)).collect(),
        };
        (call, new)
    }

    /// The call has left the queue.
    pub(super) fn release(&mut self, submission: &Submission) {
        let call = &submission.call;
        if let Merge::With(key) = &call.merge
            && !submission.alone
        {
            self.keys.release(&**key);
        }
        self.tenants.release(&call.tenant.0[..]);
        for value in &call.exclusive {
            self.exclusives.release(&**value);
        }
    }

    /// The number of a cost class.
    pub(super) fn class(&mut self, name: &[u8]) -> CostClassId {
        CostClassId(self.cost_classes.get(name))
    }

    /// The name of a cost class.
    pub(super) fn class_name(&self, id: CostClassId) -> Option<&[u8]> {
        self.cost_classes.name(id.0).map(|name| &**name)
    }

    /// Every cost class that is remembered.
    pub(super) fn classes(&self) -> impl Iterator<Item = (CostClassId, &[u8])> {
        self.cost_classes.iter().map(|(name, id)| (CostClassId(id), &**name))
    }
}
