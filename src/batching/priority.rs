//! Priority classes: what the calls of each weigh against others, and who goes before whom.
//!
//! Classes share by weight, so that nobody starves (`scheduling.md` §2.5); weights are what `adaptive::fair` charges by. Beside them a class may be
//! *strict*, and goes before all others, or *filler*, and takes only the room that is left. Waiting lifts a call over both, by one rank at a time.
//!
//! What it leaves out: who says which class a call is of, and its deadline; both are told with the call.

use std::time::Duration;

use super::tick::nanos;

/// What holds for the calls of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// Its share of the upstream's time beside those of the other classes, at least 1.
    pub weight: u32,
    /// Its calls go before those of all classes that are not strict.
    pub strict: bool,
    /// Its calls join batches that leave anyway and do not make them larger; alone they leave only while nobody else is queued.
    pub filler: bool,
    /// A call counts one rank up for each time that it has waited so long: a filler as any other, any other as a strict one. 4 × the class's SLO, or 2 s.
    pub ages: Duration,
}

/// Who goes first, whatever its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Before all others.
    Strict,
    /// By share.
    Plain,
    /// Where there is room.
    Filler,
}

// === impl Priority ===

impl Priority {
    /// The only class where none is named.
    pub const PLAIN: Self = Self { weight: 1, strict: false, filler: false, ages: Self::AGES_WITHOUT_SLO };
    /// [`Priority::ages`] of a class without an SLO (`scheduling.md` §2.5).
    pub const AGES_WITHOUT_SLO: Duration = Duration::from_secs(2);
    /// [`Priority::ages`] in SLOs.
    pub const AGES_SLOS: u32 = 4;

    /// The rank of one of its calls that has waited so long.
    pub(super) fn rank(&self, waited: Duration) -> Rank {
        if self.strict {
            return Rank::Strict;
        }
        match (self.filler, nanos(waited) / nanos(self.ages).max(1)) {
            (true, 0) => Rank::Filler,
            (true, 1) | (false, 0) => Rank::Plain,
            _ => Rank::Strict,
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::PLAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_lifts_a_call_by_one_rank_at_a_time() {
        let filler = Priority { filler: true, ..Priority::PLAIN };
        let ranks = |class: Priority| [0, 1999, 2000, 4000, 9000].map(|ms| class.rank(Duration::from_millis(ms)));
        assert_eq!(ranks(filler), [Rank::Filler, Rank::Filler, Rank::Plain, Rank::Strict, Rank::Strict]);
        assert_eq!(ranks(Priority::PLAIN), [Rank::Plain, Rank::Plain, Rank::Strict, Rank::Strict, Rank::Strict]);
        assert_eq!(ranks(Priority { strict: true, ..Priority::PLAIN }), [Rank::Strict; 5]);
    }
}
