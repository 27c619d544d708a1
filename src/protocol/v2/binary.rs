//! The binary form of tensors: elements in little-endian order, byte strings with a length before
//! each, all of them after the JSON document of the message.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::tensor::{Datatype, Dimensions};
use crate::json::Span;

/// Length in bytes of the JSON document of a message with binary tensors.
pub(crate) const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// Content type of a message to Triton on `SageMaker`, and its parameter with that length.
const FRAMING_TYPE: &str = "application/vnd.sagemaker-triton.binary+json";
const FRAMING_PARAMETER: &str = "json-header-size";

/// Member of the parameters of a tensor with the number of its bytes.
pub(crate) const SIZE: &str = "binary_data_size";

/// Number of bytes of the length of a byte string.
const LENGTH_BYTES: usize = 4;

/// Framing of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A JSON document and nothing else.
    Json,
    /// A JSON document, then tensors in binary form.
    Binary {
        /// Length of the document.
        length: usize,
        place: LengthPlace,
    },
}

/// Position of the length of the document in the head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LengthPlace {
    /// A header of its own.
    Header,
    /// A parameter of the content type.
    ContentType,
}

/// A message whose header names no possible length of its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadFraming;

/// Returns `true` for a content type that has the length of the document.
pub(crate) fn is_framing_type(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| split_type(text).0.eq_ignore_ascii_case(FRAMING_TYPE))
}

/// Splits a content type into the type and its parameters.
fn split_type(text: &str) -> (&str, &str) {
    let (name, parameters) = text.split_once(';').unwrap_or((text, ""));
    (name.trim_ascii(), parameters.trim_ascii())
}

/// Reads the length of the document from a content type. `None` unless it is the only parameter.
fn length_in_type(value: &HeaderValue, len: usize) -> Option<usize> {
    let (name, number) = split_type(value.to_str().ok()?).1.split_once('=')?;
    parse_length(number, len).filter(|_| name.eq_ignore_ascii_case(FRAMING_PARAMETER))
}

/// Parses the length of the document of a body with `len` bytes.
fn parse_length(text: &str, len: usize) -> Option<usize> {
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).filter(|length| (1..=len).contains(length))
}

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

/// Returns the positions of consecutive parts of a blob.
pub(crate) fn to_spans(blob: Span, parts: &[Bytes]) -> Vec<Span> {
    let mut start = blob.start;
    let span = |part: &Bytes| {
        let span = Span { start, end: start + part.len() };
        start = span.end;
        span
    };
    parts.iter().map(span).collect()
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
        let content_type = headers.get(CONTENT_TYPE).filter(|value| is_framing_type(value));
        let mut values = headers.get_all(HEADER_LENGTH).iter();
        let (length, place) = match (values.next(), content_type) {
            (None, None) => return Ok(Self::Json),
            (Some(value), None) => (value.to_str().ok().and_then(|text| parse_length(text, len)), LengthPlace::Header),
            (None, Some(value)) => (length_in_type(value, len), LengthPlace::ContentType),
            (Some(_), Some(_)) => return Err(BadFraming),
        };
        match (length, values.next()) {
            (Some(length), None) => Ok(Self::Binary { length, place }),
            _ => Err(BadFraming),
        }
    }

    /// Writes the length of a document to the head of a message with this framing.
    pub(crate) fn write_length(self, length: usize, headers: &mut HeaderMap) {
        match self {
            Self::Json => {}
            Self::Binary { place: LengthPlace::Header, .. } => {
                headers.insert(HEADER_LENGTH, HeaderValue::from(length));
            }
            Self::Binary { place: LengthPlace::ContentType, .. } => {
                let text = format!("{FRAMING_TYPE};{FRAMING_PARAMETER}={length}");
                if let Ok(value) = HeaderValue::from_str(&text) {
                    headers.insert(CONTENT_TYPE, value);
                }
            }
        }
    }

    /// Returns `true` if tensors may follow the document.
    pub(crate) const fn is_binary(self) -> bool {
        matches!(self, Self::Binary { .. })
    }

    /// Returns the JSON document of a message.
    pub(crate) fn document(self, body: &Bytes) -> Bytes {
        match self {
            Self::Json => body.clone(),
            Self::Binary { length, .. } => body.slice(..length.min(body.len())),
        }
    }

    /// Returns the offset of the first tensor in binary form.
    pub(crate) const fn tensors_start(self, body: &Bytes) -> usize {
        match self {
            Self::Json => body.len(),
            Self::Binary { length, .. } => length,
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
            let value = |text: &&'static str| (HEADER_LENGTH, HeaderValue::from_static(text));
            let mut headers = HeaderMap::new();
            values.iter().map(value).for_each(|(name, value)| _ = headers.append(name, value));
            Framing::read(&headers, 10)
        };
        assert_eq!(framing(&[]), Ok(Framing::Json));
        assert_eq!(framing(&["10"]), Ok(Framing::Binary { length: 10, place: LengthPlace::Header }));
        for values in [&["0"][..], &["11"], &["-1"], &["+1"], &["1.0"], &[""], &["5", "5"]] {
            assert_eq!(framing(values), Err(BadFraming), "{values:?}");
        }
    }

    #[test]
    fn a_content_type_may_have_the_length() {
        let framing = |content_type: &'static str, length: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            length.map(|text| headers.insert(HEADER_LENGTH, HeaderValue::from_static(text)));
            Framing::read(&headers, 10)
        };
        let own = "application/vnd.sagemaker-triton.binary+json;json-header-size=7";
        let expected = Framing::Binary { length: 7, place: LengthPlace::ContentType };
        assert_eq!(framing(own, None), Ok(expected));
        assert_eq!(framing(own, Some("7")), Err(BadFraming));
        for parameters in ["", ";json-header-size=11", ";json-header-size=", ";size=7", ";json-header-size=7;a=b"] {
            let text = format!("application/vnd.sagemaker-triton.binary+json{parameters}");
            assert_eq!(framing(text.leak(), None), Err(BadFraming), "{parameters}");
        }
        let mut headers = HeaderMap::new();
        expected.write_length(31, &mut headers);
        assert_eq!(headers[CONTENT_TYPE], "application/vnd.sagemaker-triton.binary+json;json-header-size=31");
        assert!(!headers.contains_key(HEADER_LENGTH));
    }
}
