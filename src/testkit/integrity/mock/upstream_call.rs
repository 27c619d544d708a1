//! One call as it arrived, and the bytes of its responses: correct ones, and ones that cannot be
//! split.

use std::fmt::Write as _;

use serde::Deserialize;

use super::super::fault::Fault;
use super::super::nonce::{CallForm, Digest, ItemToken, LedgerItem, hex, numbers};
use crate::item::Route;

/// Header of every response that is JSON, or pretends to be.
pub(super) const JSON: &str = "content-type: application/json\r\n";

/// One call as it arrived.
pub(super) struct UpstreamCall {
    pub(super) form: CallForm,
    pub(super) items: Vec<(ItemToken, LedgerItem)>,
    pub(super) close: bool,
    pub(super) members: usize,
    /// Model release that answers the call.
    pub(super) release: u64,
    /// `true` if the call has more items than the current limit.
    pub(super) too_large: bool,
}

#[derive(Deserialize)]
struct KServeItem<'a> {
    tenant: &'a str,
    nonce: &'a str,
}

// === impl UpstreamCall ===

impl UpstreamCall {
    /// Returns the correct response.
    pub(super) fn body(&self) -> String {
        let results: Vec<_> = self.results().enumerate().collect();
        response_body(self.form, &results)
    }

    fn results(&self) -> impl Iterator<Item = Digest> {
        self.items.iter().map(|(nonce, item)| nonce.expected_result(item.tenant, self.release))
    }

    /// Returns a response that cannot be split, or is difficult to split. If the form has no
    /// indexes, a wrong index is replaced by a wrong count.
    pub(super) fn wrong_body(&self, fault: Fault) -> String {
        let mut results: Vec<_> = self.results().enumerate().collect();
        let n = results.len();
        let indexed = self.form.has_index();
        match fault {
            Fault::CountNone => results.clear(),
            Fault::CountMore => results.push((n, results.last().map(|&(_, digest)| digest).unwrap_or_default())),
            Fault::IndexTwice if indexed => {
                if let Some(last) = results.last_mut() {
                    last.0 = if n > 1 { 0 } else { 1 };
                }
            }
            Fault::IndexMissing if indexed => {
                if let Some(last) = results.last_mut() {
                    last.0 = n + 6;
                }
            }
            Fault::IndexShuffled if indexed => results.reverse(),
            Fault::IndexShuffled => {}
            _ => {
                results.pop();
            }
        }
        response_body(self.form, &results)
    }

    /// Returns the correct response to the first item only.
    pub(super) fn first_body(&self) -> String {
        response_body(self.form, &self.results().enumerate().take(1).collect::<Vec<_>>())
    }
}

// === impl CallForm ===

impl CallForm {
    pub(super) fn of_path(path: &str) -> Option<Self> {
        [Self::OpenAi, Self::KServe, Self::Generic].into_iter().find(|form| form.path() == path)
    }

    pub(super) fn route(self) -> Route {
        match self {
            Self::OpenAi | Self::OpenAiSingle => Route::Embeddings,
            Self::KServe => Route::Predict,
            Self::Generic => Route::Ledger,
        }
    }
}

/// Returns the tenant and the nonce of an item.
pub(super) fn split_item(form: CallForm, raw: &str) -> Option<(&str, &str)> {
    if form == CallForm::KServe {
        let row: KServeItem<'_> = serde_json::from_str(raw).ok()?;
        return Some((row.tenant, row.nonce));
    }
    raw.strip_prefix('"')?.strip_suffix('"')?.split_once('/')
}

fn response_body(form: CallForm, results: &[(usize, Digest)]) -> String {
    let mut out = String::with_capacity(96 + results.len() * 96);
    out.push_str(match form {
        CallForm::OpenAi | CallForm::OpenAiSingle => r#"{"object":"list","data":["#,
        CallForm::KServe => r#"{"predictions":["#,
        CallForm::Generic => r#"{"results":["#,
    });
    for (place, (index, digest)) in results.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        if form.has_index() {
            let [a, b, c, d] = numbers(digest);
            write!(out, r#"{{"object":"embedding","index":{index},"embedding":[{a},{b},{c},{d}]}}"#).ok();
        } else {
            write!(out, r#""{}""#, hex(digest)).ok();
        }
    }
    match form {
        CallForm::OpenAi | CallForm::OpenAiSingle => {
            let n = results.len() * 11;
            write!(out, r#"],"model":"ledger","usage":{{"prompt_tokens":{n},"total_tokens":{n}}}}}"#).ok();
        }
        CallForm::KServe | CallForm::Generic => out.push_str("]}"),
    }
    out
}

/// Returns a response with a JSON body, and `extra` headers, each with its line end.
pub(super) fn answer(status: &str, extra: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{JSON}{extra}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
