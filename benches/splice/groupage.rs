//! One side of the comparison: the functions that the proxy calls, with the same checks.

use bytes::Bytes;
use groupage_batching::Tick;
use groupage_protocol::{
    BatchResponse, Call, DigestKey, Endpoint, PathPattern, Reply, RouteProtocol, RouteRules, Routes, SharedHeaderRules,
    SharedRequest, UnbatchedEvidence,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::sync::Arc;

const PATH: &str = "/v1/embeddings";

/// Requests to be parsed and merged.
pub(crate) struct Merger {
    endpoint: Arc<Endpoint>,
    secret: DigestKey,
    requests: Vec<(Parts, Bytes)>,
}

/// A batch that was sent.
pub(crate) struct Batch {
    merger: Merger,
    calls: Vec<Call>,
    sent: SharedRequest,
    headers: HeaderMap,
    evidence: UnbatchedEvidence,
}

fn endpoint() -> Arc<Endpoint> {
    let rules = RouteRules::new(PathPattern::parse("/*").unwrap(), RouteProtocol::Auto);
    let routes = Routes::new(Vec::new(), rules, SharedHeaderRules::default());
    routes.recognise(&Method::POST, PATH).unwrap()
}

/// Returns the head that the OpenAI client for Python sends.
fn head() -> Parts {
    let request = http::Request::post(PATH)
        .header("host", "embeddings.default.svc:8000")
        .header("accept", "application/json")
        .header("accept-encoding", "gzip, deflate")
        .header("content-type", "application/json")
        .header("user-agent", "OpenAI/Python 2.8.0")
        .header("x-stainless-lang", "python")
        .header("authorization", "Bearer sk-0123456789abcdef");
    request.body(()).unwrap().into_parts().0
}

// === impl Merger ===

impl Merger {
    pub(crate) fn new(requests: &[String]) -> Self {
        let requests = requests.iter().map(|body| (head(), Bytes::from(body.clone()))).collect();
        Self { endpoint: endpoint(), secret: DigestKey::random(), requests }
    }

    /// Returns the headers of the first request.
    pub(crate) fn head(&self) -> &HeaderMap {
        &self.requests[0].0.headers
    }

    /// Parses all requests.
    pub(crate) fn parse(&self) -> Vec<Call> {
        let parse = |(head, body): &(Parts, Bytes)| self.endpoint.parse_call(head, body.clone(), &self.secret);
        self.requests.iter().map(parse).collect()
    }

    /// Writes the shared request of calls that were parsed.
    pub(crate) fn merge(&self, calls: &[Call]) -> SharedRequest {
        assert!(calls.iter().all(|call| call.unbatched_reason().is_none() && call.merge == calls[0].merge));
        self.endpoint.write_batch(&calls.iter().collect::<Vec<_>>(), None)
    }
}

// === impl Batch ===

impl Batch {
    pub(crate) fn new(requests: &[String]) -> Self {
        let merger = Merger::new(requests);
        let calls = merger.parse();
        let sent = merger.merge(&calls);
        let mut headers = HeaderMap::new();
        for (name, value) in [("server", "uvicorn"), ("content-type", "application/json"), ("content-length", "683000")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Self { merger, calls, sent, headers, evidence: UnbatchedEvidence::default() }
    }

    /// Splits a response among the members.
    pub(crate) fn split(&self, body: &Bytes) -> Vec<Reply> {
        let members: Vec<&Call> = self.calls.iter().collect();
        let answer = BatchResponse { status: StatusCode::OK, headers: &self.headers, body };
        let evidence = Some((Tick(0), &self.evidence));
        self.merger.endpoint.split_batch(&members, &self.sent, answer, evidence).unwrap()
    }
}
