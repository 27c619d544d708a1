//! The walls: nothing the core decides passes them.

use std::time::Duration;

use super::call::{Call, PriorityId, ScopeId};
use super::priority::Priority;

/// When a batch leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// At once when a slot is idle; calls collect while all slots are busy.
    WorkConserving,
    /// At `items`, or `delay` after an item and a free slot were both there.
    Window {
        /// Send at this many items, and fill a batch up to them.
        items: u32,
        /// The longest hold beside a free slot.
        delay: Duration,
    },
    /// At `items`, or `delay` after the oldest call came.
    Static {
        /// Send at this many items, and fill a batch up to them.
        items: u32,
        /// The longest hold from arrival.
        delay: Duration,
    },
    /// When it pays, by what was learned of the upstream and of who comes next.
    Adaptive {
        /// The share of an SLO that may pass beside an idle upstream for a larger batch, in thousandths.
        hold_permille: u32,
    },
}

/// What becomes of a call that cannot meet its SLO any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Late {
    /// It moves behind the calls that can be in time, and is served when none of these can use the room.
    Serve,
    /// It ends in the queue.
    Refuse,
}

/// The limits of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeLimits {
    /// Most items in a batch.
    pub batch_items_max: u32,
    /// Most weight in a batch.
    pub batch_weight_max: Option<u64>,
    /// Most bytes in a batch.
    pub batch_bytes_max: u64,
    /// Longest deliberate wait beside a free slot. It overrides no slot and expires nothing.
    pub queue_delay_max: Duration,
    /// Most items of this route in the queue.
    pub queue_items_max: u32,
    /// Most bytes of this route in the queue.
    pub queue_bytes_max: u64,
    /// Most batches of this route in flight.
    pub slots_max: u32,
    /// What becomes of a call of this route that cannot meet its SLO any more.
    pub late: Late,
}

/// Everything the core is given beside events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// When a batch leaves.
    pub policy: Policy,
    /// Batches in flight at once; [`Policy::Adaptive`] finds the number up to it.
    pub slots: u32,
    /// Calls in flight at once while standing aside from a server that batches by itself.
    pub stand_aside_max: u32,
    /// Most items in the queue.
    pub queue_items_max: u32,
    /// Most bytes in the queue.
    pub queue_bytes_max: u64,
    /// By route; never empty. A call that names a scope that is not there is held to the last one.
    pub scopes: Vec<ScopeLimits>,
    /// By class. A call that names a class that is not there is of the first one. [`Policy::Adaptive`] alone heeds them.
    pub priorities: Vec<Priority>,
    /// No merging in a cost class for this long after a mismatch; it doubles up to [`Limits::QUARANTINE_MAX`].
    pub quarantine: Duration,
}

// === impl Limits ===

impl Limits {
    /// The longest quarantine (README R4).
    pub const QUARANTINE_MAX: Duration = Duration::from_secs(3600);

    /// The limits that hold for a scope.
    #[must_use]
    pub fn scope(&self, scope: ScopeId) -> &ScopeLimits {
        self.scopes
            .get(usize::from(scope.0))
            .or_else(|| self.scopes.last())
            .expect("`Limits::scopes` is never empty: `Batcher` refuses it")
    }

    /// What holds for a class.
    #[must_use]
    pub fn priority(&self, id: PriorityId) -> &Priority {
        self.priorities.get(usize::from(id.0)).or_else(|| self.priorities.first()).unwrap_or(&Priority::PLAIN)
    }

    /// What a call weighs beside others: its class's weight times its tenant's.
    pub(super) fn share(&self, call: &Call) -> u64 {
        u64::from(self.priority(call.priority).weight.max(1)) * u64::from(call.tenant_weight.max(1))
    }

    /// Whether some classes take only the room that others leave.
    pub(super) fn have_fillers(&self) -> bool {
        self.priorities.iter().any(|priority| priority.filler)
    }
}

impl Default for Limits {
    /// The defaults of the policy schema, one slot.
    fn default() -> Self {
        Self {
            policy: Policy::WorkConserving,
            slots: 1,
            stand_aside_max: 512,
            queue_items_max: 2048,
            queue_bytes_max: 32 << 20,
            scopes: vec![ScopeLimits::default()],
            priorities: vec![Priority::PLAIN],
            quarantine: Duration::from_secs(30),
        }
    }
}

impl Default for ScopeLimits {
    /// Those of the policy schema, but for two, as rows of the simulator and tests are stated: late calls are refused, and there is a wall of slots.
    fn default() -> Self {
        Self {
            batch_items_max: 128,
            batch_weight_max: None,
            batch_bytes_max: 8 << 20,
            queue_delay_max: Duration::from_millis(20),
            queue_items_max: 2048,
            queue_bytes_max: 32 << 20,
            slots_max: u32::MAX,
            late: Late::Refuse,
        }
    }
}
