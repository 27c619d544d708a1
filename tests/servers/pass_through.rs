//! Requests that the proxy passes through or forwards unbatched: status, headers and body must
//! equal those of the server.

use std::net::SocketAddr;

use super::calls::{BatchCounters, connect, fetch, listed};
use super::python::{Server, folder};
use super::support::client::{Answer, Outgoing};
use super::support::report::difference;
use super::support::wire::Headers;
use super::{Bench, Verdict};

/// A request that is compared directly and through the proxy.
#[derive(Debug, Clone)]
pub(crate) struct PassedRequest {
    method: &'static str,
    target: &'static str,
    headers: Headers,
    body: Option<Vec<u8>>,
}

// === impl PassedRequest ===

impl PassedRequest {
    /// Creates a request without headers and body.
    pub(crate) const fn new(method: &'static str, target: &'static str) -> Self {
        Self { method, target, headers: Headers::new(), body: None }
    }

    /// Creates a GET request.
    pub(crate) const fn get(target: &'static str) -> Self {
        Self::new("GET", target)
    }

    /// Adds headers and a body.
    pub(crate) fn with(mut self, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        self.headers = headers.iter().map(|(n, v)| ((*n).to_owned(), v.as_bytes().to_vec())).collect();
        self.body = Some(body.as_ref().to_vec());
        self
    }

    /// Builds the request, with the `host` of the server on both paths, because an answer may quote
    /// it.
    fn outgoing(&self, server: SocketAddr) -> Outgoing {
        Outgoing::new(self.method, self.target, server, &self.headers, self.body.as_deref())
    }
}

/// Sends each request to the server and through the proxy, there on a new connection and on a
/// persistent one, and compares the answers.
pub(crate) async fn compare(bench: &Bench, server: &Server, requests: &[PassedRequest]) -> Verdict {
    let mut proxy = bench.proxy(server.address, Some(&folder().join("fastapi.yaml"))).await?;
    let mut faults = Vec::new();
    let mut kept = connect(proxy.listen).await?;
    for request in requests {
        let outgoing = request.outgoing(server.address);
        let expected =
            fetch(&mut connect(server.address).await?, &outgoing).await.map_err(|e| format!("direct: {e}"))?;
        let fresh = fetch(&mut connect(proxy.listen).await?, &outgoing).await;
        let again = fetch(&mut kept, &outgoing).await;
        if again.is_err() {
            kept = connect(proxy.listen).await?;
        }
        for (how, actual) in [("a fresh connection", fresh), ("a kept connection", again)] {
            if let Err(fault) = actual.and_then(|actual| same(&expected, &actual)) {
                faults.push(format!("{} {} on {how}: {fault}", request.method, request.target));
            }
        }
    }
    BatchCounters::of(&mut proxy).await?;
    let numbers = format!("{} requests passed on as they are", requests.len());
    if faults.is_empty() { Ok(numbers) } else { Err(listed(&numbers, &faults)) }
}

fn same(expected: &Answer, actual: &Answer) -> Result<(), String> {
    // The header `date` contains the second in which an answer was generated, and is ignored.
    let compared_headers = |answer: &Answer| {
        let mut headers: Headers =
            answer.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        headers.retain(|(name, _)| name != "date");
        // The sort is stable: the order of the values of a name counts, that of the names does not.
        headers.sort_by(|a, b| a.0.cmp(&b.0));
        headers
    };
    let shown = |headers: &Headers| {
        let lines = headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii()));
        lines.collect::<Vec<_>>().join(" | ")
    };
    if expected.status != actual.status {
        return Err(format!("status {:?} and {:?}", expected.status, actual.status));
    }
    let (mine, theirs) = (compared_headers(expected), compared_headers(actual));
    if mine != theirs {
        return Err(format!("headers {} and {}", shown(&mine), shown(&theirs)));
    }
    if expected.body != actual.body || expected.trailers != actual.trailers {
        return Err(format!("bodies {}", difference(&expected.body, &actual.body)));
    }
    Ok(())
}
