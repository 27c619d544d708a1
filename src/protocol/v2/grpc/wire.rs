//! Reader and writer of the wire format of Protocol Buffers, as spans of a message.
//!
//! A decoder that builds structs, such as prost, discards the fields that its schema does not have
//! (tokio-rs/prost#2). Calls of one batch must agree in them, and the server must receive them, so
//! messages are walked here. The format is small: a field is a tag, and a value of one of four
//! types. Groups, which were removed from the language, are rejected.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding/>.

use crate::json::Span;

/// Maximum number of bytes of a varint of 64 bits.
const VARINT_BYTES_MAX: usize = 10;

/// Type of a value, by its number in a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireType {
    Varint,
    Fixed64,
    /// Bytes after their length: a text, a message, or packed numbers.
    Bytes,
    Fixed32,
}

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WireField {
    pub(crate) number: u32,
    pub(crate) wire: WireType,
    /// The whole field, with its tag.
    pub(crate) whole: Span,
    /// The value, without the length of bytes.
    pub(crate) value: Span,
}

/// Iterator over the fields of a message. After an error it ends.
#[derive(Debug, Clone)]
pub(crate) struct WireFields<'a> {
    doc: &'a [u8],
    rest: Span,
}

/// Error for bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadMessage;

/// Returns the varint at `at` before `end`, and its end.
pub(crate) fn read_varint(doc: &[u8], at: usize, end: usize) -> Result<(u64, usize), BadMessage> {
    let bytes = doc.get(at..end).ok_or(BadMessage)?;
    let mut value = 0_u64;
    for (place, byte) in (0_u32..).zip(bytes.iter().take(VARINT_BYTES_MAX)) {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for the last bit only.
        if place == 9 && bits > 1 {
            return Err(BadMessage);
        }
        value |= bits << (7 * place);
        if byte & 0x80 == 0 {
            let length = usize::try_from(place).map_err(|_| BadMessage)? + 1;
            return Ok((value, at + length));
        }
    }
    Err(BadMessage)
}

/// Appends a varint.
pub(crate) fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends the tag of a field with bytes, and their length.
pub(crate) fn write_head(out: &mut Vec<u8>, number: u32, length: usize) {
    write_varint(out, u64::from(number) << 3 | 2);
    write_varint(out, u64::try_from(length).unwrap_or(u64::MAX));
}

/// Appends a field with bytes.
pub(crate) fn write_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    write_head(out, number, value.len());
    out.extend_from_slice(value);
}

/// Stores the only occurrence of a field.
///
/// # Errors
/// The field has occurred before. Decoders use the last one or join both.
pub(crate) fn set_once(place: &mut Option<Span>, value: Span) -> Result<(), BadMessage> {
    if place.replace(value).is_some() { Err(BadMessage) } else { Ok(()) }
}

// === impl WireFields ===

impl<'a> WireFields<'a> {
    /// Returns the fields of the message at a span of `doc`.
    pub(crate) const fn new(doc: &'a [u8], message: Span) -> Self {
        Self { doc, rest: message }
    }

    fn read(&mut self) -> Result<WireField, BadMessage> {
        let (start, end) = (self.rest.start, self.rest.end);
        let (tag, at) = read_varint(self.doc, start, end)?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number)).ok_or(BadMessage)?;
        let fixed = |length: usize| Span { start: at, end: at.saturating_add(length) };
        let (wire, value) = match tag & 7 {
            0 => (WireType::Varint, Span { start: at, end: read_varint(self.doc, at, end)?.1 }),
            1 => (WireType::Fixed64, fixed(8)),
            2 => {
                let (length, at) = read_varint(self.doc, at, end)?;
                let length = usize::try_from(length).map_err(|_| BadMessage)?;
                (WireType::Bytes, Span { start: at, end: at.checked_add(length).ok_or(BadMessage)? })
            }
            5 => (WireType::Fixed32, fixed(4)),
            _ => return Err(BadMessage),
        };
        if value.end > end {
            return Err(BadMessage);
        }
        self.rest.start = value.end;
        Ok(WireField { number, wire, whole: Span { start, end: value.end }, value })
    }
}

impl Iterator for WireFields<'_> {
    type Item = Result<WireField, BadMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.start >= self.rest.end {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest.start = self.rest.end;
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type ReadField<'a> = (u32, WireType, &'a [u8]);

    fn all(doc: &[u8]) -> Result<Vec<ReadField<'_>>, BadMessage> {
        let fields = WireFields::new(doc, Span { start: 0, end: doc.len() });
        fields.map(|field| field.map(|field| (field.number, field.wire, field.value.of(doc)))).collect()
    }

    #[test]
    fn fields_of_every_type_are_read() {
        let doc = b"\x08\x96\x01\x12\x02ab\x1d1234\x2112345678\xfa\x01\x00";
        let expected: [ReadField<'_>; 5] = [
            (1, WireType::Varint, b"\x96\x01"),
            (2, WireType::Bytes, b"ab"),
            (3, WireType::Fixed32, b"1234"),
            (4, WireType::Fixed64, b"12345678"),
            (31, WireType::Bytes, b""),
        ];
        assert_eq!(all(doc).unwrap(), expected);
        assert_eq!(all(b"").unwrap(), []);
    }

    #[test]
    fn bytes_that_are_no_message_are_rejected() {
        for doc in [
            &b"\x08"[..],
            b"\x08\x80",
            b"\x12\x03ab",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0d123",
            b"\x091234567",
            b"\x0b\x0c",
            b"\x00\x00",
            b"\x07",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x80\x80\x80\x80\x10\x00",
        ] {
            assert_eq!(all(doc), Err(BadMessage), "{doc:?}");
        }
    }

    proptest! {
        #[test]
        fn a_varint_is_read_as_written(value in any::<u64>()) {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            prop_assert_eq!(read_varint(&out, 0, out.len()), Ok((value, out.len())));
        }

        #[test]
        fn the_fields_of_any_bytes_cover_them_or_end_with_an_error(doc in prop::collection::vec(any::<u8>(), 0..64)) {
            let fields: Vec<_> = WireFields::new(&doc, Span { start: 0, end: doc.len() }).collect();
            let covered: usize = fields.iter().flatten().map(|field| field.whole.len()).sum();
            prop_assert!(covered == doc.len() || matches!(fields.last(), Some(Err(BadMessage))));
        }
    }
}
