//! The format of a test case, parsed strictly: an unknown key or value fails the case.

use std::time::Duration;

use crate::coding::{base64, gzipped};
use crate::matching::Mode;
use crate::open_inference_grpc::MessageKind;
use crate::support::json::{self, Json};
use crate::support::upstream::{Content, Reply};
use crate::support::wire::Headers;

/// A test case, which is one line of a case file.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name of the adapter under test.
    pub(crate) adapter: String,
    /// Requests of the clients, in order.
    pub(crate) calls: Vec<Call>,
    /// Requests expected at the upstream, each with its scripted answer.
    pub(crate) upstream: Vec<(Expected, Reply)>,
    /// Responses that the clients expect.
    pub(crate) answers: Vec<ExpectedAnswer>,
    /// Settings of the case, parsed by `settings`.
    pub(crate) config: Option<Json>,
}

/// Request of one client.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) client: String,
    pub(crate) at: Duration,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Headers,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) disconnect: Option<Duration>,
}

/// A request expected at the upstream.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) clients: Vec<String>,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) mode: Mode,
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Headers,
    pub(crate) headers_absent: Vec<String>,
    pub(crate) headers_fresh: Vec<String>,
}

/// The response that one client expects.
#[derive(Debug)]
pub(crate) struct ExpectedAnswer {
    pub(crate) client: String,
    pub(crate) status: u16,
    pub(crate) mode: Mode,
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Headers,
    pub(crate) headers_absent: Vec<String>,
    pub(crate) interim: Option<Vec<u16>>,
    pub(crate) done_before: Option<Duration>,
    pub(crate) truncated: bool,
    /// Values of `grpc-status` and `grpc-message`, in the trailers or in a head without a message.
    pub(crate) grpc: Headers,
}

/// Members of an object, consumed one by one. A member that is left at the end is unknown to the
/// format.
pub(crate) struct Fields<'a> {
    members: Vec<(String, &'a Json)>,
    of: &'static str,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// Returns the members of `value`. A duplicate name is an error.
    pub(crate) fn new(value: &'a Json, of: &'static str) -> Result<Self, String> {
        let members = value.members().ok_or_else(|| format!("{of} is no object"))?;
        for (at, (name, _)) in members.iter().enumerate() {
            if members.iter().skip(at + 1).any(|(other, _)| other == name) {
                return Err(format!("{of}: `{name}` twice"));
            }
        }
        Ok(Self { members, of })
    }

    /// Removes and returns a member.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a Json> {
        let at = self.members.iter().position(|(other, _)| other == name)?;
        Some(self.members.remove(at).1)
    }

    /// Removes a member and converts it.
    pub(crate) fn read<T>(&mut self, name: &str, read: impl Fn(&'a Json) -> Option<T>) -> Result<Option<T>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.bad(name)),
        }
    }

    /// Removes and converts a required member.
    pub(crate) fn need<T>(&mut self, name: &str, read: impl Fn(&'a Json) -> Option<T>) -> Result<T, String> {
        self.read(name, read)?.ok_or_else(|| format!("{}: no `{name}`", self.of))
    }

    /// Removes a switch, which is `true` or absent.
    pub(crate) fn switch(&mut self, name: &str) -> Result<bool, String> {
        Ok(self.read(name, |value| value.is_true().then_some(()))?.is_some())
    }

    /// Removes a number of milliseconds.
    pub(crate) fn millis(&mut self, name: &str) -> Result<Option<Duration>, String> {
        self.read(name, millis)
    }

    /// Returns the error for an invalid value.
    pub(crate) fn bad(&self, name: &str) -> String {
        format!("{}: `{name}` has a value that is not named in the format", self.of)
    }

    /// Returns an error if members are left.
    pub(crate) fn end(self) -> Result<(), String> {
        match self.members.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("{}: `{name}` is not named in the format", self.of)),
        }
    }
}

