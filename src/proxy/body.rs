//! The body type of requests and responses on both sides of the proxy, without boxing in the common
//! cases.
//!
//! It streams bodies that pass through, contains bodies that were read or spliced, and holds guards
//! that must live as long as the bytes, such as a memory charge or a slot.

mod channel;
mod idle;

use std::any::Any;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use self::channel::BodyReader;
pub use self::channel::{BodyClosed, BodyWriter, body_channel};
use self::idle::IdleTimer;
pub use self::idle::{ActivityFlag, BodyIdleError};
use crate::error::BoxError;
use crate::memory::{BufferGuard, EvictedError};

/// A guard that lives as long as a body.
pub type BodyGuard = Box<dyn Any + Send + Sync>;

/// The body of a request or a response.
#[derive(Debug)]
pub struct Body {
    kind: BodyKind,
    /// Trailers that follow the bytes of a full or empty body.
    trailers: Option<Box<HeaderMap>>,
    /// Dropped together with the body.
    guard: Option<BodyGuard>,
    idle: Option<IdleTimer>,
    /// Records every frame of a request, and its end.
    upload: Option<ActivityFlag>,
    /// The guard of a request body, dropped at the end of the body.
    watch: Option<Box<dyn UploadWatch>>,
    /// The memory charge of a response.
    charge: Option<Box<BufferGuard>>,
}

/// The source of the bytes. Small, because a body is moved many times: state that only few bodies
/// need is boxed.
#[derive(Debug)]
enum BodyKind {
    /// No bytes, or none left.
    Empty,
    /// All bytes.
    Full(Bytes),
    /// Bytes that another task writes.
    Channel(Box<BodyReader>),
    /// Bytes that hyper receives.
    Stream { rest: Incoming, extras: Option<Box<StreamExtras>> },
}

/// Size of the pieces in which a prefix is returned: that of an HTTP/2 frame, so that the rest
/// stays charged while the client takes nothing.
const PREFIX_PIECE: usize = 16 << 10;

/// Optional state of a streamed body.
#[derive(Debug, Default)]
struct StreamExtras {
    /// Bytes that were read from the stream before, and precede the rest of it.
    prefix: Bytes,
    tap: Option<Box<dyn BodyTap>>,
}

/// A guard of a request body, held until the body has arrived or is dropped.
pub trait UploadWatch: std::fmt::Debug + Send + Sync {
    /// Records that the request occupies an upstream connection.
    fn on_connect(&mut self);

    /// Records that bytes of the body were taken.
    fn on_data(&mut self);

    /// Resolves once the body must end because it is evicted.
    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// An observer of the bytes of a body. If it is dropped before [`end`](Self::end), the body did not
/// end.
pub trait BodyTap: std::fmt::Debug + Send + Sync {
    /// Observes bytes.
    fn data(&mut self, data: &Bytes);

    /// Observes the end of the bytes. `trailers` is `true` if trailers follow them.
    fn end(&mut self, trailers: bool);
}

// === impl Body ===

impl Body {
    const fn new(kind: BodyKind) -> Self {
        Self { kind, trailers: None, guard: None, idle: None, upload: None, watch: None, charge: None }
    }

    /// Creates an empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self::new(BodyKind::Empty)
    }

