//! The core's view of a call: ids and numbers, without the payload.

use std::time::Duration;

use super::tick::Tick;

/// Identifier of a client request that an adapter recognised. Ids are assigned in arrival order and
/// never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Identifier of a merge key. Keys are interned outside the core by comparing all their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u64);

/// Identifier of a cost class: the calls that share a cost curve, a ceiling and a quarantine. It
/// covers upstream, route, model and item form, but not the caller's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostClassId(pub u32);

/// Identifier of a tenant. Each tenant has a share of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// The priority class of a call: an index into [`super::Limits::priorities`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PriorityId(pub u8);

/// A flow for fair queueing: the calls of one tenant in one priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FairFlow {
    pub(super) tenant: TenantId,
    pub(super) priority: PriorityId,
}

/// The route of a call, which determines its limits: an index into [`super::Limits::scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u16);

/// The cost measure of items in tokens, rows or bytes, as determined by the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight {
    /// Sum over all items of the call.
    pub sum: u64,
    /// Weight of the heaviest item.
    pub max: u64,
}

/// The origin of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlineSource {
    /// The policy's SLO. It ends calls in the queue only, and none if no execution can meet it.
    Slo,
    /// A header of the client.
    Caller,
    /// The route's `timeout`, as the longest wait in the queue.
    Timeout,
}

/// The instant after which the response is useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The instant.
    pub at: Tick,
    /// Origin of the deadline.
    pub source: DeadlineSource,
}

/// One unit of work. It is never split and leaves the core exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Id of the call.
    pub id: CallId,
    /// Merge key: calls may share a batch only if their keys are equal. A call that must be
    /// dispatched alone has a unique key and [`Call::unmergeable`] set.
    pub key: KeyId,
    /// Cost class.
    pub cost_class: CostClassId,
    /// Tenant.
    pub tenant: TenantId,
    /// Weight of the tenant relative to other tenants, at least 1.
    pub tenant_weight: u32,
    /// Priority class.
    pub priority: PriorityId,
    /// Route, which determines the limits.
    pub scope: ScopeId,
    /// Set if the call must not share a batch, whatever its key.
    pub unmergeable: bool,
    /// Set if the call may be sent again after a failed batch.
    pub replayable: bool,
    /// Deadline of the response.
    pub deadline: Option<Deadline>,
    /// Deadline that applies instead once [`Call::deadline`] turns out to be an SLO that no
    /// execution can meet.
    pub fallback_deadline: Option<Deadline>,
    /// SLO of the policy, for reports. Decisions use the deadline, because the call arrived shortly
    /// before it was offered.
    pub slo: Option<Duration>,
    /// Number of items, at least 1.
    pub items: u32,
    /// Weight of the items.
    pub weight: Weight,
    /// Set if the cost of the call is its own weight, although it is dispatched alone: its server
    /// works on many calls at once, so that the time of one gives little information. Its flow is
    /// charged by weight.
    pub charged_by_weight: bool,
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Origin of the call.
    pub origin: CallOrigin,
    /// Interned values that may occur only once in a batch, for responses that are maps.
    pub exclusive: Vec<u64>,
}

/// The origin of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallOrigin {
    /// A client, which waits for the response.
    #[default]
    Client,
    /// The proxy itself. The call displaces no other one from a full queue.
    Proxy,
}

/// The reason for rejecting a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionReason {
    /// `queue_items_max` is reached.
    QueueFull,
    /// `queue_bytes_max` is reached.
    BytesFull,
    /// The tenant's share of the queue is used up while other tenants have queued calls.
    TenantShare,
}

/// A rejection for lack of room, with the delay after which to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection {
    /// The limit that is reached.
    pub reason: RejectionReason,
    /// Delay in whole seconds, at least 1, randomized so that clients do not all return at once.
    pub retry_after: Duration,
}

// === impl RejectionReason ===

impl RejectionReason {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::BytesFull, Self::TenantShare];

    /// Returns the name used in reports.
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
    /// Creates a call of one item of weight 1 without constraints, as a base for tests and
    /// examples.
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
            unmergeable: false,
            replayable: true,
            deadline: None,
            fallback_deadline: None,
            slo: None,
            items: 1,
            weight: Weight { sum: 1, max: 1 },
            charged_by_weight: false,
            origin: CallOrigin::Client,
            bytes: 0,
            exclusive: Vec::new(),
        }
    }

    pub(super) fn flow(&self) -> FairFlow {
        FairFlow { tenant: self.tenant, priority: self.priority }
    }
}
