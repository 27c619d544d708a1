//! Servers that quote inputs outside the results, as validators, gateways and debug fields do: no
//! caller gets a byte of another caller's input, and each gets the body that it gets alone.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::scripted_server::ScriptedServer;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, PendingCall, TestProxy};
use super::support::client::{Answer, Outgoing};
use super::support::upstream::Request;

/// Number of rounds of [`CALLERS`] simultaneous calls.
const ROUNDS: usize = 4;
const CALLERS: usize = 5;

/// A route, with the names of its items and results.
#[derive(Debug, Clone, Copy)]
struct RouteShape {
    path: &'static str,
    protocol: &'static str,
    items: &'static str,
    results: &'static str,
}

/// The adapters that are tested with all quotes and statuses, and those that share their rules.
const ADAPTERS: [RouteShape; 4] = [
    RouteShape::new(PREDICT, "Auto", "instances", "predictions"),
    RouteShape::new("/v1/embeddings", "Auto", "input", "data"),
    RouteShape::new("/embed", "Auto", "inputs", ""),
    RouteShape::new("/g", "Generic", "texts", "vectors"),
];
const OTHERS: [RouteShape; 8] = [
    RouteShape::new("/v1/completions", "OpenAI", "prompt", "choices"),
    RouteShape::new("/v1/moderations", "OpenAI", "input", "results"),
    RouteShape::new("/tokenize", "TEI", "inputs", ""),
    RouteShape::new("/v1/models/m:classify", "TFServing", "examples", "results"),
    RouteShape::new("/invocations", "MLflow", "inputs", "predictions"),
    RouteShape::new("/api/embed", "Ollama", "input", "embeddings"),
    RouteShape::new("/v2/embed", "Cohere", "texts", "embeddings"),
    RouteShape::new("/classify", "VLLM", "input", "data"),
];

/// Position at which the server quotes its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuotePosition {
    Text,
    List,
    OneOf,
    Map,
    Nested,
    Header(&'static str),
}

const PLACES: [QuotePosition; 9] = [
    QuotePosition::Text,
    QuotePosition::List,
    QuotePosition::OneOf,
    QuotePosition::Map,
    QuotePosition::Nested,
    QuotePosition::Header("server"),
    QuotePosition::Header("www-authenticate"),
    QuotePosition::Header("openai-note"),
    QuotePosition::Header("x-ratelimit-note"),
];

fn spec(policy: &str) -> Value {
    let declared = json!({"items": "/texts", "results": "/vectors"});
    let route = |adapter: RouteShape| match adapter.protocol {
        "Generic" => json!({"path": adapter.path, "protocol": "Generic", "idempotent": "Always", "generic": declared}),
        protocol => json!({"path": adapter.path, "protocol": protocol}),
    };
    let routes: Vec<Value> = ADAPTERS.into_iter().chain(OTHERS).map(route).collect();
    json!({"scheduling": {"policy": policy}, "routes": routes})
}

// === impl RouteShape ===

impl RouteShape {
    const fn new(path: &'static str, protocol: &'static str, items: &'static str, results: &'static str) -> Self {
        Self { path, protocol, items, results }
    }

    fn call(self, proxy: &TestProxy, text: &str) -> Outgoing {
        proxy.post(self.path, &[], &json!({self.items: [text]}).to_string())
    }

    fn texts(self, request: &Request) -> Option<Vec<String>> {
        let body: Value = serde_json::from_slice(&request.body).ok()?;
        serde_json::from_value(body.get(self.items)?.clone()).ok()
    }

    /// Returns the server's response to these texts: header lines and body.
    fn answer(self, place: QuotePosition, status: u16, texts: &[String]) -> (String, String) {
        let quoted = texts.join(" ");
        let mut body = json!({});
        if status == 200 && !self.results.is_empty() {
            let result = |index| match self.results {
                "data" | "choices" => json!({"index": index}),
                "embeddings" => json!([1]),
                "results" => json!({"flagged": true}),
                _ => json!(1),
            };
            body[self.results] = (0..texts.len()).map(result).collect();
        }
        match place {
            QuotePosition::Text => body["detail"] = json!(quoted),
            QuotePosition::List => body["detail"] = json!(texts),
            QuotePosition::OneOf => body["detail"] = json!([texts[0], 1, 2]),
            QuotePosition::Map => body["detail"] = json!({&texts[0]: 1}),
            QuotePosition::Nested => body["usage"] = json!({"details": {"of": quoted}}),
            QuotePosition::Header(_) => {}
        }
        let lines = match place {
            QuotePosition::Header(name) => format!("{name}: realm=\"{quoted}\"\r\n"),
            _ => String::new(),
        };
        // A bare list has no room beside the results.
        let bare = status == 200 && self.results.is_empty();
        let body = if bare { json!(texts.iter().map(|_| [1]).collect::<Vec<_>>()) } else { body };
        (lines, body.to_string())
    }
}