    /// Creates a body from bytes.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        Self::new(if bytes.is_empty() { BodyKind::Empty } else { BodyKind::Full(bytes) })
    }

    /// Creates a body that streams from hyper.
    #[must_use]
    pub const fn stream(rest: Incoming) -> Self {
        Self::new(BodyKind::Stream { rest, extras: None })
    }

    fn channel(reader: BodyReader) -> Self {
        Self::new(BodyKind::Channel(Box::new(reader)))
    }

    /// Attaches a tap beside earlier ones. Bytes already available are delivered to it immediately.
    #[must_use]
    pub fn with_tap(mut self, mut tap: Box<dyn BodyTap>) -> Self {
        match &mut self.kind {
            BodyKind::Stream { rest, extras } => {
                if let Some(StreamExtras { prefix, .. }) = extras.as_deref()
                    && !prefix.is_empty()
                {
                    tap.data(prefix);
                }
                if rest.is_end_stream() {
                    tap.end(false);
                } else {
                    let extras = extras.get_or_insert_default();
                    let taps: Box<dyn BodyTap> = match extras.tap.take() {
                        None => tap,
                        Some(earlier) => Box::new((earlier, tap)),
                    };
                    extras.tap = Some(taps);
                }
            }
            BodyKind::Full(bytes) => {
                tap.data(bytes);
                tap.end(self.trailers.is_some());
            }
            BodyKind::Empty => tap.end(self.trailers.is_some()),
            // A tap observes forwarded calls, whose bodies are not written here.
            BodyKind::Channel(_) => {}
        }
        self
    }

    /// Returns `true` if the bytes arrive one after the other, `false` if all of them are known.
    #[must_use]
    pub const fn is_streamed(&self) -> bool {
        matches!(self.kind, BodyKind::Stream { .. })
    }

    /// Returns `true` if the bytes are still to arrive, from hyper or from another task.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        matches!(self.kind, BodyKind::Stream { .. } | BodyKind::Channel(_))
    }

    /// Sets the trailers that follow the bytes of a full body.
    #[must_use]
    pub fn with_trailers(mut self, trailers: Option<HeaderMap>) -> Self {
        self.trailers = trailers.map(Box::new);
        self
    }

    /// Holds a guard until the body is dropped. Later guards are dropped before earlier ones.
    #[must_use]
    pub fn with_guard(mut self, guard: impl Any + Send + Sync) -> Self {
        self.guard = Some(match self.guard.take() {
            None => Box::new(guard),
            Some(earlier) => Box::new((guard, earlier)),
        });
        self
    }

    /// Attaches the guard of a request body.
    #[must_use]
    pub fn with_upload_watch(mut self, watch: Option<Box<dyn UploadWatch>>) -> Self {
        self.watch = watch;
        self
    }

    /// Resolves once a request body must end because it is evicted. Pending forever without a
    /// guard.
    pub async fn evicted(&mut self) {
        match &mut self.watch {
            Some(watch) => poll_fn(|cx| watch.poll_evicted(cx)).await,
            None => std::future::pending().await,
        }
    }

    /// Records that a request occupies an upstream connection.
    pub fn on_connect(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.on_connect();
        }
    }

    /// Attaches the memory charge of a response, which is held until the body is dropped.
    #[must_use]
    pub fn with_charge(mut self, held: BufferGuard) -> Self {
        self.charge = Some(Box::new(held));
        self
    }

    /// Returns the memory charge of a response.
    pub fn charge_mut(&mut self) -> Option<&mut BufferGuard> {
        self.charge.as_deref_mut()
    }

    /// Prepends bytes that were read from a stream, with their memory charge until they are taken.
    #[must_use]
    pub fn with_prefix(mut self, read: Bytes, mut held: BufferGuard) -> Self {
        // The last piece exists even if the budget had no room for it.
        held.set_bytes(read.len());
        match &mut self.kind {
            BodyKind::Stream { extras, .. } => {
                let extras = extras.get_or_insert_default();
                debug_assert!(extras.prefix.is_empty(), "what was put back is read before more is read");
                extras.prefix = read;
                self.with_charge(held)
            }
            // The body ended with the bytes that were read.
            BodyKind::Empty | BodyKind::Full(_) | BodyKind::Channel(_) => {
                Self { kind: BodyKind::Full(read), ..self }.with_guard(held)
            }
        }
    }

    /// Fails with [`BodyIdleError`] if no frame arrives for `limit`, neither in this body nor in
    /// the one that shares `other`.
    #[must_use]
    pub fn with_idle_timeout(mut self, limit: Duration, other: Option<ActivityFlag>) -> Self {
        self.idle = Some(IdleTimer::new(limit, other));
        self
    }

    /// Removes the idle timeout, because the reader of the body applies its own.
    #[must_use]
    pub fn without_idle(mut self) -> Self {
        self.idle = None;
        self
    }

    /// Records every frame of a request, and its end, in `moved`.
    pub fn set_activity(&mut self, moved: ActivityFlag) {
        moved.set_uploaded(self.is_end_stream());
        self.upload = Some(moved);
    }

    fn poll_kind(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.kind {
            BodyKind::Empty => Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))),
            BodyKind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.kind = BodyKind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            BodyKind::Channel(reader) => reader.poll_frame(cx).map_err(Into::into),
            BodyKind::Stream { rest, extras: None } => Pin::new(rest).poll_frame(cx).map_err(Into::into),
            BodyKind::Stream { rest, extras: Some(extras) } => {
                if !extras.prefix.is_empty() {
                    let piece = extras.prefix.split_to(extras.prefix.len().min(PREFIX_PIECE));
                    if let Some(charge) = &mut self.charge {
                        charge.set_bytes(extras.prefix.len());
                    }
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                let frame = Pin::new(&mut *rest).poll_frame(cx);
                if let (Poll::Ready(frame), Some(tap)) = (&frame, &mut extras.tap)
                    && feed_tap(frame.as_ref(), &mut **tap, rest.is_end_stream())
                {
                    extras.tap = None;
                }
                frame.map_err(Into::into)
            }
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = this.poll_kind(cx);
        if let (Some(moved), Poll::Ready(frame)) = (&this.upload, &frame) {
            moved.set();
            if frame.is_none() || this.is_end_stream() {
                moved.set_uploaded(true);
            }
        }
        if let Some(watch) = &mut this.watch {
            match &frame {
                Poll::Ready(Some(Ok(_))) => watch.on_data(),
                Poll::Ready(_) => this.watch = None,
                Poll::Pending if watch.poll_evicted(cx).is_ready() => {
                    return Poll::Ready(Some(Err(Box::new(EvictedError))));
                }
                Poll::Pending => {}
            }
            if this.is_end_stream() {
                this.watch = None;
            }
        }
        let Some(idle) = &mut this.idle else {
            return frame;
        };
        match frame {
            Poll::Ready(frame) => {
                idle.on_activity();
                Poll::Ready(frame)
            }
            Poll::Pending => {
                ready!(idle.poll_expired(cx));
                Poll::Ready(Some(Err(Box::new(BodyIdleError))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Empty => self.trailers.is_none(),
            BodyKind::Full(_) => false,
            BodyKind::Channel(reader) => reader.is_end(),
            BodyKind::Stream { rest, extras } => {
                extras.as_ref().is_none_or(|extras| extras.prefix.is_empty()) && rest.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            // With trailers the length stays open, so that HTTP/1 uses chunked encoding.
            _ if self.trailers.is_some() => SizeHint::default(),
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyKind::Channel(_) => SizeHint::default(),
            BodyKind::Stream { rest, extras: None } => rest.size_hint(),
            BodyKind::Stream { rest, extras: Some(extras) } => add_to_hint(rest.size_hint(), extras.prefix.len()),
        }
    }
}

impl BodyTap for (Box<dyn BodyTap>, Box<dyn BodyTap>) {
    fn data(&mut self, data: &Bytes) {
        self.0.data(data);
        self.1.data(data);
    }

    fn end(&mut self, trailers: bool) {
        self.0.end(trailers);
        self.1.end(trailers);
    }
}

/// Returns the size of a body with this number of bytes in front of it.
pub(super) fn add_to_hint(mut hint: SizeHint, before: usize) -> SizeHint {
    let before = before as u64;
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper + before);
    }
    hint.set_lower(hint.lower() + before);
    hint
}

/// Passes a frame to a tap. Returns `true` if the tap is finished.
fn feed_tap<E>(frame: Option<&Result<Frame<Bytes>, E>>, tap: &mut dyn BodyTap, last: bool) -> bool {
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
