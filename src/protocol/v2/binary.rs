//! The binary form of tensors: elements in little-endian order, byte strings with a length before
//! each, all of them after the JSON document of the message.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName};

use super::tensor::{Datatype, Dimensions};

/// Length in bytes of the JSON document of a message with binary tensors.
pub(crate) const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Member of the parameters of a tensor with the number of its bytes.
pub(crate) const SIZE: &str = "binary_data_size";

/// Number of bytes of the length of a byte string.
const LENGTH_BYTES: usize = 4;

/// Framing of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A JSON document and nothing else.
    Json,
    /// A JSON document of this length, then tensors in binary form.
    Binary(usize),
}

/// A message whose header names no possible length of its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadFraming;

/// Cuts a tensor in binary form into parts with these numbers of rows. `None` if it does not have
/// exactly these rows.
pub(crate) fn cut_rows(
    tensor: &Bytes,
    datatype: Datatype,
    dimensions: &Dimensions,
    parts: &[usize],
) -> Option<Vec<Bytes>> {
    let mut cut = Vec::with_capacity(parts.len());
    let mut from = 0_usize;
    for rows in parts {
        let count = rows.checked_mul(dimensions.row_len)?;
        let end = match datatype.width() {
            Some(width) => from.checked_add(count.checked_mul(width)?)?,
            None => skip_strings(tensor, from, count)?,
        };
        if end > tensor.len() {
            return None;
        }
        cut.push(tensor.slice(from..end));
        from = end;
    }
    (from == tensor.len() && parts.iter().sum::<usize>() == dimensions.rows).then_some(cut)
}

/// Returns the end of `count` byte strings.
fn skip_strings(tensor: &[u8], from: usize, count: usize) -> Option<usize> {
    let mut at = from;
    for _ in 0..count {
        let length = tensor.get(at..)?.first_chunk::<LENGTH_BYTES>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        at = at.checked_add(LENGTH_BYTES)?.checked_add(length).filter(|end| *end <= tensor.len())?;
    }
    Some(at)
}

// === impl Framing ===

impl Framing {
    /// Reads the framing of a message with a body of `len` bytes.
    ///
    /// # Errors
    /// The header occurs twice, is no number, or is longer than the body. A length of zero means a
    /// single tensor without a document, which is an error as well: its shape is not known.
    pub(crate) fn read(headers: &HeaderMap, len: usize) -> Result<Self, BadFraming> {
        let mut values = headers.get_all(HEADER_LENGTH).iter();
        let Some(value) = values.next() else { return Ok(Self::Json) };
        let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let length = text.and_then(|text| text.parse().ok()).filter(|length| (1..=len).contains(length));
        match (length, values.next()) {
            (Some(length), None) => Ok(Self::Binary(length)),
            _ => Err(BadFraming),
        }
    }

    /// Returns `true` if tensors may follow the document.
    pub(crate) const fn is_binary(self) -> bool {
        matches!(self, Self::Binary(_))
    }

    /// Returns the JSON document of a message.
    pub(crate) fn document(self, body: &Bytes) -> Bytes {
        match self {
            Self::Json => body.clone(),
            Self::Binary(length) => body.slice(..length.min(body.len())),
        }
    }

    /// Returns the offset of the first tensor in binary form.
    pub(crate) const fn tensors_start(self, body: &Bytes) -> usize {
        match self {
            Self::Json => body.len(),
            Self::Binary(length) => length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(datatype: Datatype, row: usize, parts: &[usize], tensor: &'static [u8]) -> Option<Vec<Bytes>> {
        let dimensions = Dimensions { rows: parts.iter().sum(), row: vec![row], row_len: row };
        cut_rows(&Bytes::from_static(tensor), datatype, &dimensions, parts)
    }

    #[test]
    fn numbers_are_cut_by_their_width() {
        assert_eq!(cut(Datatype::Fp16, 2, &[1, 2], b"aabbccddeeff").unwrap(), [&b"aabb"[..], b"ccddeeff"]);
        assert_eq!(cut(Datatype::Bool, 1, &[2, 1], b"abc").unwrap(), [&b"ab"[..], b"c"]);
        assert_eq!(cut(Datatype::Fp16, 2, &[1, 2], b"aabbccddeef"), None);
        assert_eq!(cut(Datatype::Fp16, 2, &[1, 2], b"aabbccddeeffg"), None);
    }

    #[test]
    fn byte_strings_are_cut_by_their_lengths() {
        let tensor = b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0\xff";
        assert_eq!(cut(Datatype::Bytes, 1, &[1, 2], tensor).unwrap(), [&tensor[..6], &tensor[6..]]);
        for tensor in [&b"\x02\0\0\0ab\x01\0\0"[..], b"\xff\xff\xff\xff", b"\x01\0\0\0ab\0\0\0\0"] {
            assert_eq!(cut(Datatype::Bytes, 1, &[1, 1], tensor), None, "{tensor:?}");
        }
    }

    #[test]
    fn a_header_that_names_no_length_of_the_body_is_an_error() {
        let framing = |values: &[&'static str]| {
            let value = |text: &&'static str| (HEADER_LENGTH, http::HeaderValue::from_static(text));
            let mut headers = HeaderMap::new();
            values.iter().map(value).for_each(|(name, value)| _ = headers.append(name, value));
            Framing::read(&headers, 10)
        };
        assert_eq!(framing(&[]), Ok(Framing::Json));
        assert_eq!(framing(&["10"]), Ok(Framing::Binary(10)));
        for values in [&["0"][..], &["11"], &["-1"], &["+1"], &["1.0"], &[""], &["5", "5"]] {
            assert_eq!(framing(values), Err(BadFraming), "{values:?}");
        }
    }
}