/// Answers every call and quotes all of its texts.
fn serve(mut hand: ScriptedServer, adapter: RouteShape, place: QuotePosition, status: u16) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let turn = hand.next_request().await;
            let Some(texts) = adapter.texts(&turn.request) else {
                turn.answer(404, "{}").await;
                continue;
            };
            let (lines, body) = adapter.answer(place, status, &texts);
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nretry-after: 1\r\n{lines}content-length: {}\r\n\r\n",
                body.len()
            );
            turn.send_raw(format!("{head}{body}").as_bytes()).await;
        }
    })
}

fn check(answer: &Answer, own: &str, all: &[String], seen: &str) {
    let body = String::from_utf8_lossy(&answer.body);
    let whole = format!("{:?} {body}", answer.headers);
    for other in all.iter().filter(|text| *text != own) {
        assert!(!whole.contains(other.as_str()), "{own} got a byte of {other}: {whole}, {seen}");
    }
}

#[tokio::test]
async fn no_caller_receives_input_of_another() {
    let errors = [401, 403, 404, 405, 413, 422, 429, 500, 503];
    for policy in ["WorkConserving", "Static", "Adaptive"] {
        for (index, adapter) in ADAPTERS.into_iter().chain(OTHERS).enumerate() {
            // The other policies form batches at other times but answer them in the same way.
            let all = policy == "WorkConserving" && index < ADAPTERS.len();
            if policy != "WorkConserving" && index >= ADAPTERS.len() {
                continue;
            }
            let successes = PLACES.map(|place| (200, place)).into_iter().take(if all { PLACES.len() } else { 2 });
            let errors = errors.into_iter().take(if all { errors.len() } else { 1 }).flat_map(|status| {
                [(status, QuotePosition::Text), (status, QuotePosition::Header("www-authenticate"))]
            });
            for (status, place) in successes.chain(errors) {
                let seen = format!("{place:?} of {status} at {} under {policy}", adapter.path);
                let (proxy, hand) = start_with_scripted_server(spec(policy)).await;
                let serving = serve(hand, adapter, place, status);
                for round in 0..ROUNDS {
                    let texts: Vec<String> = (0..CALLERS).map(|n| format!("private-{round}-{n}")).collect();
                    let callers: Vec<PendingCall> =
                        texts.iter().map(|text| proxy.call(adapter.call(&proxy, text))).collect();
                    for (caller, own) in callers.into_iter().zip(&texts) {
                        let answer = caller.answer().await;
                        check(&answer, own, &texts, &seen);
                        assert_eq!(answer.status, Some(status), "{seen}");
                        let (_, unbatched) = adapter.answer(place, status, std::slice::from_ref(own));
                        let body = String::from_utf8_lossy(&answer.body);
                        let is_ours = matches!(status, 429 | 503) && body.contains("upstream overloaded");
                        assert!(is_ours || body == unbatched, "{own} got {body}, unbatched {unbatched}, {seen}");
                    }
                }
                proxy.wait_idle().await;
                serving.abort();
            }
        }
    }
}

#[tokio::test]
async fn a_constant_member_is_merged_and_one_that_differs_ends_merging_of_its_key() {
    for differs in [false, true] {
        let adapter = ADAPTERS[0];
        let (proxy, mut hand) = start_with_scripted_server(spec("WorkConserving")).await;
        let serving = tokio::spawn(async move {
            let mut sizes = Vec::new();
            while sizes.len() < if differs { 20 } else { 80 } {
                let turn = hand.next_request().await;
                let Some(texts) = adapter.texts(&turn.request) else { continue };
                sizes.push(texts.len());
                let note = if differs { texts.concat() } else { "v1".to_owned() };
                let results: Vec<usize> = (0..texts.len()).collect();
                turn.answer(200, &json!({"predictions": results, "version": note}).to_string()).await;
            }
            sizes
        });
        let mut round = 0;
        while !serving.is_finished() {
            let texts = (0..CALLERS).map(|n| format!("{round}-{n}"));
            let callers: Vec<PendingCall> = texts.map(|text| proxy.call(adapter.call(&proxy, &text))).collect();
            for caller in callers {
                caller.answer().await;
            }
            round += 1;
        }
        let sizes = serving.await.unwrap();
        let shared = sizes.iter().filter(|items| **items > 1).count();
        if differs {
            assert!((1..=2).contains(&shared), "{sizes:?}");
            assert!(proxy.metric(r#"groupage_calls_passed_total{reason="answer_varies"}"#) > 0);
        } else {
            // Sixteen unbatched responses show a short word. After that, no batch is isolated: a round
            // is a call that finds an idle server, and a batch of the others.
            let last: Vec<usize> = sizes.iter().rev().take(20).copied().collect();
            assert!(last.iter().sum::<usize>() > 2 * last.len(), "{sizes:?}");
        }
        assert_eq!(proxy.metric("groupage_merging_suspended"), 0, "neither a quarantine nor a refusal");
    }
}
