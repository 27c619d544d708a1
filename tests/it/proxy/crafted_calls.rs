//! Calls that try to be taken for other ones: spellings of heads and bodies that parsers read in
//! different ways. All are sent at the same time, so that any two could share a batch, and each gets
//! what the server answers to the same bytes without a proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::setup::{PREDICT, TestProxy, within_timeout};
use super::support::client::{Answer, Client};
use super::support::upstream::{Reply, Request, Script, Upstream, now};
use super::support::wire::{End, nominates, values};

/// Number of times that all calls are sent.
const ROUNDS: usize = 3;
/// Time for which the server is busy with one request, so that calls queue.
const SERVICE: Duration = Duration::from_millis(2);
/// Headers that belong to an identity, with a spelling that some servers read as one of them.
const IDENTITY: [&str; 7] =
    ["authorization", "x-api-key", "x_api_key", "cookie", "x-tenant-id", "x-forwarded-user", "proxy-authorization"];

/// A call that parsers may take for another one. `@` in its body is replaced by a number of its own.
struct CraftedCall {
    name: &'static str,
    target: &'static str,
    /// Lines of the head. `host`, `content-type` and a framing are added if they are missing.
    head: &'static [u8],
    body: &'static str,
    /// Parsers may read the call in different ways, or refuse it.
    is_ambiguous: bool,
}

const BODY: &str = r#"{"instances":["@"]}"#;

const fn head(name: &'static str, head: &'static [u8]) -> CraftedCall {
    CraftedCall { name, target: PREDICT, head, body: BODY, is_ambiguous: false }
}

const fn ambiguous(name: &'static str, head: &'static [u8]) -> CraftedCall {
    CraftedCall { name, target: PREDICT, head, body: BODY, is_ambiguous: true }
}

const fn target(name: &'static str, target: &'static str) -> CraftedCall {
    CraftedCall { name, target, head: b"", body: BODY, is_ambiguous: false }
}

const fn body(name: &'static str, body: &'static str) -> CraftedCall {
    CraftedCall { name, target: PREDICT, head: b"", body, is_ambiguous: false }
}

