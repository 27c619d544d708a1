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

use super::mailbox::Next;
use super::streams::{Line, Shared};
use super::{Count, Identity};
use crate::control::frame::Decoder;
use crate::control::meter::Meter;
use crate::control::wire::{self, ACKS, Down, Goaway, Hello, Ping, Up};

/// Body of a response: a stream, or the reason why none was opened.
#[derive(Debug)]
pub(super) enum Answer {
    Stream(Box<Stream>),
    Refused(Option<Bytes>),
}

pub(super) struct Stream {
    shared: Arc<Shared>,
    line: Arc<Line>,
    identity: Arc<Identity>,
    request: Incoming,
    decoder: Decoder,
    frames: Meter,
    bytes: Meter,
    /// `None` before `Hello`; then `Some(true)` if the sidecar supports acknowledgements.
    hello: Option<bool>,
    /// `true` if a report or event arrived since the last acknowledgement.
    unsaid: bool,
    /// Reason for which the stream ends.
    ends: Option<Why>,
}

/// A protocol violation that ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Why {
    count: Count,
    text: &'static str,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, line: Arc<Line>, identity: Identity, request: Incoming) -> Self {
        let now = shared.clock.now();
        let limits = &shared.limits;
        Self {
            frames: Meter::new(now, limits.frames.0, limits.frames.1),
            bytes: Meter::new(now, limits.bytes.0, limits.bytes.1),
            shared,
            line,
            identity: Arc::new(identity),
            request,
            decoder: Decoder::default(),
            hello: None,
            unsaid: false,
            ends: None,
        }
    }

    fn take(&mut self, data: &[u8]) -> Result<(), Why> {
        let now = self.shared.clock.now();
        if !self.bytes.take(now, data.len() as u64) {
            return Err(Why { count: Count::Flood, text: "the byte rate limit is exceeded" });
        }
        self.decoder.feed(data);
        let malformed = |text| Why { count: Count::Malformed, text };
        while let Some(json) = self.decoder.frame().map_err(|_| malformed("a frame is empty or larger than 1 MiB"))? {
            if !self.frames.take(now, 1) {
                return Err(Why { count: Count::Flood, text: "the frame rate limit is exceeded" });
            }
            let read = wire::read_up(&json).map_err(|error| {
                tracing::debug!(%error, pod = %self.identity.name, "a frame from a sidecar is not a valid message");
                malformed("a frame is not a valid message")
            })?;
            self.shared.counts.add(Count::UnknownFields, read.unknown_fields.into());
            match read.message {
                Some(message) => self.hear(message)?,
                None if self.hello.is_some() => self.shared.counts.one(Count::UnknownKinds),
                None => return Err(UNANNOUNCED),
            }
            self.line.hear(now);
        }
        Ok(())
    }

    fn hear(&mut self, message: Up) -> Result<(), Why> {
        let (shared, pod) = (&self.shared, &self.identity);
        match message {
            Up::Hello(hello) if self.hello.is_none() => {
                let hello = hello.bounded();
                if !speaks_for(&hello, pod) {
                    tracing::warn!(pod = %pod.name, namespace = %pod.namespace, claimed = %hello.pod.uid, "the pod in Hello does not match the pod of the token");
                    return Err(Why { count: Count::Foreign, text: "the pod in Hello must be the pod of the token" });
                }
                self.hello = Some(hello.has(ACKS));
                shared.open(&self.line, pod, &hello);
            }
            Up::Report(report) if self.hello.is_some() => {
                self.unsaid = true;
                if shared.inbox(&pod.uid, |inbox| inbox.report(report.epoch, report.seq)) {
                    shared.counts.one(Count::Reports);
                    shared.hub.report(pod, report.bounded());
                } else {
                    shared.counts.one(Count::Repeated);
                }
            }
            Up::Event(event) if self.hello.is_some() => {
                self.unsaid = true;
                if shared.inbox(&pod.uid, |inbox| inbox.event(event.epoch, event.seq)) {
                    shared.counts.one(Count::Events);
                    shared.hub.event(pod, event.bounded());
                } else {
                    shared.counts.one(Count::Repeated);
                }
            }
            Up::Hello(_) | Up::Report(_) | Up::Event(_) => return Err(UNANNOUNCED),
        }
        Ok(())
    }

    /// Returns a `Ping`, with an acknowledgement if the sidecar supports it.
    fn ping(&mut self) -> Option<Bytes> {
        self.unsaid = false;
        let acked = (self.hello == Some(true)).then(|| self.shared.acked(&self.identity.uid));
        wire::frame(&Down::Ping(Ping { acked, ..Ping::default() })).ok()
    }

    fn write(&self, bytes: Bytes) -> Poll<Option<Bytes>> {
        self.line.write(self.shared.clock.now());
        Poll::Ready(Some(bytes))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        // Write before reading: a sidecar that does not read what is pushed is not read from.
        loop {
            if self.hello.is_some() {
                match self.line.mailbox.poll(context) {
                    Poll::Ready(Next::Frame(frame)) => return self.write(frame),
                    Poll::Ready(Next::End) => return Poll::Ready(None),
                    Poll::Ready(Next::Ping) => self.unsaid = true,
                    Poll::Pending => {}
                }
            }
            if self.unsaid
                && let Some(ping) = self.ping()
            {
                return self.write(ping);
            }
            let Poll::Ready(read) = Pin::new(&mut self.request).poll_frame(context) else { return Poll::Pending };
            let data = match read {
                // Trailers have no meaning here and are ignored.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                None | Some(Err(_)) => {
                    if self.decoder.is_within() {
                        self.shared.counts.one(Count::Truncated);
                    }
                    return Poll::Ready(None);
                }
            };
            if let Err(why) = self.take(&data) {
                return self.end(why);
            }
        }
    }

    /// Writes a `Goaway` with the reason, after which the stream ends.
    fn end(&mut self, why: Why) -> Poll<Option<Bytes>> {
        self.shared.counts.one(why.count);
        self.ends = Some(why);
        let away = Goaway { reason: why.text.to_owned(), ..Goaway::default() };
        Poll::Ready(wire::frame(&Down::Goaway(away)).ok())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.hello.is_some() {
            self.shared.close(&self.line, &self.identity);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("pod", &self.identity).field("hello", &self.hello).finish_non_exhaustive()
    }
}

impl Body for Answer {
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

const UNANNOUNCED: Why = Why { count: Count::Unannounced, text: "a stream must start with exactly one Hello" };

/// Returns `true` if the pod named in `Hello` is that of the token.
fn speaks_for(hello: &Hello, pod: &Identity) -> bool {
    let same = |said: &str, known: &str| said.is_empty() || said == known;
    hello.pod.uid == pod.uid && same(&hello.pod.name, &pod.name) && same(&hello.pod.namespace, &pod.namespace)
}
