//! Validation of a document in one pass: grammar, nesting depth and number range.
//!
//! The stack is a fixed bit set with one bit for each open bracket, so a document of 100 000 nested
//! arrays is rejected at the cost of reading as many as are allowed. Runs of digits and of
//! unescaped string bytes are scanned eight bytes at a time (SWAR), and lists of decimal numbers 64
//! bytes at a time (`decimals`), which keeps responses with thousands of floats cheap.

use super::decimals::{BLOCK_LEN, skip_decimals};
use super::{byte_at, skip_whitespace};

/// Deepest nesting that is ever accepted, independent of the policy. FastAPI fails near a depth of
/// 990, and the walkers may recurse to this depth.
pub(crate) const NESTING_MAX: usize = 256;

/// Minimum number of integer digits that can exceed the range of a 64-bit float without an
/// exponent.
const WIDE_DIGITS: usize = 300;

/// Numbers of a list that are read one by one before a block is tried, so that short lists and those
/// with exponents or line ends cost little more than without blocks: four numbers with an exponent are
/// about as long as a block.
const NUMBERS_BETWEEN_BLOCKS: usize = 4;

// Blocks are skipped without a check of the range: a number of them has digits of two at most.
const _: () = assert!(2 * BLOCK_LEN < WIDE_DIGITS);

/// Requirements on a document beyond the JSON grammar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonRules {
    /// Accepts `NaN`, `Infinity` and `-Infinity` as numbers.
    pub(crate) lenient: bool,
    /// Applies the rules for a client's request body: valid UTF-8, and no number outside the range
    /// of a 64-bit float.
    pub(crate) strict: bool,
    /// Maximum nesting depth, capped at [`NESTING_MAX`].
    pub(crate) nesting_max: usize,
}

/// Reason for which a document is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// The bytes are not a single JSON document.
    Syntax,
    /// The nesting is too deep.
    Nesting,
    /// A number is outside the range of a 64-bit float: a server would read it as infinite or
    /// reject it.
    Range,
    /// The bytes are not valid UTF-8.
    Utf8,
}

/// The stack of open brackets: one bit per level, set for an object.
struct BracketStack {
    bits: [u64; NESTING_MAX / 64],
    depth: usize,
    depth_max: usize,
}

/// Position after the beginning of a value.
enum ValueStep {
    /// The value is an array or an object, and its first element starts here.
    Opened(usize),
    /// The value ended before this position.
    Ended(usize),
}

/// Checks that `doc` is a single JSON document that satisfies `rules`.
///
/// # Errors
/// Returns the first flaw found.
pub(crate) fn validate(doc: &[u8], rules: JsonRules) -> Result<(), JsonError> {
    if rules.strict && std::str::from_utf8(doc).is_err() {
        return Err(JsonError::Utf8);
    }
    let mut open =
        BracketStack { bits: [0; NESTING_MAX / 64], depth: 0, depth_max: rules.nesting_max.min(NESTING_MAX) };
    let mut pos = skip_whitespace(doc, 0);
    loop {
        pos = match begin_value(doc, pos, rules, &mut open)? {
            ValueStep::Opened(first) => first,
            ValueStep::Ended(end) => match find_next_value(doc, end, &mut open)? {
                Some(next) => next,
                None => return Ok(()),
            },
        };
    }
}

/// Reads a value up to its end, or up to its first element.
#[inline]
fn begin_value(doc: &[u8], pos: usize, rules: JsonRules, open: &mut BracketStack) -> Result<ValueStep, JsonError> {
    let end = match byte_at(doc, pos) {
        b'-' | b'0'..=b'9' if open.top() == Some(false) => numbers(doc, pos, rules)?,
        b'-' | b'0'..=b'9' => number(doc, pos, rules)?,
        b'"' => string(doc, pos)?,
        b'{' => {
            open.push(true)?;
            let pos = skip_whitespace(doc, pos + 1);
            if byte_at(doc, pos) != b'}' {
                return Ok(ValueStep::Opened(key(doc, pos)?));
            }
            open.pop();
            pos + 1
        }
        b'[' => {
            open.push(false)?;
            let pos = skip_whitespace(doc, pos + 1);
            if byte_at(doc, pos) != b']' {
                return Ok(ValueStep::Opened(pos));
            }
            open.pop();
            pos + 1
        }
        b't' => word(doc, pos, b"true")?,
        b'f' => word(doc, pos, b"false")?,
        b'n' => word(doc, pos, b"null")?,
        b'N' if rules.lenient => word(doc, pos, b"NaN")?,
        b'I' if rules.lenient => word(doc, pos, b"Infinity")?,
        _ => return Err(JsonError::Syntax),
    };
    Ok(ValueStep::Ended(end))
}

