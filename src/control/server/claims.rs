//! Unverified claims of a token: its pod, its audience and its expiry.
//!
//! Nothing here authenticates a token. The claims are used to avoid reviews of tokens that are
//! certainly not acceptable, and to bound the time for which a review is cached. Pod tokens contain
//! the pod since Kubernetes 1.20: `{"kubernetes.io": {"pod": {"name": …, "uid": …}}}`
//! (`serviceaccount/claims.go` of the API server).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Maximum length of a token. Service account tokens have about 1 KiB, and stay below this limit
/// even with many audiences and long names.
pub(super) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// The claims that are read from a token's payload.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Claims {
    /// Audiences: the services that the token was issued for.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(super) aud: Vec<String>,
    /// Expiry in seconds since the Unix epoch.
    pub(super) exp: Option<u64>,
    #[serde(default, rename = "kubernetes.io")]
    bound: BoundObject,
}

/// The object that the token was issued for. The token is invalid once the object is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
struct BoundObject {
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
    // The encoding of JWTs (RFC 7515, section 2).
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Deserializes an audience: one string, or a list of strings (RFC 7519, section 4.1.3).
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
        assert_eq!(parse_claims("h.e30=.s"), None, "tokens have no padding");
        for wrong in
            ["", "opaque", "a.b", "a.b.c", "h.e30.s.x", "h.!!.s", &format!("h.e30.{}", "s".repeat(TOKEN_BYTES_MAX))]
        {
            assert_eq!(parse_claims(wrong), None, "{wrong:.40}");
        }
    }
}
