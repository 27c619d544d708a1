//! Faults of the ledger's upstream, the mock, and valid but unusual responses.
//!
//! They are drawn from a shuffled deck, so that every run includes all kinds.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::time::Duration;
use strum::VariantArray;

/// A fault, or an unusual but valid response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub(super) enum Fault {
    /// No response at all, until the peer closes the connection.
    SilentHead,
    /// A head and a part of the body, then silence.
    SilentBody,
    /// A body that is sent byte by byte with long pauses.
    SlowBody,
    /// A reset before the first byte.
    ResetBefore,
    /// A regular close before the first byte.
    EndBefore,
    /// A reset at a random position in the response.
    ResetInside,
    /// A regular close at a random position in the response.
    EndInside,
    /// A chunk that is shorter than its declared size, then a close.
    ShortChunk,
    /// A `Content-Length` that exceeds the body, then a close.
    LongLength,
    /// A correct response, after which connections are refused for a short time.
    Refused,
    /// 429 Too Many Requests.
    TooMany,
    /// 503 Service Unavailable.
    Unavailable,
    /// 500 for the whole call without a poison item. A retry may succeed.
    Error,
    /// A redirect, which must not be followed.
    Redirect,
    /// One result too few.
    CountLess,
    /// One result too many.
    CountMore,
    /// No results.
    CountNone,
    /// A duplicate index.
    IndexTwice,
    /// An index that is out of range.
    IndexMissing,
    /// No fault: the results in another order, each with its correct index.
    IndexShuffled,
    /// Two responses, sent together.
    Unasked,
    /// A second response 50 µs later.
    UnaskedSoon,
    /// A second response 1 ms later.
    UnaskedLater,
    /// A second response 100 ms later.
    UnaskedLate,
    /// A response of twice the size limit, with its length declared.
    Huge,
    /// An endless sequence of chunks, far above the size limit.
    Endless,
    /// 200 with an HTML page.
    Html,
    /// 200 with truncated JSON.
    BadJson,
    /// 200 with a compressed body that was not requested.
    Gzip,
    /// 204 without a body.
    NoContent,
    /// No fault: a 103 before the response.
    EarlyHints,
    /// No fault: a 100 before the response.
    Continue,
    /// No fault: a response with trailers.
    Trailers,
}

/// A shuffled deck of faults, which is repeated.
#[derive(Debug)]
pub(super) struct FaultSequence {
    cards: Vec<Fault>,
}

// === impl Fault ===

impl Fault {
    /// Returns the name in reports. The number before it groups similar faults: silence (4 and 5),
    /// closed connections (6 to 8), error statuses (9 and 10), wrong results (11), unsolicited
    /// responses (12), oversized bodies (13), and responses of another form (14).
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::SilentHead => "F04 silent before the head",
            Self::SilentBody => "F05 silent inside the body",
            Self::SlowBody => "F05 dripping",
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

    /// Returns the number of cards of this kind in the deck. Faults that inevitably cost innocent
    /// calls their response, or that slow down the run, are rarer.
    const fn repetitions(self) -> usize {
        match self {
            Self::SilentHead
            | Self::SilentBody
            | Self::SlowBody
            | Self::Refused
            | Self::TooMany
            | Self::Unavailable
            | Self::Huge
            | Self::Endless => 1,
            _ => 2,
        }
    }

    /// Returns the delay of the second, unsolicited response, if the fault is one.
    pub(super) const fn unsolicited_delay(self) -> Option<Duration> {
        match self {
            Self::Unasked => Some(Duration::ZERO),
            Self::UnaskedSoon => Some(Duration::from_micros(50)),
            Self::UnaskedLater => Some(Duration::from_millis(1)),
            Self::UnaskedLate => Some(Duration::from_millis(100)),
            _ => None,
        }
    }

    /// Returns `true` if the simulated model executes the call before the fault. It does not if no
    /// byte of a response is sent.
    pub(super) const fn computes(self) -> bool {
        !matches!(self, Self::SilentHead | Self::ResetBefore | Self::EndBefore)
    }
}

// === impl FaultSequence ===

impl FaultSequence {
    pub(super) fn new(seed: u64) -> Self {
        let mut cards: Vec<Fault> =
            Fault::VARIANTS.iter().flat_map(|&fault| std::iter::repeat_n(fault, fault.repetitions())).collect();
        cards.shuffle(&mut SmallRng::seed_from_u64(seed));
        Self { cards }
    }

    /// Returns the nth fault of the run.
    pub(super) fn fault_at(&self, n: u64) -> Fault {
        let place = n % self.cards.len() as u64;
        self.cards[usize::try_from(place).unwrap_or_default()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_of_the_deck_has_every_kind_and_one_seed_one_order() {
        let deck = FaultSequence::new(3);
        let round: Vec<_> = (0..deck.cards.len() as u64).map(|n| deck.fault_at(n)).collect();
        assert!(Fault::VARIANTS.iter().all(|fault| round.contains(fault)));
        assert_eq!(round, FaultSequence::new(3).cards);
        assert_ne!(round, FaultSequence::new(4).cards);
        assert!(round.len() <= 60, "a round has {} faults, but 30 000 items see only about 100", round.len());
    }
}
