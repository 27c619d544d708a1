//! Request forms, and the results of the simulated model for each item.
//!
//! A result is a function of the item's bytes as sent. It is therefore independent of the other
//! items in the batch, and changing one byte changes the result. Items are extracted as raw spans,
//! and the only computation is a 64-bit mixing function.

use std::borrow::Cow;
use std::fmt::Write as _;

use groupage_batching::rng::SplitMix64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Number of dimensions of an embedding.
pub const DIMENSIONS: usize = 8;

/// Routes of the simulated model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Route {
    /// `POST /v1/embeddings`: `input` is a string, a list, or a list of token IDs.
    Embeddings,
    /// `POST /v1/models/{model}:predict`: `instances` are answered by `predictions`.
    Predict,
    /// `POST /embed`: `inputs` is a string or a list, and the response is a list of lists.
    Embed,
    /// `POST /ledger`: `items` are answered by `results`, for an adapter that is declared in a
    /// policy.
    Ledger,
}

/// Items of one call, as raw spans of its body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallItems<'a> {
    pub(crate) raw: Vec<&'a str>,
    pub(crate) model: Cow<'a, str>,
}

#[derive(Deserialize)]
struct RequestFields<'a> {
    #[serde(borrow, alias = "instances", alias = "inputs", alias = "items")]
    input: &'a RawValue,
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
}

// === impl Route ===

impl Route {
    /// Returns the route of a path.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        match path {
            "/v1/embeddings" => Some(Self::Embeddings),
            "/embed" => Some(Self::Embed),
            "/ledger" => Some(Self::Ledger),
            _ => (path.starts_with("/v1/models/") && path.ends_with(":predict")).then_some(Self::Predict),
        }
    }

    /// Returns the path that the load generators call.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Embeddings => "/v1/embeddings",
            Self::Predict => "/v1/models/stand-in:predict",
            Self::Embed => "/embed",
            Self::Ledger => "/ledger",
        }
    }

    /// Returns the name of the request field that contains the items.
    pub(crate) const fn items_field(self) -> &'static str {
        match self {
            Self::Embeddings => "input",
            Self::Predict => "instances",
            Self::Embed => "inputs",
            Self::Ledger => "items",
        }
    }

    /// Extracts the items from a request body. Returns `None` if the body is not valid for this
    /// route.
    pub(crate) fn extract_items(self, body: &[u8]) -> Option<CallItems<'_>> {
        let fields: RequestFields<'_> = serde_json::from_slice(body).ok()?;
        let input = fields.input.get();
        let raw = if input.starts_with('[') {
            let list: Vec<&RawValue> = serde_json::from_str(input).ok()?;
            // A flat list of numbers in `input` is one item: the token IDs of one text.
            let ids = self == Self::Embeddings && !list.is_empty() && list.iter().all(|item| is_number(item.get()));
            if ids { vec![input] } else { list.into_iter().map(RawValue::get).collect() }
        } else if matches!(self, Self::Embeddings | Self::Embed) {
            vec![input]
        } else {
            return None;
        };
        if raw.is_empty() && self != Self::Predict {
            return None;
        }
        Some(CallItems { raw, model: fields.model.unwrap_or(Cow::Borrowed("stand-in")) })
    }

    /// Returns the response for these items without the trailing fields that depend on all of them
    /// (`usage`).
    pub(crate) fn write_results(self, items: &[&str]) -> String {
        let mut out = String::with_capacity(64 + items.len() * 160);
        out.push_str(match self {
            Self::Embeddings => r#"{"object":"list","data":["#,
            Self::Predict => r#"{"predictions":["#,
            Self::Embed => "[",
            Self::Ledger => r#"{"results":["#,
        });
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            let mark = hash64(item.as_bytes());
            match self {
                Self::Embeddings => {
                    write!(out, r#"{{"object":"embedding","index":{index},"embedding":"#).ok();
                    write_embedding(mark, &mut out);
                    out.push('}');
                }
                Self::Predict => write_fraction(mark, &mut out),
                Self::Embed => write_embedding(mark, &mut out),
                Self::Ledger => {
                    write!(out, r#""{mark:016x}""#).ok();
                }
            }
        }
        out.push_str(match self {
            Self::Embeddings | Self::Embed => "]",
            Self::Predict | Self::Ledger => "]}",
        });
        out
    }

    /// Returns the complete response.
    pub(crate) fn response_body(self, items: &CallItems<'_>) -> String {
        let mut out = self.write_results(&items.raw);
        if self == Self::Embeddings {
            let model = serde_json::to_string(&items.model).unwrap_or_default();
            let tokens: usize = items.raw.iter().map(|item| item.len().div_ceil(4)).sum();
            write!(out, r#","model":{model},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}}}"#).ok();
        }
        out
    }
}

fn is_number(item: &str) -> bool {
    item.bytes().next().is_some_and(|first| first.is_ascii_digit() || first == b'-')
}

/// Returns a 64-bit hash of `bytes`: fast and well mixed, but not cryptographic.
pub(crate) fn hash64(bytes: &[u8]) -> u64 {
    let mut mark = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mark = splitmix64(mark ^ u64::from_le_bytes(word));
    }
    mark
}