/// Closes the brackets after a value, and returns the start of the next value; `None` at the end of
/// the document.
#[inline]
fn find_next_value(doc: &[u8], end: usize, open: &mut BracketStack) -> Result<Option<usize>, JsonError> {
    let mut pos = end;
    loop {
        pos = skip_whitespace(doc, pos);
        let Some(object) = open.top() else {
            return if pos == doc.len() { Ok(None) } else { Err(JsonError::Syntax) };
        };
        match byte_at(doc, pos) {
            b',' if object => return Ok(Some(key(doc, skip_whitespace(doc, pos + 1))?)),
            b',' => return Ok(Some(skip_whitespace(doc, pos + 1))),
            b'}' if object => open.pop(),
            b']' if !object => open.pop(),
            _ => return Err(JsonError::Syntax),
        }
        pos += 1;
    }
}

/// Reads a key with its colon and returns the start of the value.
fn key(doc: &[u8], pos: usize) -> Result<usize, JsonError> {
    if byte_at(doc, pos) != b'"' {
        return Err(JsonError::Syntax);
    }
    let colon = skip_whitespace(doc, string(doc, pos)?);
    if byte_at(doc, colon) != b':' {
        return Err(JsonError::Syntax);
    }
    Ok(skip_whitespace(doc, colon + 1))
}

fn word(doc: &[u8], pos: usize, word: &[u8]) -> Result<usize, JsonError> {
    let starts = doc.get(pos..).is_some_and(|rest| rest.starts_with(word));
    if starts { Ok(pos + word.len()) } else { Err(JsonError::Syntax) }
}

/// Reads the numbers of an array that follow each other, with at most one space after each comma, and
/// returns the end of the last one.
#[inline]
fn numbers(doc: &[u8], start: usize, rules: JsonRules) -> Result<usize, JsonError> {
    let mut next = start;
    loop {
        for _ in 0..NUMBERS_BETWEEN_BLOCKS {
            let end = number(doc, next, rules)?;
            let Some(following) = following_number(doc, end) else { return Ok(end) };
            next = following;
        }
        let after_comma = skip_decimals(doc, next);
        if after_comma > next {
            let end = after_comma - 1;
            let Some(following) = following_number(doc, end) else { return Ok(end) };
            next = following;
        }
    }
}

/// Returns the start of the number after the one that ends at `end`, if there is one.
#[inline(always)]
fn following_number(doc: &[u8], end: usize) -> Option<usize> {
    match (byte_at(doc, end), byte_at(doc, end + 1)) {
        (b',', b'-' | b'0'..=b'9') => Some(end + 1),
        (b',', b' ') if matches!(byte_at(doc, end + 2), b'-' | b'0'..=b'9') => Some(end + 2),
        _ => None,
    }
}

#[inline(always)]
fn number(doc: &[u8], start: usize, rules: JsonRules) -> Result<usize, JsonError> {
    let mut pos = start + usize::from(byte_at(doc, start) == b'-');
    match byte_at(doc, pos) {
        b'0' => pos += 1,
        b'1'..=b'9' => pos = skip_digits(doc, pos + 1),
        b'I' if rules.lenient => return word(doc, pos, b"Infinity"),
        _ => return Err(JsonError::Syntax),
    }
    let mut wide = pos - start > WIDE_DIGITS;
    if byte_at(doc, pos) == b'.' {
        let first = pos + 1;
        pos = skip_digits(doc, first);
        if pos == first {
            return Err(JsonError::Syntax);
        }
    }
    if matches!(byte_at(doc, pos), b'e' | b'E') {
        let first = pos + 1 + usize::from(matches!(byte_at(doc, pos + 1), b'+' | b'-'));
        pos = skip_digits(doc, first);
        if pos == first {
            return Err(JsonError::Syntax);
        }
        wide = true;
    }
    if wide && rules.strict && infinite(doc.get(start..pos).unwrap_or_default()) {
        return Err(JsonError::Range);
    }
    Ok(pos)
}

#[cold]
fn infinite(number: &[u8]) -> bool {
    let value = std::str::from_utf8(number).ok().and_then(|text| text.parse::<f64>().ok());
    value.is_none_or(f64::is_infinite)
}

