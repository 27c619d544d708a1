//! JSON strings: decoding for key comparison, lengths in code points and bytes, and escaping.

use std::borrow::Cow;

/// Resolves the escapes of a string given without its quotes. A lone surrogate becomes the three
/// bytes of its WTF-8 encoding, so two spellings of one key still compare equal.
pub(crate) fn unescape(raw: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', raw) else { return Cow::Borrowed(raw) };
    let mut out = Vec::with_capacity(raw.len());
    out.extend_from_slice(raw.get(..first).unwrap_or_default());
    let mut pos = first;
    while let Some(&byte) = raw.get(pos) {
        if byte != b'\\' {
            out.push(byte);
            pos += 1;
            continue;
        }
        match raw.get(pos + 1).copied().unwrap_or(b'\\') {
            b'u' => {
                let (scalar, taken) = decode_unicode_escape(raw, pos);
                push_wtf8(&mut out, scalar);
                pos += taken;
                continue;
            }
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            other => out.push(other),
        }
        pos += 2;
    }
    Cow::Owned(out)
}

/// Returns the number of code points of a string given without its quotes, as Python's `len` and
/// Rust's `chars().count()` would count them. A surrogate pair counts as one, and so does a lone
/// surrogate.
pub(crate) fn code_points(raw: &[u8]) -> u64 {
    let mut count = 0;
    let mut rest = raw;
    while let Some(hit) = memchr::memchr(b'\\', rest) {
        count += count_code_points(rest.get(..hit).unwrap_or_default()) + 1;
        let taken = if rest.get(hit + 1) == Some(&b'u') { decode_unicode_escape(rest, hit).1 } else { 2 };
        rest = rest.get(hit + taken..).unwrap_or_default();
    }
    count + count_code_points(rest)
}

/// Returns the length in bytes of a JSON text if its escaped characters were written in UTF-8. For
/// example, `\u6c49` takes six bytes but counts as the three bytes of its character. Escaped
/// quotes, backslashes and control characters count as one byte.
pub(crate) fn unescaped_len(raw: &[u8]) -> usize {
    let mut saved = 0;
    let mut pos = 0;
    while let Some(hit) = raw.get(pos..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        let at = pos + hit;
        let (scalar, taken) = if raw.get(at + 1) == Some(&b'u') { decode_unicode_escape(raw, at) } else { (1, 2) };
        let encoded = match scalar {
            0..=0x7f => 1,
            0x80..=0x7ff => 2,
            0x800..=0xffff => 3,
            _ => 4,
        };
        saved += taken - encoded;
        pos = at + taken;
    }
    raw.len().saturating_sub(saved)
}

/// Returns `true` if some servers would accept `key` as the field `name` although its spelling
/// differs: it is equal except for ASCII case, or for the two letters that Go's decoder folds into
/// ASCII (the long s and the Kelvin sign).
pub(crate) fn is_case_variant(key: &[u8], name: &[u8]) -> bool {
    if key == name {
        return false;
    }
    let mut rest = key;
    for &letter in name {
        let lower = letter.to_ascii_lowercase();
        let taken = match rest {
            [first, ..] if first.to_ascii_lowercase() == lower => 1,
            [0xc5, 0xbf, ..] if lower == b's' => 2,
            [0xe2, 0x84, 0xaa, ..] if lower == b'k' => 3,
            _ => return false,
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    rest.is_empty()
}

/// Appends a header value, interpreted as Latin-1, as the content of a JSON string.
pub(crate) fn escape_latin1(value: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in value {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => {
                let low = HEX.get(usize::from(byte & 15)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), low]);
            }
            _ => out.extend_from_slice(char::from(byte).encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Returns a name as a JSON string.
pub(crate) fn to_json_string(name: &str) -> Vec<u8> {
    let mut out = vec![b'"'];
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

fn count_code_points(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(byte & 0xc0 != 0x80)).sum()
}

/// Returns the scalar value (or lone surrogate) of the `\u` escape at `pos`, and the length of the
/// escape in bytes.
pub(super) fn decode_unicode_escape(raw: &[u8], pos: usize) -> (u32, usize) {
    let high = parse_code_unit(raw, pos);
    if (0xd800..0xdc00).contains(&high) && raw.get(pos + 6..pos + 8) == Some(b"\\u") {
        let low = parse_code_unit(raw, pos + 6);
        if (0xdc00..0xe000).contains(&low) {
            return (0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00), 12);
        }
    }
    (high, 6)
}

fn parse_code_unit(raw: &[u8], pos: usize) -> u32 {
    let digits = raw.get(pos + 2..pos + 6).unwrap_or_default();
    digits.iter().fold(0, |sum, &digit| sum << 4 | char::from(digit).to_digit(16).unwrap_or(0))
}

fn push_wtf8(out: &mut Vec<u8>, scalar: u32) {
    if let Some(char) = char::from_u32(scalar) {
        out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        return;
    }
    let six = |shift: u32| u8::try_from(scalar >> shift & 0x3f).unwrap_or(0);
    out.extend_from_slice(&[0xe0 | six(12), 0x80 | six(6), 0x80 | six(0)]);
}
