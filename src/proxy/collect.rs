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

/// Result of reading a body.
#[derive(Debug)]
pub(super) enum Collected {
    /// The whole body was read.
    Whole { bytes: Bytes, trailers: Option<HeaderMap>, held: Held },
    /// The body exceeds the maximum item size: the bytes already read, followed by the rest.
    TooLarge(Body),
    /// The call is rejected with this failure.
    Refused(FailureKind),
    /// The client ended the body prematurely.
    Broken,
}

/// Reads a body of at most `max` bytes. `upload` is `None` if the request has no body.
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
                // The body is forwarded, and stays charged until then.
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
