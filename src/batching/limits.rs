//! Configured limits, which no decision of the core exceeds.

use std::time::Duration;

use super::call::{Call, PriorityId, ScopeId};
use super::priority::PriorityClass;

/// The dispatch policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchPolicy {
    /// Dispatch at once if a slot is idle; calls accumulate while all slots are busy.
    WorkConserving,
    /// Dispatch at `items` items, or `delay` after both an item and a free slot have been
    /// available.
    Window {
        /// Number of items at which a batch is dispatched, and up to which it is filled.
        items: u32,
        /// Maximum hold beside a free slot.
        delay: Duration,
    },
    /// Dispatch at `items` items, or `delay` after the arrival of the oldest call.
    Static {
        /// Number of items at which a batch is dispatched, and up to which it is filled.
        items: u32,
        /// Maximum hold since arrival.
        delay: Duration,
    },
    /// Dispatch when it pays, according to the learned models of the upstream and of the arrivals.
    Adaptive {
        /// Share of an SLO that a call may be held beside an idle upstream for a larger batch, in
        /// thousandths.
        hold_permille: u32,
    },
}

/// The order of calls within a flow of one merge key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallOrder {
    /// By deadline under [`DispatchPolicy::Adaptive`], by arrival under the other policies.
    #[default]
    Deadline,
    /// Short calls first. Longer ones, and calls with a deadline, are passed only for a limited
    /// time.
    ShortFirst,
}

/// The treatment of a call that can no longer meet its SLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LateTreatment {
    /// The call is moved behind the calls that can be in time, and is served when none of these can
    /// use the room.
    Serve,
    /// The call is ended in the queue.
    Refuse,
}

/// The limits of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeLimits {
    /// Maximum number of items in a batch.
    pub batch_items_max: u32,
    /// Maximum weight of a batch.
    pub batch_weight_max: Option<u64>,
    /// Maximum size of a batch in bytes.
    pub batch_bytes_max: u64,
    /// Maximum deliberate wait beside a free slot. It neither overrides a slot limit nor expires a
    /// call.
    pub queue_delay_max: Duration,
    /// Maximum number of queued items of this route.
    pub queue_items_max: u32,
    /// Maximum number of queued bytes of this route.
    pub queue_bytes_max: u64,
    /// Maximum number of batches of this route in flight.
    pub slots_max: u32,
    /// Treatment of calls of this route that can no longer meet their SLO.
    pub late: LateTreatment,
    /// Calls of this route are merged without evidence that merging pays. Refusals, quarantines and
    /// all other limits apply.
    pub merges_always: bool,
}

/// The complete configuration of the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Dispatch policy.
    pub policy: DispatchPolicy,
    /// Order of calls.
    pub order: CallOrder,
    /// Boundaries between length buckets, ascending: the largest weight of an item in each bucket
    /// but the last. Calls with their heaviest items in different buckets share no batch. At most
    /// 255 are applied.
    pub length_buckets: Vec<u64>,
    /// Maximum number of batches in flight. [`DispatchPolicy::Adaptive`] determines the number to
    /// use up to this maximum.
    pub slots: u32,
    /// Maximum number of calls in flight in pass-through, if the server batches by itself.
    pub stand_aside_max: u32,
    /// Maximum number of queued items.
    pub queue_items_max: u32,
    /// Maximum number of queued bytes.
    pub queue_bytes_max: u64,
    /// Limits by route; never empty. A scope id out of range uses the last entry.
    pub scopes: Vec<ScopeLimits>,
    /// Priority classes. A class id out of range uses the first entry. Only
    /// [`DispatchPolicy::Adaptive`] applies them.
    pub priorities: Vec<PriorityClass>,
    /// Initial duration for which a merge key or a cost class is not merged after a mismatch or
    /// after refused batches. It doubles up to [`Limits::QUARANTINE_MAX`].
    pub quarantine: Duration,
    /// Set if the policy orders calls by SLO, tenant or length. While the server is saturated,
    /// calls that cannot be merged then queue too, in the same order as the others, as they do
    /// while calls of several priority classes arrive.
    pub ordered: bool,
}

// === impl Limits ===

impl Limits {
    /// Maximum duration of a quarantine.
    pub const QUARANTINE_MAX: Duration = Duration::from_secs(3600);

    /// Returns the limits of a scope.
    #[must_use]
    pub fn scope(&self, scope: ScopeId) -> &ScopeLimits {
        self.scopes
            .get(usize::from(scope.0))
            .or_else(|| self.scopes.last())
            .expect("`Limits::scopes` is never empty: `Batcher` refuses it")
    }

    /// Returns `true` if calls of a scope are merged before a batch of them has succeeded.
    pub(super) fn merges_eagerly(&self, scope: ScopeId) -> bool {
        !matches!(self.policy, DispatchPolicy::Adaptive { .. }) || self.scope(scope).merges_always
    }

    /// Returns the properties of a priority class.
    #[must_use]
    pub fn priority(&self, id: PriorityId) -> &PriorityClass {
        self.priorities.get(usize::from(id.0)).or_else(|| self.priorities.first()).unwrap_or(&PriorityClass::PLAIN)
    }

    /// Returns `true` if a class precedes others.
    pub(super) fn has_strict_class(&self) -> bool {
        self.priorities.iter().any(|class| class.strict)
    }

    /// Returns the fair-queueing weight of a call: its class's weight times its tenant's.
    pub(super) fn fair_weight(&self, call: &Call) -> u64 {
        u64::from(self.priority(call.priority).weight.max(1)) * u64::from(call.tenant_weight.max(1))
    }

    /// Returns `true` if some classes use only the room that others leave.
    pub(super) fn has_fillers(&self) -> bool {
        self.priorities.iter().any(|priority| priority.filler)
    }
}

impl Default for Limits {
    /// Returns the defaults of the policy schema with one slot.
    fn default() -> Self {
        Self {
            policy: DispatchPolicy::WorkConserving,
            order: CallOrder::Deadline,
            length_buckets: Vec::new(),
            slots: 1,
            stand_aside_max: 512,
            queue_items_max: 2048,
            queue_bytes_max: 32 << 20,
            scopes: vec![ScopeLimits::default()],
            priorities: vec![PriorityClass::PLAIN],
            quarantine: Duration::from_secs(30),
            ordered: false,
        }
    }
}

impl Default for ScopeLimits {
    /// Returns the defaults of the policy schema, except that late calls are refused, which the
    /// rows of the simulator and the tests rely on.
    fn default() -> Self {
        Self {
            batch_items_max: 128,
            batch_weight_max: None,
            batch_bytes_max: 8 << 20,
            queue_delay_max: Duration::from_millis(20),
            queue_items_max: 2048,
            queue_bytes_max: 32 << 20,
            slots_max: u32::MAX,
            late: LateTreatment::Refuse,
            merges_always: false,
        }
    }
}
