//! The ways in which the mock misbehaves: every kind of F04 to F14 of the fault matrix, drawn from a shuffled deck so that a run sees them all.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::time::Duration;

/// One way to misbehave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// F04: not a byte, until the peer is gone.
    SilentHead,
    /// F05: a head and a part of the body, then nothing.
    SilentBody,
    /// F05: a byte now and then.
    Drip,
    /// F06: a reset before a byte.
    ResetBefore,
    /// F06: an orderly end before a byte.
    EndBefore,
    /// F07: a reset somewhere in the answer.
    ResetInside,
    /// F07: an orderly end somewhere in the answer.
    EndInside,
    /// F07: a chunk that is shorter than it says, then the end.
    ShortChunk,
    /// F07: a `Content-Length` beyond the body, then the end.
    LongLength,
    /// F08: answered well, but then nobody listens for a moment.
    Refused,
    /// F09.
    TooMany,
    /// F09.
    Unavailable,
    /// F10 without a guilty item: 500 for the whole call, this time.
    Error,
    /// F10: a redirect, not to be followed.
    Redirect,
    /// F11: one result too few.
    CountLess,
    /// F11: one result too many.
    CountMore,
    /// F11: no result at all.
    CountNone,
    /// F11: an index that stands twice.
    IndexTwice,
    /// F11: an index beyond the items.
    IndexMissing,
    /// Not a fault: the results in another order, each with its right index.
    IndexShuffled,
    /// F12: the answer, and a second one with it.
    Unasked,
    /// F12: a second answer 50 µs later.
    UnaskedSoon,
    /// F12: a second answer 1 ms later.
    UnaskedLater,
    /// F12: a second answer 100 ms later.
    UnaskedLate,
    /// F13: an answer of twice the cap, announced.
    Huge,
    /// F13: chunks without an end, far beyond the cap.
    Endless,
    /// F14: 200 with a page.
    Html,
    /// F14: 200 with JSON that breaks off.
    BadJson,
    /// F14: 200, compressed although nobody asked.
    Gzip,
    /// F14: 204.
    NoContent,
    /// F14, harmless: a 103 first.
    EarlyHints,
    /// F14, harmless: a 100 first.
    Continue,
    /// F14, harmless: trailers.
    Trailers,
}

/// The order in which faults come.
#[derive(Debug)]
pub(super) struct Deck {
    cards: Vec<Fault>,
}

// === impl Fault ===

impl Fault {
    pub(super) const ALL: [Self; 33] = [
        Self::SilentHead,
        Self::SilentBody,
        Self::Drip,
        Self::ResetBefore,
        Self::EndBefore,
        Self::ResetInside,
        Self::EndInside,
        Self::ShortChunk,
        Self::LongLength,
        Self::Refused,
        Self::TooMany,
        Self::Unavailable,
        Self::Error,
        Self::Redirect,
        Self::CountLess,
        Self::CountMore,
        Self::CountNone,
        Self::IndexTwice,
        Self::IndexMissing,
        Self::IndexShuffled,
        Self::Unasked,
        Self::UnaskedSoon,
        Self::UnaskedLater,
        Self::UnaskedLate,
        Self::Huge,
        Self::Endless,
        Self::Html,
        Self::BadJson,
        Self::Gzip,
        Self::NoContent,
        Self::EarlyHints,
        Self::Continue,
        Self::Trailers,
    ];

    /// Its row of the fault matrix and its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::SilentHead => "F04 silent before the head",
            Self::SilentBody => "F05 silent inside the body",
            Self::Drip => "F05 dripping",
            Self::ResetBefore => "F06 reset before a byte",
            Self::EndBefore => "F06 end before a byte",
            Self::ResetInside => "F07 reset inside",
            Self::EndInside => "F07 end inside",
            Self::ShortChunk => "F07 short chunk",
            Self::LongLength => "F07 length too long",
            Self::Refused => "F08 connections refused",
            Self::TooMany => "F09 429",
            Self::Unavailable => "F09 503",
            Self::Error => "F10 500",
            Self::Redirect => "F10 307",
            Self::CountLess => "F11 one result less",
            Self::CountMore => "F11 one result more",
            Self::CountNone => "F11 no results",
            Self::IndexTwice => "F11 an index twice",
            Self::IndexMissing => "F11 an index missing",
            Self::IndexShuffled => "F11 indexes in another order",
            Self::Unasked => "F12 unasked at once",
            Self::UnaskedSoon => "F12 unasked after 50 us",
            Self::UnaskedLater => "F12 unasked after 1 ms",
            Self::UnaskedLate => "F12 unasked after 100 ms",
            Self::Huge => "F13 huge",
            Self::Endless => "F13 endless",
            Self::Html => "F14 a page",
            Self::BadJson => "F14 bad JSON",
            Self::Gzip => "F14 gzip",
            Self::NoContent => "F14 204",
            Self::EarlyHints => "F14 103 first",
            Self::Continue => "F14 100 first",
            Self::Trailers => "F14 trailers",
        }
    }

    /// How many cards of this kind are in the deck. Those that cost innocents their answer by design, or the run its time, are rarer.
    const fn cards(self) -> usize {
        match self {
            Self::SilentHead
            | Self::SilentBody
            | Self::Drip
            | Self::Refused
            | Self::TooMany
            | Self::Unavailable
            | Self::Huge
            | Self::Endless => 1,
            _ => 2,
        }
    }

    /// When the second, unasked answer comes.
    pub(super) const fn unasked_after(self) -> Option<Duration> {
        match self {
            Self::Unasked => Some(Duration::ZERO),
            Self::UnaskedSoon => Some(Duration::from_micros(50)),
            Self::UnaskedLater => Some(Duration::from_millis(1)),
            Self::UnaskedLate => Some(Duration::from_millis(100)),
            _ => None,
        }
    }

    /// Whether the model runs before: silence and what happens before a byte need no computing.
    pub(super) const fn computes(self) -> bool {
        !matches!(self, Self::SilentHead | Self::ResetBefore | Self::EndBefore)
    }
}

// === impl Deck ===

impl Deck {
    pub(super) fn new(seed: u64) -> Self {
        let mut cards: Vec<Fault> =
            Fault::ALL.iter().flat_map(|&fault| std::iter::repeat_n(fault, fault.cards())).collect();
        cards.shuffle(&mut SmallRng::seed_from_u64(seed));
        Self { cards }
    }

    /// The nth fault of the run.
    pub(super) fn card(&self, n: u64) -> Fault {
        let place = n % self.cards.len() as u64;
        self.cards[usize::try_from(place).unwrap_or_default()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_of_the_deck_has_every_kind_and_one_seed_one_order() {
        let deck = Deck::new(3);
        let round: Vec<_> = (0..deck.cards.len() as u64).map(|n| deck.card(n)).collect();
        assert!(Fault::ALL.iter().all(|fault| round.contains(fault)));
        assert_eq!(round, Deck::new(3).cards);
        assert_ne!(round, Deck::new(4).cards);
        assert!(round.len() <= 60, "{} faults must do for a round, 30 000 items see about 100", round.len());
    }
}
