//! Handling of late calls in the adaptive policy: the size of the short batches that carry them,
//! and the record of missed deadlines.

use super::super::call::{Call, Weight};
use super::super::queue::Queue;
use super::super::tick::Tick;
use super::state::Adaptive;

// === impl Adaptive ===

impl Adaptive {
    /// Records that a call missed its SLO and stays queued.
    pub(in super::super) fn on_deferral(&mut self, now: Tick, items: u32) {
        self.exploration.record_ended(now, u64::from(items), u64::from(items));
    }

    /// Returns `true` if the current decision has further steps.
    pub(in super::super) fn is_midway(&self) -> bool {
        !self.given_up.is_empty()
    }

    pub(in super::super) fn wake_by(&mut self, at: Option<Tick>) {
        self.wake = self.wake.into_iter().chain(at).min();
    }

    /// Returns the items of the calls in front that a batch of at most `most` nanoseconds answers,
    /// or of this many halves of the time that its first call takes unbatched, if that is more. The
    /// first call always belongs to it. If nothing is known of the cost, all calls do.
    pub(in super::super) fn items_within<'a>(
        &self,
        calls: impl Iterator<Item = &'a Call>,
        most: u64,
        unbatched_halves: u64,
    ) -> u32 {
        let mut calls = calls.peekable();
        let Some(first) = calls.peek() else { return 1 };
        let Some(cost) = self.measured_model(first.cost_class).map(|model| &model.cost) else { return u32::MAX };
        let most = most.max(cost.predict(first.items, first.weight).saturating_mul(unbatched_halves) / 2);
        let (mut items, mut weight) = (0_u32, Weight::default());
        for call in calls {
            let more = items.saturating_add(call.items);
            let joined =
                Weight { sum: weight.sum.saturating_add(call.weight.sum), max: weight.max.max(call.weight.max) };
            if items > 0 && cost.predict(more, joined) > most {
                break;
            }
            (items, weight) = (more, joined);
        }
        items
    }

    /// Shortens the chosen calls to such a batch.
    pub(in super::super) fn shorten_chosen(&mut self, queue: &Queue, most: u64, unbatched_halves: u64) {
        let calls = || self.chosen.iter().filter_map(|id| queue.get(*id)).map(|queued| &queued.call);
        let items = self.items_within(calls(), most, unbatched_halves);
        let mut left = items;
        let retained = calls().take_while(|call| {
            let fits = call.items <= left;
            left = left.saturating_sub(call.items);
            fits
        });
        let retained = retained.count().max(1);
        self.chosen.truncate(retained);
    }
}
