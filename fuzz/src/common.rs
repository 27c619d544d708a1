//! Shared parts of the wire targets: endpoints of every adapter, a request head, and the invariants
//! of calls and batches.

use std::sync::Arc;

use bytes::Bytes;
use groupage::protocol::generic::GenericOptions;
use groupage::protocol::{
    BatchResponse, Call, DigestKey, Endpoint, MergeEligibility, PathPattern, Pointer, ProtocolLabel, Reply,
    RouteProtocol, RouteRules, Routes, SharedHeaderRules, SharedRequest,
};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use serde_json::value::RawValue;

/// Maximum number of items of a call that may be merged. It also limits a batch that is read as a
/// call.
pub(crate) const ITEMS_MAX: usize = 128;

/// A path and the endpoint that reads its calls.
pub(crate) type PathEndpoint = (&'static str, Arc<Endpoint>);

/// Returns endpoints of every adapter.
pub(crate) fn path_endpoints() -> Vec<PathEndpoint> {
    [
        ("/v1/embeddings", RouteProtocol::Auto),
        ("/v1/embeddings", RouteProtocol::Vllm),
        ("/v1/completions", RouteProtocol::OpenAi),
        ("/v1/completions", RouteProtocol::Vllm),
        ("/v1/completions", RouteProtocol::SgLang),
        ("/v1/moderations", RouteProtocol::OpenAi),
        ("/v1/models/m:predict", RouteProtocol::KServeV1),
        ("/v1/models/m:explain", RouteProtocol::KServeV1),
        ("/v1/models/m:predict", RouteProtocol::TfServing),
        ("/v1/models/m:classify", RouteProtocol::TfServing),
        ("/embed", RouteProtocol::Tei),
        ("/predict", RouteProtocol::Tei),
        ("/rerank", RouteProtocol::Tei),
        ("/similarity", RouteProtocol::Tei),
        ("/tokenize", RouteProtocol::Tei),
        ("/decode", RouteProtocol::Tei),
        ("/invocations", RouteProtocol::MlFlow),
        ("/api/embed", RouteProtocol::Ollama),
        ("/v2/embed", RouteProtocol::Cohere),
        ("/v1/contextualizedembeddings", RouteProtocol::Voyage),
        ("/classify", RouteProtocol::Vllm),
        ("/pooling", RouteProtocol::Vllm),
        ("/score", RouteProtocol::Vllm),
        ("/rerank", RouteProtocol::Vllm),
        ("/score", RouteProtocol::SgLang),
        ("/v1/rerank", RouteProtocol::SgLang),
        ("/classify", RouteProtocol::Infinity),
        ("/invocations", RouteProtocol::SageMaker),
        ("/api/v1.0/predictions", RouteProtocol::Seldon),
        ("/v2/models/m/infer", RouteProtocol::OpenInferenceV2),
    ]
    .into_iter()
    .map(|(path, named)| path_endpoint(path, named, None))
    .collect()
}

pub(crate) fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("the pointers of the targets are valid")
}

pub(crate) fn path_endpoint(
    path: &'static str,
    protocol: RouteProtocol,
    generic: Option<GenericOptions>,
) -> PathEndpoint {
    let rules = RouteRules {
        generic,
        item_count_max: ITEMS_MAX,
        ..RouteRules::new(PathPattern::parse("/*").expect("the pattern is valid"), protocol)
    };
    let routes = Routes::new(vec![rules.clone()], rules, SharedHeaderRules::default());
    (path, routes.recognise(&Method::POST, path).expect("every adapter recognises its path"))
}

/// Reads a call twice and asserts that the same bytes have the same meaning.
pub(crate) fn read((path, endpoint): &PathEndpoint, body: &[u8]) -> Call {
    let request = http::Request::post(*path).header(CONTENT_TYPE, "application/json").header("host", "h");
    let head = request.body(()).expect("the head is valid").into_parts().0;
    let secret = DigestKey::from_bytes([7; 32]);
    let call = endpoint.parse_call(&head, Bytes::copy_from_slice(body), &secret);
    let again = endpoint.parse_call(&head, Bytes::copy_from_slice(body), &secret);
    assert!(call.merge == again.merge && call.items == again.items, "the same bytes were read differently");
    assert_eq!(call.body, body, "the body of a call was changed");
    if let MergeEligibility::With(_) = call.merge {
        assert!(is_json(endpoint, body), "a call that may be merged is not one JSON document");
        assert!((1..=ITEMS_MAX).contains(&(call.items as usize)), "a call that may be merged has {} items", call.items);
    }
    call
}

/// Merges a call with an equal one, if it may be merged.
pub(crate) fn merge(endpoint: &PathEndpoint, call: &Call) -> Option<SharedRequest> {
    call.unbatched_reason().is_none().then(|| {
        let sent = endpoint.1.write_batch(&[call, call], None);
        assert!(is_json(&endpoint.1, &sent.body), "a batch is not one JSON document");
        sent
    })
}

/// Splits an answer between two equal calls, and asserts that either both or none get a part.
pub(crate) fn split(endpoint: &PathEndpoint, call: &Call, sent: &SharedRequest, answer: &[u8]) -> Option<Vec<Reply>> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let body = Bytes::copy_from_slice(answer);
    let shared = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
    let replies = endpoint.1.split_batch(&[call, call], sent, shared, None).ok()?;
    assert_eq!(replies.len(), 2, "the number of answers differs from the number of members");
    if is_json(&endpoint.1, answer) {
        let whole = replies.iter().all(|reply| is_json(&endpoint.1, &reply.body));
        assert!(whole, "a part of a JSON answer is not JSON");
    }
    Some(replies)
}

/// Returns `true` if another parser accepts the bytes as one document too. Python servers read and
/// write `NaN` and `Infinity` as bare words, so these are allowed for their protocols.
fn is_json(endpoint: &Endpoint, bytes: &[u8]) -> bool {
    let python = matches!(
        endpoint.label,
        ProtocolLabel::KServeV1 | ProtocolLabel::TfServing | ProtocolLabel::OpenInferenceV2 | ProtocolLabel::MlFlow
    );
    let bytes = if python { without_bare_words(bytes) } else { bytes.to_vec() };
    serde_json::from_slice::<&RawValue>(&bytes).is_ok()
}

/// Replaces each bare word outside of strings by 0.
fn without_bare_words(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let (mut at, mut quoted) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        let word = [&b"NaN"[..], b"Infinity"].into_iter().find(|word| !quoted && rest.starts_with(word));
        let taken = match (word, byte) {
            (Some(word), _) => word.len(),
            (None, b'\\') if quoted => 2,
            _ => 1,
        };
        quoted ^= byte == b'"';
        let kept = rest.get(..taken).unwrap_or(rest);
        out.extend_from_slice(if word.is_some() { b"0" } else { kept });
        at += taken;
    }
    out
}
