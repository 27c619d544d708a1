//! The scripted upstream of one case. Each request gets the first unused entry that agrees with it
//! and the answer of that entry. Requests that agree with no entry are recorded as faults.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::case::{Case, Expected};
use crate::matching::{self, Bindings, Mode};
use crate::open_inference_grpc::{self, MessageKind};
use crate::support::report::shown;
use crate::support::upstream::{Content, Reply, Request, Script};
use crate::support::wire::{self, End, Headers};

/// Placeholder in an answer for an id that the proxy generated in its request.
const SENT_ID: &[u8] = b"{{upstream-sent-id}}";
/// Path of the gRPC method by which servers publish the configuration of a model.
const MODEL_CONFIG: &str = "/inference.GRPCInferenceService/ModelConfig";

/// Headers of a client's request, as sent.
#[derive(Debug)]
pub(crate) struct ClientHeaders {
    pub(crate) client: String,
    pub(crate) headers: Headers,
}

/// The script of a case and its progress.
#[derive(Debug)]
pub(crate) struct CaseScript {
    case: Arc<Case>,
    factor: f64,
    model_config: Option<Vec<u8>>,
    own: OnceLock<Vec<ClientHeaders>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By entry: `true` if a request has matched it.
    taken: Vec<bool>,
    /// Header values and bodies of all answers, and all ids that the proxy sent.
    seen: Vec<Vec<u8>>,
    faults: Vec<String>,
}

// === impl CaseScript ===

impl CaseScript {
    /// Creates the script of a case. `factor` stretches the times of the answers.
    pub(crate) fn new(case: Arc<Case>, model_config: Option<&serde_json::Value>, factor: f64) -> Self {
        let state = State { taken: vec![false; case.upstream.len()], ..State::default() };
        let model_config = model_config.map(|value| value.to_string().into_bytes());
        Self { case, factor, model_config, own: OnceLock::new(), state: Mutex::new(state) }
    }

    /// Sets the requests of the clients. Called before any client sends.
    pub(crate) fn clients(&self, own: Vec<ClientHeaders>) {
        // A second call would set the same value.
        self.own.set(own).ok();
    }

    /// Returns the faults at the upstream, including the entries that no request matched.
    pub(crate) fn faults(&self) -> Vec<String> {
        let state = self.state();
        let mut faults = state.faults.clone();
        for (at, (expected, _)) in self.case.upstream.iter().enumerate() {
            if !state.taken.get(at).copied().unwrap_or_default() {
                let (clients, body) = (expected.clients.join(","), shown(&expected.body, 0));
                let Expected { method, target, .. } = expected;
                faults
                    .push(format!("upstream: entry {} for {clients} never arrived: {method} {target} {body}", at + 1));
            }
        }
        faults
    }

