//! Reading a body whole, within every bound: size, silence, time, process memory.
//!
//! One loop for a client's call, a lone answer and a shared answer; what a bound means to each of them is theirs to say.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as HttpBody;
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep, sleep, timeout, timeout_at};

use crate::memory::Held;

/// A first piece below this is copied while more is waited for: hyper's read buffers are larger.
const COPY_MAX: usize = 16 << 10;

/// How much, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most bytes.
    pub max: usize,
    /// Longest silence.
    pub idle: Duration,
    /// When it must be there.
    pub until: Option<Instant>,
    /// The least rate from its first byte on.
    pub floor: Option<RateFloor>,
    /// It may have to make room for others while it is waited for.
    pub evictable: bool,
}

/// The least rate of a body, from its first byte on: less shows a sender that holds its readers, not
/// one that works.
#[derive(Debug, Clone, Copy)]
pub struct RateFloor {
    /// Bytes that have to come in each window.
    pub bytes: usize,
    /// The length of a window.
    pub window: Duration,
}

/// The window that a body is in.
struct FloorWindow {
    floor: RateFloor,
    /// Bytes that had come when it began.
    before: usize,
    end: Pin<Box<Sleep>>,
}

/// What came of it.
#[derive(Debug)]
pub enum Gathered {
    /// All of it.
    Whole {
        /// The body.
        bytes: Bytes,
        /// What followed it.
        trailers: Option<HeaderMap>,
        /// Its place in the budget.
        held: Held,
    },
    /// A bound ended it, or its sender.
    Stopped {
        /// Which.
        why: Stop,
        /// What was read, the frame that did not fit included.
        read: Bytes,
        /// Its place in the budget, as far as there was room.
        held: Held,
    },
}

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// More than the most bytes.
    TooLarge,
    /// The process holds as much as it may.
    BuffersFull,
    /// Nothing came for too long, or not all in time.
    Slow,
    /// It came more slowly than its floor.
    BelowFloor,
    /// It broke off.
    Broken,
}

/// What was read so far. Most bodies come in one piece, which is kept as it is.
#[derive(Debug, Default)]
pub struct Pieces {
    first: Bytes,
    all: BytesMut,
    /// The length of the whole body, where it was announced.
    announced: Option<usize>,
    /// Room for the announced length is taken at once: of a model server, which is trusted to send
    /// it, where a client may announce and send nothing.
    at_once: bool,
}

