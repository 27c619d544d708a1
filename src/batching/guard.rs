//! Standing aside: finds out whether the server batches by itself, and if so sends single calls.
//!
//! A server with a batcher inside waits for whole batches of ours while it could fill its own, better ones. It cannot be seen from outside, so it is
//! asked twice: a [`probe`] of one and two halves says whether calls sent together run together, and a [`trial`] of alternating epochs says whether
//! passing single calls is better for the items. A server that is known to batch is believed.
//!
//! It owns no queue and no timer: the batcher says what came back, and an epoch ends with the first event after its time, so an idle upstream wakes
//! nobody. It also keeps `pass_max`, how many calls may be in flight while standing aside, which is the admission control of that mode.
//!
//! What it leaves out: which calls a probe is made of, how slots run empty for one, and what may be risked (misses, `Manual` mode): the batcher does not ask
//! for a probe then.

mod probe;
mod trial;

#[cfg(test)]
mod tests;

use std::time::Duration;

use self::probe::Probes;
pub(super) use self::probe::{Alone, Chance, Part, Parts};
pub(super) use self::trial::Ended;
pub use self::trial::TrialReport;
use self::trial::{Step, Trial};
use super::tick::Tick;

/// Fewest calls in flight that an overloaded server is sent while we stand aside (`scheduling.md` §2.6).
const PASS_MAX_MIN: u32 = 4;
/// Share of the calls in flight, in tenths, that is left after the server refused one (`scheduling.md` §2.6).
const PASS_MAX_CUT_TENTHS: u64 = 7;
/// `pass_max` rises by one after this many rounds of `pass_max` good calls, all sent with no room to spare: as §2.6 raises a size by one after eight
/// full good batches. In time that is eight executions a step, and one refusal is met in some two `pass_max`² calls.
const RISE_ROUNDS: u64 = 8;
/// Calls passed before batching is tried again (`scheduling.md` §2.7).
const REVERSE_AFTER: u64 = 60_000;
/// Batches before the next probe after a trial that kept batching (`scheduling.md` §2.7).
const REST_AFTER_TRIAL: u64 = 4_000;

/// What is done with calls that may be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are merged.
    Batch,
    /// They are sent one by one, at most `pass_max` at once: the server merges them.
    Pass,
}

/// Where the guard stands, for reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsideReport {
    /// What was decided last; a trial in progress changes nothing about it.
    pub mode: Mode,
    /// A trial is in progress.
    pub trying: bool,
    /// Calls that may be in flight while standing aside.
    pub pass_max: u32,
    /// Batches that came back.
    pub batches: u64,
    /// Passed calls that came back.
    pub passed: u64,
    /// The last trial that ended.
    pub last: Option<TrialReport>,
}

/// Decides between batching and standing aside for one upstream.
///
/// # Properties
/// Deterministic and without randomness. The mode changes in [`Guard::tick`] and, back to a believed one, in [`Guard::set_known_batching`].
#[derive(Debug, Clone)]
pub(super) struct Guard {
    /// What was decided last.
    settled: Mode,
    known_batching: bool,
    stand_aside_max: u32,
    pass_max: u32,
    /// Calls that may be in flight since passing began, up to `pass_max`: as many as were in the last batch, and one more for each that ends, so that
    /// those who wait when batching ends are not thrown at a server that would refuse half of them.
    opened: u32,
    /// Calls sent before then tell nothing that the last refusal did not.
    cut_at: Tick,
    /// Good calls sent at the limit since `pass_max` moved.
    full_good: u64,
    batches: u64,
    passed: u64,
    probes: Probes,
    trial: Option<Trial>,
    /// The count of passed calls from which batching is tried again.
    reverse_at: u64,
    last: Option<TrialReport>,
}

// === impl Guard ===

impl Guard {
    /// A guard that may pass so many calls at once. An upstream known to batch starts in [`Mode::Pass`] and is not asked.
    pub(super) fn new(stand_aside_max: u32, known_batching: bool) -> Self {
        Self {
            settled: if known_batching { Mode::Pass } else { Mode::Batch },
            known_batching,
            stand_aside_max: stand_aside_max.max(1),
            pass_max: stand_aside_max.max(1),
            opened: u32::MAX,
            cut_at: Tick(0),
            full_good: 0,
            batches: 0,
            passed: 0,
            probes: Probes::default(),
            trial: None,
            reverse_at: REVERSE_AFTER,
            last: None,
        }
    }

    /// A new wall for `pass_max`. What was learned below it stays.
    pub(super) fn set_stand_aside_max(&mut self, stand_aside_max: u32) {
        let at_the_wall = self.pass_max == self.stand_aside_max;
        self.stand_aside_max = stand_aside_max.max(1);
        self.pass_max = if at_the_wall { self.stand_aside_max } else { self.pass_max.min(self.stand_aside_max) };
    }

    /// Whether the server is known to batch. Once it is not known any more, it is asked: by a trial, as it stands in [`Mode::Pass`].
    pub(super) fn set_known_batching(&mut self, known: bool) {
        if known == self.known_batching {
            return;
        }
        self.known_batching = known;
        self.trial = None;
        if known {
            self.settled = Mode::Pass;
            self.opened = u32::MAX;
            self.probes.forget();
        } else {
            self.reverse_at = self.passed;
        }
    }

