//! One stream: a response body that reads the request body while it is polled for data to write.
//!
//! A stream therefore needs no task besides that of its connection, and a sidecar that does not
//! read is not read from. A protocol violation ends the stream with a `Goaway` that contains the
//! reason.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::mailbox::NextWrite;
use super::registry::{Connection, ServerState};
use super::{PodIdentity, StreamEvent};
use crate::frame::FrameDecoder;
use crate::token_bucket::TokenBucket;
use crate::wire::{self, ACKS, ControllerMessage, Goaway, Hello, Ping, SidecarMessage};

/// Body of a response: a stream, or the reason why none was opened.
#[derive(Debug)]
pub(super) enum StreamBody {
    Stream(Box<ServerStream>),
    /// The reason, until it is written.
    Refused(Option<Bytes>),
}

/// The control stream of one sidecar. Frames of the sidecar are decoded from the request body, and
/// those of the controller are written as the response body.
pub(super) struct ServerStream {
    shared: Arc<ServerState>,
    connection: Arc<Connection>,
    identity: Arc<PodIdentity>,
    request: Incoming,
    decoder: FrameDecoder,
    /// Rate limits of received frames and bytes.
    frames: TokenBucket,
    bytes: TokenBucket,
    /// `None` before `Hello`; then `Some(true)` if the sidecar supports acknowledgements.
    acks: Option<bool>,
    /// `true` if a report or event arrived since the last acknowledgement.
    ack_pending: bool,
    /// Set once the `Goaway` about a violation was produced; nothing is written after it.
    ends: Option<ProtocolViolation>,
}

/// A protocol violation that ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProtocolViolation {
    /// Counter of this kind of violation.
    count: StreamEvent,
    /// Reason in the `Goaway`.
    text: &'static str,
}

// === impl ServerStream ===

impl ServerStream {
    pub(super) fn new(
        shared: Arc<ServerState>,
        connection: Arc<Connection>,
        identity: PodIdentity,
        request: Incoming,
    ) -> Self {
        let now = shared.clock.now();
        let limits = &shared.limits;
        Self {
            frames: TokenBucket::new(now, limits.frames.0, limits.frames.1),
            bytes: TokenBucket::new(now, limits.bytes.0, limits.bytes.1),
            shared,
            connection,
            identity: Arc::new(identity),
            request,
            decoder: FrameDecoder::default(),
            acks: None,
            ack_pending: false,
            ends: None,
        }
    }

    /// Processes received bytes: every frame that they complete.
    fn on_data(&mut self, data: &[u8]) -> Result<(), ProtocolViolation> {
        let now = self.shared.clock.now();
        if !self.bytes.try_take(now, data.len() as u64) {
            return Err(ProtocolViolation { count: StreamEvent::Flood, text: "the byte rate limit is exceeded" });
        }
        self.decoder.feed(data);
        let malformed = |text| ProtocolViolation { count: StreamEvent::Malformed, text };
        while let Some(json) =
            self.decoder.next_frame().map_err(|_| malformed("a frame is empty or larger than 1 MiB"))?
        {
            if !self.frames.try_take(now, 1) {
                return Err(ProtocolViolation { count: StreamEvent::Flood, text: "the frame rate limit is exceeded" });
            }
            let read = wire::decode_sidecar_message(&json).map_err(|error| {
                tracing::debug!(%error, pod = %self.identity.name, "a frame from a sidecar is not a valid message");
                malformed("a frame is not a valid message")
            })?;
            self.shared.counts.add(StreamEvent::UnknownFields, read.unknown_fields.into());
            match read.message {
                Some(message) => self.on_message(message)?,
                None if self.acks.is_some() => self.shared.counts.increment(StreamEvent::UnknownKinds),
                None => return Err(MISSING_HELLO),
            }
            self.connection.on_frame(now);
        }
        Ok(())
    }