/// Reads a body. What it holds at the most is what has come, so nothing is held by an announcement.
///
/// Its bytes are added to `held`. While the body does not come, that may have to make room for others
/// if it is an upload ([`Bounds::evictable`]).
pub async fn gather<B>(body: &mut B, bounds: Bounds, mut held: Held) -> Gathered
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().exact().and_then(|size| usize::try_from(size).ok());
    if let Some(announced) = announced {
        held.announce(announced);
    }
    if announced.is_some_and(|announced| announced > bounds.max) {
        return Gathered::Stopped { why: Stop::TooLarge, read: Bytes::new(), held };
    }
    let mut pieces = Pieces { announced, at_once: !bounds.evictable, ..Pieces::default() };
    let mut trailers = None;
    let (mut size, mut taken) = (0_usize, 0_usize);
    let mut window = None;
    let why = loop {
        if size > 0 && window.is_none() {
            window = bounds.floor.map(FloorWindow::new);
        }
        let next = timeout(bounds.idle, body.frame());
        let next = async {
            match bounds.until {
                Some(until) => timeout_at(until, next).await.unwrap_or_else(Err),
                None => next.await,
            }
        };
        let next = tokio::select! {
            biased;
            next = next => next,
            () = missed(&mut window, size) => break Stop::BelowFloor,
            () = evicted(&mut held, &mut pieces), if bounds.evictable => break Stop::BuffersFull,
        };
        let frame = match next {
            Err(_) => break Stop::Slow,
            Ok(None) => return Gathered::Whole { bytes: pieces.join(), trailers, held },
            Ok(Some(Err(_))) => break Stop::Broken,
            Ok(Some(Ok(frame))) => frame,
        };
        match frame.into_data() {
            Ok(data) => {
                size += data.len();
                held.on_move();
                // Of an answer the whole is taken with its beginning: many that are begun could not
                // all be ended.
                let wanted = pieces.announced.filter(|_| pieces.at_once).unwrap_or_default().max(size);
                let fits = wanted == taken || held.grow(wanted - taken).is_ok();
                taken = wanted;
                pieces.push(data);
                if size > bounds.max {
                    break Stop::TooLarge;
                }
                if !fits {
                    break Stop::BuffersFull;
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    };
    Gathered::Stopped { why, read: pieces.join(), held }
}

/// Waits for the end of a window in which too little came, where there is one.
async fn missed(window: &mut Option<FloorWindow>, size: usize) {
    match window {
        None => std::future::pending().await,
        Some(window) => window.missed(size).await,
    }
}

/// Waits until what is held has to make room. Only a body that is waited for comes here.
async fn evicted(held: &mut Held, pieces: &mut Pieces) {
    pieces.unshare();
    held.evicted().await;
}

// === impl FloorWindow ===

impl FloorWindow {
    fn new(floor: RateFloor) -> Self {
        Self { floor, before: 0, end: Box::pin(sleep(floor.window)) }
    }

    /// Waits for the end of a window in which too little came, if `size` bytes stay all.
    async fn missed(&mut self, size: usize) {
        loop {
            self.end.as_mut().await;
            if size - self.before < self.floor.bytes {
                return;
            }
            self.before = size;
            self.end.set(sleep(self.floor.window));
        }
    }
}

// === impl Pieces ===

impl Pieces {
    /// What came next.
    pub fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            // No more than is there: most bodies of several pieces have two. From here it doubles.
            let there = self.first.len() + data.len();
            let whole = self.announced.filter(|announced| self.at_once && *announced > there);
            self.all = BytesMut::with_capacity(whole.unwrap_or(there));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.reserve(data.len());
        self.all.extend_from_slice(&data);
    }

    /// Makes room for `more`: doubles what there is, but not beyond the announced length, so that
    /// the end needs no copy.
    fn reserve(&mut self, more: usize) {
        let (length, capacity) = (self.all.len(), self.all.capacity());
        let Some(announced) = self.announced.filter(|announced| *announced < 2 * capacity) else { return };
        if capacity - length < more && length + more <= announced {
            let mut whole = BytesMut::with_capacity(announced);
            whole.extend_from_slice(&self.all);
            self.all = whole;
        }
    }

    /// Copies a small beginning that may be a slice of a large buffer, and keep that alive.
    fn unshare(&mut self) {
        if self.all.is_empty() && (1..COPY_MAX).contains(&self.first.len()) {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
    }

    /// All of it, in no more memory than a quarter above its length.
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
mod tests {
    use std::convert::Infallible;

    use futures_util::StreamExt as _;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;
    use crate::clock::Clock;
    use crate::memory::BufferBudget;

    fn budget(max: usize) -> BufferBudget {
        BufferBudget::new(max, Clock::start())
    }

    type Frames = Vec<Result<Frame<Bytes>, Infallible>>;

    fn frames(parts: &[&'static str]) -> Frames {
        parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect()
    }

    async fn read(parts: &[&'static str], max: usize, budget: &BufferBudget) -> Gathered {
        let mut body = StreamBody::new(futures_util::stream::iter(frames(parts)));
        gather(
            &mut body,
            Bounds { max, idle: Duration::from_secs(1), until: None, floor: None, evictable: false },
            budget.empty(),
        )
        .await
    }

    #[tokio::test]
    async fn pieces_are_joined_in_order_and_counted() {
        let budget = budget(100);
        for parts in [&["abc"][..], &["a", "b", "c"], &["", "abc", ""]] {
            let Gathered::Whole { bytes, held, .. } = read(parts, 10, &budget).await else { panic!("it fits") };
            assert_eq!((&bytes[..], budget.held()), (&b"abc"[..], 3));
            drop(held);
        }
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn what_does_not_fit_is_given_back_whole() {
        let budget = budget(100);
        let Gathered::Stopped { why, read, .. } = read(&["abc", "def", "ghi"], 5, &budget).await else {
            panic!("too large")
        };
        assert_eq!((why, &read[..]), (Stop::TooLarge, &b"abcdef"[..]));
    }

    #[tokio::test]
    async fn a_body_that_stalls_below_its_floor_is_stopped() {
        let floor = Some(RateFloor { bytes: 2, window: Duration::from_millis(1) });
        let bounds = Bounds { max: 100, idle: Duration::from_secs(300), until: None, floor, evictable: false };
        for parts in [&["a"][..], &["ab", "c"]] {
            let stalled = futures_util::stream::iter(frames(parts)).chain(futures_util::stream::pending());
            let gathered = gather(&mut StreamBody::new(stalled), bounds, budget(100).empty()).await;
            assert!(matches!(gathered, Gathered::Stopped { why: Stop::BelowFloor, .. }));
        }
    }

    #[tokio::test]
    async fn a_window_in_which_enough_came_is_followed_by_another() {
        let mut window = FloorWindow::new(RateFloor { bytes: 2, window: Duration::from_millis(1) });
        window.missed(4).await;
        assert_eq!(window.before, 4, "the first window had its bytes, the second none");
    }

    #[tokio::test]
    async fn a_full_process_stops_reading() {
        let budget = budget(4);
        let Gathered::Stopped { why, .. } = read(&["abc", "def"], 100, &budget).await else { panic!("full") };
        assert_eq!(why, Stop::BuffersFull);
    }
}
