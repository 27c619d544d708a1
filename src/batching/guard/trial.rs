//! A trial (A/B): epochs of batching and of passing in turn, compared by what the items saw.
//!
//! Floats stay in here: epoch means are sums and one square root, and what leaves is a verdict and whole nanoseconds.

use std::time::Duration;

use super::super::tick::{Tick, nanos};
use super::Mode;

/// Executions that an epoch lasts (`scheduling.md` §2.7).
const EPOCH_EXECUTIONS: u32 = 20;
/// The shortest epoch (`scheduling.md` §2.7).
const EPOCH_MIN: Duration = Duration::from_millis(100);
/// Tenths of an epoch whose arrivals are not counted: they meet what the other arm left (`scheduling.md` §2.7).
const EPOCH_SETTLES_TENTHS: u32 = 3;
/// Items without which an epoch has no mean (prototype).
const EPOCH_ITEMS_MIN: u64 = 5;
/// Epochs on each side before means are compared (`scheduling.md` §2.7).
const EPOCHS_MIN: u32 = 4;
/// Epochs of the challenger after which the other side stays (`scheduling.md` §2.7).
const EPOCHS_MAX: u32 = 25;
/// Epochs of both sides, counted or too empty to count, after which a trial is given up: four times what it takes with traffic.
const EPOCHS_TRIED_MAX: u32 = 8 * EPOCHS_MAX;
/// Welch's t above which the challenger is better (`scheduling.md` §2.7).
const T_BETTER: f64 = 2.2;
/// Welch's t below which it is worse (`scheduling.md` §2.7).
const T_WORSE: f64 = -2.0;
/// The share of the other mean that the challenger must get below (`scheduling.md` §2.7).
const WORTH_IT: f64 = 0.98;
/// Epochs on a side from which its worst is left out: one pause of the machine would outweigh them all, and the spread with it, for as long as a trial
/// goes. (With four, one can hide a difference, which then takes longer to see, but not make one: it moves the mean by as much as its error.)
const EPOCHS_TRIMMED: u32 = 5;
/// Epochs that may say "clearly worse" (`scheduling.md` §2.7).
const EPOCHS_CLEAR: u32 = 2;
/// Clearly worse: its best epoch above so many times the worst of the other side (`scheduling.md` §2.7).
const CLEARLY: f64 = 2.0;
/// What the spread is at least, in ms², so that equal epochs do not divide by zero (prototype).
const SPREAD_MIN: f64 = 1e-9;
/// A missed item counts as so many times its SLO, and none counts more (`scheduling.md` §2.7).
const MISSED: u32 = 2;

/// Items that ended together.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ended {
    /// Since when they were here.
    pub(in super::super) arrived: Tick,
    /// How many.
    pub(in super::super) items: u32,
    /// They were given up, not answered.
    pub(in super::super) expired: bool,
    /// Within what they should have been answered.
    pub(in super::super) slo: Option<Duration>,
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialReport {
    /// When.
    pub at: Tick,
    /// What was done before.
    pub before: Mode,
    /// What is done from then on.
    pub verdict: Mode,
    /// Mean over the batching epochs of what an item saw, of five or more without the worst one.
    pub batch_mean: Duration,
    /// The same over the passing epochs.
    pub pass_mean: Duration,
    /// Epochs that counted, of batching and of passing.
    pub epochs: (u32, u32),
    /// Welch's t in thousandths, above zero where passing was quicker; 0 before four epochs a side.
    pub t_permille: i64,
}

/// What a tick led to.
#[derive(Debug)]
pub(super) enum Step {
    Goes,
    Decided(TrialReport),
}

/// A trial in progress.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    incumbent: Mode,
    arm: Mode,
    batch: Epochs,
    pass: Epochs,
    began: Tick,
    length: Duration,
    counts_from: Tick,
    ends: Tick,
    /// Nothing is queued any more that the other arm left.
    cleared: bool,
    items: u64,
    sum_ms: f64,
    tried: u32,
}

/// The means of one side's epochs, in ms: running mean and squared distance (Welford), least and largest.
#[derive(Debug, Clone, Copy)]
struct Epochs {
    count: u32,
    mean: f64,
    squares: f64,
    least: f64,
    largest: f64,
}

/// What epochs say together.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    /// In ms.
    mean: f64,
    /// Squared standard error of the mean, in ms².
    error_squared: f64,
}

// === impl Trial ===

impl Trial {
    /// The first epoch is one of what is done already.
    pub(super) fn new(now: Tick, mean: Duration, incumbent: Mode) -> Self {
        let mut trial = Self {
            incumbent,
            arm: incumbent,
            batch: Epochs::default(),
            pass: Epochs::default(),
            began: now,
            length: Duration::ZERO,
            counts_from: now,
            ends: now,
            cleared: false,
            items: 0,
            sum_ms: 0.0,
            tried: 0,
        };
        trial.start_epoch(now, mean, incumbent);
        trial
    }

    pub(super) fn arm(&self) -> Mode {
        self.arm
    }

    pub(super) fn ended(&mut self, now: Tick, ended: Ended) {
        if ended.arrived < self.counts_from {
            return;
        }
        let sojourn = now.since(ended.arrived);
        let missed = ended.slo.unwrap_or(sojourn).saturating_mul(MISSED);
        let charged = if ended.expired { missed } else { sojourn.min(missed) };
        self.items += u64::from(ended.items);
        self.sum_ms += millis(charged) * f64::from(ended.items);
    }

