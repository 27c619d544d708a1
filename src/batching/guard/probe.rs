//! Probes: one, a half and a half sent at once, and what their return says.
//!
//! A server with one slot runs them one after another, one with several beside each other; only a batcher inside runs what arrives first alone and then
//! the other two together, late but at once. Sent at the same moment on connections of their own, they arrive in any order: mostly the single is first,
//! and then both halves return together. Seen twice in a row, it is worth a trial.

use std::time::Duration;

use super::super::tick::Tick;

/// Batches before the first probe: the curve that says t(h) must be known (`scheduling.md` §2.7).
const FIRST_AFTER: u64 = 60;
/// Batches between probes while they are new, or have something to say (`scheduling.md` §2.7).
const EVERY: u64 = 40;
/// Probes that are new (`scheduling.md` §2.7).
const NEW: u32 = 3;
/// Batches between probes later (`scheduling.md` §2.7).
const EVERY_LATER: u64 = 3_000;
/// Batches for which the slots are run empty for one that is due: 16 that were in flight, and a few. After that it waits for its next turn, and a server
/// that runs more side by side is not asked.
const EMPTIES_MAX: u64 = 20;
/// Fewest calls that make a probe (`scheduling.md` §2.7).
const CALLS_MIN: usize = 5;
/// Weight of the newest probe in the score (`scheduling.md` §2.7).
const SCORE_STEP: f64 = 0.4;
/// The score above which the server is believed to batch (`scheduling.md` §2.7): two hits in a row.
const SCORE_CONVINCED: f64 = 0.6;
/// The score above which probes stay frequent: a lone hit is followed up three times. (The prototype follows it up for ever.)
const SCORE_OPEN: f64 = 0.1;
/// Parts that ran together return within this many tenths of t(h) of each other (`scheduling.md` §2.7), or of t(1) where one of them is the single.
const TOGETHER_TENTHS: u32 = 3;
/// Halves that waited for the single return after more than this many tenths of t(h) (`scheduling.md` §2.7).
const WAITED_TENTHS: u32 = 13;

/// What the batcher is about to send, and into what.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Chance {
    /// Calls of the batch.
    pub(in super::super) calls: usize,
    /// Batches in flight.
    pub(in super::super) in_flight: usize,
    /// Slots learned.
    pub(in super::super) slots: u32,
    /// A full batch stays behind.
    pub(in super::super) backlog: bool,
}

/// How many calls each part of a probe takes, in the order of sending: one, half of the others, the other half.
pub(in super::super) type Parts = (usize, usize, usize);

/// What the parts of a probe take alone.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Alone {
    /// t(1).
    pub(in super::super) single: Duration,
    /// t(h) of the larger half.
    pub(in super::super) half: Duration,
}

/// A part of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Part {
    /// The single call.
    Single,
    /// The half sent first.
    First,
    /// The half sent second; it may be one call larger.
    Second,
}

/// When to probe, and what the probes have said.
#[derive(Debug, Clone)]
pub(super) struct Probes {
    /// The count of batches from which the next one is due.
    next_at: u64,
    made: u32,
    /// Running share of hits.
    score: f64,
    out: Option<Out>,
}

/// A probe in flight.
#[derive(Debug, Clone, Copy)]
struct Out {
    sent: Tick,
    alone: Alone,
    single: Option<Tick>,
    first: Option<Tick>,
    second: Option<Tick>,
}

// === impl Probes ===

impl Default for Probes {
    fn default() -> Self {
        Self { next_at: FIRST_AFTER, made: 0, score: 0.0, out: None }
    }
}

impl Probes {
    pub(super) fn due(&self, batches: u64, chance: Chance) -> Option<Parts> {
        let undisturbed = chance.slots == 1 && chance.in_flight == 0 && !chance.backlog && self.out.is_none();
        if !undisturbed || chance.calls < CALLS_MIN || batches < self.next_at {
            return None;
        }
        let half = (chance.calls - 1) / 2;
        Some((1, half, chance.calls - 1 - half))
    }

    /// The next one is due and nothing else should be in flight: the last one hit, or it has been due for some batches. Where batches leave early for a
    /// slot that frees soon, or into several slots that a batcher inside seems to be, it would never be empty by itself.
    pub(super) fn waits(&self, batches: u64) -> bool {
        let Some(overdue) = batches.checked_sub(self.next_at).filter(|_| self.out.is_none()) else { return false };
        let from = if self.score > SCORE_OPEN { 0 } else { EVERY };
        (from..EVERY + EMPTIES_MAX).contains(&(overdue % EVERY_LATER))
    }

    pub(super) fn sent(&mut self, now: Tick, alone: Alone, batches: u64) {
        self.made = self.made.saturating_add(1);
        self.out = Some(Out { sent: now, alone, single: None, first: None, second: None });
        self.schedule(batches);
    }

    pub(super) fn returned(&mut self, part: Part, at: Tick, batches: u64) {
        let Some(out) = &mut self.out else { return };
        match part {
            Part::Single => out.single = Some(at),
            Part::First => out.first = Some(at),
            Part::Second => out.second = Some(at),
        }
        let (Some(single), Some(first), Some(second)) = (out.single, out.first, out.second) else { return };
        let hit = if ran_together(out.sent, out.alone, single, (first, second)) { 1.0 } else { 0.0 };
        self.score += SCORE_STEP * (hit - self.score);
        self.out = None;
        self.schedule(batches);
    }

    pub(super) fn lost(&mut self) {
        self.out = None;
    }

    /// The probes agree that the server batches.
    pub(super) fn convinced(&self) -> bool {
        self.score > SCORE_CONVINCED
    }

    /// What was seen is used up.
    pub(super) fn forget(&mut self) {
        self.score = 0.0;
        self.out = None;
    }