    /// Returns `true` if an id occurs in an answer of the upstream or was sent by the proxy.
    pub(crate) fn seen(&self, id: &[u8]) -> bool {
        self.state().seen.iter().any(|text| matching::holds(text, id))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers reads that no client sent: the proxy looks up limits that servers publish.
    fn look_up(&self, request: &Request) -> Option<Reply> {
        let is_grpc = request.target == MODEL_CONFIG;
        let read = is_grpc || matches!(request.method.as_str(), "GET" | "HEAD");
        let is_sent = |call: &crate::case::Call| call.method == request.method && call.target == request.target;
        if !read || self.case.calls.iter().any(is_sent) {
            return None;
        }
        if is_grpc {
            return Some(self.grpc_config());
        }
        let path = request.target.split('?').next().unwrap_or_default();
        let model = path.strip_prefix("/v2/models/").and_then(|rest| rest.strip_suffix("/config"));
        Some(match (&self.model_config, model) {
            (Some(config), Some(_)) => Reply::plain(200, "application/json", config.clone()),
            _ => Reply::plain(404, "text/plain", "not found"),
        })
    }

    /// Returns the answer to the method that publishes the configuration of a model.
    fn grpc_config(&self) -> Reply {
        let config =
            self.model_config.as_ref().and_then(|config| serde_json::from_slice::<serde_json::Value>(config).ok());
        let message = config.and_then(|config| MessageKind::Config.encode(&serde_json::json!({"config": config})).ok());
        // UNIMPLEMENTED, the status of a server without the method.
        let status = if message.is_some() { "0" } else { "12" };
        let mut reply = Reply::plain(200, "application/grpc", message.unwrap_or_default());
        reply.headers.push(("grpc-status".to_owned(), status.into()));
        reply
    }

    /// Compares a request with an entry and returns the values of its placeholders.
    fn agrees(&self, expected: &Expected, request: &Request) -> Result<Bindings, String> {
        if (expected.method.as_str(), expected.target.as_str()) != (request.method.as_str(), request.target.as_str()) {
            return Err(format!("expected {} {}", expected.method, expected.target));
        }
        let mut taken = Bindings::default();
        matching::body(expected.mode, &expected.body, &request.body, &request.headers, &mut taken)?;
        matching::subset(&expected.headers, &request.headers, &mut taken)?;
        matching::absent(&expected.headers_absent, &request.headers)?;
        let own = self.own.get().map(Vec::as_slice).unwrap_or_default();
        for name in &expected.headers_fresh {
            let sent = wire::values(&request.headers, name);
            let [value] = sent.as_slice() else {
                return Err(format!("header {name}: expected a fresh one, actual {}", sent.len()));
            };
            let mut members = own.iter().filter(|own| expected.clients.contains(&own.client));
            if value.is_empty() || members.any(|own| wire::values(&own.headers, name).contains(value)) {
                return Err(format!(
                    "header {name}: expected a fresh one, actual `{}`",
                    String::from_utf8_lossy(value)
                ));
            }
        }
        if let ([client], Mode::Bytes) = (expected.clients.as_slice(), expected.mode) {
            if let Some(own) = own.iter().find(|own| own.client == *client) {
                matching::original(&own.headers, &request.headers)?;
            }
            if !request.trailers.is_empty() {
                return Err("trailers that the client did not send".to_owned());
            }
        }
        let bodies = self.case.calls.iter().filter_map(|call| call.body.as_deref());
        let values = own.iter().flat_map(|own| own.headers.iter().map(|(_, value)| value.as_slice()));
        let clients: Vec<_> = bodies.chain(values).collect();
        if let Some(id) = taken.values().find(|id| clients.iter().any(|text| matching::holds(text, id))) {
            return Err(format!("id `{}` is a client's own", String::from_utf8_lossy(id)));
        }
        Ok(taken)
    }

    /// Returns the answer of an entry, with stretched times and with ids filled in.
    fn answer(&self, reply: &Reply, request: &Request, taken: &Bindings, state: &mut State) -> Reply {
        let mut reply = reply.clone();
        reply.delay = reply.delay.mul_f64(self.factor);
        for (name, value) in &mut reply.headers {
            if matching::holds(value, SENT_ID) {
                let sent = wire::values(&request.headers, name).first().copied().unwrap_or_default();
                *value = replaced(value, sent);
            }
            state.seen.push(value.clone());
        }
        let mut fill = |text: &mut Vec<u8>| {
            if matching::holds(text, SENT_ID) {
                match taken.values().next() {
                    Some(id) if self.case.is_grpc() => {
                        match open_inference_grpc::with_id(text, |text| replaced(text, id)) {
                            Ok(message) => *text = message,
                            Err(e) => state.faults.push(format!("upstream: {e}")),
                        }
                    }
                    Some(id) => *text = replaced(text, id),
                    None => {
                        state.faults.push("upstream: no {{uid:}} was taken that the answer could send back".to_owned());
                    }
                }
            }
            state.seen.push(text.clone());
        };
        match &mut reply.content {
            Content::Whole(body) | Content::Cut(body, _) => fill(body),
            Content::Events(events, _) => {
                for (at, text) in events {
                    *at = at.mul_f64(self.factor);
                    fill(text);
                }
            }
            Content::Reset | Content::Hang => {}
        }
        state.seen.extend(taken.values().map(<[u8]>::to_vec));
        reply
    }
}

fn replaced(text: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(SENT_ID.len()).position(|w| w == SENT_ID) {
        out.extend_from_slice(rest.get(..at).unwrap_or_default());
        out.extend_from_slice(by);
        rest = rest.get(at + SENT_ID.len()..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

impl Script for CaseScript {
    fn reply(&self, request: Request) -> Reply {
        if let Some(reply) = self.look_up(&request) {
            return reply;
        }
        let mut state = self.state();
        let mut reasons = Vec::new();
        for (at, (expected, reply)) in self.case.upstream.iter().enumerate() {
            let entry = format!("      entry {} for {}", at + 1, expected.clients.join(","));
            if state.taken.get(at).copied().unwrap_or_default() {
                reasons.push(format!("{entry}: taken"));
                continue;
            }
            match self.agrees(expected, &request) {
                Ok(taken) => {
                    if let Some(mark) = state.taken.get_mut(at) {
                        *mark = true;
                    }
                    return self.answer(reply, &request, &taken, &mut state);
                }
                Err(reason) => reasons.push(format!("{entry}: {reason}")),
            }
        }
        let headers: Vec<_> =
            request.headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value))).collect();
        state.faults.push(format!(
            "upstream: a request that agrees with no entry: {} {} [{}] {}\n{}",
            request.method,
            request.target,
            headers.join(", "),
            shown(&request.body, 0),
            reasons.join("\n")
        ));
        Reply::plain(500, "text/plain", "no entry of the case agrees with this request")
    }

    fn unreadable(&self, why: &End) {
        // A request that the proxy aborts half way does not count.
        if let End::Garbled(what) = why {
            self.state().faults.push(format!("upstream: not HTTP/1.1: {what}"));
        }
    }
}
