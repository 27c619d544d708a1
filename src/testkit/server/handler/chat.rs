//! Chat completions: a call holds a slot for its number of tokens, and is answered with a text that
//! depends on its messages alone.
//!
//! Tokens of a stream are sent together at the end, and the text is the same for any number of them.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ServerState, json};
use crate::item::hash64;

pub(super) const PATH: &str = "/v1/chat/completions";
/// Number of tokens of a call that names none.
const TOKENS: usize = 16;

#[derive(Deserialize)]
struct ChatRequest<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    stream: bool,
}

/// Returns the text that answers these messages, given as they are in the body of a call.
#[must_use]
pub fn chat_text(messages: &str) -> String {
    format!("{:016x}", hash64(messages.as_bytes()))
}

// === impl ServerState ===

impl ServerState {
    pub(super) async fn chat(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let Ok(call) = serde_json::from_slice::<ChatRequest<'_>>(body) else {
            self.count_failure();
            let error = r#"{"error":{"message":"no messages","type":"invalid_request_error","param":null,"code":400}}"#;
            return json(StatusCode::BAD_REQUEST, error);
        };
        let tokens = call.max_tokens.unwrap_or(TOKENS);
        if let Err(error) = self.model.run_with_base(tokens, self.base_override(body)).await {
            return self.run_failure(&error);
        }
        self.count_call(1);
        call.response(tokens)
    }
}

// === impl ChatRequest ===

impl ChatRequest<'_> {
    fn response(&self, tokens: usize) -> Response<Full<Bytes>> {
        let text = chat_text(self.messages.get());
        let model = serde_json::to_string(&self.model.as_deref().unwrap_or("stand-in")).unwrap_or_default();
        let head = |object: &str| format!(r#""id":"chatcmpl-{text}","object":"{object}","created":0,"model":{model}"#);
        if !self.stream {
            let head = head("chat.completion");
            let choice = format!(
                r#"{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"length"}}"#
            );
            let usage = format!(r#"{{"prompt_tokens":1,"completion_tokens":{tokens},"total_tokens":{}}}"#, tokens + 1);
            return json(StatusCode::OK, format!(r#"{{{head},"choices":[{choice}],"usage":{usage}}}"#));
        }
        let head = head("chat.completion.chunk");
        let event = |delta: &str, finish: &str| {
            format!(
                "data: {{{head},\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{finish}}}]}}\n\n"
            )
        };
        let first = event(&format!(r#""role":"assistant","content":"{text}""#), "null");
        let mut response = json(StatusCode::OK, first + &event("", "\"length\"") + "data: [DONE]\n\n");
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }
}
