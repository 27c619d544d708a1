//! Counts of the code points of a JSON string by script, in one pass and without decoding.
//!
//! The rarer a script is in the training data of a tokenizer, the more tokens a code point of it
//! takes (`tokens`). The class of a code point follows from the first byte of its UTF-8 encoding,
//! so whole texts are classified by comparisons of bytes.

use super::text::decode_unicode_escape;

/// Number of bytes that are counted at once: the largest count that fits into a byte, so that the
/// compiler can compare and add many bytes in one instruction.
const CHUNK: usize = 255;
/// First bytes of Latin letters beyond ASCII, with modifiers: U+0080 to U+02FF.
const LATIN: std::ops::RangeInclusive<u8> = 0xc2..=0xcb;
/// First bytes of kana, Chinese characters and Hangul: U+3000 to U+DFFF.
const CJK: std::ops::RangeInclusive<u8> = 0xe3..=0xed;
/// First byte of the last 4096 code points of the basic plane: mostly compatibility and full-width
/// forms.
const FULL_WIDTH: u8 = 0xef;

/// Numbers of code points by script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ScriptCounts {
    /// ASCII and Latin letters.
    pub(crate) latin: u64,
    /// Chinese, Japanese and Korean.
    pub(crate) cjk: u64,
    /// All other scripts, symbols and emoji.
    pub(crate) other: u64,
}

/// Counts the code points of a string given without its quotes. An escaped character counts like
/// the same character in UTF-8.
pub(crate) fn count_scripts(raw: &[u8]) -> ScriptCounts {
    let mut counts = ScriptCounts::default();
    let mut rest = raw;
    while let Some(hit) = memchr::memchr(b'\\', rest) {
        counts.add_utf8(rest.get(..hit).unwrap_or_default());
        let taken = if rest.get(hit + 1) == Some(&b'u') {
            let (scalar, taken) = decode_unicode_escape(rest, hit);
            counts.add_scalar(scalar);
            taken
        } else {
            counts.latin += 1;
            2
        };
        rest = rest.get(hit + taken..).unwrap_or_default();
    }
    counts.add_utf8(rest);
    counts
}

// === impl ScriptCounts ===

impl ScriptCounts {
    fn add_utf8(&mut self, bytes: &[u8]) {
        if bytes.is_ascii() {
            self.latin += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            return;
        }
        for chunk in bytes.chunks(CHUNK) {
            let latin = count(chunk, |byte| byte < 0x80 || LATIN.contains(&byte));
            let cjk = count(chunk, |byte| CJK.contains(&byte) || byte == FULL_WIDTH);
            let all = count(chunk, |byte| byte & 0xc0 != 0x80);
            self.latin += latin;
            self.cjk += cjk;
            self.other += all.saturating_sub(latin + cjk);
        }
    }

    /// Adds a scalar value, or a lone surrogate.
    fn add_scalar(&mut self, scalar: u32) {
        match scalar {
            0..=0x2ff => self.latin += 1,
            0x3000..=0xdfff | 0xf000..=0xffff => self.cjk += 1,
            _ => self.other += 1,
        }
    }
}

/// Returns the number of bytes of a chunk that satisfy the predicate.
fn count(chunk: &[u8], holds: impl Fn(u8) -> bool) -> u64 {
    // The sum of a chunk of at most `CHUNK` bytes does not wrap. A checked addition could not be
    // vectorised.
    u64::from(chunk.iter().fold(0_u8, |sum, byte| sum.wrapping_add(u8::from(holds(*byte)))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::code_points;

    fn counts(text: &str) -> [u64; 3] {
        let ScriptCounts { latin, cjk, other } = count_scripts(text.as_bytes());
        [latin, cjk, other]
    }

    #[test]
    fn code_points_are_counted_by_script() {
        assert_eq!(counts("héllo\\n \\\"x"), [9, 0, 0]);
        assert_eq!(counts("汉字かなカナ한글！"), [0, 9, 0]);
        assert_eq!(counts("Привет שלום € 😀"), [3, 0, 12]);
        assert_eq!(counts(&"汉x".repeat(1000)), [1000, 1000, 0], "a text of several chunks");
    }

    proptest! {
        #[test]
        fn escapes_count_like_utf8(text in "[a-zé汉한€ж😀\u{ffff}]{0,300}") {
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(counts(&text), counts(&escaped));
            prop_assert_eq!(counts(&text).iter().sum::<u64>(), code_points(text.as_bytes()));
        }
    }
}
