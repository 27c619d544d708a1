//! The message of a tensor, which inputs and outputs have in common: a name, a datatype, a shape,
//! parameters, and typed contents.

use super::wire::{self, BadMessage, WireFields, WireType};
use crate::json::Span;
use crate::v2::tensor::{Datatype, Dimensions, RANK_MAX};

const NAME: u32 = 1;
const DATATYPE: u32 = 2;
const SHAPE: u32 = 3;
/// Field of the parameters of a tensor, a map.
pub(crate) const PARAMETERS: u32 = 4;
const CONTENTS: u32 = 5;
/// Field of the byte strings in typed contents.
const STRINGS: u32 = 8;

/// Fields of a tensor that differ between the calls of a batch.
pub(crate) const ROW_FIELDS: [u32; 2] = [SHAPE, CONTENTS];

/// A tensor, as positions in its message.
#[derive(Debug, Clone)]
pub(crate) struct TensorMessage {
    /// The message.
    pub(crate) message: Span,
    pub(crate) name: Option<Span>,
    pub(crate) datatype: Datatype,
    pub(crate) dimensions: Dimensions,
    /// The elements, if the tensor has typed contents: packed numbers, or the fields of byte strings.
    pub(crate) elements: Option<Span>,
    /// `true` if the typed contents are present and empty. `MLServer` writes them beside a blob.
    pub(crate) has_empty_contents: bool,
}

/// Reads the tensor at a span of `doc`. Returns `None` for bytes that are no tensor with rows, or
/// whose contents are not the single list of its datatype.
pub(crate) fn read(doc: &[u8], message: Span) -> Option<TensorMessage> {
    let (mut name, mut datatype, mut contents) = (None, None, None);
    let mut lengths = Vec::new();
    for field in WireFields::new(doc, message) {
        let field = field.ok()?;
        match (field.number, field.wire) {
            (NAME, WireType::Bytes) => wire::set_once(&mut name, field.value).ok()?,
            (DATATYPE, WireType::Bytes) => wire::set_once(&mut datatype, field.value).ok()?,
            (CONTENTS, WireType::Bytes) => wire::set_once(&mut contents, field.value).ok()?,
            (SHAPE, WireType::Bytes | WireType::Varint) => read_lengths(doc, field.value, &mut lengths)?,
            (NAME | DATATYPE | SHAPE | CONTENTS, _) => return None,
            _ => {}
        }
    }
    let datatype = Datatype::from_name(datatype?.of(doc))?;
    let dimensions = Dimensions::from_lengths(&lengths)?;
    let elements = match contents {
        Some(contents) if contents.len() > 0 => Some(typed_elements(doc, contents, datatype)?),
        _ => None,
    };
    let has_empty_contents = contents.is_some() && elements.is_none();
    Some(TensorMessage { message, name, datatype, dimensions, elements, has_empty_contents })
}

/// Appends the lengths of a shape, packed or single.
fn read_lengths(doc: &[u8], packed: Span, lengths: &mut Vec<usize>) -> Option<()> {
    let mut at = packed.start;
    while at < packed.end {
        let (length, next) = wire::read_varint(doc, at, packed.end).ok()?;
        if lengths.len() == RANK_MAX {
            return None;
        }
        // A negative length is a varint above all positive ones.
        lengths.push(usize::try_from(i64::try_from(length).ok()?).ok()?);
        at = next;
    }
    Some(())
}

/// Returns the field of typed contents that has the elements of a datatype. Numbers of 16 bits with
/// a fraction have none.
const fn contents_field(datatype: Datatype) -> Option<u32> {
    Some(match datatype {
        Datatype::Bool => 1,
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => 2,
        Datatype::Int64 => 3,
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => 4,
        Datatype::Uint64 => 5,
        Datatype::Fp32 => 6,
        Datatype::Fp64 => 7,
        Datatype::Bytes => STRINGS,
        Datatype::Fp16 | Datatype::Bf16 => return None,
    })
}

/// Locates the elements in typed contents, which must have nothing else: another field might hold
/// elements as well. Numbers must be packed in one piece, as every encoder of proto3 writes them.
fn typed_elements(doc: &[u8], contents: Span, datatype: Datatype) -> Option<Span> {
    let number = contents_field(datatype)?;
    let mut fields = WireFields::new(doc, contents);
    if number == STRINGS {
        let is_string = |field: Result<wire::WireField, BadMessage>| {
            field.is_ok_and(|field| field.number == STRINGS && field.wire == WireType::Bytes)
        };
        return fields.all(is_string).then_some(contents);
    }
    let field = fields.next()?.ok()?;
    let is_packed = field.number == number && field.wire == WireType::Bytes && fields.next().is_none();
    is_packed.then_some(field.value)
}

