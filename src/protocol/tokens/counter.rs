//! Counting of tokens with the tokenizer of a model.

use std::fmt;

use super::size::TextSize;
use crate::json::{unescape, unescaped_len};

/// Maximum number of bytes of a call's texts that are tokenised. The rest is estimated at the ratio of
/// what was counted, because tokenising takes time on the thread that serves the connection. Most
/// embedded texts are shorter: 512 tokens, the limit of many models, are some 2 KiB.
const COUNTED_BYTES_MAX: usize = 8 << 10;

/// A tokenizer that counts tokens.
pub trait TokenCounter: fmt::Debug + Send + Sync {
    /// Returns the number of tokens of a text with those that the model adds to each; `None` if it
    /// cannot be tokenised.
    fn count(&self, text: &str) -> Option<u64>;
}

/// Measures the texts of one call: their code points, or their tokens if a tokenizer is known.
#[derive(Debug, Default)]
pub(crate) struct TextMeter<'a> {
    counter: Option<&'a dyn TokenCounter>,
    /// Bytes and tokens that were counted.
    bytes: usize,
    tokens: u64,
}

// === impl TextMeter ===

impl<'a> TextMeter<'a> {
    /// Creates a meter for the texts of a call.
    pub(crate) fn new(counter: Option<&'a dyn TokenCounter>) -> Self {
        Self { counter, bytes: 0, tokens: 0 }
    }

    /// Measures a JSON string given without its quotes.
    pub(crate) fn measure(&mut self, raw: &[u8]) -> TextSize {
        let counted = self.counter.and_then(|counter| self.count(raw, counter));
        counted.map_or_else(|| TextSize::of_string(raw), TextSize::of_tokens)
    }

    fn count(&mut self, raw: &[u8], counter: &dyn TokenCounter) -> Option<u64> {
        let room = COUNTED_BYTES_MAX.saturating_sub(self.bytes);
        let (start, rest) = raw.split_at_checked(room).unwrap_or((raw, &[]));
        if start.is_empty() && !rest.is_empty() {
            return scale(self.tokens, self.bytes, unescaped_len(rest));
        }
        // A character or an escape that is cut at the end counts as another one.
        let text = unescape(start);
        let tokens = counter.count(&String::from_utf8_lossy(&text))?;
        self.bytes += text.len();
        self.tokens = self.tokens.saturating_add(tokens);
        if rest.is_empty() {
            return Some(tokens);
        }
        // No later text is counted, even if escapes made this one shorter.
        self.bytes = self.bytes.max(COUNTED_BYTES_MAX);
        let whole = unescaped_len(rest).saturating_add(text.len());
        scale(tokens, text.len(), whole)
    }
}

/// Returns the tokens of `to` bytes at the ratio of `tokens` in `from` bytes.
fn scale(tokens: u64, from: usize, to: usize) -> Option<u64> {
    let wide = |number: usize| u128::try_from(number).ok();
    u64::try_from((u128::from(tokens) * wide(to)?).div_ceil(wide(from)?.max(1))).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts words, and the bytes that it has read.
    #[derive(Debug, Default)]
    struct WordCounter(AtomicUsize);

    impl TokenCounter for WordCounter {
        fn count(&self, text: &str) -> Option<u64> {
            self.0.fetch_add(text.len(), Ordering::Relaxed);
            (text != "?").then(|| text.split(' ').count().try_into().unwrap())
        }
    }

    #[test]
    fn tokens_are_counted_in_the_text_and_not_in_its_spelling() {
        let counter = WordCounter::default();
        let mut meter = TextMeter::new(Some(&counter));
        assert_eq!(meter.measure("one two\\u0020\\\"three".as_bytes()), TextSize::of_tokens(3));
        assert_eq!(meter.measure(b""), TextSize::of_tokens(1));
        assert_eq!(meter.measure(b"?"), TextSize::of_string(b"?"), "what cannot be tokenised is estimated");
        assert_eq!(TextMeter::new(None).measure("a b".as_bytes()), TextSize::of_string(b"a b"));
    }

    #[test]
    fn only_the_beginning_of_a_long_call_is_tokenised() {
        let counter = WordCounter::default();
        let mut meter = TextMeter::new(Some(&counter));
        let text = "abcd efg ".repeat(100_000);
        let size = meter.measure(text.as_bytes());
        assert!((195_000..205_000).contains(&size.tokens), "{size:?}");
        let size = meter.measure(&text.as_bytes()[..9000]);
        assert!((1950..2050).contains(&size.tokens), "{size:?}");
        assert_eq!(counter.0.load(Ordering::Relaxed), COUNTED_BYTES_MAX);
    }
}
