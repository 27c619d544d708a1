//! A body that another task writes, through a bounded buffer that never blocks the writer.
//!
//! One writer serves the members of a streamed batch. A member that takes its bytes too slowly
//! loses its own response and delays no other one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::sync::mpsc;

use super::Body;
use crate::memory::BufferGuard;

/// Maximum number of bytes that wait for a reader, besides those in the socket. A chunk with one
/// token has about 250 bytes, so this is a pause of the reader of about ten seconds at a hundred
/// tokens per second.
const BUFFERED_MAX: usize = 256 << 10;

/// The writing half of a body. If it is dropped before [`BodyWriter::finish`], the body ends with
/// an error.
#[derive(Debug)]
pub struct BodyWriter(Arc<Mutex<ChannelState>>);

/// The reading half of a body.
#[derive(Debug)]
pub(super) struct BodyReader {
    state: Arc<Mutex<ChannelState>>,
    /// Bytes were returned since the last time that the reader waited.
    has_unflushed: bool,
    /// Dropped together with the reader.
    _alive: mpsc::Sender<()>,
}

struct ChannelState {
    buffered: BytesMut,
    /// Memory charge of the bytes.
    held: BufferGuard,
    writer: WriterState,
    is_reader_gone: bool,
    reader: Option<Waker>,
}

/// State of the writing half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterState {
    Open,
    Finished,
    Broken,
}

/// Error for bytes that cannot be written: the reader is gone, or too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body takes no more bytes")]
pub struct BodyClosed;

/// Error for a body whose writer ended before it was complete.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the body ended before it was complete")]
pub(super) struct TruncatedBody;

/// Creates a body and its writer. Buffered bytes are added to the charge `held`. `alive` is dropped
/// together with the body.
pub fn body_channel(held: BufferGuard, alive: mpsc::Sender<()>) -> (BodyWriter, Body) {
    let state = ChannelState {
        buffered: BytesMut::new(),
        held,
        writer: WriterState::Open,
        is_reader_gone: false,
        reader: None,
    };
    let state = Arc::new(Mutex::new(state));
    let reader = BodyReader { state: state.clone(), has_unflushed: false, _alive: alive };
    (BodyWriter(state), Body::channel(reader))
}

fn lock(state: &Mutex<ChannelState>) -> MutexGuard<'_, ChannelState> {
    // No code panics between the changes of a state.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl BodyWriter ===

impl BodyWriter {
    /// Writes bytes without waiting.
    ///
    /// # Errors
    /// The reader is gone or has left too many bytes, or the memory budget is exhausted. The body
    /// should be given up: its next bytes would not be those that follow.
    pub fn write(&self, bytes: &[u8]) -> Result<(), BodyClosed> {
        let mut state = lock(&self.0);
        // A piece larger than the buffer is one event, whose size is bounded.
        let has_room = state.buffered.is_empty() || state.buffered.len() + bytes.len() <= BUFFERED_MAX;
        if state.is_reader_gone || !has_room || state.held.grow(bytes.len()).is_err() {
            return Err(BodyClosed);
        }
        state.buffered.extend_from_slice(bytes);
        state.wake();
        Ok(())
    }

    /// Ends the body properly.
    pub fn finish(self) {
        lock(&self.0).end(WriterState::Finished);
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        lock(&self.0).end(WriterState::Broken);
    }
}

// === impl ChannelState ===

impl ChannelState {
    fn end(&mut self, writer: WriterState) {
        if self.writer == WriterState::Open {
            self.writer = writer;
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl fmt::Debug for ChannelState {
    /// Prints sizes only: the bytes must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelState")
            .field("buffered", &self.buffered.len())
            .field("writer", &self.writer)
            .field("is_reader_gone", &self.is_reader_gone)
            .finish_non_exhaustive()
    }
}

// === impl BodyReader ===

impl BodyReader {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TruncatedBody>>> {
        let mut state = lock(&self.state);
        if !state.buffered.is_empty() {
            self.has_unflushed = true;
            state.held.set_bytes(0);
            return Poll::Ready(Some(Ok(Frame::data(state.buffered.split().freeze()))));
        }
        let is_waiting = match state.writer {
            WriterState::Open => true,
            WriterState::Finished => return Poll::Ready(None),
            // hyper drops bytes that it has not written when a body fails. It writes them once the
            // body is pending.
            WriterState::Broken if self.has_unflushed => {
                cx.waker().wake_by_ref();
                true
            }
            WriterState::Broken => false,
        };
        self.has_unflushed = false;
        if !is_waiting {
            return Poll::Ready(Some(Err(TruncatedBody)));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns `true` if the body has ended properly.
    pub(super) fn is_end(&self) -> bool {
        let state = lock(&self.state);
        state.buffered.is_empty() && state.writer == WriterState::Finished
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.is_reader_gone = true;
        state.held.set_bytes(0);
        state.buffered = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::clock::Clock;
    use crate::memory::BufferBudget;

    fn channel(budget: &BufferBudget) -> (BodyWriter, Body, mpsc::Receiver<()>) {
        let (alive, gone) = mpsc::channel(1);
        let (writer, body) = body_channel(budget.empty_for_answer(), alive);
        (writer, body, gone)
    }

    fn budget() -> BufferBudget {
        BufferBudget::new(64 << 20, Clock::start())
    }

    #[tokio::test]
    async fn a_piece_larger_than_the_buffer_is_taken_while_nothing_waits() {
        let (writer, mut body, _gone) = channel(&budget());
        let large = vec![b'x'; BUFFERED_MAX + 1];
        writer.write(&large).unwrap();
        assert!(writer.write(b"y").is_err());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), large);
        writer.write(b"y").unwrap();
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_are_charged_until_they_are_taken() {
        let budget = budget();
        let (writer, mut body, _gone) = channel(&budget);
        writer.write(b"one ").unwrap();
        writer.write(b"two").unwrap();
        assert_eq!(budget.held(), 7);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one two");
        assert_eq!(budget.held(), 0);
        writer.finish();
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_dropped_writer_breaks_the_body_after_its_bytes() {
        let (writer, mut body, _gone) = channel(&budget());
        writer.write(b"one").unwrap();
        drop(writer);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up_at_the_bound() {
        let budget = budget();
        let (writer, body, _gone) = channel(&budget);
        writer.write(&vec![b'x'; BUFFERED_MAX]).unwrap();
        assert_eq!(writer.write(b"x"), Err(BodyClosed));
        drop(body);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn a_dropped_body_is_noticed() {
        let (writer, body, mut gone) = channel(&budget());
        drop(body);
        assert_eq!(gone.recv().await, None);
        assert_eq!(writer.write(b"x"), Err(BodyClosed));
    }

    #[test]
    fn bytes_beyond_the_budget_are_refused() {
        let budget = BufferBudget::new(1 << 10, Clock::start());
        let (writer, _body, _gone) = channel(&budget);
        assert_eq!(writer.write(&[b'x'; 2 << 10]), Err(BodyClosed));
    }
}
