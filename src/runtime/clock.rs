//! The only access to the system clock.
//!
//! All other code receives the time as an argument. [`Clock`] counts [`Tick`]s from its creation on
//! the monotonic clock. [`Alarm`] wakes a task with a precision of about 50 µs, where tokio's
//! timers round up to a millisecond. Wall-clock time is used only in logs, and no behaviour depends
//! on it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::batching::Tick;

/// A monotonic clock that starts with the data path of the process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

/// A timerfd-based alarm of one task.
#[derive(Debug)]
pub struct Alarm {
    clock: Clock,
    timer: AsyncFd<OwnedFd>,
    set_for: Option<Tick>,
}

// === impl Clock ===

impl Clock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: now() }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Tick {
        let since = now().saturating_duration_since(self.start);
        Tick(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Converts a tick for use with tokio's timers.
    #[must_use]
    pub fn instant(&self, tick: Tick) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.start + Duration::from_nanos(tick.0))
    }

    /// Returns the milliseconds since the machine booted, including suspended time. Successive
    /// processes on one machine can compare these values.
    #[must_use]
    pub fn boot_millis() -> u64 {
        let since = clock_gettime(ClockId::Boottime);
        let millis = i128::from(since.tv_sec) * 1000 + i128::from(since.tv_nsec) / 1_000_000;
        u64::try_from(millis).unwrap_or_default()
    }

    /// Returns the microseconds since 1970, for comparison with times outside this process.
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
    /// Creates an alarm that is not set. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the system provides no timer.
    pub fn new(clock: Clock) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; an `OwnedFd` keeps its descriptor open, which is all that is required"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { clock, timer, set_for: None })
    }

    /// Sets or clears the alarm.
    pub fn set(&mut self, at: Option<Tick>) {
        if self.set_for == at {
            return;
        }
        self.set_for = at;
        // Zero would disarm the timer, so an alarm that is already due is set to one nanosecond.
        let after = at.map_or(Duration::ZERO, |at| at.since(self.clock.now()).max(Duration::from_nanos(1)));
        let value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // Fails only for an invalid descriptor or value, and both are created above.
        if let Err(error) = timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &spec) {
            tracing::error!(%error, "timerfd refused a time");
        }
    }

    /// Resolves when the alarm fires, and never while it is not set. Cancel safe: dropping the
    /// future loses no alarm.
    pub async fn wait(&mut self) {
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
        alarm.wait().await;
        assert!(clock.now() >= due);
    }

    #[tokio::test]
    async fn an_alarm_in_the_past_rings_at_once_and_a_cleared_one_never() {
        let clock = Clock::start();
        let mut alarm = Alarm::new(clock).unwrap();
        alarm.set(Some(Tick(0)));
        alarm.wait().await;
        alarm.set(Some(clock.now().after(Duration::from_millis(2))));
        alarm.set(None);
        let silence = tokio::time::timeout(Duration::from_millis(20), alarm.wait()).await;
        assert!(silence.is_err());
    }
}