/// Mixes a word, so that every input bit affects every output bit.
pub(crate) const fn splitmix64(word: u64) -> u64 {
    SplitMix64::new(word).next_u64()
}

fn write_embedding(mut mark: u64, out: &mut String) {
    out.push('[');
    for place in 0..DIMENSIONS {
        if place > 0 {
            out.push(',');
        }
        mark = splitmix64(mark);
        write_fraction(mark, out);
    }
    out.push(']');
}

fn write_fraction(mark: u64, out: &mut String) {
    let sign = if mark & 1 == 0 { "" } else { "-" };
    write!(out, "{sign}0.{:06}", (mark >> 1) % 1_000_000).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(route: Route, body: &str, expect: Option<&[&str]>) {
        let items = route.extract_items(body.as_bytes());
        assert_eq!(items.as_ref().map(|items| &items.raw[..]), expect, "{route:?} {body}");
    }

    #[test]
    fn items_are_cut_out_as_they_were_sent() {
        check(Route::Embeddings, r#"{"model":"m","input":"a\u0062"}"#, Some(&[r#""a\u0062""#]));
        check(Route::Embeddings, r#"{"input":["a", "b"]}"#, Some(&[r#""a""#, r#""b""#]));
        check(Route::Embeddings, r#"{"input":[1,2,3]}"#, Some(&["[1,2,3]"]));
        check(Route::Embeddings, r#"{"input":[[1,2],[3]]}"#, Some(&["[1,2]", "[3]"]));
        check(Route::Predict, r#"{"instances":[[1.0, 2],{"a":1e400}]}"#, Some(&["[1.0, 2]", r#"{"a":1e400}"#]));
        check(Route::Predict, r#"{"instances":[]}"#, Some(&[]));
        check(Route::Predict, r#"{"instances":"x"}"#, None);
        check(Route::Embed, r#"{"inputs":"x"}"#, Some(&[r#""x""#]));
        check(Route::Ledger, r#"{"items":["x"]}"#, Some(&[r#""x""#]));
        check(Route::Ledger, r#"{"items":["x""#, None);
    }

    #[test]
    fn a_result_depends_on_its_item_alone() {
        let two = Route::Predict.write_results(&[r#""a""#, r#""b""#]);
        let (a, b) = (Route::Predict.write_results(&[r#""a""#]), Route::Predict.write_results(&[r#""b""#]));
        let inner = |answer: &str| answer.replace(r#"{"predictions":["#, "").replace("]}", "");
        assert_eq!(inner(&two), format!("{},{}", inner(&a), inner(&b)));
        assert_ne!(a, b);
    }

    #[test]
    fn every_answer_is_one_json_document() {
        for route in [Route::Embeddings, Route::Predict, Route::Embed, Route::Ledger] {
            let items = CallItems { raw: vec!["1", "2"], model: Cow::Borrowed("m\"") };
            serde_json::from_str::<serde_json::Value>(&route.response_body(&items)).unwrap();
        }
    }
}