    /// None before this count of batches.
    pub(super) fn rest(&mut self, until: u64) {
        self.forget();
        self.next_at = until;
    }

    /// Everything is new again. One interval of peace, for the curve has to be learned anew too.
    pub(super) fn again(&mut self, batches: u64) {
        self.forget();
        self.made = 0;
        self.next_at = batches + EVERY;
    }

    fn schedule(&mut self, batches: u64) {
        let soon = self.made < NEW || self.score > SCORE_OPEN;
        self.next_at = batches + if soon { EVERY } else { EVERY_LATER };
    }
}

fn ran_together(sent: Tick, alone: Alone, single: Tick, halves: (Tick, Tick)) -> bool {
    let (early, late) = (halves.0.min(halves.1), halves.0.max(halves.1));
    let waited = |half: Tick| half.since(sent) > alone.half * WAITED_TENTHS / 10;
    if single <= early {
        return late.since(early) < alone.half * TOGETHER_TENTHS / 10 && waited(early);
    }
    // A half was first: the other one and the single ran together.
    let apart = late.max(single).since(late.min(single));
    apart < alone.single * TOGETHER_TENTHS / 10 && waited(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Alone = Alone { single: Duration::from_millis(4), half: Duration::from_millis(10) };

    fn chance(calls: usize) -> Chance {
        Chance { calls, in_flight: 0, slots: 1, backlog: false }
    }

    fn probe(probes: &mut Probes, batches: u64, first_ms: u64, second_ms: u64) {
        probes.sent(Tick(0), ALONE, batches);
        for (part, ms) in [(Part::Second, second_ms), (Part::Single, 4), (Part::First, first_ms)] {
            probes.returned(part, Tick::from_millis(ms), batches);
        }
    }

    #[test]
    fn a_probe_is_a_single_and_two_halves_into_an_empty_one_slot_upstream() {
        let probes = Probes::default();
        assert_eq!(probes.due(60, chance(17)), Some((1, 8, 8)));
        assert_eq!(probes.due(60, chance(6)), Some((1, 2, 3)));
        assert_eq!(probes.due(59, chance(17)), None);
        assert_eq!(probes.due(60, chance(4)), None);
        assert_eq!(probes.due(60, Chance { in_flight: 1, ..chance(17) }), None);
        assert_eq!(probes.due(60, Chance { slots: 2, ..chance(17) }), None);
        for (batches, waits) in [(99, false), (100, true), (119, true), (120, false), (3_100, true)] {
            assert_eq!(probes.waits(batches), waits, "{batches}");
        }
        assert_eq!(probes.due(60, Chance { backlog: true, ..chance(17) }), None);
    }

    #[test]
    fn two_hits_in_a_row_convince_and_one_does_not() {
        let mut probes = Probes::default();
        probe(&mut probes, 60, 15, 16);
        assert!(!probes.convinced());
        probe(&mut probes, 100, 16, 15);
        assert!(probes.convinced());
        probe(&mut probes, 140, 14, 24);
        assert!(!probes.convinced());
    }

    #[test]
    fn halves_that_return_apart_or_early_are_no_hit() {
        // One slot: one after the other. Several slots: both as quickly as alone. One of two slots: just not together.
        for (first, second) in [(14, 24), (10, 10), (14, 17)] {
            let mut probes = Probes::default();
            for batches in [60, 100, 140] {
                probe(&mut probes, batches, first, second);
            }
            assert!(probes.score.abs() < 1e-12, "{first} {second}");
        }
    }

    #[test]
    fn in_whatever_order_the_parts_arrive_two_that_ran_together_are_a_hit_and_one_after_the_other_are_none() {
        // When single, first and second half return.
        let hits = [[4, 15, 16], [21, 10, 21], [20, 21, 10]];
        // One slot, in every order; two slots, where the single came last.
        let misses = [[4, 14, 24], [14, 10, 24], [24, 10, 20], [24, 20, 10], [14, 24, 10], [14, 10, 10]];
        for (times, hit) in hits.into_iter().map(|times| (times, true)).chain(misses.map(|times| (times, false))) {
            let [single, first, second] = times.map(Tick::from_millis);
            assert_eq!(ran_together(Tick(0), ALONE, single, (first, second)), hit, "{times:?}");
        }
    }

    #[test]
    fn probes_without_a_hit_become_rare_after_three() {
        let mut probes = Probes::default();
        let mut at = Vec::new();
        for batches in 0..8_000 {
            if probes.due(batches, chance(9)).is_some() {
                at.push(batches);
                probe(&mut probes, batches, 14, 24);
            }
        }
        assert_eq!(at, [60, 100, 140, 3140, 6140]);
    }

    #[test]
    fn a_late_hit_is_followed_up_soon_but_not_for_ever() {
        let mut probes = Probes { next_at: 3_000, made: 3, ..Probes::default() };
        let mut at = Vec::new();
        for batches in 0..7_000 {
            if probes.due(batches, chance(9)).is_some() {
                probe(&mut probes, batches, 15, if at.is_empty() { 15 } else { 25 });
                at.push(batches);
            }
        }
        assert_eq!(at, [3000, 3040, 3080, 3120, 6120]);
    }

    #[test]
    fn a_probe_that_lost_a_part_says_nothing() {
        let mut probes = Probes::default();
        probes.sent(Tick(0), ALONE, 60);
        probes.returned(Part::First, Tick::from_millis(15), 60);
        assert_eq!(probes.due(200, chance(9)), None, "one at a time");
        probes.lost();
        probes.returned(Part::Second, Tick::from_millis(15), 60);
        probes.returned(Part::Single, Tick::from_millis(5), 60);
        assert!(probes.score.abs() < 1e-12 && probes.due(200, chance(9)).is_some());
    }
}
