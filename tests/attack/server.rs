//! Script of a model server with the KServe V1 protocol that answers each number with a string of
//! that length.

use std::time::Duration;

use super::support::json::{self, Json};
use super::support::upstream::{Content, Reply, Request, Script};
use super::support::wire::End;

/// Path of calls that the proxy recognises.
pub(crate) const PREDICT: &str = "/v1/models/m:predict";
/// Path of calls of another model, whose answers are sent at one byte per second.
pub(crate) const SLOW_PREDICT: &str = "/v1/models/slow:predict";

/// Script of the model server.
#[derive(Debug)]
pub(crate) struct ModelServer;

// === impl ModelServer ===

impl Script for ModelServer {
    fn reply(&self, request: Request) -> Reply {
        let is_slow = request.target == SLOW_PREDICT;
        let text = if is_slow || request.target == PREDICT { predictions(&request.body) } else { "\"ok\"".to_owned() };
        if is_slow {
            let bytes = (0..).map(Duration::from_secs).zip(text.into_bytes()).map(|(at, byte)| (at, vec![byte]));
            return Reply {
                content: Content::Events(bytes.collect(), None),
                ..Reply::plain(200, "application/json", "")
            };
        }
        Reply::plain(200, "application/json", text)
    }

    /// Does nothing: attackers cut their requests short.
    fn unreadable(&self, _why: &End) {}
}

fn predictions(body: &[u8]) -> String {
    let body = json::parse(body).ok();
    let instances = body.as_ref().and_then(|body| body.get("instances")).and_then(Json::elements).unwrap_or_default();
    let answers: Vec<String> = instances
        .iter()
        .map(|instance| {
            let bytes = instance.as_u64().unwrap_or(0);
            format!("\"{}\"", "a".repeat(usize::try_from(bytes).unwrap_or(0)))
        })
        .collect();
    format!("{{\"predictions\":[{}]}}", answers.join(","))
}