/// Cuts typed elements into parts with these numbers of rows. `None` if there are not exactly these
/// rows.
pub(crate) fn cut_elements(
    doc: &[u8],
    elements: Span,
    (datatype, dimensions): (Datatype, &Dimensions),
    parts: &[usize],
) -> Option<Vec<Span>> {
    let mut cut = Vec::with_capacity(parts.len());
    let mut at = elements.start;
    for rows in parts {
        let start = at;
        let count = rows.checked_mul(dimensions.row_len)?;
        at = match datatype {
            Datatype::Fp32 | Datatype::Fp64 => at.checked_add(count.checked_mul(datatype.width()?)?)?,
            Datatype::Bytes => skip_strings(doc, Span { start: at, ..elements }, count)?,
            _ => skip_varints(doc, Span { start: at, ..elements }, count)?,
        };
        if at > elements.end {
            return None;
        }
        cut.push(Span { start, end: at });
    }
    (at == elements.end && parts.iter().sum::<usize>() == dimensions.rows).then_some(cut)
}

/// Returns the end of `count` varints.
fn skip_varints(doc: &[u8], within: Span, count: usize) -> Option<usize> {
    let mut at = within.start;
    for _ in 0..count {
        at = wire::read_varint(doc, at, within.end).ok()?.1;
    }
    Some(at)
}

/// Returns the end of `count` fields of byte strings.
fn skip_strings(doc: &[u8], within: Span, count: usize) -> Option<usize> {
    let mut fields = WireFields::new(doc, within);
    let mut at = within.start;
    for _ in 0..count {
        at = fields.next()?.ok()?.whole.end;
    }
    Some(at)
}

// === impl TensorMessage ===

