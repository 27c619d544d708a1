//! Protocol detection: classifies the first bytes of a connection as HTTP or not.
//!
//! HTTP/1 is detected by its request line, or by a sufficient part of a long one, and HTTP/2 by the
//! line that begins its preface (RFC 9113, 3.4). Everything else is another protocol, such as TLS
//! or that of a database. A request with invalid headers still counts as HTTP.

/// Maximum number of bytes inspected: a method and the beginning of a target that are longer than
/// in any other protocol. A longer line is classified as HTTP.
pub(super) const DETECT_BYTES_MAX: usize = 1024;
/// Maximum length of a method. Methods of 300 letters are supported.
const METHOD_MAX: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
    Http,
    Other,
    /// More bytes are needed.
    More,
}

/// Classifies the first bytes of a connection, all that have been received.
pub(super) fn detect_protocol(bytes: &[u8]) -> DetectedProtocol {
    // Empty lines before a request are skipped (RFC 9112, 2.2).
    let skipped = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let Some(line) = bytes.get(skipped..).filter(|line| !line.is_empty()) else { return incomplete(bytes) };
    let method = line.iter().take_while(|byte| is_token(**byte)).count();
    let after = match line.get(method) {
        _ if method > METHOD_MAX => return DetectedProtocol::Other,
        None => return incomplete(bytes),
        Some(b' ') if method > 0 => line.get(method + 1..).unwrap_or_default(),
        Some(_) => return DetectedProtocol::Other,
    };
    // hyper answers an invalid target with an error, as the server would without the proxy.
    let target = after.iter().take_while(|byte| **byte > b' ' && **byte != 0x7f).count();
    let version = match after.get(target) {
        None => return if bytes.len() >= DETECT_BYTES_MAX { DetectedProtocol::Http } else { DetectedProtocol::More },
        Some(b' ') if target > 0 => after.get(target + 1..).unwrap_or_default(),
        Some(_) => return DetectedProtocol::Other,
    };
    let known = version.iter().zip(b"HTTP/").take_while(|(one, other)| one == other).count();
    match version.len() {
        _ if known == 5 => DetectedProtocol::Http,
        length if length == known => incomplete(bytes),
        _ => DetectedProtocol::Other,
    }
}

/// The bytes are compatible with HTTP, but give up once [`DETECT_BYTES_MAX`] bytes have not
/// confirmed it.
const fn incomplete(bytes: &[u8]) -> DetectedProtocol {
    if bytes.len() >= DETECT_BYTES_MAX { DetectedProtocol::Other } else { DetectedProtocol::More }
}

/// Returns `true` for a character of a method (RFC 9110, 5.6.2).
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frames::PREFACE;

    #[test]
    fn requests_of_both_versions_are_http_and_other_protocols_are_not() {
        for http in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"POST /v1/models/m:predict HTTP/1.1\r\nhost: h",
            b"\r\n\r\nGET / HTTP/1.0\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\n",
            b"CONNECT h:1 HTTP/1.1\r\n",
            b"M-SEARCH http://h/ HTTP/1.1\r\n",
            b"GET /\xff HTTP/1.1\r\n",
            b"GET / HTTP/9",
            PREFACE,
        ] {
            assert_eq!(detect_protocol(http), DetectedProtocol::Http, "{}", http.escape_ascii());
        }
        for other in [
            // TLS
            &b"\x16\x03\x01\x02\x00\x01\x00"[..],
            // Redis
            b"PING\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"GET key\r\n",
            // memcached
            b"get key\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"EHLO h\r\n",
            // PostgreSQL
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
            b"{\"a\": 1}\n",
            b" GET / HTTP/1.1\r\n",
            b"GET /a b HTTP/1.1\r\n",
            b"GET  / HTTP/1.1\r\n",
            b"GET / HTTX",
        ] {
            assert_eq!(detect_protocol(other), DetectedProtocol::Other, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn the_protocol_is_decided_within_the_detection_limit() {
        assert_eq!(detect_protocol(b""), DetectedProtocol::More);
        let long = |text: &str| {
            detect_protocol(
                format!("{text}{}", "a".repeat(DETECT_BYTES_MAX)).get(..DETECT_BYTES_MAX).unwrap().as_bytes(),
            )
        };
        assert_eq!((long("GET /"), long("a")), (DetectedProtocol::Http, DetectedProtocol::Other));
        assert_eq!(detect_protocol(&[b'\n'; DETECT_BYTES_MAX]), DetectedProtocol::Other);
        assert_eq!(detect_protocol(format!("{} / HTTP/1.1\r\n", "M".repeat(300)).as_bytes()), DetectedProtocol::Http);
    }

    proptest! {
        /// The first definite result is the result for the whole text, however the text is split
        /// into reads.
        #[test]
        fn the_first_definite_protocol_is_final(text in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..64),
            "(GET|POST|x) ?[/a-z]{0,9} ?(HTTP/1.1\r\n.{0,9})?".prop_map(String::into_bytes),
            Just(PREFACE.to_vec()),
        ]) {
            let verdicts: Vec<_> = (0..=text.len()).map(|end| detect_protocol(&text[..end])).collect();
            let first = verdicts.iter().find(|verdict| **verdict != DetectedProtocol::More);
            let late = verdicts.iter().skip_while(|verdict| **verdict == DetectedProtocol::More);
            prop_assert!(late.clone().all(|verdict| Some(verdict) == first), "{:?}", verdicts);
        }
    }
}
