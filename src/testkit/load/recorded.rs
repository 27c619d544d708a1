//! Calls whose correct responses are recorded: for servers whose results are not known beforehand.
//!
//! Each request is sent alone, before the load. Later responses to it are wrong unless they begin
//! with the same bytes.

use std::io;

use bytes::Bytes;

use super::{PreparedCall, PreparedCalls};
use crate::boxed_future::BoxedFuture;
use crate::http1::ServerAddr;

/// Returns a request with a JSON body.
#[must_use]
pub fn post_json(path: &str, body: &str) -> Bytes {
    format!(
        "POST {path} HTTP/1.1\r\nhost: recorded\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

/// Sends requests one after the other on one connection, and returns calls of one item each, with
/// the responses that they received.
///
/// # Errors
/// There is no request, the server cannot be reached, or a response is not successful.
pub fn record_calls(target: ServerAddr, requests: Vec<Bytes>) -> BoxedFuture<'static, io::Result<PreparedCalls>> {
    Box::pin(async move {
        if requests.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no request to record"));
        }
        let mut connection = target.connect().await?;
        let mut list = Vec::with_capacity(requests.len());
        for request in requests {
            let answer = connection.call(&request).await?;
            if answer.status != 200 {
                let body = String::from_utf8_lossy(answer.body);
                return Err(io::Error::other(format!("a call was answered with {}: {body}", answer.status)));
            }
            let (expect, close) = (answer.body.to_vec(), answer.close);
            list.push(PreparedCall { request, expect });
            if close {
                connection = target.connect().await?;
            }
        }
        Ok(PreparedCalls { list: list.into(), items: 1 })
    })
}

// === impl PreparedCalls ===

impl PreparedCalls {
    /// Returns the first bytes of the correct response to each call.
    pub fn responses(&self) -> impl Iterator<Item = &[u8]> {
        self.list.iter().map(|call| call.expect.as_slice())
    }
}
