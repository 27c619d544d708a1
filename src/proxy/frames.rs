//! A scanner for HTTP/2 frame headers in a byte stream (RFC 9113, 4.1).
//!
//! It provides figures that hyper does not expose: the number of control frames received, which are
//! rate-limited, and the number of body bytes received and sent. Payloads are skipped, so a frame
//! costs a few instructions.

use crate::batching::Tick;
use crate::clock::Clock;

/// The client connection preface, which precedes the first frame (RFC 9113, 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_LEN: usize = 9;
/// Flag of the last frame of a header block.
const END_HEADERS: u8 = 4;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub length: u32,
    /// Category of the frame.
    pub kind: FrameKind,
    /// Stream that the frame belongs to; 0 for the connection.
    pub stream: u32,
}

/// Category of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// `DATA`.
    Data,
    /// `HEADERS`, which begin a call or a response, or end one with trailers.
    Headers,
    /// `CONTINUATION` and `RST_STREAM`: they belong to a call, and calls and resets have limits of
    /// their own.
    Call,
    /// `WINDOW_UPDATE`.
    Window,
    /// `GOAWAY`.
    Goaway,
    /// `SETTINGS`, `PING`, `PRIORITY` and frames of unknown types: work that belongs to no call.
    Control,
}

/// An incremental scanner, which holds its position in a stream of frames.
#[derive(Debug, Default)]
pub struct FrameScanner {
    /// Bytes to skip before the next header.
    skip: u32,
    /// The part of the header that has arrived.
    head: [u8; FRAME_HEADER_LEN],
    /// Bytes of the header that have arrived.
    filled: usize,
    /// The header block of the last frame continues in the next one.
    is_continued: bool,
}

/// Capacity and refill rate per second of the control frame bucket. They are for frames that no
/// response explains, such as SETTINGS, keep-alive PINGs, and window credit for calls in flight.
/// Each frame is processed on a thread that also serves other connections.
const CONTROL_BURST: u32 = 1_000;
const CONTROL_RATE: u64 = 500;
/// Tokens that each HEADERS or DATA frame of a response refunds. grpc-go measures its bandwidth
/// with a `WINDOW_UPDATE` and a PING for a DATA frame, at most once per round trip, and browsers
/// send a PRIORITY and a `WINDOW_UPDATE` with a call. A flood cannot live on refunds: each such
/// frame takes a call, or the window for a part of its response, and to process either costs more
/// than two control frames.
const FRAME_REFUND: u32 = 2;
/// Response bytes that refund one token more. A client returns window credit for its stream and for
/// its connection, a part of it at each read.
const REFUND_BYTES: u32 = 1 << 10;

/// A token-bucket rate limiter for the control frames of one connection.
///
/// # Bounds
/// Without responses, at most two bursts of frames are accepted at once, and then the refill rate:
/// the elapsed time is accounted for only when no token is left, so that a frame does not cost a
/// reading of the clock. Refunds fill the bucket and are lost beyond that.
#[derive(Debug)]
pub struct ControlFrameLimiter {
    clock: Clock,
    tokens: u32,
    /// Response bytes that have not yet refunded a token.
    sent: u32,
    filled_at: Tick,
}

// === impl FrameScanner ===

impl FrameScanner {
    /// Returns `true` if another frame may follow: the last one is complete, and its header block
    /// too, which no other frame may interrupt (RFC 9113, 6.10).
    #[must_use]
    pub const fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.filled == 0 && !self.is_continued
    }

    /// Scans these bytes and passes each header that is completed by them to `show`.
    pub fn scan(&mut self, mut bytes: &[u8], mut show: impl FnMut(FrameHeader)) {
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.skip as usize);
            bytes = bytes.get(skipped..).unwrap_or_default();
            self.skip -= u32::try_from(skipped).unwrap_or(self.skip);
            let taken = bytes.len().min(FRAME_HEADER_LEN - self.filled);
            for (place, byte) in self.head.iter_mut().skip(self.filled).zip(bytes.iter().take(taken)) {
                *place = *byte;
            }
            bytes = bytes.get(taken..).unwrap_or_default();
            self.filled += taken;
            if self.filled == FRAME_HEADER_LEN {
                let head = FrameHeader::parse(self.head);
                (self.skip, self.filled, self.is_continued) = (head.length, 0, is_continued(self.head));
                show(head);
            }
        }
    }
}

// === impl ControlFrameLimiter ===

impl ControlFrameLimiter {
    /// Creates a full bucket.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, tokens: CONTROL_BURST, sent: 0, filled_at: clock.now() }
    }

    /// Takes a token for a frame; returns `true` if none is left.
    pub fn try_take(&mut self, frame: FrameHeader) -> bool {
        if !matches!(frame.kind, FrameKind::Control | FrameKind::Goaway | FrameKind::Window) {
            return false;
        }
        if self.tokens == 0 {
            self.fill();
        }
        match self.tokens.checked_sub(1) {
            Some(left) => self.tokens = left,
            None => return true,
        }
        false
    }

    /// Refunds tokens for a frame that was sent, if it belongs to a response.
    pub fn refund(&mut self, frame: FrameHeader) {
        let bytes = match frame.kind {
            FrameKind::Data => frame.length,
            FrameKind::Headers => 0,
            FrameKind::Call | FrameKind::Window | FrameKind::Goaway | FrameKind::Control => return,
        };
        self.sent = self.sent.saturating_add(bytes);
        self.tokens = (self.tokens + FRAME_REFUND + self.sent / REFUND_BYTES).min(CONTROL_BURST);
        self.sent %= REFUND_BYTES;
    }

    fn fill(&mut self) {
        let now = self.clock.now();
        let millis = u64::try_from(now.since(self.filled_at).as_millis()).unwrap_or(u64::MAX);
        let more = millis.saturating_mul(CONTROL_RATE) / 1000;
        if more > 0 {
            self.tokens = u32::try_from(more).unwrap_or(u32::MAX).min(CONTROL_BURST);
            self.filled_at = now;
        }
    }
}

// === impl FrameHeader ===

impl FrameHeader {
    const fn parse([a, b, c, kind, _, stream @ ..]: [u8; FRAME_HEADER_LEN]) -> Self {
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::Headers,
            3 | 9 => FrameKind::Call,
            7 => FrameKind::Goaway,
            8 => FrameKind::Window,
            _ => FrameKind::Control,
        };
        // The first bit is reserved, and is ignored.
        Self { length: u32::from_be_bytes([0, a, b, c]), kind, stream: u32::from_be_bytes(stream) & (u32::MAX >> 1) }
    }
}

/// Returns `true` for a HEADERS, `PUSH_PROMISE` or CONTINUATION frame without `END_HEADERS`.
const fn is_continued([_, _, _, kind, flags, ..]: [u8; FRAME_HEADER_LEN]) -> bool {
    matches!(kind, 1 | 5 | 9) && flags & END_HEADERS == 0
}

#[cfg(test)]
mod tests;
