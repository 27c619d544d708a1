//! Identity of the model server, so that values learned about one server are not applied to
//! another.
//!
//! The consequences of a change are left to `app::state_dir`. A server that is replaced without a
//! change of its identity is detected by the execution times of its batches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::HeaderMap;
use http::header::SERVER;
use tokio::sync::watch;

use crate::protocol::{headers, is_engine};

/// Maximum length of a stored name in bytes. Real names are shorter.
const NAME_MAX: usize = 256;

/// The latest identity that a server reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its `Server` header: a program, often with a version.
    pub server: Option<String>,
    /// The model and its revision, if the server publishes them.
    pub model: Option<String>,
}

/// Broadcasts the identity of the server that responded last.
#[derive(Debug, Default)]
pub(super) struct IdentityWatch {
    latest: watch::Sender<ServerIdentity>,
    /// Number of recoveries of the server at its last response to a client's call, plus one, so
    /// that 0 means that there was no response yet.
    recoveries_at_last_answer: AtomicU64,
    /// Set by a response that shows that the server publishes its limits in a document.
    publishes_info: AtomicBool,
}

// === impl ServerIdentity ===

impl ServerIdentity {
    /// Returns the current and the previous name of the first property that both identities contain
    /// with different values.
    #[must_use]
    pub fn differs_from<'a>(&'a self, before: &'a Self) -> Option<(&'a str, &'a str)> {
        [(&self.server, &before.server), (&self.model, &before.model)].into_iter().find_map(|pair| match pair {
            (Some(now), Some(before)) if now != before => Some((now.as_str(), before.as_str())),
            _ => None,
        })
    }

    /// Fills missing properties from `other`.
    #[must_use]
    pub fn with_missing_from(self, other: &Self) -> Self {
        Self { server: self.server.or_else(|| other.server.clone()), model: self.model.or_else(|| other.model.clone()) }
    }

    /// Returns `true` if this identity contains every property that `other` contains.
    #[must_use]
    pub const fn is_superset_of(&self, other: &Self) -> bool {
        (self.server.is_some() || other.server.is_none()) && (self.model.is_some() || other.model.is_none())
    }
}

// === impl IdentityWatch ===

impl IdentityWatch {
    pub(super) fn subscribe(&self) -> watch::Receiver<ServerIdentity> {
        self.latest.subscribe()
    }

    /// Stores the `Server` header of a response, and whether the response shows that the server
    /// publishes its limits in a document.
    pub(super) fn on_response(&self, response: &HeaderMap) {
        if headers::publishes_info(response) {
            self.publishes_info.store(true, Ordering::Relaxed);
        }
        let Some(name) = response.get(SERVER).and_then(|name| name.to_str().ok()).map(truncate_name) else { return };
        // The value nearly always matches, and a read lock does not block other responses.
        if self.latest.borrow().server.as_deref() != Some(name) {
            self.latest.send_modify(|known| known.server = Some(name.to_owned()));
        }
    }

    /// Stores the `Server` header of a response to a client's call, from a server that has
    /// recovered this many times.
    pub(super) fn on_client_response(&self, headers: &HeaderMap, recoveries: u64) {
        self.on_response(headers);
        self.recoveries_at_last_answer.store(recoveries.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns `true` if a client's call was answered since the last of these recoveries.
    pub(super) fn has_answered(&self, recoveries: u64) -> bool {
        self.recoveries_at_last_answer.load(Ordering::Relaxed) > recoveries
    }

    /// Returns `true` if the latest response was that of an engine for text generation.
    pub(super) fn is_engine(&self) -> bool {
        self.latest.borrow().server.as_deref().is_some_and(is_engine)
    }

    /// Returns `true` if a response showed that the server publishes its limits in a document.
    pub(super) fn publishes_info(&self) -> bool {
        self.publishes_info.load(Ordering::Relaxed)
    }

    /// Stores the model that the server published.
    pub(super) fn on_published_model(&self, model: &str) {
        let name = truncate_name(model);
        if self.latest.borrow().model.as_deref() != Some(name) {
            self.latest.send_modify(|known| known.model = Some(name.to_owned()));
        }
    }
}

fn truncate_name(name: &str) -> &str {
    name.get(..name.floor_char_boundary(NAME_MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(server: Option<&str>, model: Option<&str>) -> ServerIdentity {
        ServerIdentity { server: server.map(str::to_owned), model: model.map(str::to_owned) }
    }

    #[test]
    fn only_parts_known_of_both_identities_can_differ() {
        let before = identity(Some("tei/1.8"), Some("bge a1"));
        assert_eq!(
            identity(Some("tei/1.9"), None).with_missing_from(&before),
            identity(Some("tei/1.9"), Some("bge a1"))
        );
        assert_eq!(identity(None, None).with_missing_from(&before), before);
        assert_eq!(identity(None, Some("bge a1")).differs_from(&before), None);
        assert_eq!(identity(Some("tei/1.8"), Some("bge a2")).differs_from(&before), Some(("bge a2", "bge a1")));
        assert_eq!(identity(Some("tei/1.9"), None).differs_from(&before), Some(("tei/1.9", "tei/1.8")));
        assert_eq!(before.differs_from(&identity(None, None)), None);
        assert!(!identity(Some("tei/1.8"), None).is_superset_of(&before));
        assert!(before.is_superset_of(&before) && before.is_superset_of(&identity(None, Some("other"))));
    }

    #[test]
    fn a_repeated_model_name_is_not_a_change_and_a_long_one_is_truncated() {
        let identity = IdentityWatch::default();
        let mut waits = identity.subscribe();
        identity.on_published_model("m");
        assert!(waits.has_changed().unwrap() && waits.borrow_and_update().model.as_deref() == Some("m"));
        identity.on_published_model("m");
        assert!(!waits.has_changed().unwrap());
        identity.on_published_model(&"é".repeat(NAME_MAX));
        assert_eq!(waits.borrow().model.as_deref().map(str::len), Some(NAME_MAX));
    }

    #[test]
    fn an_answer_counts_until_the_server_recovers_again() {
        let identity = IdentityWatch::default();
        assert!(!identity.has_answered(0) && !identity.is_engine());
        let headers = HeaderMap::from_iter([(SERVER, http::HeaderValue::from_static("llama.cpp"))]);
        identity.on_response(&headers);
        assert!(!identity.has_answered(0) && identity.is_engine());
        identity.on_client_response(&headers, 0);
        assert!(identity.has_answered(0) && !identity.has_answered(1));
    }
}
