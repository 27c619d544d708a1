//! One body type for both sides of the proxy, without a box for the common cases.
//!
//! It streams what passes through, carries what was read and spliced, and keeps whatever must live as long as the bytes do (a buffer guard, a slot).

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::buffer::Held;
use crate::error::BoxError;

/// Something that must live as long as a body; what it does, it does when dropped.
pub type Keep = Box<dyn Any + Send + Sync>;

/// A request's or an answer's body.
#[derive(Debug)]
pub struct Body {
    kind: Kind,
    trailers: Option<HeaderMap>,
    /// The place of what was read ahead, until it is taken.
    ahead: Option<Held>,
    keep: Option<Keep>,
    idle: Option<Idle>,
}

#[derive(Debug)]
enum Kind {
    Empty,
    Full(Bytes),
    Stream { prefix: Bytes, rest: Incoming, tap: Option<Box<dyn Tap>> },
}

/// Looks on while a body goes by. Dropped before its end, it knows that there was none.
pub trait Tap: std::fmt::Debug + Send + Sync {
    /// These bytes go by.
    fn data(&mut self, data: &Bytes);

    /// That was all of it: with trailers, or without.
    fn end(&mut self, trailers: bool);
}

/// Ends a stream in which nothing moved for too long.
#[derive(Debug)]
struct Idle {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
    armed: bool,
    other: Option<Moved>,
}

/// A sign of life that two bodies share: the request's and the answer's.
#[derive(Debug, Clone, Default)]
pub struct Moved(std::sync::Arc<std::sync::atomic::AtomicBool>);

/// Nothing moved for too long.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("body idle for too long")]
pub struct BodyIdle;

// === impl Moved ===

impl Moved {
    /// Something moved.
    pub fn set(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether something moved since the last look.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.swap(false, std::sync::atomic::Ordering::Relaxed)
    }
}

// === impl Body ===

impl Body {
    const fn new(kind: Kind) -> Self {
        Self { kind, trailers: None, ahead: None, keep: None, idle: None }
    }

    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self::new(Kind::Empty)
    }

    /// These bytes.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        Self::new(if bytes.is_empty() { Kind::Empty } else { Kind::Full(bytes) })
    }

    /// The rest as it comes.
    #[must_use]
    pub const fn stream(rest: Incoming) -> Self {
        Self::new(Kind::Stream { prefix: Bytes::new(), rest, tap: None })
    }

    /// Has someone look on. Of what is there already, he sees all at once.
    #[must_use]
    pub fn tapped(mut self, mut tap: Box<dyn Tap>) -> Self {
        match &mut self.kind {
            Kind::Stream { prefix, rest, tap: looks } => {
                if !prefix.is_empty() {
                    tap.data(prefix);
                }
                if rest.is_end_stream() {
                    tap.end(false);
                } else {
                    *looks = Some(tap);
                }
            }
            Kind::Full(bytes) => {
                tap.data(bytes);
                tap.end(self.trailers.is_some());
            }
            Kind::Empty => tap.end(self.trailers.is_some()),
        }
        self
    }

    /// Trailers after the bytes of a full body.
    #[must_use]
    pub fn with_trailers(mut self, trailers: Option<HeaderMap>) -> Self {
        self.trailers = trailers;
        self
    }

    /// Keeps something until the body is dropped.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Some(match self.keep.take() {
            None => Box::new(keep),
            Some(before) => Box::new((before, keep)),
        });
        self
    }

    /// Puts back what was read of a stream, and its place in the budget until it is taken.
    #[must_use]
    pub fn put_back(mut self, read: Bytes, held: Held) -> Self {
        match &mut self.kind {
            Kind::Stream { prefix, .. } => {
                debug_assert!(prefix.is_empty(), "what was put back is read before more is read");
                *prefix = read;
                self.ahead = Some(held);
                self
            }
            // It ended with what was read.
            Kind::Empty | Kind::Full(_) => Self { kind: Kind::Full(read), ..self }.keeping(held),
        }
    }

    /// Fails with [`BodyIdle`] when no frame came for `limit`, in this body or in the one that shares `other`.
    #[must_use]
    pub fn idle_after(mut self, limit: Duration, other: Option<Moved>) -> Self {
        let idle = Idle { limit, sleep: Box::pin(tokio::time::sleep(limit)), armed: true, other };
        self.idle = Some(idle);
        self
    }
}

impl From<Incoming> for Body {
    fn from(incoming: Incoming) -> Self {
        Self::stream(incoming)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = match &mut this.kind {
            Kind::Empty => return Poll::Ready(this.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                this.kind = Kind::Empty;
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            Kind::Stream { prefix, .. } if !prefix.is_empty() => {
                this.ahead = None;
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(prefix)))));
            }
            Kind::Stream { rest, tap, .. } => {
                let frame = Pin::new(&mut *rest).poll_frame(cx);
                if let (Poll::Ready(frame), Some(looks)) = (&frame, &mut *tap)
                    && look(frame.as_ref(), &mut **looks, rest.is_end_stream())
                {
                    *tap = None;
                }
                frame
            }
        };
        let Some(idle) = &mut this.idle else {
            return frame.map_err(Into::into);
        };
        match frame {
            Poll::Ready(frame) => {
                idle.armed = false;
                if let Some(other) = &idle.other {
                    other.set();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                ready!(idle.poll_expired(cx));
                Poll::Ready(Some(Err(Box::new(BodyIdle))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => self.trailers.is_none(),
            Kind::Full(_) => false,
            Kind::Stream { prefix, rest, .. } => prefix.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            // With trailers to come the length stays open, so that HTTP/1 frames it in chunks.
            _ if self.trailers.is_some() => SizeHint::default(),
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream { prefix, rest, .. } => {
                let mut hint = rest.size_hint();
                let more = prefix.len() as u64;
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper + more);
                }
                hint.set_lower(hint.lower() + more);
                hint
            }
        }
    }
}

/// Shows a frame to who looks on. True where nothing is left to see.
fn look<E>(frame: Option<&Result<Frame<Bytes>, E>>, tap: &mut dyn Tap, last: bool) -> bool {
    let (ended, trailers) = match frame {
        None => (true, false),
        Some(Ok(frame)) => {
            if let Some(data) = frame.data_ref() {
                tap.data(data);
            }
            (last || frame.is_trailers(), frame.is_trailers())
        }
        Some(Err(_)) => return true,
    };
    if ended {
        tap.end(trailers);
    }
    ended
}

// === impl Idle ===

impl Idle {
    /// Ready when nothing moved, here or there, for the whole limit.
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.armed {
                self.armed = true;
                self.rearm();
            }
            ready!(self.sleep.as_mut().poll(cx));
            if !self.other.as_ref().is_some_and(Moved::take) {
                return Poll::Ready(());
            }
            self.armed = false;
        }
    }

    fn rearm(&mut self) {
        let fresh = tokio::time::sleep(self.limit).deadline();
        self.sleep.as_mut().reset(fresh);
    }
}
