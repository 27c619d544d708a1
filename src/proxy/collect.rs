//! Reads the body of a recognised call.

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;

use super::Proxy;
use super::upload::Upload;
use crate::body::Body;
use crate::error::FailureKind;
use crate::gather::{Bounds, Gathered, Stop, gather};
use crate::memory::{Held, HoldPhase};

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

/// Reads a body of at most `max` bytes; `upload` is there unless it has come already.
pub(super) async fn collect(proxy: &Proxy, body: Incoming, upload: Option<Box<Upload>>, max: usize) -> Collected {
    let Some(mut upload) = upload else {
        return Collected::Whole { bytes: Bytes::new(), trailers: None, held: proxy.buffers.empty() };
    };
    let limits = &proxy.config.client;
    let until = proxy.clock.instant(proxy.clock.now().after(limits.body_timeout));
    let bounds = Bounds { max, idle: limits.body_idle_timeout, until: Some(until), floor: None, evictable: true };
    let (mut body, held) = upload.read(body, proxy.buffers.empty());
    let gathered = gather(&mut body, bounds, held).await;
    let (body, was_evicted) = body.into_parts();
    match gathered {
        Gathered::Whole { bytes, trailers, held } => {
            held.set_phase(HoldPhase::Server);
            Collected::Whole { bytes, trailers, held }
        }
        Gathered::Stopped { why, read, held } => match why {
            Stop::TooLarge => {
                // It is sent on, and counted until then.
                held.set_phase(HoldPhase::Server);
                Collected::TooLarge(Body::stream(body).put_back(read, held).watched(Some(upload.passing())))
            }
            Stop::Broken if was_evicted => Collected::Refused(FailureKind::BytesFull),
            Stop::BuffersFull => Collected::Refused(FailureKind::BytesFull),
            Stop::Slow | Stop::BelowFloor => Collected::Refused(FailureKind::SlowBody),
            Stop::Broken => Collected::Broken,
        },
    }
}
