//! The stand-in's clock and a sleep that is right to some tens of microseconds.
//!
//! Tokio's timers round up to the next millisecond, which would make a 5 ms model a 6 ms one; a timerfd does not, and costs no spinning on the
//! cores that the proxy under test needs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// The time now.
#[expect(clippy::disallowed_methods, reason = "a measuring instrument beside the product: real sockets, real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long ago `then` was.
pub(crate) fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// A precise sleep, to be used again and again.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
}

// === impl Timer ===

impl Timer {
    #[expect(
        deprecated,
        reason = "`register` is unsafe, and unsafe is forbidden here; its condition holds, an `OwnedFd` keeps one descriptor open for its life"
    )]
    pub(crate) fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd: AsyncFd::new(fd)? })
    }

    /// Sleeps for `span`. Dropping the future is harmless: setting the timer again forgets the old expiry.
    pub(crate) async fn sleep(&mut self, span: Duration) -> io::Result<()> {
        if span.is_zero() {
            return Ok(());
        }
        let value =
            Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: span.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.fd.readable().await?;
            let mut expiries = [0_u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut expiries) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sleeps until `due`; returns at once where that is past.
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
        assert!(since(begun) >= Duration::from_micros(300));

        // Dropped once due but not yet read.
        let dropped = tokio::time::timeout(Duration::ZERO, timer.sleep(Duration::from_micros(1))).await;
        let begun = now();
        timer.sleep(Duration::from_millis(3)).await.unwrap();
        assert!(since(begun) >= Duration::from_millis(3), "after {dropped:?}");
    }
}
