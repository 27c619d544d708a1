//! Clock of the test kit, and a sleep that is accurate to some tens of microseconds.
//!
//! Tokio's timers round up to the next millisecond, so that a model of 5 ms would take 6 ms. A
//! timerfd does not round, and needs no busy waiting on the cores that the proxy under test uses.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "a measuring instrument beside the product: real sockets, real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the time elapsed since `then`.
pub(crate) fn elapsed_since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// A reusable, precise sleep based on a timerfd.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
}

// === impl Timer ===

impl Timer {
    /// Creates a timer that is not armed.
    #[expect(
        deprecated,
        reason = "`register` is unsafe, and unsafe is forbidden here; its condition holds, because an `OwnedFd` keeps its descriptor open"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd: AsyncFd::new(fd)? })
    }

    /// Sleeps for `span`. The future is cancel-safe: arming the timer again discards an old expiry.
    pub(crate) async fn sleep(&mut self, span: Duration) -> io::Result<()> {
        // A timerfd that is set to zero is disarmed and never expires.
        if span.is_zero() {
            return Ok(());
        }
        let value =
            Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: span.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.fd.readable().await?;
            // The number of expiries, which is not needed.
            let mut expiries = [0_u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut expiries) {
                Ok(_) => return Ok(()),
                // The readiness was that of an earlier sleep, which was dropped.
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sleeps until `due`. Returns immediately if `due` is in the past.
    pub(crate) async fn sleep_until(&mut self, due: Instant) -> io::Result<()> {
        self.sleep(due.saturating_duration_since(now())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleep_is_never_short_and_a_dropped_one_does_not_wake_the_next() {
        let mut timer = Timer::new().unwrap();
        let begun = now();
        timer.sleep(Duration::from_micros(300)).await.unwrap();
        assert!(elapsed_since(begun) >= Duration::from_micros(300));

        // The sleep is dropped after it expired, but before the expiry was read.
        let dropped = tokio::time::timeout(Duration::ZERO, timer.sleep(Duration::from_micros(1))).await;
        let begun = now();
        timer.sleep(Duration::from_millis(3)).await.unwrap();
        assert!(elapsed_since(begun) >= Duration::from_millis(3), "after {dropped:?}");
    }
}
