//! Reads the body of a recognised call.

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;

use super::Proxy;
use crate::body::Body;
use crate::buffer::Held;
use crate::error::FailureKind;
use crate::gather::{Bounds, Gathered, Stop, gather};

/// What came of it.
#[derive(Debug)]
pub(super) enum Collected {
    /// The whole body.
    Whole { bytes: Bytes, trailers: Option<HeaderMap>, held: Held },
    /// Larger than an item may be: what was read, and the rest still to come.
    TooLarge(Body),
    /// Answered by us.
    Refused(FailureKind),
    /// The client's own doing: its body broke off.
    Broken,
}

/// Reads a body of at most `max` bytes.
pub(super) async fn collect(proxy: &Proxy, mut body: Incoming, max: usize) -> Collected {
    let limits = &proxy.config.client;
    let until = proxy.clock.instant(proxy.clock.now().after(limits.body_timeout));
    let bounds = Bounds { max, idle: limits.body_idle_timeout, until: Some(until), floor: None };
    match gather(&mut body, bounds, &proxy.buffers).await {
        Gathered::Whole { bytes, trailers, held } => Collected::Whole { bytes, trailers, held },
        Gathered::Stopped { why, read, held } => match why {
            Stop::TooLarge => Collected::TooLarge(Body::stream(body).put_back(read, held)),
            Stop::BuffersFull => Collected::Refused(FailureKind::BytesFull),
            Stop::Slow | Stop::BelowFloor => Collected::Refused(FailureKind::SlowBody),
            Stop::Broken => Collected::Broken,
        },
    }
}
