//! Reads a body completely, within limits on size, idle time, total time and process memory.
//!
//! One loop serves client requests, responses to unbatched calls and batch responses. The callers
//! decide how to react to an exceeded limit.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as HttpBody;
use http_body_util::BodyExt;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, Sleep, sleep, timeout, timeout_at};

use crate::error::FailureKind;
use crate::memory::BufferGuard;

/// Size below which the first piece of a body is copied while more is awaited, because it may be a
/// slice of hyper's larger read buffer.
const COPY_MAX: usize = 16 << 10;

/// Limits on reading a body.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Maximum number of bytes.
    pub max: usize,
    /// Maximum interval between two frames.
    pub idle: Duration,
    /// Instant by which the body must be complete.
    pub until: Option<Instant>,
    /// Minimum rate from the first byte on; `None`: any rate.
    pub floor: Option<MinRate>,
    /// `true` if the body may be evicted while more of it is awaited: it is an upload of a client.
    pub evictable: bool,
    /// `true` if the body will be copied, so that twice its bytes are charged if the budget has
    /// room.
    pub is_copied: bool,
}

/// Minimum rate of a body from its first byte on. A lower rate indicates a sender that occupies its
/// readers without making progress.
#[derive(Debug, Clone, Copy)]
pub struct MinRate {
    /// Number of bytes that must arrive in each window.
    pub bytes: usize,
    /// Length of a window.
    pub window: Duration,
}

/// The current window in which the rate of a body is measured.
struct RateWindow {
    floor: MinRate,
    /// Number of bytes that had arrived at the start of the window.
    at_start: usize,
    end: Pin<Box<Sleep>>,
}

/// Result of reading a body.
#[derive(Debug)]
pub enum ReadResult {
    /// The whole body was read.
    Whole {
        /// The body.
        bytes: Bytes,
        /// The trailers of the body.
        trailers: Option<HeaderMap>,
        /// Memory charge of the body.
        held: BufferGuard,
    },
    /// A limit was exceeded, or the sender broke off.
    Stopped {
        /// The limit that was exceeded.
        reason: StopReason,
        /// The bytes read, including the frame that exceeded the limit.
        read: Bytes,
        /// Memory charge of these bytes, as far as the budget allowed.
        held: BufferGuard,
    },
}

/// Reason for which a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The body exceeds the maximum number of bytes.
    TooLarge,
    /// The memory budget of the process is exhausted.
    BuffersFull,
    /// The body was silent for too long, or incomplete at the deadline.
    Slow,
    /// The rate was below the minimum.
    BelowFloor,
    /// The sender broke off.
    Broken,
}

/// A buffer for the frames of a body. A body of one frame is returned without a copy.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    /// The first frame; empty once it is copied to `all`.
    first: Bytes,
    /// The bytes of several frames.
    all: BytesMut,
    /// Announced length of the whole body in bytes, if any.
    announced: Option<usize>,
    /// `true` to reserve the announced length at once. This is for model servers, which are trusted
    /// to send it; a client may announce a length and send nothing.
    at_once: bool,
}

/// The part of a body that has arrived.
struct PartialBody {
    pieces: FrameBuffer,
    held: BufferGuard,
    /// Number of bytes that have arrived.
    size: usize,
    /// Number of bytes that `held` was charged with.
    charged: usize,
    /// The body will be copied.
    is_copied: bool,
}