fn millis(value: &Json) -> Option<Duration> {
    match value {
        Json::Scalar(raw) => {
            let n: f64 = serde_json::from_slice(raw).ok()?;
            Duration::try_from_secs_f64(n / 1000.0).ok()
        }
        Json::Object(_) | Json::Array(_) => None,
    }
}

/// Converts a list of strings.
pub(crate) fn strings(value: &Json) -> Option<Vec<String>> {
    value.elements()?.iter().map(Json::as_str).collect()
}

/// Converts header lines. A name may occur more than once.
fn headers(value: &Json) -> Option<Headers> {
    let line = |(name, value): (String, &Json)| {
        let plain = |text: &str| !text.contains(['\r', '\n', '\0']);
        value.as_str().filter(|v| plain(v) && plain(&name) && !name.is_empty()).map(|v| (name, v.into_bytes()))
    };
    value.members()?.into_iter().map(line).collect()
}

fn status(value: &Json) -> Option<u16> {
    value.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| (100..1000).contains(n))
}

fn mode(fields: &mut Fields<'_>, answer: bool) -> Result<Mode, String> {
    let kind = if answer { MessageKind::Response } else { MessageKind::Request };
    let Some(name) = fields.read("match", Json::as_str)? else { return Ok(Mode::Bytes) };
    match (name.as_str(), answer) {
        ("bytes", _) => Ok(Mode::Bytes),
        ("json", _) => Ok(Mode::Json),
        ("tokens", false) => Ok(Mode::Tokens),
        ("oip-binary", false) => Ok(Mode::OipBinary),
        ("protobuf", _) => Ok(Mode::Protobuf(kind)),
        _ => Err(fields.bad("match")),
    }
}

/// Removes `body`, `body_b64` or `message`. Two of them together are an error.
fn body(fields: &mut Fields<'_>, kind: MessageKind) -> Result<Option<Vec<u8>>, String> {
    let text = fields.read("body", |v| v.as_str().map(String::into_bytes))?;
    let bytes = fields.read("body_b64", |v| v.as_str().and_then(|text| base64(&text)))?;
    let message = fields.read("message", Json::value)?.map(|message| kind.encode(&message)).transpose()?;
    match (text, bytes, message) {
        (text, None, None) => Ok(text),
        (None, bytes, None) => Ok(bytes),
        (None, None, message) => Ok(message),
        _ => Err(format!("{}: two of `body`, `body_b64` and `message`", fields.of)),
    }
}

/// Removes the status of a gRPC call, as header lines.
fn grpc(fields: &mut Fields<'_>) -> Result<Headers, String> {
    let status = fields.read("grpc_status", Json::as_u64)?.map(|status| status.to_string());
    let lines = [("grpc-status", status), ("grpc-message", fields.read("grpc_message", Json::as_str)?)];
    Ok(lines.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into_bytes()))).collect())
}

/// Validates an expected body: one that is compared as JSON must be JSON.
fn checked(mode: Mode, body: Option<Vec<u8>>) -> Result<Vec<u8>, String> {
    let body = body.unwrap_or_default();
    match mode {
        Mode::Tokens | Mode::Json if !body.is_empty() => {
            json::parse(&body).map_err(|e| format!("the expected body: {e}"))?
        }
        _ => return Ok(body),
    };
    Ok(body)
}

// === impl Case ===

impl Case {
    /// Reads the name and the adapter, which decide whether the case is run. A skipped case may have
    /// members that are not supported yet.
    pub(crate) fn names(line: &Json) -> Result<(String, String), String> {
        let text = |name| line.get(name).and_then(Json::as_str).ok_or_else(|| format!("no `{name}`"));
        Ok((case_name(&text("id")?, &text("basis").unwrap_or_default()), text("adapter")?))
    }

