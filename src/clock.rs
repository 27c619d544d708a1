//! The one reader of the clock.
//!
//! Everything else is given the time. [`Clock`] counts [`Tick`]s from its making on the monotonic clock; [`Alarm`] wakes a task at a tick to within some
//! 50 µs, where tokio's timers round up to a millisecond. Wall time serves the logs only: no behaviour depends on it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::batching::Tick;

/// Time since the process's data path was made.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

/// One alarm of one task.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    timer: AsyncFd<OwnedFd>,
    set_for: Option<Tick>,
}

// === impl Clock ===

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: now() }
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Tick {
        let since = now().saturating_duration_since(self.start);
        Tick(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// This tick for tokio's timers.
    #[must_use]
    pub fn instant(&self, tick: Tick) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.start + Duration::from_nanos(tick.0))
    }

    /// Milliseconds since the machine started, also those that it slept: what processes that follow one another there can compare.
    #[must_use]
    pub fn boot_millis() -> u64 {
        let since = clock_gettime(ClockId::Boottime);
        let millis = i128::from(since.tv_sec) * 1000 + i128::from(since.tv_nsec) / 1_000_000;
        u64::try_from(millis).unwrap_or_default()
    }

    /// Microseconds since 1970, for log lines.
    #[must_use]
    pub fn wall_micros() -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is the one reader of the clock")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of the clock")]
    Instant::now()
}

// === impl Alarm ===

impl Alarm {
    /// An alarm that is not set. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// When the system gives no timer.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; an `OwnedFd` keeps its descriptor open, which is all that it asks for"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { clock, timer, set_for: None })
    }

    /// Sets the alarm, or clears it.
    pub fn set(&mut self, at: Option<Tick>) {
        if self.set_for == at {
            return;
        }
        self.set_for = at;
        // Zero would disarm, so what is due already rings in a nanosecond.
        let after = at.map_or(Duration::ZERO, |at| at.since(self.clock.now()).max(Duration::from_nanos(1)));
        let value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // It can fail for a bad descriptor or an invalid value only, and both are made above.
        if let Err(error) = timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &spec) {
            tracing::error!(%error, "timerfd refused a time");
        }
    }

    /// Resolves once the alarm rings; never while it is not set. Dropping the future loses nothing.
    pub async fn ring(&mut self) {
        loop {
            let Ok(mut ready) = self.timer.readable().await else {
                return std::future::pending().await;
            };
            let mut expirations = [0_u8; 8];
            if let Ok(Ok(_)) = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
                self.set_for = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_no_earlier_than_it_is_set_for() {
        let clock = Clock::start();
        let mut alarm = Alarm::new(clock).unwrap();
        let due = clock.now().after(Duration::from_micros(300));
        alarm.set(Some(due));
        alarm.ring().await;
        assert!(clock.now() >= due);
    }

    #[tokio::test]
    async fn an_alarm_in_the_past_rings_at_once_and_a_cleared_one_never() {
        let clock = Clock::start();
        let mut alarm = Alarm::new(clock).unwrap();
        alarm.set(Some(Tick(0)));
        alarm.ring().await;
        alarm.set(Some(clock.now().after(Duration::from_millis(2))));
        alarm.set(None);
        let silence = tokio::time::timeout(Duration::from_millis(20), alarm.ring()).await;
        assert!(silence.is_err());
    }
}