impl TensorMessage {
    /// Appends the tensor as field `number`, with another number of rows. `elements` are the typed
    /// elements of these rows, in pieces; unused for a tensor without typed contents.
    pub(crate) fn write(&self, doc: &[u8], number: u32, rows: usize, elements: &[&[u8]], out: &mut Vec<u8>) {
        let mut head = Vec::with_capacity(self.message.len().saturating_sub(self.elements.map_or(0, Span::len)) + 32);
        for field in WireFields::new(doc, self.message).flatten() {
            let is_empty = field.number == CONTENTS && field.value.len() == 0;
            if is_empty || !ROW_FIELDS.contains(&field.number) {
                head.extend_from_slice(field.whole.of(doc));
            }
        }
        let mut shape = Vec::with_capacity(16);
        for length in std::iter::once(&rows).chain(&self.dimensions.row) {
            wire::write_varint(&mut shape, u64::try_from(*length).unwrap_or(u64::MAX));
        }
        wire::write_bytes(&mut head, SHAPE, &shape);
        let mut length = elements.iter().map(|part| part.len()).sum();
        if self.elements.is_some() {
            let mut list = Vec::with_capacity(16);
            if let Some(number) = contents_field(self.datatype).filter(|number| *number != STRINGS) {
                wire::write_head(&mut list, number, length);
            }
            length += list.len();
            wire::write_head(&mut head, CONTENTS, length);
            head.extend_from_slice(&list);
            length -= list.len();
        }
        wire::write_head(out, number, head.len() + length);
        out.extend_from_slice(&head);
        elements.iter().for_each(|part| out.extend_from_slice(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(contents: &[u8], datatype: &[u8], shape: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        wire::write_bytes(&mut out, NAME, b"x");
        wire::write_bytes(&mut out, DATATYPE, datatype);
        wire::write_bytes(&mut out, SHAPE, shape);
        wire::write_bytes(&mut out, CONTENTS, contents);
        out
    }

    fn read_all(doc: &[u8]) -> Option<TensorMessage> {
        read(doc, Span { start: 0, end: doc.len() })
    }

    fn cut(contents: &[u8], datatype: &[u8], shape: &[u8], parts: &[usize]) -> Option<Vec<Vec<u8>>> {
        let doc = tensor(contents, datatype, shape);
        let own = read_all(&doc)?;
        let parts = cut_elements(&doc, own.elements?, (own.datatype, &own.dimensions), parts)?;
        Some(parts.into_iter().map(|part| part.of(&doc).to_vec()).collect())
    }

    #[test]
    fn typed_elements_are_cut_at_rows() {
        let ints = cut(b"\x12\x05\x01\x96\x01\x02\x03", b"INT32", b"\x02\x02", &[1, 1]).unwrap();
        assert_eq!(ints, [&b"\x01\x96\x01"[..], b"\x02\x03"]);
        let strings = cut(b"\x42\x01a\x42\x00\x42\x02bc", b"BYTES", b"\x03", &[2, 1]).unwrap();
        assert_eq!(strings, [&b"\x42\x01a\x42\x00"[..], b"\x42\x02bc"]);
        let floats = cut(b"\x32\x08aaaabbbb", b"FP32", b"\x02\x01", &[1, 1]).unwrap();
        assert_eq!(floats, [&b"aaaa"[..], b"bbbb"]);
    }

    #[test]
    fn contents_that_do_not_match_their_shape_are_rejected() {
        for (contents, datatype, shape) in [
            (&b"\x12\x02\x01\x02"[..], &b"INT32"[..], &b"\x03"[..]),
            (b"\x12\x03\x01\x02\x03", b"INT32", b"\x02"),
            (b"\x12\x02\x01\x82", b"INT32", b"\x02"),
            (b"\x1a\x02\x01\x02", b"INT32", b"\x02"),
            (b"\x12\x01\x01\x12\x01\x02", b"INT32", b"\x02"),
            (b"\x12\x02\x01\x02\x4a\x00", b"INT32", b"\x02"),
            (b"\x32\x07aaaabbb", b"FP32", b"\x02"),
            (b"\x42\x01a", b"BYTES", b"\x02"),
            (b"\x42\x01a\x42\x01b\x4a\x00", b"BYTES", b"\x02"),
            (b"\x2a\x04aabb", b"FP16", b"\x02"),
            (b"\x12\x02\x01\x02", b"INT32", b"\x02\x00"),
            (b"\x12\x02\x01\x02", b"INT32", b""),
            (b"\x12\x02\x01\x02", b"int32", b"\x02"),
        ] {
            assert_eq!(cut(contents, datatype, shape, &[1, 1]), None, "{contents:?} {datatype:?} {shape:?}");
        }
    }

    #[test]
    fn a_tensor_keeps_its_other_fields_and_gets_other_rows() {
        let mut doc = tensor(b"\x12\x02\x01\x02", b"INT32", b"\x02\x01");
        wire::write_bytes(&mut doc, 77, b"new");
        let own = read_all(&doc).unwrap();
        let mut out = Vec::new();
        own.write(&doc, 5, 3, &[b"\x01\x02", b"\x07"], &mut out);
        let mut expected = Vec::new();
        wire::write_bytes(&mut expected, NAME, b"x");
        wire::write_bytes(&mut expected, DATATYPE, b"INT32");
        wire::write_bytes(&mut expected, 77, b"new");
        wire::write_bytes(&mut expected, SHAPE, b"\x03\x01");
        wire::write_bytes(&mut expected, CONTENTS, b"\x12\x03\x01\x02\x07");
        let mut whole = Vec::new();
        wire::write_bytes(&mut whole, 5, &expected);
        assert_eq!(out, whole);
    }

    #[test]
    fn empty_contents_hold_no_elements_and_are_kept() {
        let doc = tensor(b"", b"FP32", b"\x02\x01");
        let own = read_all(&doc).unwrap();
        assert!(own.elements.is_none() && own.has_empty_contents);
        let mut out = Vec::new();
        own.write(&doc, 5, 1, &[], &mut out);
        let mut expected = Vec::new();
        wire::write_bytes(&mut expected, NAME, b"x");
        wire::write_bytes(&mut expected, DATATYPE, b"FP32");
        wire::write_bytes(&mut expected, CONTENTS, b"");
        wire::write_bytes(&mut expected, SHAPE, b"\x01\x01");
        let mut whole = Vec::new();
        wire::write_bytes(&mut whole, 5, &expected);
        assert_eq!(out, whole);
    }

    #[test]
    fn a_shape_may_be_packed_or_not() {
        let mut doc = tensor(b"\x12\x02\x01\x02", b"INT32", b"\x02");
        wire::write_varint(&mut doc, u64::from(SHAPE) << 3);
        wire::write_varint(&mut doc, 1);
        assert_eq!(read_all(&doc).unwrap().dimensions, Dimensions { rows: 2, row: vec![1], row_len: 1 });
        let mut twice = doc.clone();
        wire::write_bytes(&mut twice, NAME, b"y");
        assert!(read_all(&twice).is_none());
    }
}
