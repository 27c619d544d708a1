//! Black-box cases without a socket: parse, merge, split, and compare bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::Value;

use super::generic::{CostShare, CostWeights, CounterSpec, GenericOptions, PerItemError, SingleItem};
use super::json::{CanonicalOptions, root, write_canonical};
use super::*;
use crate::batching::Tick;

pub(crate) mod adapters;
mod chat;
mod completions;
pub(crate) mod division;
mod forms;
mod hosted;
pub(crate) mod key_pairs;
mod limits;
mod merge_rules;
mod merging;
mod pooling;
mod quoted_adapters;
mod quoted_forms;
mod quoted_results;
mod rows;
mod quoting;
pub(crate) mod reference;
mod sglang;
mod splitting;
mod streams;
mod tei;
mod tensor_rows;
mod tokens;

const CASES: &str = include_str!("../../tests/data/protocol_cases.jsonl");
const OPEN_INFERENCE: &str = include_str!("../../tests/data/protocol/open_inference.jsonl");
const TEI: &str = include_str!("../../tests/data/protocol/tei_embed.jsonl");
const LISTS: &str = include_str!("../../tests/data/protocol/list_routes.jsonl");

pub(crate) fn secret() -> DigestKey {
    DigestKey::from_bytes([3; 32])
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse_field(text).unwrap()
}

/// Returns the rules of a route with default settings.
pub(crate) fn rules(path: &str, protocol: RouteProtocol) -> RouteRules {
    RouteRules { item_count_max: 128, ..RouteRules::new(PathPattern::parse(path).unwrap(), protocol) }
}

/// Returns the declaration of a protocol with texts as items and vectors as results.
fn texts() -> GenericOptions {
    GenericOptions::new(vec![pointer("/texts")], vec![pointer("/vectors")])
}

/// Returns the rules of a route, which declares the lists `/in/rows` and `/out/rows` if it is a generic
/// one.
pub(crate) fn declared_rules(path: &str, protocol: RouteProtocol) -> RouteRules {
    let generic = (protocol == RouteProtocol::Generic)
        .then(|| GenericOptions::new(vec![pointer("/in/rows")], vec![pointer("/out/rows")]));
    RouteRules { generic, ..rules(path, protocol) }
}

fn common() -> SharedHeaderRules {
    let deadline_headers = vec![
        HeaderName::from_static("x-request-timeout-ms"),
        HeaderName::from_static("x-envoy-expected-rq-timeout-ms"),
    ];
    SharedHeaderRules { deadline_headers, ..SharedHeaderRules::default() }
}

fn routes(written: Vec<RouteRules>) -> Routes {
    Routes::new(written, rules("/*", RouteProtocol::Auto), common())
}

/// Returns the routes of a policy with these paths and protocols.
pub(crate) fn routes_of(written: &[(&str, RouteProtocol)]) -> Routes {
    routes(written.iter().map(|(path, protocol)| rules(path, *protocol)).collect())
}

fn endpoint_of(rules: RouteRules, path: &str) -> Arc<Endpoint> {
    routes(vec![rules]).recognise(&Method::POST, path).unwrap()
}

pub(crate) fn endpoint(path: &str, protocol: RouteProtocol) -> Arc<Endpoint> {
    endpoint_of(rules(path, protocol), path)
}

/// Returns the merge key of a call that may be merged.
pub(crate) fn key(call: &Call) -> Option<&[u8]> {
    match &call.merge {
        MergeEligibility::With(key) => Some(key),
        MergeEligibility::Unbatched(_) => None,
    }
}

/// Returns `true` if two calls may share a batch.
fn may_share_batch(a: &Call, b: &Call) -> bool {
    key(a).is_some() && key(a) == key(b)
}