    /// Returns the distinct paths of the requests, without queries.
    pub(crate) fn paths(line: &Json) -> Vec<String> {
        let mut paths = Vec::new();
        for call in line.get("requests").and_then(Json::elements).unwrap_or_default() {
            let target = call.get("path").and_then(Json::as_str).unwrap_or_default();
            let path = target.split('?').next().unwrap_or_default().to_owned();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    /// Reads the complete case.
    pub(crate) fn read(line: &Json) -> Result<Self, String> {
        let mut fields = Fields::new(line, "case")?;
        fields.need("id", Json::as_str)?;
        let adapter = fields.need("adapter", Json::as_str)?;
        fields.read("note", Json::as_str)?;
        fields.read("basis", Json::as_str)?;
        let config = fields.take("config").cloned();
        let mut list = |name| fields.need(name, Json::elements);
        let (calls, expected) = (list("requests")?, list("expected_upstream")?);
        let (replies, answers) = (list("upstream_response")?, list("expected_responses")?);
        fields.end()?;
        if expected.len() != replies.len() {
            return Err(format!(
                "{} entries of expected_upstream, {} of upstream_response",
                expected.len(),
                replies.len()
            ));
        }
        let case = Self {
            adapter,
            config,
            calls: calls.iter().map(Call::read).collect::<Result<_, _>>()?,
            upstream: expected
                .iter()
                .zip(replies)
                .map(|(expected, answer)| Ok((Expected::read(expected)?, reply(answer)?)))
                .collect::<Result<_, String>>()?,
            answers: answers.iter().map(ExpectedAnswer::read).collect::<Result<_, _>>()?,
        };
        case.agrees_with_itself()?;
        Ok(case)
    }

    /// Returns `true` if clients and upstream use HTTP/2.
    pub(crate) fn is_grpc(&self) -> bool {
        self.adapter == "oip.grpc"
    }

    /// Verifies that every client has one request, that every client that stays has one response,
    /// and that no other clients are named.
    fn agrees_with_itself(&self) -> Result<(), String> {
        for (at, call) in self.calls.iter().enumerate() {
            if self.calls.iter().skip(at + 1).any(|other| other.client == call.client) {
                return Err(format!("client {} has two requests", call.client));
            }
            let want = usize::from(call.disconnect.is_none());
            let answers = self.answers.iter().filter(|answer| answer.client == call.client).count();
            if answers != want {
                return Err(format!("client {} has {answers} expected_responses, expected {want}", call.client));
            }
        }
        let known = |client: &String| self.calls.iter().any(|call| call.client == *client);
        let named = self.upstream.iter().flat_map(|(expected, _)| &expected.clients);
        match named.chain(self.answers.iter().map(|answer| &answer.client)).find(|client| !known(client)) {
            Some(client) => Err(format!("client {client} has no request")),
            None => Ok(()),
        }
    }
}

impl Call {
    fn read(value: &Json) -> Result<Self, String> {
        let mut fields = Fields::new(value, "requests[]")?;
        let call = Self {
            client: fields.need("c", Json::as_str)?,
            at: fields.millis("at_ms")?.unwrap_or_default(),
            method: fields.need("method", |v| v.as_str().filter(|m| is_word(m)))?,
            target: fields.need("path", |v| v.as_str().filter(|p| is_word(p)))?,
            headers: fields.read("headers", headers)?.unwrap_or_default(),
            body: body(&mut fields, MessageKind::Request)?,
            disconnect: fields.millis("disconnect_ms")?,
        };
        fields.end()?;
        Ok(call)
    }
}

/// Returns the name of a case. The upstream of most cases simulates a server, and their names have the
/// basis of its answers.
fn case_name(id: &str, basis: &str) -> String {
    match basis.split_once(':') {
        Some(("observed", server)) => format!("{id} (recorded:{server})"),
        Some(("code" | "docs" | "spec", server)) => format!("{id} (documented:{server})"),
        None if basis == "derived" => format!("{id} (simulated)"),
        _ => id.to_owned(),
    }
}

/// Returns `true` if the text fits on a request line unchanged.
fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

impl Expected {
    fn read(value: &Json) -> Result<Self, String> {
        let mut fields = Fields::new(value, "expected_upstream[]")?;
        let mode = mode(&mut fields, false)?;
        let expected = Self {
            clients: fields.need("for", strings)?,
            method: fields.need("method", Json::as_str)?,
            target: fields.need("path", Json::as_str)?,
            mode,
            body: checked(mode, body(&mut fields, MessageKind::Request)?)?,
            headers: fields.read("headers", headers)?.unwrap_or_default(),
            headers_absent: fields.read("headers_absent", strings)?.unwrap_or_default(),
            headers_fresh: fields.read("headers_fresh", strings)?.unwrap_or_default(),
        };
        fields.end()?;
        Ok(expected)
    }
}

impl ExpectedAnswer {
    fn read(value: &Json) -> Result<Self, String> {
        let mut fields = Fields::new(value, "expected_responses[]")?;
        let mode = mode(&mut fields, true)?;
        let answer = Self {
            client: fields.need("c", Json::as_str)?,
            status: fields.need("status", status)?,
            mode,
            body: checked(mode, body(&mut fields, MessageKind::Response)?)?,
            headers: fields.read("headers", headers)?.unwrap_or_default(),
            headers_absent: fields.read("headers_absent", strings)?.unwrap_or_default(),
            interim: fields.read("interim", |v| v.elements()?.iter().map(status).collect())?,
            done_before: fields.millis("done_before_ms")?,
            truncated: fields.switch("truncated")?,
            grpc: grpc(&mut fields)?,
        };
        fields.end()?;
        Ok(answer)
    }
}

fn reply(value: &Json) -> Result<Reply, String> {
    let mut fields = Fields::new(value, "upstream_response[]")?;
    let answer_body = body(&mut fields, MessageKind::Response)?;
    let sse = fields.read("sse", |v| v.elements()?.iter().map(event).collect::<Option<Vec<_>>>())?;
    let gzip = fields.read("encode", |v| (v.as_str()? == "gzip").then_some(()))?.is_some();
    let abort = fields.take("abort").map(abort).transpose()?;
    let hang = fields.switch("hang")?;
    let status = fields.read("status", status)?;
    let whole =
        if gzip { gzipped(&answer_body.clone().unwrap_or_default()) } else { answer_body.clone().unwrap_or_default() };
    let content = match (sse, abort, hang) {
        (None, None, true) => Content::Hang,
        (None, None, false) => Content::Whole(whole),
        (None, Some(Abort::Bytes(0)), false) => Content::Reset,
        (None, Some(Abort::Bytes(n)), false) => Content::Cut(whole, n),
        (Some(events), None, false) if answer_body.is_none() && !gzip => Content::Events(events, None),
        (Some(events), Some(Abort::Events(n)), false) if answer_body.is_none() && !gzip => {
            Content::Events(events, Some(n))
        }
        _ => return Err("upstream_response[]: `sse`, `abort`, `hang` and `body` do not go together so".to_owned()),
    };
    let silent = matches!(content, Content::Hang | Content::Reset);
    let reply = Reply {
        status: status.or(silent.then_some(200)).ok_or("upstream_response[]: no `status`")?,
        headers: [fields.read("headers", headers)?.unwrap_or_default(), grpc(&mut fields)?].concat(),
        delay: fields.millis("delay_ms")?.unwrap_or_default(),
        content,
    };
    fields.end()?;
    Ok(reply)
}

enum Abort {
    Bytes(usize),
    Events(usize),
}

fn abort(value: &Json) -> Result<Abort, String> {
    let mut fields = Fields::new(value, "abort")?;
    let count = |v: &Json| v.as_u64().and_then(|n| usize::try_from(n).ok());
    let (bytes, events) = (fields.read("after_bytes", count)?, fields.read("after_events", count)?);
    fields.end()?;
    match (bytes, events) {
        (Some(n), None) => Ok(Abort::Bytes(n)),
        (None, Some(n)) => Ok(Abort::Events(n)),
        _ => Err("abort: one of `after_bytes` and `after_events`".to_owned()),
    }
}

fn event(value: &Json) -> Option<(Duration, Vec<u8>)> {
    match value.elements()? {
        [at, text] => Some((millis(at)?, text.as_str()?.into_bytes())),
        _ => None,
    }
}
