//! The stream of one member of a batch: its results, and the tokens of each.

use super::chunk::ChunkCounts;

/// The stream of one member.
#[derive(Debug)]
pub(super) struct MemberStream {
    /// Number of its first result among those of the batch.
    start: usize,
    /// Number of results of each item.
    each: usize,
    results: Vec<ResultState>,
    /// Number of results that have not ended.
    open: usize,
    /// The id of its response, as JSON, once it is known.
    pub(super) id: Option<Vec<u8>>,
    /// The stream has ended, by its last result or by an error.
    is_over: bool,
}

/// State of one result.
#[derive(Debug, Clone, Copy, Default)]
struct ResultState {
    has_ended: bool,
    counts: Option<ChunkCounts>,
}

// === impl MemberStream ===

impl MemberStream {
    pub(super) fn new(start: usize, items: usize, each: usize) -> Self {
        let count = items * each;
        let is_over = count == 0;
        Self { start, each, results: vec![ResultState::default(); count], open: count, id: None, is_over }
    }

    /// Returns the number of the result among those of the member, if it is one of them.
    pub(super) fn own_result(&self, result: usize) -> Option<usize> {
        result.checked_sub(self.start).filter(|own| *own < self.results.len())
    }

    /// Records a chunk of a result. Returns `false` if the result has ended before.
    pub(super) fn on_chunk(&mut self, own: usize, is_last: bool, counts: Option<ChunkCounts>) -> bool {
        let Some(state) = self.results.get_mut(own).filter(|state| !state.has_ended) else { return false };
        state.counts = counts.or(state.counts);
        state.has_ended = is_last;
        self.open -= usize::from(is_last);
        self.is_over |= self.open == 0;
        true
    }

    /// Ends the stream before its results have ended.
    pub(super) const fn end(&mut self) {
        self.is_over = true;
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the numbers of tokens of the prompts and of the results, if they are known.
    pub(super) fn tokens(&self) -> Option<(u64, u64)> {
        let mut sum = (0, 0);
        for (own, state) in self.results.iter().enumerate() {
            let counts = state.counts?;
            // The results of an item repeat the tokens of its prompt.
            sum.0 += if own.is_multiple_of(self.each.max(1)) { counts.prompt } else { 0 };
            sum.1 += counts.completion;
        }
        Some(sum)
    }
}
