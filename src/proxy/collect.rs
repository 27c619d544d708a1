//! Reads the body of a recognised call within every bound: size, time, process memory.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{timeout, timeout_at};

use super::Proxy;
use crate::buffer::Held;
use crate::error::FailureKind;

/// What came of it.
#[derive(Debug)]
pub(super) enum Collected {
    /// The whole body.
    Whole { bytes: Bytes, trailers: Option<HeaderMap>, held: Held },
    /// Larger than an item may be: what was read, and the rest still to come.
    TooLarge { read: Bytes, rest: Incoming, held: Held },
    /// Answered by us.
    Refused(FailureKind),
    /// The client's own doing: its body broke off.
    Broken,
}

/// Reads a body of at most `max` bytes.
pub(super) async fn collect(proxy: &Proxy, mut body: Incoming, length: Option<u64>, max: usize) -> Collected {
    let limits = &proxy.config.client;
    let mut held = proxy.buffers.empty();
    // The length is known more often than not: take it at once, so that what cannot be held is refused before it is read.
    let expected = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if held.grow(expected).is_err() {
        return Collected::Refused(FailureKind::BytesFull);
    }
    let until = proxy.clock.instant(proxy.clock.now().after(limits.body_timeout));
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut size = 0;
    let mut trailers = None;
    loop {
        let frame = match timeout_at(until, timeout(limits.body_idle_timeout, body.frame())).await {
            Err(_) | Ok(Err(_)) => return Collected::Refused(FailureKind::SlowBody),
            Ok(Ok(None)) => break,
            Ok(Ok(Some(Err(_)))) => return Collected::Broken,
            Ok(Ok(Some(Ok(frame)))) => frame,
        };
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().ok();
                continue;
            }
        };
        size += data.len();
        if size > expected && held.grow(data.len().min(size - expected)).is_err() {
            return Collected::Refused(FailureKind::BytesFull);
        }
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(whole) => {
                all.reserve(expected.max(size));
                all.extend_from_slice(&whole);
                all.extend_from_slice(&data);
            }
        }
        if size > max {
            return Collected::TooLarge { read: first.unwrap_or_else(|| all.freeze()), rest: body, held };
        }
    }
    Collected::Whole { bytes: first.unwrap_or_else(|| all.freeze()), trailers, held }
}