/// Reads eight bytes from `pos` in little-endian order, or returns `None` near the end.
#[inline]
fn load_u64(doc: &[u8], pos: usize) -> Option<u64> {
    let bytes = doc.get(pos..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Returns the first position at or after `pos` that is not a digit.
#[inline(always)]
fn skip_digits(doc: &[u8], mut pos: usize) -> usize {
    let Some(first) = load_u64(doc, pos).map(leading_digits) else { return skip_last_digits(doc, pos) };
    if first < 8 {
        return pos + first;
    }
    pos += 8;
    // The digits of floats end in the second or third word, which a branch could not predict.
    while let Some(words) = load_u64(doc, pos).zip(load_u64(doc, pos + 8)) {
        let (second, third) = (leading_digits(words.0), leading_digits(words.1));
        pos += second + third * (second / 8);
        if second + third < 16 {
            return pos;
        }
    }
    skip_last_digits(doc, pos)
}

/// Returns the number of digits at the beginning of eight bytes.
#[inline]
fn leading_digits(bytes: u64) -> usize {
    // A byte is a digit if its XOR with 0x30 is at most 9. Adding 0x76 carries values of 10 and
    // above into the top bit. A carry out of a byte only affects the bytes after the first one that
    // is not a digit, and only that first one is used.
    let low = bytes ^ 0x3030_3030_3030_3030;
    let other = (low.wrapping_add(0x7676_7676_7676_7676) | low) & 0x8080_8080_8080_8080;
    (other.trailing_zeros() / 8) as usize
}

/// Returns the first position at or after `pos` that is not a digit, byte by byte.
fn skip_last_digits(doc: &[u8], mut pos: usize) -> usize {
    while byte_at(doc, pos).is_ascii_digit() {
        pos += 1;
    }
    pos
}

/// Reads a string with its opening quote at `pos`. Bytes of 0x80 and above are accepted without a
/// check of their encoding.
#[inline]
fn string(doc: &[u8], pos: usize) -> Result<usize, JsonError> {
    let mut pos = pos + 1;
    loop {
        pos = skip_plain(doc, pos);
        match byte_at(doc, pos) {
            b'"' => return Ok(pos + 1),
            b'\\' => match byte_at(doc, pos + 1) {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => pos += 2,
                b'u' => {
                    let hex = doc.get(pos + 2..pos + 6).unwrap_or_default();
                    if hex.len() != 4 || !hex.iter().all(u8::is_ascii_hexdigit) {
                        return Err(JsonError::Syntax);
                    }
                    pos += 6;
                }
                _ => return Err(JsonError::Syntax),
            },
            _ => return Err(JsonError::Syntax),
        }
    }
}

/// Returns the first position at or after `pos` that holds a quote, a backslash or a control
/// character.
#[inline]
fn skip_plain(doc: &[u8], mut pos: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    while let Some(bytes) = load_u64(doc, pos) {
        let quote = bytes ^ (ONES * 0x22);
        let slash = bytes ^ (ONES * 0x5c);
        // The lowest top bit that is set is exact: a borrow only affects the bytes after the first
        // hit.
        let hit = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (bytes.wrapping_sub(ONES * 0x20) & !bytes);
        if hit & TOPS != 0 {
            return pos + ((hit & TOPS).trailing_zeros() / 8) as usize;
        }
        pos += 8;
    }
    while !matches!(byte_at(doc, pos), b'"' | b'\\' | 0..=0x1f) {
        pos += 1;
    }
    pos
}

// === impl JsonRules ===

impl JsonRules {
    /// The rules for responses, which are passed on as they are written.
    pub(crate) const ANSWER: Self = Self { lenient: true, strict: false, nesting_max: NESTING_MAX };
    /// The rules for documents that a server publishes about itself.
    pub(crate) const PUBLISHED: Self = Self { lenient: false, strict: true, nesting_max: 32 };
}

// === impl BracketStack ===

impl BracketStack {
    fn push(&mut self, object: bool) -> Result<(), JsonError> {
        if self.depth >= self.depth_max {
            return Err(JsonError::Nesting);
        }
        let bit = 1_u64 << (self.depth % 64);
        if let Some(row) = self.bits.get_mut(self.depth / 64) {
            *row = if object { *row | bit } else { *row & !bit };
        }
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Returns `true` if the innermost open bracket belongs to an object, or `None` at the top
    /// level.
    #[inline]
    fn top(&self) -> Option<bool> {
        let depth = self.depth.checked_sub(1)?;
        self.bits.get(depth / 64).map(|row| row >> (depth % 64) & 1 == 1)
    }
}