    fn on_message(&mut self, message: SidecarMessage) -> Result<(), ProtocolViolation> {
        let (shared, pod) = (&self.shared, &self.identity);
        match message {
            SidecarMessage::Hello(hello) if self.acks.is_none() => {
                let hello = hello.bounded();
                if !is_pod_of_token(&hello, pod) {
                    tracing::warn!(pod = %pod.name, namespace = %pod.namespace, to_claims = %hello.pod.uid, "the pod in Hello does not match the pod of the token");
                    return Err(ProtocolViolation {
                        count: StreamEvent::Foreign,
                        text: "the pod in Hello must be the pod of the token",
                    });
                }
                self.acks = Some(hello.has_feature(ACKS));
                shared.open(&self.connection, pod, &hello);
            }
            SidecarMessage::Report(report) if self.acks.is_some() => {
                self.ack_pending = true;
                if shared.with_inbox(&pod.uid, |inbox| inbox.accept_report(report.epoch, report.seq)) {
                    shared.counts.increment(StreamEvent::Reports);
                    shared.handler.on_report(pod, report.bounded());
                } else {
                    shared.counts.increment(StreamEvent::Repeated);
                }
            }
            SidecarMessage::Event(event) if self.acks.is_some() => {
                self.ack_pending = true;
                if shared.with_inbox(&pod.uid, |inbox| inbox.accept_event(event.epoch, event.seq)) {
                    shared.counts.increment(StreamEvent::Events);
                    shared.handler.on_event(pod, event.bounded());
                } else {
                    shared.counts.increment(StreamEvent::Repeated);
                }
            }
            SidecarMessage::Hello(_) | SidecarMessage::Report(_) | SidecarMessage::Event(_) => {
                return Err(MISSING_HELLO);
            }
        }
        Ok(())
    }

    /// Returns a `Ping`, with an acknowledgement if the sidecar supports it.
    fn encode_ping(&mut self) -> Option<Bytes> {
        self.ack_pending = false;
        let acked = (self.acks == Some(true)).then(|| self.shared.acked(&self.identity.uid));
        wire::encode_frame(&ControllerMessage::Ping(Ping { acked, ..Ping::default() })).ok()
    }

    fn write(&self, bytes: Bytes) -> Poll<Option<Bytes>> {
        self.connection.on_write(self.shared.clock.now());
        Poll::Ready(Some(bytes))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        // Write before reading: a sidecar that does not read what is pushed is not read from.
        loop {
            if self.acks.is_some() {
                match self.connection.mailbox.poll(context) {
                    Poll::Ready(NextWrite::Frame(frame)) => return self.write(frame),
                    Poll::Ready(NextWrite::End) => return Poll::Ready(None),
                    Poll::Ready(NextWrite::Ping) => self.ack_pending = true,
                    Poll::Pending => {}
                }
            }
            if self.ack_pending
                && let Some(ping) = self.encode_ping()
            {
                return self.write(ping);
            }
            let Poll::Ready(read) = Pin::new(&mut self.request).poll_frame(context) else { return Poll::Pending };
            let data = match read {
                // Trailers have no meaning here and are ignored.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                None | Some(Err(_)) => {
                    if self.decoder.has_partial_frame() {
                        self.shared.counts.increment(StreamEvent::Truncated);
                    }
                    return Poll::Ready(None);
                }
            };
            if let Err(violation) = self.on_data(&data) {
                return self.close_with_goaway(violation);
            }
        }
    }

    /// Writes a `Goaway` with the reason, after which the stream ends.
    fn close_with_goaway(&mut self, violation: ProtocolViolation) -> Poll<Option<Bytes>> {
        self.shared.counts.increment(violation.count);
        self.ends = Some(violation);
        let away = Goaway { reason: violation.text.to_owned(), ..Goaway::default() };
        Poll::Ready(wire::encode_frame(&ControllerMessage::Goaway(away)).ok())
    }
}

impl Drop for ServerStream {
    fn drop(&mut self) {
        if self.acks.is_some() {
            self.shared.close(&self.connection, &self.identity);
        }
    }
}

impl fmt::Debug for ServerStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStream").field("pod", &self.identity).field("hello", &self.acks).finish_non_exhaustive()
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Refused(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Stream(stream) if stream.ends.is_some() => Poll::Ready(None),
            Self::Stream(stream) => stream.poll(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }
}

const MISSING_HELLO: ProtocolViolation =
    ProtocolViolation { count: StreamEvent::Unannounced, text: "a stream must start with exactly one Hello" };

/// Returns `true` if the pod named in `Hello` is that of the token. Name and namespace may be left
/// out.
fn is_pod_of_token(hello: &Hello, pod: &PodIdentity) -> bool {
    let is_consistent = |claimed: &str, known: &str| claimed.is_empty() || claimed == known;
    hello.pod.uid == pod.uid
        && is_consistent(&hello.pod.name, &pod.name)
        && is_consistent(&hello.pod.namespace, &pod.namespace)
}
