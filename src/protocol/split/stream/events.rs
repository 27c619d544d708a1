//! Framing of server-sent events (WHATWG HTML, section 9.2): events end at a blank line and are put
//! together across reads.
//!
//! The lines of known servers end with LF or CRLF. A lone CR is not a line end here.

use bytes::{Bytes, BytesMut};

use crate::json::Span;

/// Maximum size of an event in bytes. A chunk is a token and its alternatives, a few kilobytes with
/// the most log probabilities that servers return; the limit is far above that.
pub(super) const EVENT_BYTES_MAX: usize = 1 << 20;

const DATA: &[u8] = b"data:";

/// Bytes of a stream that are not a complete event yet.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    bytes: BytesMut,
    /// Start of the line that is incomplete, and position up to which it was searched.
    line: usize,
    searched: usize,
}

/// A complete event, with the blank line that ends it.
#[derive(Debug)]
pub(super) struct Event {
    frame: Bytes,
    content: EventContent,
}

/// Content of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventContent {
    /// The line with the data, including its end, and the data in it.
    Data { line: Span, data: Span },
    /// Comments, which keep a connection alive.
    Comment,
    /// Nothing.
    Empty,
    /// Several lines of data, or other fields, which no known server sends.
    Unknown,
}

/// Error for an event that is larger than the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventTooLarge;

// === impl EventBuffer ===

impl EventBuffer {
    pub(super) fn push(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// Returns the number of bytes that are buffered.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next complete event.
    ///
    /// # Errors
    /// The event is larger than the maximum.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, EventTooLarge> {
        while let Some(hit) = self.bytes.get(self.searched..).and_then(|rest| memchr::memchr(b'\n', rest)) {
            let end = self.searched + hit + 1;
            let is_blank = is_blank(self.bytes.get(self.line..end).unwrap_or_default());
            (self.line, self.searched) = (end, end);
            if is_blank {
                let frame = self.bytes.split_to(end).freeze();
                (self.line, self.searched) = (0, 0);
                return if frame.len() > EVENT_BYTES_MAX { Err(EventTooLarge) } else { Ok(Some(Event::new(frame))) };
            }
        }
        self.searched = self.bytes.len();
        if self.bytes.len() > EVENT_BYTES_MAX { Err(EventTooLarge) } else { Ok(None) }
    }
}

// === impl Event ===

impl Event {
    fn new(frame: Bytes) -> Self {
        let mut content = EventContent::Empty;
        let mut start = 0;
        while let Some(hit) = frame.get(start..).and_then(|rest| memchr::memchr(b'\n', rest)) {
            let line = Span { start, end: start + hit + 1 };
            start = line.end;
            content = match (line.of(&frame), content) {
                (text, _) if is_blank(text) => content,
                // A comment beside data is left out.
                (text, EventContent::Empty) if text.starts_with(b":") => EventContent::Comment,
                (text, _) if text.starts_with(b":") => content,
                (text, EventContent::Empty | EventContent::Comment) if text.starts_with(DATA) => {
                    EventContent::Data { line, data: data_of(&frame, line) }
                }
                _ => EventContent::Unknown,
            };
        }
        Self { frame, content }
    }

    pub(super) const fn content(&self) -> EventContent {
        self.content
    }

    /// Returns the bytes of a part of the event.
    pub(super) fn text(&self, part: Span) -> &[u8] {
        part.of(&self.frame)
    }

    /// Returns all bytes of the event.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.frame
    }

    /// Appends an event with the line ends of this one and with other data.
    pub(super) fn write_with(&self, data: &[u8], out: &mut Vec<u8>) {
        let EventContent::Data { line, data: own } = self.content else { return };
        out.extend_from_slice(Span { start: line.start, end: own.start }.of(&self.frame));
        out.extend_from_slice(data);
        out.extend_from_slice(Span { start: own.end, end: line.end }.of(&self.frame));
        out.extend_from_slice(self.blank_line());
    }

    /// Returns the line that ends the event.
    fn blank_line(&self) -> &[u8] {
        if self.frame.ends_with(b"\n\r\n") { b"\r\n" } else { b"\n" }
    }
}

/// Returns the position of the data in its line: without the name, one space after it, and the end
/// of the line.
fn data_of(frame: &[u8], line: Span) -> Span {
    let text = line.of(frame);
    let start = line.start + DATA.len() + usize::from(text.get(DATA.len()) == Some(&b' '));
    let end = line.end - if text.ends_with(b"\r\n") { 2 } else { 1 };
    Span { start, end: end.max(start) }
}

fn is_blank(line: &[u8]) -> bool {
    matches!(line, b"\n" | b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(text: &[u8]) -> Vec<(Bytes, EventContent)> {
        let mut buffer = EventBuffer::default();
        buffer.push(text);
        let next = || buffer.next_event().unwrap().map(|event| (event.frame.clone(), event.content));
        std::iter::from_fn(next).collect()
    }

    fn data(text: &[u8]) -> Option<Vec<u8>> {
        let (frame, content) = contents(text).pop()?;
        let EventContent::Data { data, .. } = content else { return None };
        Some(data.of(&frame).to_vec())
    }

    #[test]
    fn data_is_one_line_without_its_name_a_space_and_the_line_end() {
        for (text, expected) in [
            (&b"data: a\n\n"[..], &b"a"[..]),
            (b"data:a\r\n\r\n", b"a"),
            (b"data:  a \n\r\n", b" a "),
            (b"data:\n\n", b""),
            (b"data:\r\n\n", b""),
            (b": note\ndata: a\n: note\n\n", b"a"),
        ] {
            assert_eq!(data(text).as_deref(), Some(expected), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn events_of_other_forms_are_distinguished() {
        for (text, expected) in [
            (&b": ping\n\n"[..], EventContent::Comment),
            (b":\r\n:\r\n\r\n", EventContent::Comment),
            (b"\n", EventContent::Empty),
            (b"\r\n", EventContent::Empty),
            (b"data: a\ndata: b\n\n", EventContent::Unknown),
            (b"event: x\ndata: b\n\n", EventContent::Unknown),
            (b"data: b\nid: 1\n\n", EventContent::Unknown),
            (b"retry: 1\n\n", EventContent::Unknown),
            (b"\xef\xbb\xbfdata: a\n\n", EventContent::Unknown),
        ] {
            let (_, content) = contents(text).pop().unwrap();
            assert_eq!(content, expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn an_event_without_an_end_is_rejected_at_the_maximum() {
        let mut buffer = EventBuffer::default();
        buffer.push(&vec![b'x'; EVENT_BYTES_MAX]);
        assert!(buffer.next_event().is_ok_and(|event| event.is_none()));
        buffer.push(b"x");
        assert_eq!(buffer.next_event().err(), Some(EventTooLarge));
    }
}
