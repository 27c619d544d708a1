//! A call as the core sees it: ids and numbers.

use std::time::Duration;

use super::tick::Tick;

/// One client request that an adapter recognised. Ids are given in order of arrival and never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A merge key, interned by full comparison of its bytes outside the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u64);

/// What shares a cost curve, a ceiling and a quarantine: upstream, route, model, item form; not identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostClassId(pub u32);

/// Whose share of the queue a call counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// The priority class of a call: an index into [`super::Limits::priorities`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PriorityId(pub u8);

/// Who has a turn of its own: one tenant's calls of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Flow {
    pub(super) tenant: TenantId,
    pub(super) priority: PriorityId,
}

/// The route whose limits hold for a call: an index into [`super::Limits::scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u16);

/// What items cost, in tokens, rows or bytes, as the adapter reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight {
    /// Of all items of the call together.
    pub sum: u64,
    /// Of the heaviest one.
    pub max: u64,
}

/// Where a deadline comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineSource {
    /// The policy's SLO: it ends a call in the queue only, and none while it cannot be met at all.
    Slo,
    /// A header of the caller.
    Caller,
    /// The route's `timeout` as the longest wait in the queue.
    Timeout,
}

/// The instant after which the answer is useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When.
    pub at: Tick,
    /// Who says so.
    pub source: DeadlineSource,
}

/// One unit of work: it is never cut, and it leaves exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who it is.
    pub id: CallId,
    /// With whom it may share a batch. A call that must go alone has a key of its own and [`Call::alone`] set.
    pub key: KeyId,
    /// What it costs like.
    pub cost_class: CostClassId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The tenant's share beside those of other tenants, at least 1.
    pub tenant_weight: u32,
    /// Its priority class.
    pub priority: PriorityId,
    /// Whose limits hold.
    pub scope: ScopeId,
    /// It shares no batch, whatever its key.
    pub alone: bool,
    /// It may be sent again after a batch that failed.
    pub replayable: bool,
    /// When its answer becomes useless.
    pub deadline: Option<Deadline>,
    /// The deadline that holds instead once [`Call::deadline`] is an SLO that cannot be met at all.
    pub later: Option<Deadline>,
    /// Its SLO as the policy has it, to be shown. What decides is the deadline: the call came a little before it was offered.
    pub slo: Option<Duration>,
    /// Items, at least 1.
    pub items: u32,
    /// What they cost.
    pub weight: Weight,
    /// Bytes of its body.
    pub bytes: u64,
    /// Interned values that may stand in a batch only once, for answers that are maps.
    pub exclusive: Vec<u64>,
}

/// Why a call was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// `queue_items_max`.
    QueueFull,
    /// `queue_bytes_max`.
    BytesFull,
    /// This tenant's share, while others wait too.
    TenantShare,
}

/// No room, and when there may be some again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// What is full.
    pub reason: RejectionReason,
    /// Whole seconds, at least 1, spread so that callers do not all come back at once.
    pub retry_after: Duration,
}

// === impl RejectionReason ===

impl RejectionReason {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::BytesFull, Self::TenantShare];

    /// The word in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::BytesFull => "bytes_full",
            Self::TenantShare => "tenant_share",
        }
    }
}

// === impl Call ===

impl Call {
    /// A plain call of one item of weight 1: the start for tests and examples.
    #[must_use]
    pub fn new(id: CallId) -> Self {
        Self {
            id,
            key: KeyId(0),
            cost_class: CostClassId(0),
            tenant: TenantId(0),
            tenant_weight: 1,
            priority: PriorityId(0),
            scope: ScopeId(0),
            alone: false,
            replayable: true,
            deadline: None,
            later: None,
            slo: None,
            items: 1,
            weight: Weight { sum: 1, max: 1 },
            bytes: 0,
            exclusive: Vec::new(),
        }
    }

    pub(super) fn flow(&self) -> Flow {
        Flow { tenant: self.tenant, priority: self.priority }
    }
}
