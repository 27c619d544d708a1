//! Priority classes: weights of the classes against each other, and strict precedence.
//!
//! Classes share the upstream by weight, so that none starves; `adaptive::fair_queueing` charges
//! work by these weights. In addition a class may be *strict* and precede all others, or *filler*
//! and use only the room that is left. Waiting raises the rank of a call, one rank at a time.
//!
//! Left out: the assignment of a call to a class, and its deadline. Both are part of the call.

use std::time::Duration;

use super::tick::nanos;

/// The properties of a priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityClass {
    /// Share of the upstream's time relative to the other classes, at least 1.
    pub weight: u32,
    /// Set if its calls precede those of all classes that are not strict.
    pub strict: bool,
    /// Set if its calls only join batches that are dispatched anyway and do not make them larger.
    /// They are dispatched on their own only while no other call is queued.
    pub filler: bool,
    /// Waiting time after which a call gains one rank (aging): a filler call counts as a plain one,
    /// a plain call as a strict one. Four times the class's SLO, or 2 s.
    pub aging_interval: Duration,
}

/// The precedence of a call, independent of its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Precedes all others.
    Strict,
    /// Served by share.
    Plain,
    /// Uses only the room that is left.
    Filler,
}

// === impl PriorityClass ===

impl PriorityClass {
    /// The default class.
    pub const PLAIN: Self = Self { weight: 1, strict: false, filler: false, aging_interval: Self::AGES_WITHOUT_SLO };
    /// [`PriorityClass::aging_interval`] of a class without an SLO.
    pub const AGES_WITHOUT_SLO: Duration = Duration::from_secs(2);
    /// [`PriorityClass::aging_interval`] as a multiple of the SLO.
    pub const AGES_SLOS: u32 = 4;

    /// Returns the rank of a call of this class that has not waited.
    pub(super) fn base_rank(&self) -> Rank {
        self.rank(Duration::ZERO)
    }

    /// Returns the rank of a call of this class that has waited this long.
    pub(super) fn rank(&self, waited: Duration) -> Rank {
        if self.strict {
            return Rank::Strict;
        }
        match (self.filler, nanos(waited) / nanos(self.aging_interval).max(1)) {
            (true, 0) => Rank::Filler,
            (true, 1) | (false, 0) => Rank::Plain,
            _ => Rank::Strict,
        }
    }
}

impl Default for PriorityClass {
    fn default() -> Self {
        Self::PLAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_lifts_a_call_by_one_rank_at_a_time() {
        let filler = PriorityClass { filler: true, ..PriorityClass::PLAIN };
        let ranks = |class: PriorityClass| [0, 1999, 2000, 4000, 9000].map(|ms| class.rank(Duration::from_millis(ms)));
        assert_eq!(ranks(filler), [Rank::Filler, Rank::Filler, Rank::Plain, Rank::Strict, Rank::Strict]);
        assert_eq!(ranks(PriorityClass::PLAIN), [Rank::Plain, Rank::Plain, Rank::Strict, Rank::Strict, Rank::Strict]);
        assert_eq!(ranks(PriorityClass { strict: true, ..PriorityClass::PLAIN }), [Rank::Strict; 5]);
    }
}
