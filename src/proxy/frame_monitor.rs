//! Monitors the frames of one HTTP/2 connection in both directions. It limits the control frames of
//! the client, and writes a GOAWAY frame of its own to a client that exceeds a limit.
//!
//! hyper cannot write that frame. It only offers a graceful shutdown, whose GOAWAY has the code
//! `NO_ERROR` and the last stream 2^31-1; the actual last stream follows after the client has
//! acknowledged a PING, which is not read, because no more is read from a client that floods. Such
//! a client could not tell which of its calls were received, and a client library would not
//! repeat the others. The frame is inserted between two frames of `h2`, which then continues with
//! the responses to the calls that were received.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::frames::{ControlFrameLimiter, FrameKind, FrameScanner};
use crate::clock::Clock;

/// Error code `ENHANCE_YOUR_CALM` (RFC 9113, 7).
const ENHANCE_YOUR_CALM: u8 = 11;
/// Length of a GOAWAY frame without debug data.
const GOAWAY_LEN: usize = 17;

/// The frames of one HTTP/2 connection.
#[derive(Debug)]
pub(super) struct FrameMonitor {
    coming: FrameScanner,
    leaving: FrameScanner,
    control: ControlFrameLimiter,
    /// The highest stream that the client has opened. Streams are opened in ascending order.
    last_stream: u32,
    /// `h2` has sent a GOAWAY frame itself.
    is_leaving: bool,
    goaway: Option<GoawayFrame>,
}

/// A GOAWAY frame (RFC 9113, 6.8) that is being written.
#[derive(Debug)]
struct GoawayFrame {
    bytes: [u8; GOAWAY_LEN],
    written: usize,
}

// === impl FrameMonitor ===

impl FrameMonitor {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            coming: FrameScanner::default(),
            leaving: FrameScanner::default(),
            control: ControlFrameLimiter::new(clock),
            last_stream: 0,
            is_leaving: false,
            goaway: None,
        }
    }

    /// Scans received bytes. Returns `true` if the client exceeds the limit on control frames.
    pub(super) fn on_read(&mut self, bytes: &[u8]) -> bool {
        let Self { coming, control, last_stream, .. } = self;
        let mut is_flood = false;
        coming.scan(bytes, |frame| {
            // Counted as soon as its header has arrived: a call that is cut off after it may be
            // repeated only by a client that knows that it is idempotent.
            if frame.kind == FrameKind::Headers {
                *last_stream = (*last_stream).max(frame.stream);
            }
            is_flood |= control.try_take(frame);
        });
        is_flood
    }

    /// Scans written bytes, which `h2` has produced. Returns the number of bytes in the DATA frames
    /// that begin in them.
    pub(super) fn on_written(&mut self, bytes: &[u8]) -> usize {
        let Self { leaving, control, is_leaving, .. } = self;
        let mut data = 0;
        leaving.scan(bytes, |frame| {
            if frame.kind == FrameKind::Data {
                data += frame.length as usize;
            }
            *is_leaving |= frame.kind == FrameKind::Goaway;
            control.refund(frame);
        });
        data
    }

    /// Writes the GOAWAY frame of a client that exceeded a limit, unless `h2` is inside of a frame.
    /// If `h2` has sent such a frame before, the client is leaving already, and a second frame may
    /// not have a higher last stream.
    pub(super) fn poll_goaway(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        if self.is_leaving || !self.leaving.is_between_frames() {
            return Poll::Ready(Ok(()));
        }
        self.goaway.get_or_insert_with(|| GoawayFrame::new(self.last_stream)).poll_write(cx, stream)
    }
}

// === impl GoawayFrame ===

impl GoawayFrame {
    const fn new(last_stream: u32) -> Self {
        let [a, b, c, d] = last_stream.to_be_bytes();
        Self { bytes: [0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, ENHANCE_YOUR_CALM], written: 0 }
    }

    /// Writes the rest of the frame.
    fn poll_write(&mut self, cx: &mut Context<'_>, stream: &mut (impl AsyncWrite + Unpin)) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, 0, 0, 0, 0, stream][..], payload].concat()
    }

    #[tokio::test]
    async fn goaway_names_the_last_call_and_is_written_once_between_two_frames() {
        let mut monitor = FrameMonitor::new(Clock::start());
        let received = [frame(1, 1, b"head"), frame(1, 5, b"head"), frame(1, 3, b"trailers"), frame(6, 0, &[0; 8])];
        assert!(!monitor.on_read(&received.concat()));
        // The connection takes 5 bytes at a time, so that the frame is written in pieces.
        let (mut ours, mut theirs) = tokio::io::duplex(5);
        let response = frame(0, 1, b"answer");
        assert_eq!(monitor.on_written(&response[..12]), 6);
        let waker = noop_waker();
        let cx = &mut Context::from_waker(&waker);
        assert!(matches!(monitor.poll_goaway(cx, &mut ours), Poll::Ready(Ok(()))), "inside of a frame");
        assert_eq!(monitor.on_written(&response[12..]), 0);
        let mut sent = Vec::new();
        while monitor.poll_goaway(cx, &mut ours).is_pending() {
            let mut piece = [0; 5];
            let count = theirs.read(&mut piece).await.unwrap();
            sent.extend(&piece[..count]);
        }
        assert!(matches!(monitor.poll_goaway(cx, &mut ours), Poll::Ready(Ok(()))), "written already");
        drop(ours);
        theirs.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 11]);
    }

    #[tokio::test]
    async fn goaway_does_not_follow_another_one() {
        let mut monitor = FrameMonitor::new(Clock::start());
        monitor.on_read(&frame(1, 7, b"head"));
        monitor.on_written(&frame(7, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let waker = noop_waker();
        assert!(monitor.poll_goaway(&mut Context::from_waker(&waker), &mut ours).is_ready());
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, b"");
    }

    #[test]
    fn calls_pay_for_control_frames_and_a_flood_does_not() {
        let mut monitor = FrameMonitor::new(Clock::start());
        let (window, ping) = (frame(8, 0, &[0, 0, 0, 1]), frame(6, 0, &[0; 8]));
        let call = [frame(1, 1, b"head"), frame(0, 1, b"body"), window, ping.clone()].concat();
        let response = [frame(1, 1, b"head"), frame(0, 1, b"{}")].concat();
        for _ in 0..20_000 {
            assert!(!monitor.on_read(&call));
            assert_eq!(monitor.on_written(&response), 2);
        }
        assert!((0..20_000).any(|_| monitor.on_read(&ping)));
    }
}
