//! Detects that calls of several priority classes arrive, so that they are ordered even if the
//! policy sets no order.

use std::time::Duration;

use super::super::call::PriorityId;
use super::super::tick::Tick;

/// Time for which classes count as mixed after two calls in a row had different ones: urgent calls
/// may be a minute apart.
const MIXED_FOR: Duration = Duration::from_secs(60);

/// The classes of recent calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClassMix {
    last: Option<PriorityId>,
    until: Tick,
}

// === impl ClassMix ===

impl ClassMix {
    /// Records the class of a call that was queued.
    pub(super) fn on_arrival(&mut self, now: Tick, class: PriorityId) {
        if self.last.replace(class).is_some_and(|last| last != class) {
            self.until = now.after(MIXED_FOR);
        }
    }

    /// Returns `true` if calls of several classes arrive.
    pub(super) fn is_mixed(&self, now: Tick) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_mixed_until_a_minute_after_the_last_change() {
        let mut mix = ClassMix::default();
        let mut is_mixed = |second: u64, class: u8| {
            let now = Tick::from_millis(second * 1000);
            mix.on_arrival(now, PriorityId(class));
            mix.is_mixed(now)
        };
        assert!(!is_mixed(1, 1) && !is_mixed(2, 1), "one class, although not the default one");
        assert!(is_mixed(3, 0) && is_mixed(4, 1) && is_mixed(63, 1));
        assert!(!is_mixed(64, 1));
    }
}