    /// `oldest`: when the call arrived that is queued for longest.
    pub(super) fn tick(&mut self, now: Tick, mean: Duration, oldest: Option<Tick>) -> Step {
        self.clear(now, oldest);
        if now < self.ends {
            return Step::Goes;
        }
        self.tried += 1;
        let seen = match oldest {
            _ if self.items >= EPOCH_ITEMS_MIN => Some(self.sum_ms / self.items as f64),
            // It did not even get through what it found: whoever came since waits longer than this.
            Some(arrived) if !self.cleared => Some(millis(now.since(arrived))),
            _ => None,
        };
        match (self.arm, seen) {
            (Mode::Batch, Some(epoch)) => self.batch.add(epoch),
            (Mode::Pass, Some(epoch)) => self.pass.add(epoch),
            (_, None) => {}
        }
        if let Some(verdict) = self.verdict() {
            return Step::Decided(self.report(now, verdict));
        }
        self.start_epoch(now, mean, self.arm.other());
        Step::Goes
    }

    fn start_epoch(&mut self, now: Tick, mean: Duration, arm: Mode) {
        self.length = mean.saturating_mul(EPOCH_EXECUTIONS).max(EPOCH_MIN);
        self.arm = arm;
        self.began = now;
        self.counts_from = now.after(self.settles());
        self.ends = now.after(self.length);
        self.cleared = false;
        self.items = 0;
        self.sum_ms = 0.0;
    }

    /// Items count once those are gone that the other arm left, but for at most a whole epoch's length: where one arm falls behind, the other would be
    /// measured by its queue.
    fn clear(&mut self, now: Tick, oldest: Option<Tick>) {
        if self.cleared {
            return;
        }
        self.cleared = oldest.is_none_or(|arrived| arrived >= self.began);
        if self.cleared {
            return;
        }
        let clear = now.min(self.began.after(self.length));
        if clear > self.counts_from {
            self.counts_from = clear;
            self.ends = clear.after(self.length - self.settles());
            self.items = 0;
            self.sum_ms = 0.0;
        }
    }

    fn settles(&self) -> Duration {
        self.length / 10 * EPOCH_SETTLES_TENTHS
    }

    fn verdict(&self) -> Option<Mode> {
        let challenger = self.incumbent.other();
        let (old, new) = match self.incumbent {
            Mode::Batch => (&self.batch, &self.pass),
            Mode::Pass => (&self.pass, &self.batch),
        };
        if new.clearly_worse_than(old) {
            return Some(self.incumbent);
        }
        // Passing was clearly right once; if it is clearly wrong now, nobody waits for the statistics.
        if self.pass.clearly_worse_than(&self.batch) {
            return Some(Mode::Batch);
        }
        if self.comparable() {
            let (was, is) = (old.estimate(), new.estimate());
            let t = welch(was, is);
            if t > T_BETTER && is.mean < WORTH_IT * was.mean {
                return Some(challenger);
            }
            if t < T_WORSE || new.count >= EPOCHS_MAX {
                return Some(self.incumbent);
            }
        }
        (self.tried >= EPOCHS_TRIED_MAX).then_some(self.incumbent)
    }

    fn comparable(&self) -> bool {
        self.batch.count >= EPOCHS_MIN && self.pass.count >= EPOCHS_MIN
    }

    fn report(&self, at: Tick, verdict: Mode) -> TrialReport {
        let (batch, pass) = (self.batch.estimate(), self.pass.estimate());
        TrialReport {
            at,
            before: self.incumbent,
            verdict,
            batch_mean: duration(batch.mean),
            pass_mean: duration(pass.mean),
            epochs: (self.batch.count, self.pass.count),
            t_permille: if self.comparable() { permille(welch(batch, pass)) } else { 0 },
        }
    }
}

// === impl Mode ===

impl Mode {
    const fn other(self) -> Self {
        match self {
            Self::Batch => Self::Pass,
            Self::Pass => Self::Batch,
        }
    }
}

// === impl Epochs ===

impl Default for Epochs {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, squares: 0.0, least: f64::INFINITY, largest: 0.0 }
    }
}

impl Epochs {
    fn add(&mut self, epoch: f64) {
        self.count += 1;
        let before = epoch - self.mean;
        self.mean += before / f64::from(self.count);
        self.squares += before * (epoch - self.mean);
        self.least = self.least.min(epoch);
        self.largest = self.largest.max(epoch);
    }

    fn clearly_worse_than(&self, other: &Self) -> bool {
        self.count >= EPOCHS_CLEAR && other.count > 0 && self.least > CLEARLY * other.largest
    }

    /// Without the largest one, where there are enough. An error needs two epochs.
    fn estimate(&self) -> Estimate {
        let (mut count, mut mean, mut squares) = (f64::from(self.count), self.mean, self.squares);
        if self.count >= EPOCHS_TRIMMED {
            // A step of Welford's backwards.
            let with = mean;
            mean -= (self.largest - mean) / (count - 1.0);
            squares = (squares - (self.largest - with) * (self.largest - mean)).max(0.0);
            count -= 1.0;
        }
        Estimate { mean, error_squared: squares / (count - 1.0) / count }
    }
}

/// Welch's t: above zero where the second side is quicker.
fn welch(old: Estimate, new: Estimate) -> f64 {
    (old.mean - new.mean) / (old.error_squared + new.error_squared + SPREAD_MIN).sqrt()
}

fn millis(duration: Duration) -> f64 {
    nanos(duration) as f64 / 1e6
}

fn duration(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}

#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, and a report needs no more")]
fn permille(t: f64) -> i64 {
    (t * 1e3) as i64
}