const CRAFTED_CALLS: [CraftedCall; 62] = [
    head("no identity", b""),
    head("another call without identity", b""),
    head("an identity", b"authorization: alice\r\n"),
    head("the same identity in upper case", b"AUTHORIZATION: alice\r\n"),
    head("an identity in another case", b"authorization: Alice\r\n"),
    head("two identities", b"authorization: alice\r\nauthorization: bob\r\n"),
    head("two identities in the other order", b"authorization: bob\r\nauthorization: alice\r\n"),
    head("two identities in one line", b"authorization: alice, bob\r\n"),
    head("an empty identity", b"authorization:\r\n"),
    head("an identity between spaces", b"authorization: \t alice \t\r\n"),
    head("an identity of another kind", b"x-api-key: alice\r\n"),
    head("a name with underscores", b"x_api_key: alice\r\n"),
    head("both names", b"x-api-key: alice\r\nx_api_key: bob\r\n"),
    head("a nominated identity", b"connection: x-api-key\r\nx-api-key: bob\r\n"),
    head("a nominated header", b"connection: x-anything\r\nx-anything: bob\r\n"),
    head("an unknown header", b"x-anything: alice\r\n"),
    head("another value of it", b"x-anything: bob\r\n"),
    head("cookies", b"cookie: a=1; b=2\r\n"),
    head("cookies in the other order", b"cookie: b=2; a=1\r\n"),
    head("cookies in two lines", b"cookie: a=1\r\ncookie: b=2\r\n"),
    head("bytes above ASCII", b"authorization: \xe4\xff\r\n"),
    head("other bytes above ASCII", b"authorization: \xff\xe4\r\n"),
    head("a tenant", b"x-tenant-id: a\r\n"),
    head("a tenant in another case", b"x-tenant-id: A\r\n"),
    head("a user of a gateway", b"x-forwarded-user: alice\r\n"),
    head("a proxy's identity", b"proxy-authorization: alice\r\n"),
    head("addresses of clients", b"x-forwarded-for: 10.0.0.1\r\nforwarded: for=10.0.0.2\r\n"),
    head("a charset", b"content-type: application/json; charset=utf-8\r\n"),
    head("another type", b"content-type: text/plain\r\n"),
    head("a method override", b"x-http-method-override: GET\r\n"),
    head("a range", b"range: bytes=0-1\r\n"),
    head("a condition", b"if-none-match: \"a\"\r\n"),
    head("an upgrade", b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"),
    head("trailers that are accepted", b"te: trailers\r\n"),
    head("chunks with extensions", b"transfer-encoding: chunked\r\n"),
    head("a host in upper case", b"host: H\r\n"),
    head("a host with a port", b"host: h:80\r\n"),
    ambiguous("two hosts", b"host: h\r\nhost: i\r\n"),
    ambiguous("a folded line", b"authorization: alice\r\n bob\r\n"),
    ambiguous("a line that ends with LF", b"x-anything: alice\nauthorization: bob\r\n"),
    ambiguous("two lengths", b"content-length: 1\r\ncontent-length: 2\r\n"),
    ambiguous("a length beside chunks", b"content-length: 5\r\ntransfer-encoding: chunked\r\n"),
    ambiguous("a name that ends with a space", b"authorization : alice\r\n"),
    target("an escaped path", "/v1/models/m:pr%65dict"),
    target("a path with dots", "/v1/models/x/../m:predict"),
    target("a path with an empty segment", "/v1//models/m:predict"),
    target("another model", "/v1/models/M:predict"),
    target("a query", "/v1/models/m:predict?version=1"),
    target("an escaped query", "/v1/models/m:predict?version=%31"),
    target("an empty query", "/v1/models/m:predict?"),
    target("the absolute form", "http://h/v1/models/m:predict"),
    body("an escaped name", r#"{"\u0069nstances":["@"]}"#),
    body("a name in another case", r#"{"Instances":["other"],"instances":["@"]}"#),
    body("a name that occurs twice", r#"{"instances":["other"],"instances":["@"]}"#),
    body("an integer", r#"{"instances":["@"],"k":1}"#),
    body("a fraction", r#"{"instances":["@"],"k":1.0}"#),
    body("an exponent", r#"{"instances":["@"],"k":1e0}"#),
    body("a negative zero", r#"{"instances":["@"],"k":-0}"#),
    body("a byte order mark", "\u{feff}{\"instances\":[\"@\"]}"),
    body("data after the end", r#"{"instances":["@"]}{"instances":["other"]}"#),
    body("a NUL", r#"{"instances":["@\u0000"]}"#),
    body("a lone surrogate", r#"{"instances":["@\ud800"]}"#),
];

// === impl CraftedCall ===

impl CraftedCall {
    fn bytes(&self, nonce: &str) -> Vec<u8> {
        let has = |name: &str| self.head.to_ascii_lowercase().windows(name.len()).any(|part| part == name.as_bytes());
        let body = self.body.replace('@', nonce);
        let mut bytes = format!("POST {} HTTP/1.1\r\n", self.target).into_bytes();
        for (name, value) in [("host:", "h"), ("content-type:", "application/json")] {
            if !has(name) {
                bytes.extend(format!("{name} {value}\r\n").into_bytes());
            }
        }
        bytes.extend(self.head);
        if has("transfer-encoding:") {
            let length = body.len();
            bytes.extend(format!("\r\n{length:x};x-api-key=bob\r\n{body}\r\n0\r\nx-api-key: bob\r\n\r\n").into_bytes());
        } else if has("content-length:") {
            bytes.extend(format!("\r\n{body}").into_bytes());
        } else {
            bytes.extend(format!("content-length: {}\r\n\r\n{body}", body.len()).into_bytes());
        }
        bytes
    }
}

/// Server that processes one request at a time. It returns each instance with the identity of its
/// request, and quotes a body that it cannot read.
#[derive(Debug)]
struct IdentityServer {
    /// Instant at which the last request ends.
    busy: Mutex<Instant>,
    shared: AtomicUsize,
}

// === impl IdentityServer ===

impl Script for IdentityServer {
    fn reply(&self, request: Request) -> Reply {
        let arrival = now();
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        *busy = (*busy).max(arrival) + SERVICE;
        let (status, body) = self.predict(&request);
        Reply { delay: *busy - arrival, ..Reply::plain(status, "application/json", body.to_string()) }
    }

    /// Does nothing: the call gets an error.
    fn unreadable(&self, _why: &End) {}
}

impl IdentityServer {
    fn predict(&self, request: &Request) -> (u16, Value) {
        let unreadable = || (400, json!({"error": String::from_utf8_lossy(&request.body)}));
        let Ok(Value::Object(mut members)) = serde_json::from_slice(&request.body) else { return unreadable() };
        let Some(Value::Array(instances)) = members.remove("instances") else { return unreadable() };
        self.shared.fetch_add(usize::from(instances.len() > 1), Ordering::Relaxed);
        let mut seen = members.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        seen.sort();
        let header = |name: &&str| {
            let values = values(&request.headers, name).into_iter().map(String::from_utf8_lossy);
            format!("{name}={}", values.collect::<Vec<_>>().join(","))
        };
        seen.extend(IDENTITY.iter().map(header));
        // A nominated header is one of the connection, unless it belongs to an identity.
        let is_nominated = nominates(&request.headers, "x-anything");
        seen.push(if is_nominated { "x-anything=".to_owned() } else { header(&"x-anything") });
        seen.push(header(&"host"));
        seen.push(request.target.trim_start_matches("http://h").to_owned());
        let results: Vec<String> = instances.iter().map(|instance| format!("{instance} {}", seen.join(" "))).collect();
        (200, json!({ "predictions": results }))
    }
}

async fn fetch(address: SocketAddr, bytes: Vec<u8>) -> Answer {
    let mut client = Client::connect(address).await.unwrap();
    // The other end may refuse the head before it has read the body.
    client.write_raw(&bytes).await.ok();
    let mut answer = Answer::default();
    client.receive("POST", &mut answer).await;
    answer
}

/// Sends all calls at once, and returns the answers in the order of the calls.
async fn fetch_all(address: SocketAddr, round: usize) -> Vec<Answer> {
    let mut calls = JoinSet::new();
    for (number, crafted) in CRAFTED_CALLS.iter().enumerate() {
        let bytes = crafted.bytes(&nonce(round, number));
        calls.spawn(async move { (number, within_timeout(fetch(address, bytes)).await) });
    }
    let mut answers = calls.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn nonce(round: usize, number: usize) -> String {
    format!("call-{round}-{number:02}.")
}

#[tokio::test]
async fn no_crafted_call_gets_the_answer_of_another() {
    for scheduling in [json!({"policy": "Static", "items": 16, "delay": "15ms"}), json!({"policy": "Adaptive"})] {
        let server = Arc::new(IdentityServer { busy: Mutex::new(now()), shared: AtomicUsize::new(0) });
        let upstream = Upstream::start(Arc::<IdentityServer>::clone(&server)).await.unwrap();
        let url = format!("http://{}", upstream.address);
        let proxy = TestProxy::start_in_front_of(&url, json!({"scheduling": scheduling, "limits": {"slotsMax": 1}}));
        let mut faults = Vec::new();
        for round in 0..ROUNDS {
            let direct = fetch_all(upstream.address, round).await;
            let proxied = fetch_all(proxy.address, round).await;
            for (number, (crafted, (direct, proxied))) in
                CRAFTED_CALLS.iter().zip(direct.into_iter().zip(proxied)).enumerate()
            {
                let body = lossy(&proxied.body);
                let foreign = body.matches("call-").count() != body.matches(&nonce(round, number)).count()
                    || has_other_identity(crafted, &body);
                let is_own = (proxied.status, &proxied.body) == (direct.status, &direct.body);
                if foreign || !is_own && !crafted.is_ambiguous {
                    let (name, direct_body) = (crafted.name, lossy(&direct.body));
                    faults.push(format!(
                        "{name}: {:?} {body}, directly {:?} {direct_body}",
                        proxied.status, direct.status
                    ));
                }
            }
        }
        assert!(faults.is_empty(), "{scheduling}: {}", faults.join("\n"));
        assert!(server.shared.load(Ordering::Relaxed) > 0, "no calls shared a request under {scheduling}");
    }
}

/// Returns `true` if the server received an identity that is not in the head of the call.
fn has_other_identity(crafted: &CraftedCall, body: &str) -> bool {
    let head = lossy(crafted.head);
    let received = |name: &str| body.split_once(&format!(" {name}=")).and_then(|(_, rest)| rest.split(' ').next());
    IDENTITY.iter().filter_map(|name| received(name)).any(|value| !value.split(',').all(|own| head.contains(own)))
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
