//! Limits that the server publishes, and cost classes that wait for them; and the property of a
//! server that batches by itself.

use std::sync::Arc;

use super::Driver;
use crate::backend::LimitsLookUp;
use crate::batching::{CostClassId, Tick};
use crate::protocol::{Endpoint, LimitsSource};

/// Maximum number of cost classes that wait for limits of the server. A server has few kinds of
/// calls that are new at the same time; beyond it, calls are sent unbatched.
const PENDING_LIMITS_MAX: usize = 256;

/// A cost class whose calls leave one by one until the limits that the server publishes are known.
#[derive(Debug)]
pub(super) struct PendingLimits {
    class: CostClassId,
    /// The document that is being looked up.
    source: LimitsSource,
    /// The endpoint of the calls, in whose items the limits are expressed.
    endpoint: Arc<Endpoint>,
}

// === impl Driver ===

impl Driver<'_> {
    /// Sets whether the server batches by itself.
    pub(super) fn set_batches_itself(&mut self, batches_itself: bool) {
        if self.batches_itself != batches_itself {
            self.batches_itself = batches_itself;
            self.core.set_known_batching(batches_itself);
        }
    }

    /// Returns `true` if another cost class can wait for limits of the server.
    pub(super) const fn can_defer_merging(&self) -> bool {
        self.pending_limits.len() < PENDING_LIMITS_MAX
    }

    /// Has the calls of a cost class leave one by one until the limits in `source` are known.
    pub(super) fn defer_merging(
        &mut self,
        now: Tick,
        class: CostClassId,
        source: LimitsSource,
        endpoint: &Arc<Endpoint>,
    ) {
        self.core.defer_merging(now, class);
        if !self.pending_limits.iter().any(|other| (other.class, &other.source) == (class, &source)) {
            self.pending_limits.push(PendingLimits { class, source, endpoint: Arc::clone(endpoint) });
        }
    }

    /// Applies the maxima on items and weight that the server publishes.
    pub(super) fn apply_published(
        &mut self,
        now: Tick,
        class: CostClassId,
        (items, weight): (Option<u32>, Option<u64>),
    ) {
        if let Some(items_max) = items {
            self.core.set_published_items_max(now, class, items_max);
            self.items_cap.set_published_min(items_max.into());
        }
        if let Some(weight_max) = weight {
            self.core.set_published_weight_max(now, class, weight_max);
            self.weight_cap.set_published_min(weight_max);
        }
    }

    /// Applies the published limits to the cost classes that wait for them, once they are known.
    /// This precedes every decision, so that calls that were held meanwhile are merged within the
    /// limits. Nothing else wakes the driver for them, because no call waits for them.
    pub(super) fn resolve_pending_limits(&mut self) {
        if self.pending_limits.is_empty() {
            return;
        }
        let (now, backend) = (self.now(), &self.supervisor.backend);
        let mut known = Vec::new();
        self.pending_limits.retain(|pending| match backend.published_limits(&pending.source) {
            LimitsLookUp::Known(published) => {
                let maxima = published.map(|limits| (pending.endpoint.published_items_max(limits), limits.weight_max));
                known.push((pending.class, maxima.unwrap_or_default()));
                false
            }
            LimitsLookUp::Pending => true,
        });
        for (class, maxima) in known {
            // The versions of a model may share a class, and have a document each.
            if self.pending_limits.iter().all(|pending| pending.class != class) {
                self.core.end_deferral(class);
            }
            self.apply_published(now, class, maxima);
        }
    }
}