    /// What to do now.
    pub(super) fn mode(&self) -> Mode {
        self.trial.as_ref().map_or(self.settled, Trial::arm)
    }

    /// Calls that may be in flight in [`Mode::Pass`].
    pub(super) fn pass_max(&self) -> u32 {
        self.pass_max.min(self.opened)
    }

    /// The three parts to send at once in place of a batch, if it is time to ask. Sending them is told by [`Guard::probe_sent`].
    pub(super) fn probe_due(&self, chance: Chance) -> Option<Parts> {
        let asks = !self.known_batching && self.trial.is_none() && self.settled == Mode::Batch;
        if asks { self.probes.due(self.batches, chance) } else { None }
    }

    /// A probe is due, and nothing else should be in flight for a while.
    pub(super) fn probe_waits(&self) -> bool {
        let asks = !self.known_batching && self.trial.is_none() && self.settled == Mode::Batch;
        asks && self.probes.waits(self.batches)
    }

    /// The probe left; its parts alone would take so long.
    pub(super) fn probe_sent(&mut self, now: Tick, alone: Alone) {
        self.probes.sent(now, alone, self.batches);
    }

    /// A part of the probe was answered. It is also a batch for [`Guard::batch_done`].
    pub(super) fn probe_returned(&mut self, part: Part, at: Tick) {
        self.probes.returned(part, at, self.batches);
    }

    /// A part of the probe failed, was refused or given up: nothing can be learned from the others.
    pub(super) fn probe_lost(&mut self) {
        self.probes.lost();
    }

    /// A batch came back well.
    pub(super) fn batch_done(&mut self) {
        self.batches += 1;
    }

    /// A passed call ended, and not because the server is overloaded.
    pub(super) fn pass_ended(&mut self) {
        self.opened = self.opened.saturating_add(1);
    }

    /// A passed call came back well; `in_flight` counts it too.
    pub(super) fn call_passed(&mut self, in_flight: usize) {
        self.passed += 1;
        if in_flight < usize::try_from(self.pass_max).unwrap_or(usize::MAX) || self.pass_max >= self.stand_aside_max {
            return;
        }
        self.full_good += 1;
        if self.full_good >= RISE_ROUNDS * u64::from(self.pass_max) {
            self.full_good = 0;
            self.pass_max += 1;
        }
    }

    /// The server answered 429 or 503 to a passed call that left at `sent`; `in_flight` are the others still out. Of the calls that were out together
    /// the first refusal cuts, as congestion control does.
    pub(super) fn overloaded(&mut self, now: Tick, sent: Tick, in_flight: usize) {
        if sent < self.cut_at {
            return;
        }
        self.cut_at = now;
        let left =
            (u64::try_from(in_flight).unwrap_or(u64::MAX).saturating_add(1)).saturating_mul(PASS_MAX_CUT_TENTHS) / 10;
        let left = u32::try_from(left).unwrap_or(u32::MAX).max(PASS_MAX_MIN);
        self.pass_max = self.pass_max.min(left);
        self.full_good = 0;
    }

    /// Items were answered or expired, in whichever mode: what a trial compares.
    pub(super) fn ended(&mut self, now: Tick, ended: Ended) {
        if let Some(trial) = &mut self.trial {
            trial.ended(now, ended);
        }
    }

    /// The upstream is not what it was: look again soon. A trial in progress goes on, for its epochs alternate and both sides see the change.
    pub(super) fn changed(&mut self) {
        if self.known_batching || self.trial.is_some() {
            return;
        }
        match self.settled {
            Mode::Batch => self.probes.again(self.batches),
            Mode::Pass => self.reverse_at = self.passed,
        }
    }

    /// Starts a trial that is due, ends an epoch that is over. Call it at each event before deciding; `mean` is T, the running mean of an execution.
    /// `oldest`: when the call arrived that is queued for longest.
    pub(super) fn tick(&mut self, now: Tick, mean: Duration, oldest: Option<Tick>) {
        let Some(trial) = &mut self.trial else {
            if self.trial_due() {
                self.trial = Some(Trial::new(now, mean, self.settled));
                self.probes.forget();
            }
            return;
        };
        if let Step::Decided(report) = trial.tick(now, mean, oldest) {
            self.settle(report);
        }
    }

    /// A batch of so many calls left: so many may leave at once when passing begins.
    pub(super) fn batch_left(&mut self, calls: usize) {
        self.opened = u32::try_from(calls).unwrap_or(u32::MAX).max(PASS_MAX_MIN);
    }

    /// Where it stands.
    pub(super) fn report(&self) -> AsideReport {
        AsideReport {
            mode: self.settled,
            trying: self.trial.is_some(),
            pass_max: self.pass_max(),
            batches: self.batches,
            passed: self.passed,
            last: self.last,
        }
    }

    fn trial_due(&self) -> bool {
        match self.settled {
            _ if self.known_batching => false,
            Mode::Batch => self.probes.convinced(),
            Mode::Pass => self.passed >= self.reverse_at,
        }
    }

    fn settle(&mut self, report: TrialReport) {
        self.trial = None;
        self.settled = report.verdict;
        self.last = Some(report);
        match report.verdict {
            Mode::Batch => self.probes.rest(self.batches + REST_AFTER_TRIAL),
            Mode::Pass => self.reverse_at = self.passed + REVERSE_AFTER,
        }
    }
}
