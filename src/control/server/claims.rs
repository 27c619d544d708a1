//! Unverified claims of a token: its pod, its audience and its expiry.
//!
//! Nothing here authenticates a token. The claims are used to avoid reviews of tokens that are
//! certainly not acceptable, and to bound the time for which a review is cached. Pod tokens contain
//! the pod since Kubernetes 1.20: `{"kubernetes.io": {"pod": {"name": …, "uid": …}}}`
//! (`serviceaccount/claims.go` of the API server).

use serde::Deserialize;

/// Maximum length of a token. Service account tokens have about 1 KiB, and stay below this limit
/// even with many audiences and long names.
pub(super) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// The claims that are read from a token's payload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Claims {
    /// Audiences.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(super) aud: Vec<String>,
    /// Expiry in seconds since the Unix epoch.
    #[serde(default)]
    pub(super) exp: Option<u64>,
    #[serde(default, rename = "kubernetes.io")]
    bound: BoundObject,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct BoundObject {
    #[serde(default)]
    pod: Option<BoundPod>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct BoundPod {
    uid: String,
}

// === impl Claims ===

impl Claims {
    /// Returns the UID of the pod that the token claims to be bound to.
    pub(super) fn pod(&self) -> Option<&str> {
        self.bound.pod.as_ref().map(|pod| pod.uid.as_str())
    }

    #[cfg(test)]
    pub(super) fn with_expiry(exp: Option<u64>) -> Self {
        Self { aud: vec![], exp, bound: BoundObject::default() }
    }
}

/// Returns the unverified claims of a token, or `None` if it is not a JWT.
pub(super) fn parse_claims(token: &str) -> Option<Claims> {
    if token.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let mut parts = token.split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    serde_json::from_slice(&decode_base64url(payload)?).ok()
}

/// Decodes unpadded base64url (RFC 4648, section 5), the encoding of JWTs (RFC 7515, section 2).
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut held) = (0_u32, 0_u32);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from((bits >> held) & 0xff).ok()?);
            bits &= (1 << held) - 1;
        }
    }
    // A single remaining character holds less than a byte.
    (held < 6).then_some(out)
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::One(one) => vec![one],
        Either::Many(many) => many,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_as_in_the_rfc() {
        for (text, bytes) in
            [("", ""), ("Zg", "f"), ("Zm8", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar"), ("_-8", "\u{ff}\u{ef}")]
        {
            let expected: Vec<u8> = if text == "_-8" { vec![0xff, 0xef] } else { bytes.as_bytes().to_vec() };
            assert_eq!(decode_base64url(text), Some(expected), "{text}");
        }
        for wrong in ["Z", "Zg==", "Z g", "Zm9v+", "é"] {
            assert_eq!(decode_base64url(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn claims_are_parsed_from_a_json_web_token_and_from_nothing_else() {
        // {"aud":["groupage.dev"],"exp":1700000000,"iss":"x"} and {"aud":"one"}
        let many = "h.eyJhdWQiOlsiZ3JvdXBhZ2UuZGV2Il0sImV4cCI6MTcwMDAwMDAwMCwiaXNzIjoieCJ9.s";
        let expected = Claims { aud: vec!["groupage.dev".to_owned()], ..Claims::with_expiry(Some(1_700_000_000)) };
        assert_eq!(parse_claims(many), Some(expected));
        // {"aud":["groupage.dev"],"kubernetes.io":{"namespace":"a","pod":{"name":"p","uid":"u-7"}}}
        let bound = "h.eyJhdWQiOlsiZ3JvdXBhZ2UuZGV2Il0sImt1YmVybmV0ZXMuaW8iOnsibmFtZXNwYWNlIjoiYSIsInBvZCI6eyJuYW1lIjoicCIsInVpZCI6InUtNyJ9fX0.s";
        assert_eq!(parse_claims(bound).unwrap().pod(), Some("u-7"));
        assert_eq!(parse_claims(many).unwrap().pod(), None);
        assert_eq!(parse_claims("h.eyJhdWQiOiJvbmUifQ.s").map(|claims| claims.aud), Some(vec!["one".to_owned()]));
        assert_eq!(parse_claims("h.e30.s"), Some(Claims::with_expiry(None)));
        for wrong in
            ["", "opaque", "a.b", "a.b.c", "h.e30.s.x", "h.!!.s", &format!("h.e30.{}", "s".repeat(TOKEN_BYTES_MAX))]
        {
            assert_eq!(parse_claims(wrong), None, "{wrong:.40}");
        }
    }
}
