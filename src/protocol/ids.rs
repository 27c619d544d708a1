//! Random ids for requests, traces and responses.

use rand::Rng;

use crate::json;

/// Minimum number of random characters in an id.
const RANDOM_CHARS_MIN: usize = 8;
/// Room in the response to a member for an id and counters that are longer than those of the batch.
/// Longer ones cost a reallocation.
pub(crate) const EDITS_LEN: usize = 256;

/// Returns 128 random bits in hexadecimal.
pub(crate) fn request_id() -> String {
    hex(&rand::random::<[u8; 16]>())
}

/// Returns a new trace context in the W3C `traceparent` format.
pub(crate) fn traceparent(sampled: bool) -> String {
    // The W3C format forbids ids of zeros, so one bit of each is always set.
    let mut trace = rand::random::<[u8; 16]>();
    let mut span = rand::random::<[u8; 8]>();
    trace[0] |= 1;
    span[0] |= 1;
    format!("00-{}-{}-{:02x}", hex(&trace), hex(&span), u8::from(sampled))
}

/// Returns a random id with the form of `raw`, which is the content of a JSON string or a number:
/// the same prefix, alphabet and length. An id with fewer than eight random characters, or with an
/// escape, becomes its prefix and sixteen hexadecimal digits.
pub(crate) fn random_like(raw: &[u8], number: bool) -> Vec<u8> {
    if number {
        return random_number(raw.len());
    }
    let uuid = is_uuid(raw);
    let start = if uuid { 0 } else { prefix_len(raw) };
    let (head, own) = raw.split_at_checked(start).unwrap_or((raw, &[]));
    let mut out = head.to_vec();
    if raw.is_empty() {
        return out;
    }
    if own.iter().filter(|byte| byte.is_ascii_alphanumeric()).count() < RANDOM_CHARS_MIN || own.contains(&b'\\') {
        return prefixed_hex(head);
    }
    // Only separators are copied, and the version digit of a UUID. The variant digit has to stay in
    // its range.
    let (alphabet, mut random) = (alphabet(own), rand::rng());
    for (place, &byte) in own.iter().enumerate() {
        let fixed = !byte.is_ascii_alphanumeric() || (uuid && place == 14);
        out.push(if fixed {
            byte
        } else if uuid && place == 19 {
            pick(b"89ab", &mut random)
        } else {
            pick(alphabet, &mut random)
        });
    }
    out
}

/// Returns the id that a server derives from the client's request id: `prefix` followed by the
/// header value.
pub(crate) fn derived_from_request_id(prefix: &[u8], header: &[u8]) -> Vec<u8> {
    let mut out = prefix.to_vec();
    json::escape_latin1(header, &mut out);
    out
}

/// Returns `prefix` followed by sixteen hexadecimal digits, as vLLM does for a client without a
/// request id.
pub(crate) fn prefixed_hex(prefix: &[u8]) -> Vec<u8> {
    let mut out = prefix.to_vec();
    out.extend_from_slice(hex(&rand::random::<[u8; 8]>()).as_bytes());
    out
}

/// Returns the length of an id's prefix: a word of letters and its dash, as in `embd-`.
pub(crate) fn prefix_len(raw: &[u8]) -> usize {
    let word = raw.iter().take_while(|byte| byte.is_ascii_alphabetic() || **byte == b'_').count();
    if word > 0 && matches!(raw.get(word), Some(b'-')) { word + 1 } else { 0 }
}

fn is_uuid(raw: &[u8]) -> bool {
    raw.len() == 36
        && raw.iter().enumerate().all(|(place, byte)| {
            if matches!(place, 8 | 13 | 18 | 23) { *byte == b'-' } else { byte.is_ascii_hexdigit() }
        })
}

fn alphabet(own: &[u8]) -> &'static [u8] {
    let letters = || own.iter().filter(|byte| byte.is_ascii_alphanumeric());
    if letters().all(u8::is_ascii_digit) {
        b"0123456789"
    } else if letters().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        b"0123456789abcdef"
    } else if letters().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F')) {
        b"0123456789ABCDEF"
    } else if letters().all(|byte| !byte.is_ascii_uppercase()) {
        b"0123456789abcdefghijklmnopqrstuvwxyz"
    } else {
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    }
}

fn pick(alphabet: &[u8], random: &mut impl Rng) -> u8 {
    let place = random.random_range(0..alphabet.len().max(1));
    alphabet.get(place).copied().unwrap_or(b'0')
}

/// Returns a random number of 8 to 15 digits, as close as possible to `len`. Every JSON reader
/// represents 15 digits exactly.
fn random_number(len: usize) -> Vec<u8> {
    let digits = len.clamp(RANDOM_CHARS_MIN, 15);
    let mut random = rand::rng();
    let mut out = vec![pick(b"123456789", &mut random)];
    out.extend((1..digits).map(|_| pick(b"0123456789", &mut random)));
    out
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &str, start: &str) {
        let one = String::from_utf8(random_like(raw.as_bytes(), false)).unwrap();
        let two = String::from_utf8(random_like(raw.as_bytes(), false)).unwrap();
        assert!(one.starts_with(start), "{one}");
        assert_ne!(one, raw);
        assert_ne!(one, two);
        assert!(one.len() >= start.len() + 8);
        assert!(one.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{one}");
    }

    #[test]
    fn an_id_keeps_its_form_and_nothing_else() {
        check("embd-0f0f0f0f0f0f0f0f", "embd-");
        check("chatcmpl-1", "chatcmpl-");
        check("infinity-40a2721b-eca9-4104-9d5a-6ccab1118aa2", "infinity-");
        check("40a2721b-eca9-4104-9d5a-6ccab1118aa2", "");
        check("deadbeef-eca9-4104-9d5a-6ccab1118aa2", "");
        let uuid = random_like(b"40a2721b-eca9-4104-9d5a-6ccab1118aa2", false);
        assert!(is_uuid(&uuid));
        assert_eq!(uuid[14], b'4');
        assert_eq!(random_like(b"embd-0f0f0f0f0f0f0f0f", false).len(), 21);
    }

    #[test]
    fn an_empty_id_stays_empty_and_a_number_stays_one() {
        assert_eq!(random_like(b"", false), b"");
        let number = random_like(b"1234567890", true);
        assert_eq!(number.len(), 10);
        assert!(number[0] != b'0' && number.iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn a_traceparent_is_valid_and_has_the_requested_sampling() {
        let parent = traceparent(true);
        assert_eq!(parent.len(), 55);
        assert!(parent.starts_with("00-") && parent.ends_with("-01"));
        assert_ne!(parent, traceparent(true));
    }
}
