//! Tokens of generated streams, which show the load of an engine: the time to the first one, and
//! the rate of all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::batching::{CostClassId, Tick};
use crate::clock::Clock;

/// Maximum number of classes that are counted, a bound on memory: a server has few models and
/// routes. Beyond it, the counts begin again, which costs one measurement.
const CLASSES_MAX: usize = 1024;

/// Numbers of tokens by cost class. Each class has a limit of its own, which follows from its
/// tokens.
#[derive(Debug, Default)]
pub(super) struct ClassTokens(HashMap<CostClassId, StreamTokens>);

/// Number of tokens of all streams of a class.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamTokens(Arc<AtomicU64>);

/// The recorder of one stream. Clones record the same stream.
#[derive(Debug, Clone)]
pub struct StreamRecorder {
    clock: Clock,
    sent: Tick,
    /// Nanoseconds from the dispatch to the first token; 0 before it.
    first: Arc<AtomicU64>,
    tokens: StreamTokens,
}

// === impl ClassTokens ===

impl ClassTokens {
    pub(super) fn of_class(&mut self, class: CostClassId) -> StreamTokens {
        if self.0.len() >= CLASSES_MAX && !self.0.contains_key(&class) {
            self.0.clear();
        }
        self.0.entry(class).or_default().clone()
    }
}

// === impl StreamTokens ===

impl StreamTokens {
    /// Returns a recorder for a stream whose call was sent at `sent`.
    pub(super) fn recorder(&self, clock: Clock, sent: Tick) -> StreamRecorder {
        StreamRecorder { clock, sent, first: Arc::default(), tokens: self.clone() }
    }
}

// === impl StreamRecorder ===

impl StreamRecorder {
    /// Records the arrival of this many tokens.
    pub fn on_tokens(&self, tokens: u64) {
        if tokens == 0 {
            return;
        }
        if self.first.load(Ordering::Relaxed) == 0 {
            let nanos = self.clock.now().since(self.sent).as_nanos();
            self.first.store(u64::try_from(nanos).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        }
        self.tokens.0.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Returns the time to the first token, and the tokens of all streams of its class so far;
    /// `None` before the first token.
    pub(super) fn observed(&self) -> Option<(Duration, u64)> {
        let first = Some(self.first.load(Ordering::Relaxed)).filter(|first| *first > 0)?;
        Some((Duration::from_nanos(first), self.tokens.0.load(Ordering::Relaxed)))
    }
}
