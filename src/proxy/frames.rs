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

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub length: u32,
    /// Category of the frame.
    pub kind: FrameKind,
}

/// Category of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// `DATA`.
    Data,
    /// `HEADERS`, `CONTINUATION` and `RST_STREAM`: they belong to a call, and calls and resets have
    /// limits of their own.
    Call,
    /// `WINDOW_UPDATE`.
    Window,
    /// `SETTINGS`, `PING`, `PRIORITY`, `GOAWAY` and frames of unknown types: work that belongs to
    /// no call.
    Control,
}

/// An incremental scanner, which holds its position in a stream of frames.
#[derive(Debug, Default)]
pub struct FrameScanner {
    /// Bytes to skip before the next header.
    skip: u32,
    head: [u8; FRAME_HEADER_LEN],
    /// Bytes of the header that have arrived.
    filled: usize,
}

/// Capacity and refill rate per second of the control frame bucket. A client that measures its
/// bandwidth sends one PING per round trip, and SETTINGS once. Each frame is processed on a thread
/// that also serves other connections.
const CONTROL_BURST: u32 = 1_000;
const CONTROL_RATE: u64 = 500;
/// Response bytes that refund one token. A client returns window credit for its stream and for its
/// connection, a part of it at each read.
const REFUND_BYTES: u32 = 1 << 10;

/// A token-bucket rate limiter for the control frames of one connection.
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
                (self.skip, self.filled) = (head.length, 0);
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
        if !matches!(frame.kind, FrameKind::Control | FrameKind::Window) {
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

    /// Refunds tokens for a DATA frame of a response.
    pub fn refund(&mut self, bytes: u32) {
        self.sent = self.sent.saturating_add(bytes);
        self.tokens = (self.tokens + self.sent / REFUND_BYTES).min(CONTROL_BURST);
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
    fn parse([a, b, c, kind, ..]: [u8; FRAME_HEADER_LEN]) -> Self {
        let kind = match kind {
            0 => FrameKind::Data,
            1 | 3 | 9 => FrameKind::Call,
            8 => FrameKind::Window,
            _ => FrameKind::Control,
        };
        Self { length: u32::from_be_bytes([0, a, b, c]), kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        frame.resize(FRAME_HEADER_LEN + payload, 0xff);
        frame
    }

    #[test]
    fn a_flood_of_control_frames_is_noticed_and_updates_for_an_answer_are_not() {
        let mut budget = ControlFrameLimiter::new(Clock::start());
        let frame = |kind| FrameHeader { length: 0, kind };
        for _ in 0..10 * CONTROL_BURST {
            budget.refund(2 * REFUND_BYTES);
            assert!(!budget.try_take(frame(FrameKind::Window)) && !budget.try_take(frame(FrameKind::Window)));
            assert!(!budget.try_take(frame(FrameKind::Call)));
        }
        let spent = (0..2 * CONTROL_BURST).position(|_| budget.try_take(frame(FrameKind::Control)));
        assert!(spent.is_some_and(|count| count + 2 >= CONTROL_BURST as usize));
    }

    #[test]
    fn heads_are_found_for_any_split_of_the_stream() {
        let kinds = [(4, 0), (1, 30), (0, 70_000), (8, 4), (6, 8), (0xba, 3), (0, 0)];
        let stream: Vec<u8> = kinds.iter().flat_map(|(kind, payload)| frame(*kind, *payload)).collect();
        for step in [1, 2, 7, 9, 10, 1000, stream.len()] {
            let mut scanner = FrameScanner::default();
            let mut heads = Vec::new();
            for piece in stream.chunks(step) {
                scanner.scan(piece, |head| heads.push(head));
            }
            let lengths: Vec<_> = heads.iter().map(|head| head.length).collect();
            assert_eq!(lengths, [0, 30, 70_000, 4, 8, 3, 0], "steps of {step}");
            use FrameKind::{Call, Control, Data, Window};
            let kinds: Vec<_> = heads.iter().map(|head| head.kind).collect();
            assert_eq!(kinds, [Control, Call, Data, Window, Control, Control, Data]);
        }
    }
}