pub(crate) fn parts(target: &str, headers: &[(&str, &str)]) -> http::request::Parts {
    let mut request = http::Request::builder().method(Method::POST).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn read_with(endpoint: &Endpoint, target: &str, headers: &[(&str, &str)], body: &str) -> Call {
    let json = [("content-type", "application/json"), ("host", "h")];
    let own: Vec<_> = json
        .into_iter()
        .filter(|(name, _)| !headers.iter().any(|(own, _)| own == name))
        .chain(headers.iter().copied())
        .collect();
    endpoint.parse_call(&parts(target, &own), Bytes::from(body.to_owned()), &secret())
}

pub(crate) fn read(endpoint: &Endpoint, target: &str, body: &str) -> Call {
    read_with(endpoint, target, &[], body)
}

fn split(endpoint: &Endpoint, calls: &[&Call], answer: &str) -> Result<Vec<Reply>, ResponseMismatch> {
    let sent = endpoint.write_batch(calls, None);
    split_sent(endpoint, calls, &sent, StatusCode::OK, &HeaderMap::new(), &Bytes::from(answer.to_owned()))
}

/// Splits a response without any evidence from unbatched responses.
fn split_sent(
    endpoint: &Endpoint,
    calls: &[&Call],
    sent: &SharedRequest,
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Vec<Reply>, ResponseMismatch> {
    let answer = BatchResponse { status, headers, body };
    endpoint.split_batch(calls, sent, answer, Some((Tick(0), &UnbatchedEvidence::default())))
}

/// Merges calls, and splits a response to the batch. Returns the body of the batch, and the replies
/// or the mismatch.
fn exchange(
    endpoint: &Endpoint,
    target: &str,
    calls: &[&str],
    answer: &str,
) -> (String, Result<Vec<Reply>, MismatchKind>) {
    let calls: Vec<Call> = calls.iter().map(|body| read(endpoint, target, body)).collect();
    assert!(calls.iter().all(|call| may_share_batch(&calls[0], call)), "{calls:?}");
    let members: Vec<&Call> = calls.iter().collect();
    let sent = endpoint.write_batch(&members, None);
    let replies = split(endpoint, &members, answer).map_err(|mismatch| mismatch.what);
    (String::from_utf8(sent.body.to_vec()).unwrap(), replies)
}

/// Merges calls, and returns the bodies of the replies that a response to the batch is split into.
fn answers(endpoint: &Endpoint, target: &str, calls: &[&str], answer: &str) -> Result<Vec<String>, MismatchKind> {
    let replies = exchange(endpoint, target, calls, answer).1?;
    Ok(bodies(&replies).into_iter().map(str::to_owned).collect())
}

fn bodies(replies: &[Reply]) -> Vec<&str> {
    replies.iter().map(|reply| std::str::from_utf8(&reply.body).unwrap()).collect()
}

fn one_spelling(doc: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_canonical(doc, root(doc), CanonicalOptions::default(), &mut out).unwrap();
    out
}

/// Returns `true` if `body` equals `expected`, where `{{uid:p}}` matches `p` and at least eight
/// characters of an id.
fn agrees(expected: &str, body: &str) -> bool {
    let Some((before, rest)) = expected.split_once("{{uid:") else { return expected == body };
    let (prefix, after) = rest.split_once("}}").unwrap();
    let Some(body) = body.strip_prefix(before).and_then(|body| body.strip_prefix(prefix)) else { return false };
    let id = body.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-').count();
    id >= 8 && body.get(id..).is_some_and(|body| agrees(after, body))
}

fn spec(config: &Value) -> GenericOptions {
    let list = |value: &Value| -> Vec<Pointer> {
        match value {
            Value::Array(items) => items.iter().map(|item| pointer(item.as_str().unwrap())).collect(),
            Value::String(item) => vec![Pointer::parse(item).unwrap()],
            _ => Vec::new(),
        }
    };
    let one = |value: &Value| value.as_str().map(pointer);
    let adapter = &config["adapter"];
    let status = config["per_item_error_status"].as_u64().unwrap_or(422);
    let spec = GenericOptions {
        upstream_path: adapter["upstream_path"].as_str().map(str::to_owned),
        single: SingleItem {
            items: one(&adapter["single_items"]),
            results: one(&adapter["unwrap_single"]),
            ..SingleItem::default()
        },
        per_item_error: one(&adapter["per_item_error"])
            .map(|field| PerItemError { field, status: u16::try_from(status).unwrap() }),
        result_key: one(&adapter["result_key"]),
        cost: CounterSpec {
            totals: list(&adapter["cost"]["total"]),
            weights: if adapter["cost"]["weights"] == "chars" { CostWeights::Chars } else { CostWeights::Bytes },
            share: CostShare::Proportional,
        },
        ..GenericOptions::new(list(&adapter["items"]), list(&adapter["results"]))
    };
    assert_eq!(spec.clashes(), []);
    spec
}

fn named(case: &Value) -> Option<RouteProtocol> {
    let (config, adapter) = (&case["config"], case["adapter"].as_str().unwrap());
    let path = case["requests"][0]["path"].as_str().unwrap();
    if config["adapter"].is_object() {
        return Some(RouteProtocol::Generic);
    }
    // Some routes exist only if the case requests them, and streams are not merged.
    let needs_route =
        adapter == "openai.completions" || !matches!(adapter, "core" | "faults") && path.ends_with("/rerank");
    if needs_route && config["route_enabled"] != true || config["stream"].is_string() {
        return None;
    }
    match config["flavour"].as_str() {
        Some("vllm") => return Some(RouteProtocol::Vllm),
        Some("sglang") => return Some(RouteProtocol::SgLang),
        Some("ollama") => return Some(RouteProtocol::Ollama),
        Some("llama.cpp") => return Some(RouteProtocol::PassThrough),
        _ => {}
    }
    Some(match adapter {
        "core" | "faults" if path.ends_with("/infer") => return None,
        "core" | "faults" | "torchserve" | "litserve" => RouteProtocol::Auto,
        "openai.embeddings" | "openai.completions" | "openai.moderations" => RouteProtocol::OpenAi,
        "kserve.v1" => RouteProtocol::KServeV1,
        // The configuration of a model decides outside of the adapter.
        "oip.v2" if config["model_config"].is_null() => RouteProtocol::OpenInferenceV2,
        "tfserving" => RouteProtocol::TfServing,
        "tei" => RouteProtocol::Tei,
        "mlflow" => RouteProtocol::MlFlow,
        "seldon.v0" => RouteProtocol::Seldon,
        "sagemaker" => RouteProtocol::SageMaker,
        "ollama" => RouteProtocol::Ollama,
        "cohere.v2" => RouteProtocol::Cohere,
        "vllm.score" | "vllm.pooling" | "rerank" => RouteProtocol::Vllm,
        "infinity" => RouteProtocol::Infinity,
        _ => return None,
    })
}

/// Returns the routes for the paths of a case, as the runner of the case configures them.
fn case_routes(case: &Value) -> Option<Routes> {
    let protocol = named(case)?;
    let config = &case["config"];
    let mut paths: Vec<&str> = case["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| request["path"].as_str().unwrap().split('?').next().unwrap())
        .collect();
    paths.dedup();
    let over = [&config["merge_over"], &config["adapter"]["drop"]].into_iter().filter_map(Value::as_array).flatten();
    let over: Vec<Pointer> = over.map(|item| pointer(item.as_str().unwrap())).collect();
    let route = |path: &&str| RouteRules {
        merge_over_fields: over.clone(),
        generic: (protocol == RouteProtocol::Generic).then(|| spec(config)),
        item_bytes_max: config["max_item_bytes"].as_u64().map_or(1 << 20, |max| usize::try_from(max).unwrap()),
        ..rules(path, protocol)
    };
    Some(routes(paths.iter().map(route).collect()))
}

fn header_map(value: &Value) -> HeaderMap {
    let pairs = value.as_object().into_iter().flatten();
    headers_of(&pairs.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect::<Vec<_>>())
}

pub(crate) fn headers_of(pairs: &[(&str, &str)]) -> HeaderMap {
    let parse =
        |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
    pairs.iter().map(parse).collect()
}

fn body_of(entry: &Value) -> Vec<u8> {
    match (entry["body"].as_str(), entry["body_b64"].as_str()) {
        (Some(body), _) => body.as_bytes().to_vec(),
        (None, Some(code)) => base64(code),
        (None, None) => Vec::new(),
    }
}

fn base64(code: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<usize> = code.bytes().filter_map(|byte| ALPHABET.iter().position(|own| *own == byte)).collect();
    let mut out = Vec::new();
    for four in digits.chunks(4) {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        out.extend((1..four.len()).map(|byte| u8::try_from(bits >> (24 - 8 * byte) & 0xff).unwrap()));
    }
    out
}

type Clients = BTreeMap<String, (Option<Arc<Endpoint>>, Call)>;

fn read_case(case: &Value, routes: &Routes) -> Clients {
    let mut clients = Clients::new();
    for request in case["requests"].as_array().unwrap() {
        let path = request["path"].as_str().unwrap();
        let method: Method = request["method"].as_str().unwrap().parse().unwrap();
        let mut head = http::Request::builder().method(method.clone()).uri(path).body(()).unwrap().into_parts().0;
        head.headers = header_map(&request["headers"]);
        head.headers.insert("host", HeaderValue::from_static("h"));
        let found = routes.recognise(&method, path.split('?').next().unwrap());
        // A call that is not recognised passes through, and any endpoint can parse it.
        let any = || endpoint("/v1/embeddings", RouteProtocol::OpenAi);
        let call = found.clone().unwrap_or_else(any).parse_call(&head, Bytes::from(body_of(request)), &secret());
        clients.insert(request["c"].as_str().unwrap().to_owned(), (found, call));
    }
    clients
}

fn mergeable(a: &(Option<Arc<Endpoint>>, Call), b: &(Option<Arc<Endpoint>>, Call)) -> bool {
    let both = a.0.is_some() && b.0.is_some();
    both && may_share_batch(&a.1, &b.1) && !a.1.exclusive.iter().any(|value| b.1.exclusive.contains(value))
}

/// Runs the parts of a case that need no socket, and returns the number of shared calls that were
/// checked.
fn run(case: &Value) -> Option<usize> {
    let id = case["id"].as_str().unwrap();
    let routes = case_routes(case)?;
    let clients = read_case(case, &routes);
    let upstream = case["expected_upstream"].as_array().unwrap();
    let names = |entry: &Value| -> Vec<String> {
        entry["for"].as_array().unwrap().iter().map(|c| c.as_str().unwrap().to_owned()).collect()
    };
    let shared: Vec<usize> = (0..upstream.len()).filter(|index| names(&upstream[*index]).len() > 1).collect();
    // Calls that only the maximum of a batch separates have equal keys.
    if shared.is_empty() && case["config"]["max_batch"].is_null() {
        let all: Vec<_> = clients.values().collect();
        for (i, a) in all.iter().enumerate() {
            for b in all.iter().skip(i + 1) {
                assert!(!mergeable(a, b), "{id}: may not share a batch");
            }
        }
    }
    for index in &shared {
        let members = names(&upstream[*index]);
        let unbatched_later = upstream.iter().skip(index + 1).any(|entry| members.contains(&names(entry)[0]));
        check_shared(id, case, *index, &members, &clients, unbatched_later);
    }
    Some(shared.len())
}

fn check_shared(id: &str, case: &Value, index: usize, members: &[String], clients: &Clients, unbatched_later: bool) {
    let expected = &case["expected_upstream"][index];
    let answer = &case["upstream_response"][index];
    let of: Vec<_> = members.iter().map(|name| &clients[name]).collect();
    for other in &of {
        assert!(mergeable(of[0], other), "{id}: must share a batch, but {:?} {:?}", of[0].1, other.1);
    }
    let endpoint = of[0].0.as_ref().unwrap();
    let calls: Vec<&Call> = of.iter().map(|(_, call)| call).collect();
    let sent = endpoint.write_batch(&calls, None);
    assert_eq!(sent.target, expected["path"].as_str().unwrap(), "{id}");
    check_sent(id, expected, &sent);
    for name in expected["headers_absent"].as_array().into_iter().flatten() {
        assert!(!sent.headers.contains_key(name.as_str().unwrap()), "{id}: {name}");
    }
    for name in expected["headers_fresh"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        let own = sent.headers.get(name).unwrap();
        assert!(calls.iter().all(|call| call.head.headers.get(name) != Some(own)), "{id}: {name}");
    }
    let status = StatusCode::from_u16(u16::try_from(answer["status"].as_u64().unwrap()).unwrap()).unwrap();
    let mut headers = header_map(&answer["headers"]);
    for (name, value) in &mut headers {
        if value == "{{upstream-sent-id}}" {
            *value = sent.headers[name].clone();
        }
    }
    if answer["hang"] == true || answer["abort"].is_object() {
        return;
    }
    let body = match answer["body"].as_str() {
        Some(text) => Bytes::from(text.replace("{{upstream-sent-id}}", &sent.request_id)),
        None => Bytes::from(body_of(answer)),
    };
    let replies = match status.as_u16() {
        429 | 503 => {
            let answer = BatchResponse { status, headers: &headers, body: &body };
            endpoint.overload_replies(&calls, &sent, answer, &UnbatchedEvidence::default())
        }
        200..300 => match split_sent(endpoint, &calls, &sent, status, &headers, &body) {
            Ok(replies) => replies,
            Err(mismatch) => {
                assert!(unbatched_later, "{id}: {mismatch}");
                return;
            }
        },
        _ => return,
    };
    assert!(!unbatched_later, "{id}: no call may get a part of this response");
    for (name, reply) in members.iter().zip(&replies) {
        let expected = case["expected_responses"].as_array().unwrap().iter().find(|entry| entry["c"] == name.as_str());
        let Some(expected) = expected else { continue };
        assert_eq!(u64::from(reply.status.as_u16()), expected["status"].as_u64().unwrap(), "{id} {name}");
        match std::str::from_utf8(&reply.body) {
            Ok(body) if expected["body_b64"].is_null() => {
                assert!(agrees(expected["body"].as_str().unwrap_or_default(), body), "{id} {name}: {body}");
            }
            _ => assert_eq!(reply.body, body_of(expected), "{id} {name}"),
        }
        for (header, value) in &header_map(&expected["headers"]) {
            assert_eq!(reply.headers.get(header), Some(value), "{id} {name}: {header}");
        }
        for header in expected["headers_absent"].as_array().into_iter().flatten() {
            assert!(!reply.headers.contains_key(header.as_str().unwrap()), "{id} {name}: {header}");
        }
    }
}

/// Compares the body of a shared call, of which binary tensors are compared byte by byte.
fn check_sent(id: &str, expected: &Value, sent: &SharedRequest) {
    let body = body_of(expected);
    let (own, other) = (one_spelling(&sent.body), one_spelling(&body));
    let [own, other] = [own, other].map(|text| String::from_utf8(text).unwrap());
    assert!(agrees(&other, &own), "{id}: {:?}", sent.body);
    let binary = |body: &[u8]| body[root(body).end..].to_vec();
    assert_eq!(binary(&sent.body), binary(&body), "{id}");
    if let Some(length) = sent.headers.get("inference-header-content-length") {
        assert_eq!(length.to_str().unwrap(), root(&sent.body).end.to_string(), "{id}");
    }
}

#[test]
fn every_case_of_a_built_adapter_is_read_merged_and_split_as_expected() {
    let cases: Vec<Value> = CASES.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ran: Vec<_> =
        cases.iter().filter_map(|case| run(case).map(|shared| (case["id"].as_str().unwrap(), shared))).collect();
    assert_eq!(ran.len(), 130, "{ran:?}");
    assert!(ran.iter().map(|(_, shared)| shared).sum::<usize>() >= 40);
}

#[test]
fn every_case_of_the_project_is_read_merged_and_split_as_expected() {
    let cases: Vec<Value> = TEI.lines().chain(LISTS.lines()).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cases.len() >= 20);
    for case in &cases {
        assert!(run(case).is_some(), "{}", case["id"]);
    }
}

#[test]
fn every_case_of_open_inference_is_read_merged_and_split_as_expected() {
    let cases = OPEN_INFERENCE.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(cases.filter(|case| run(case).is_some()).count(), 5);
}