/// Reads a body completely. Memory is held only for bytes that have arrived, never for an announced
/// length, unless the sender is a model server.
///
/// The bytes are added to the charge `held`. While the body of an upload is awaited, the charge may
/// be evicted ([`ReadLimits::evictable`]).
pub async fn read_bounded<B>(body: &mut B, bounds: ReadLimits, mut held: BufferGuard) -> ReadResult
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().exact().and_then(|size| usize::try_from(size).ok());
    if let Some(announced) = announced {
        held.announce(announced);
    }
    if announced.is_some_and(|announced| announced > bounds.max) {
        return ReadResult::Stopped { reason: StopReason::TooLarge, read: Bytes::new(), held };
    }
    let pieces = FrameBuffer { announced, at_once: !bounds.evictable, ..FrameBuffer::default() };
    let mut arrived = PartialBody { pieces, held, size: 0, charged: 0, is_copied: bounds.is_copied };
    let mut trailers = None;
    let mut window = None;
    let reason = loop {
        if arrived.size > 0 && window.is_none() {
            window = bounds.floor.map(RateWindow::new);
        }
        let next = pin!(timeout(bounds.idle, body.frame()));
        let next = tokio::select! {
            biased;
            next = timeout_until(bounds.until, next) => next.unwrap_or_else(Err),
            () = wait_below_floor(&mut window, arrived.size) => break StopReason::BelowFloor,
            () = arrived.wait_evicted(), if bounds.evictable => break StopReason::BuffersFull,
        };
        let frame = match next {
            Err(_) => break StopReason::Slow,
            Ok(None) => return ReadResult::Whole { bytes: arrived.pieces.join(), trailers, held: arrived.held },
            Ok(Some(Err(_))) => break StopReason::Broken,
            Ok(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(data) => {
                if let Err(reason) = arrived.push(data, bounds.max) {
                    break reason;
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    };
    ReadResult::Stopped { reason, read: arrived.pieces.join(), held: arrived.held }
}

/// Awaits `work`, until the given instant if there is one.
///
/// # Errors
/// Returns an error if the instant has passed.
pub async fn timeout_until<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    match until {
        Some(until) => timeout_at(until, work).await,
        None => Ok(work.await),
    }
}

/// Resolves at the end of a window in which too few bytes arrived; pending forever without a
/// window.
async fn wait_below_floor(window: &mut Option<RateWindow>, size: usize) {
    match window {
        None => std::future::pending().await,
        Some(window) => window.missed(size).await,
    }
}

// === impl ReadLimits ===

impl ReadLimits {
    /// Returns limits on the size of a body and on the intervals between its frames only.
    #[must_use]
    pub const fn new(max: usize, idle: Duration) -> Self {
        Self { max, idle, until: None, floor: None, evictable: false, is_copied: false }
    }
}

// === impl PartialBody ===

impl PartialBody {
    /// Adds the data of a frame.
    ///
    /// # Errors
    /// Returns the limit that is exceeded with it.
    fn push(&mut self, data: Bytes, max: usize) -> Result<(), StopReason> {
        self.size += data.len();
        self.held.on_move();
        // The whole response is charged with its first frame: if many responses were charged step
        // by step, they could exhaust the budget with none of them complete.
        let needed = self.pieces.announced.filter(|_| self.pieces.at_once).unwrap_or_default().max(self.size);
        let more = needed - self.charged;
        let fits = more == 0 || self.held.grow(more).is_ok();
        self.charged = needed;
        if self.is_copied && fits && more > 0 {
            // Without room for it now, the copy is charged beyond the limit once it exists.
            self.held.grow(more).ok();
        }
        self.pieces.push(data);
        if self.size > max {
            return Err(StopReason::TooLarge);
        }
        if fits { Ok(()) } else { Err(StopReason::BuffersFull) }
    }

    /// Resolves when the charge is evicted. Polled only while the body is awaited.
    async fn wait_evicted(&mut self) {
        self.pieces.detach_from_read_buffer();
        self.held.evicted().await;
    }
}

// === impl StopReason ===

impl StopReason {
    /// Returns the failure of a call whose response was not read to its end. A request body that
    /// is not read to its end has other failures.
    #[must_use]
    pub const fn response_failure(self) -> FailureKind {
        match self {
            Self::TooLarge => FailureKind::AnswerTooLarge,
            Self::BuffersFull => FailureKind::BytesFull,
            Self::Slow => FailureKind::UpstreamTimeout,
            // Treated as a broken connection: the rest is not awaited.
            Self::BelowFloor | Self::Broken => FailureKind::UpstreamBroken,
        }
    }
}

// === impl RateWindow ===

impl RateWindow {
    fn new(floor: MinRate) -> Self {
        Self { floor, at_start: 0, end: Box::pin(sleep(floor.window)) }
    }

    /// Resolves at the end of a window in which too few bytes arrived, given `size` bytes in total.
    async fn missed(&mut self, size: usize) {
        loop {
            self.end.as_mut().await;
            if size - self.at_start < self.floor.bytes {
                return;
            }
            self.at_start = size;
            self.end.set(sleep(self.floor.window));
        }
    }
}

// === impl FrameBuffer ===

impl FrameBuffer {
    /// Appends a frame.
    pub fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            // Exactly the bytes present, because most bodies of several frames have two. The buffer
            // doubles from here on.
            let present = self.first.len() + data.len();
            let whole = self.announced.filter(|announced| self.at_once && *announced > present);
            self.all = BytesMut::with_capacity(whole.unwrap_or(present));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.reserve(data.len());
        self.all.extend_from_slice(&data);
    }

    /// Reserves room for `more` bytes. The buffer grows by doubling, but not beyond the announced
    /// length, so that the end needs no copy.
    fn reserve(&mut self, more: usize) {
        let (length, capacity) = (self.all.len(), self.all.capacity());
        let Some(announced) = self.announced.filter(|announced| *announced < 2 * capacity) else { return };
        if capacity - length < more && length + more <= announced {
            let mut whole = BytesMut::with_capacity(announced);
            whole.extend_from_slice(&self.all);
            self.all = whole;
        }
    }

    /// Copies a small first piece, which may be a slice that keeps a large buffer alive.
    fn detach_from_read_buffer(&mut self) {
        if self.all.is_empty() && (1..COPY_MAX).contains(&self.first.len()) {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
    }

    /// Returns all bytes, in a buffer at most a quarter larger than they are.
    #[must_use]
    pub fn join(self) -> Bytes {
        match (self.all.len(), self.all.capacity()) {
            (0, _) => self.first,
            (length, capacity) if capacity - length > length / 4 => Bytes::copy_from_slice(&self.all),
            _ => self.all.freeze(),
        }
    }
}

#[cfg(test)]
mod tests;
