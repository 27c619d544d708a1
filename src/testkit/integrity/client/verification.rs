//! Verification of responses: whether a response has the result of each item of its own call and
//! nothing else, or which error it is.

use std::borrow::Cow;

use memchr::memmem;
use serde::Deserialize;

use super::super::nonce::{CallForm, Digest, ITEMS_MAX, ItemToken, hex, numbers};
use super::super::{FAULT_HEADER, POISON};
use crate::http1::Message;

/// One call with its expected results.
pub(super) struct ClientCall {
    pub(super) form: CallForm,
    pub(super) poison: bool,
    pub(super) tenant: usize,
    pub(super) nonces: Vec<ItemToken>,
    /// First and last model release that may answer: the release at the start of the call, and the
    /// current one when the response arrived.
    pub(super) releases: (u64, u64),
}

/// Outcome of the items of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemOutcome {
    /// The correct 200 response.
    Served,
    /// An error of the proxy, by its code.
    ProxyError(String),
    /// The unmodified 429 or 503 of the upstream.
    Overloaded,
    /// Another error of the upstream.
    Upstream,
    /// A response or an end of the connection that the mock marked as a fault.
    Faulted,
    /// The client cancelled the call.
    Cancelled,
    /// An incorrect 200 response.
    Misdelivered,
    /// The error about a poison item, for a call without one.
    WrongError,
    /// No complete response.
    Lost,
}

#[derive(Deserialize)]
struct EmbeddingsBody {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: [u32; 4],
}

#[derive(Deserialize)]
struct ResultsBody<'a> {
    #[serde(borrow, alias = "predictions")]
    results: Vec<Cow<'a, str>>,
}

// === impl ClientCall ===

impl ClientCall {
    /// Determines the outcome of the call from its response.
    pub(super) fn classify(&self, answer: &Message<'_>) -> ItemOutcome {
        let fault = answer.header(FAULT_HEADER).is_some();
        if answer.status == 200 {
            return match self.is_right(answer.body) {
                // The mock never computes a correct response for a call with a poison item.
                Some(true) if !self.poison => ItemOutcome::Served,
                _ if fault => ItemOutcome::Faulted,
                _ => ItemOutcome::Misdelivered,
            };
        }
        if let Some(code) = answer.header("x-groupage-error") {
            return ItemOutcome::ProxyError(String::from_utf8_lossy(code).into_owned());
        }
        if !self.poison && memmem::find(answer.body, POISON.as_bytes()).is_some() {
            return ItemOutcome::WrongError;
        }
        match answer.status {
            _ if fault => ItemOutcome::Faulted,
            429 | 503 => ItemOutcome::Overloaded,
            _ => ItemOutcome::Upstream,
        }
    }

    /// Returns `true` if a 200 response contains the correct result of each item and nothing else,
    /// or `None` if it has another form.
    fn is_right(&self, body: &[u8]) -> Option<bool> {
        let (first, last) = self.releases;
        if !self.form.has_index() {
            let results = serde_json::from_slice::<ResultsBody<'_>>(body).ok()?.results;
            let right = |expect: Vec<Digest>| results.iter().map(|result| result.as_ref()).eq(expect.iter().map(hex));
            return Some((first..=last).any(|release| right(self.expect(release))));
        }
        let data = serde_json::from_slice::<EmbeddingsBody>(body).ok()?.data;
        Some((first..=last).any(|release| self.is_right_embedding(&data, release)))
    }

    /// Returns the correct results of a model release.
    fn expect(&self, release: u64) -> Vec<Digest> {
        self.nonces.iter().map(|nonce| nonce.expected_result(self.tenant, release)).collect()
    }

    fn is_right_embedding(&self, data: &[Embedding], release: u64) -> bool {
        let expect = self.expect(release);
        let mut seen = [false; ITEMS_MAX];
        let right = data.iter().all(|one| {
            let new = seen.get_mut(one.index).is_some_and(|seen| !std::mem::replace(seen, true));
            new && expect.get(one.index).is_some_and(|digest| numbers(digest) == one.embedding)
        });
        right && data.len() == expect.len()
    }
}

/// Classifies a truncated response. It is excused only if its head names a fault, which the mock
/// writes only to calls that were forwarded alone.
pub(super) fn classify_truncated(received: &[u8]) -> ItemOutcome {
    if memmem::find(received, FAULT_HEADER.as_bytes()).is_some() { ItemOutcome::Faulted } else { ItemOutcome::Lost }
}
