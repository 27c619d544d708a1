//! Reads the body of a recognised call.

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;

use super::Proxy;
use super::upload::UploadGuard;
use crate::body::Body;
use crate::bounded_body::{ReadLimits, ReadResult, StopReason, read_bounded};
use crate::error::FailureKind;
use crate::memory::{BufferGuard, HoldPhase};

/// Result of reading a body.
#[derive(Debug)]
pub(super) enum CollectResult {
    /// The whole body was read.
    Whole { bytes: Bytes, trailers: Option<HeaderMap>, held: BufferGuard },
    /// The body exceeds the maximum item size: the bytes already read, followed by the rest.
    TooLarge(Body),
    /// The call is rejected with this failure.
    Refused(FailureKind),
    /// The client ended the body prematurely.
    Broken,
}

/// Reads a body of at most `max` bytes. `upload` is `None` if the request has no body.
pub(super) async fn collect(
    proxy: &Proxy,
    body: Incoming,
    upload: Option<Box<UploadGuard>>,
    max: usize,
) -> CollectResult {
    let Some(mut upload) = upload else {
        return CollectResult::Whole { bytes: Bytes::new(), trailers: None, held: proxy.buffers.empty() };
    };
    let limits = &proxy.config.client;
    let until = proxy.clock.instant(proxy.clock.now().after(limits.body_timeout));
    let bounds = ReadLimits { until: Some(until), evictable: true, ..ReadLimits::new(max, limits.body_idle_timeout) };
    let (mut body, held) = upload.split_for_reading(body, proxy.buffers.empty());
    let gathered = read_bounded(&mut body, bounds, held).await;
    let (body, was_evicted) = body.into_parts();
    match gathered {
        ReadResult::Whole { bytes, trailers, held } => {
            held.set_phase(HoldPhase::Server);
            CollectResult::Whole { bytes, trailers, held }
        }
        ReadResult::Stopped { reason, read, held } => match reason {
            StopReason::TooLarge => {
                // The body is forwarded, and stays charged until then.
                held.set_phase(HoldPhase::Server);
                CollectResult::TooLarge(
                    Body::stream(body).with_prefix(read, held).with_upload_watch(Some(upload.into_watch())),
                )
            }
            StopReason::Broken if was_evicted => CollectResult::Refused(FailureKind::BytesFull),
            StopReason::BuffersFull => CollectResult::Refused(FailureKind::BytesFull),
            StopReason::Slow | StopReason::BelowFloor => CollectResult::Refused(FailureKind::SlowBody),
            StopReason::Broken => CollectResult::Broken,
        },
    }
}
