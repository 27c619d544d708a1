//! Tensors: datatypes, dimensions, and the rows of their data in a JSON document.
//!
//! Independent of the transport, so that it also serves calls whose tensors are not in JSON.

use strum::EnumString;

use crate::json::{self, DuplicateKey, Elements, JsonType, Members, Span, is_case_variant, kind, unescape};

/// Maximum number of dimensions. Array libraries allow no more than 64.
pub(crate) const RANK_MAX: usize = 64;

/// Datatype of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "UPPERCASE")]
pub(crate) enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
    Bf16,
    /// Byte strings of any length.
    Bytes,
}

/// Dimensions of a tensor: the number of rows, and the shape of each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dimensions {
    pub(crate) rows: usize,
    pub(crate) row: Vec<usize>,
    /// Number of elements in a row.
    pub(crate) row_len: usize,
}

/// Form of the data of a tensor in a JSON document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataForm {
    /// A list of all elements.
    Flat,
    /// Lists within lists, one level for each dimension.
    Nested,
}

/// Data of a tensor in a JSON document, cut into parts of whole rows.
#[derive(Debug)]
pub(crate) struct JsonRows {
    pub(crate) form: DataForm,
    /// For each part, the span from its first element to its last one, without brackets around it.
    pub(crate) parts: Vec<Span>,
}

/// Returns the members of an object with these names, which are all that the protocol defines in it.
///
/// # Errors
/// One of them occurs twice, or there is a member whose name differs only in case.
pub(crate) fn members<const N: usize>(
    doc: &[u8],
    object: Span,
    names: [&str; N],
) -> Result<[Option<Span>; N], DuplicateKey> {
    let mut found = [None; N];
    for member in Members::new(doc, object) {
        let key = unescape(member.key.inner_bytes(doc));
        for (name, place) in names.iter().zip(&mut found) {
            if *key == *name.as_bytes() {
                if place.replace(member.value).is_some() {
                    return Err(DuplicateKey);
                }
            } else if is_case_variant(&key, name.as_bytes()) {
                return Err(DuplicateKey);
            }
        }
    }
    Ok(found)
}

/// Returns a non-negative integer as written in a document.
pub(crate) fn integer(doc: &[u8], span: Span) -> Option<usize> {
    let text = span.of(doc);
    let canonical = text == b"0" || text.first().is_some_and(|first| matches!(first, b'1'..=b'9'));
    if canonical && json::is_integer(text) { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// Locates the parts of the data of a tensor, where `parts` has the number of rows of each part.
/// `None` if the data does not have exactly these rows, or if `is_element` rejects a scalar.
pub(crate) fn json_rows(
    doc: &[u8],
    array: Span,
    dimensions: &Dimensions,
    parts: &[usize],
    mut is_element: impl FnMut(Span) -> bool,
) -> Option<JsonRows> {
    if kind(doc, array.start) != JsonType::Array || parts.iter().sum::<usize>() != dimensions.rows {
        return None;
    }
    let mut elements = Elements::new(doc, array);
    let first = elements.clone().next()?;
    let form = if kind(doc, first.start) == JsonType::Array { DataForm::Nested } else { DataForm::Flat };
    // In the flat form, each of the elements in the list is checked as a scalar.
    let (row, per_row) = match form {
        DataForm::Flat => (&[][..], dimensions.row_len),
        DataForm::Nested if dimensions.row.is_empty() => return None,
        DataForm::Nested => (dimensions.row.as_slice(), 1),
    };
    let mut spans = Vec::with_capacity(parts.len());
    for rows in parts {
        let mut part: Option<Span> = None;
        for _ in 0..rows.checked_mul(per_row)? {
            let element = elements.next()?;
            if !has_shape(doc, element, row, &mut is_element) {
                return None;
            }
            part = Some(Span { start: part.map_or(element.start, |part| part.start), end: element.end });
        }
        spans.push(part?);
    }
    elements.next().is_none().then_some(JsonRows { form, parts: spans })
}

/// Returns `true` if a value consists of nested lists with these lengths. The recursion is bounded
/// by the nesting of the document.
fn has_shape(doc: &[u8], value: Span, row: &[usize], is_element: &mut impl FnMut(Span) -> bool) -> bool {
    let is_list = kind(doc, value.start) == JsonType::Array;
    let Some((len, inner)) = row.split_first() else {
        return !is_list && kind(doc, value.start) != JsonType::Object && is_element(value);
    };
    if !is_list {
        return false;
    }
    let mut count = 0_usize;
    for element in Elements::new(doc, value) {
        count += 1;
        if count > *len || !has_shape(doc, element, inner, is_element) {
            return false;
        }
    }
    count == *len
}

// === impl Datatype ===

impl Datatype {
    /// Reads a datatype from a JSON string.
    pub(crate) fn read(doc: &[u8], value: Span) -> Option<Self> {
        if kind(doc, value.start) != JsonType::String {
            return None;
        }
        Self::from_name(value.inner_bytes(doc))
    }

    /// Returns the datatype with a name.
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        std::str::from_utf8(name).ok()?.parse().ok()
    }

    /// Returns the number of bytes of an element in binary form; `None` if it varies.
    pub(crate) const fn width(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Uint32 | Self::Int32 | Self::Fp32 => 4,
            Self::Uint64 | Self::Int64 | Self::Fp64 => 8,
            Self::Bytes => return None,
        })
    }

    /// Returns the class of a scalar in a request, or `None` if it does not fit the datatype. A
    /// server that builds one array from scalars of several classes may convert some of them, so
    /// only calls with the same classes share a batch.
    pub(crate) fn class(self, doc: &[u8], value: Span) -> Option<u8> {
        let text = value.of(doc);
        let is_integer = json::is_integer(text);
        match (self, kind(doc, value.start)) {
            (Self::Bool, JsonType::Bool) => Some(b'b'),
            (Self::Bool, JsonType::Number) if is_integer => Some(b'i'),
            (Self::Bytes, JsonType::String) => Some(b's'),
            // A value without this datatype in JSON is rejected by servers.
            (Self::Fp16 | Self::Bf16, _) => None,
            (Self::Fp32 | Self::Fp64, JsonType::Number) => {
                // Integers are converted to the datatype like any other number.
                let is_word = text.ends_with(b"NaN") || text.ends_with(b"Infinity");
                Some(if is_word { b'N' } else { b'f' })
            }
            (_, JsonType::Number) if is_integer && !matches!(self, Self::Bool | Self::Bytes) => Some(b'i'),
            _ => None,
        }
    }
}

// === impl Dimensions ===

impl Dimensions {
    /// Reads the shape of a tensor. `None` if it has no rows, or no elements in a row: such a tensor
    /// cannot be joined or cut.
    pub(crate) fn read(doc: &[u8], shape: Span) -> Option<Self> {
        if kind(doc, shape.start) != JsonType::Array {
            return None;
        }
        let mut lengths = Vec::new();
        for element in Elements::new(doc, shape) {
            if lengths.len() == RANK_MAX {
                return None;
            }
            lengths.push(integer(doc, element)?);
        }
        Self::from_lengths(&lengths)
    }

    /// Returns the dimensions with these lengths, under the same conditions.
    pub(crate) fn from_lengths(lengths: &[usize]) -> Option<Self> {
        let (rows, row) = lengths.split_first()?;
        if lengths.contains(&0) {
            return None;
        }
        let row_len = row.iter().try_fold(1_usize, |len, next| len.checked_mul(*next))?;
        row_len.checked_mul(*rows)?;
        Some(Self { rows: *rows, row: row.to_vec(), row_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimensions(text: &str) -> Option<Dimensions> {
        Dimensions::read(text.as_bytes(), json::root(text.as_bytes()))
    }

    fn rows(shape: &str, data: &str, parts: &[usize]) -> Option<Vec<String>> {
        let doc = data.as_bytes();
        let found = json_rows(doc, json::root(doc), &dimensions(shape)?, parts, |_| true)?;
        Some(found.parts.iter().map(|part| String::from_utf8_lossy(part.of(doc)).into_owned()).collect())
    }

    #[test]
    fn a_shape_without_rows_or_elements_is_no_batch() {
        assert_eq!(dimensions("[ 3 , 2,4]").unwrap(), Dimensions { rows: 3, row: vec![2, 4], row_len: 8 });
        assert_eq!(dimensions("[2]").unwrap().row_len, 1);
        for text in ["[]", "[0,2]", "[2,0]", "[-1,2]", "[1.0]", "[01]", "[\"1\"]", "3", "[9223372036854775807,4]"] {
            assert_eq!(dimensions(text), None, "{text}");
        }
    }

    #[test]
    fn data_is_cut_at_rows_with_the_spacing_inside_them() {
        assert_eq!(rows("[3,2]", "[1, 2,3 ,4,5,6]", &[1, 2]).unwrap(), ["1, 2", "3 ,4,5,6"]);
        assert_eq!(rows("[2,2]", "[[1,2],\n[ 3,4]]", &[1, 1]).unwrap(), ["[1,2]", "[ 3,4]"]);
        assert_eq!(rows("[2]", "[\"],\",\"b\"]", &[1, 1]).unwrap(), ["\"],\"", "\"b\""]);
    }

    #[test]
    fn data_of_another_shape_is_rejected() {
        for (shape, data) in [
            ("[2,2]", "[1,2,3]"),
            ("[2,2]", "[1,2,3,4,5]"),
            ("[2,2]", "[[1,2],[3]]"),
            ("[2,2]", "[[1,2],3,4]"),
            ("[2,2]", "[[1,2,3],[4]]"),
            ("[2,1]", "[1,{}]"),
            ("[2,2,1]", "[[1,2],[3,4]]"),
            ("[2]", "[[1],[2]]"),
            ("[2]", "[]"),
            ("[2]", "\"ab\""),
        ] {
            assert_eq!(rows(shape, data, &[1, 1]), None, "{shape} {data}");
        }
        assert_eq!(rows("[3]", "[1,2,3]", &[1, 1]), None);
    }

    #[test]
    fn a_scalar_that_does_not_fit_its_datatype_has_no_class() {
        let class = |datatype: Datatype, text: &str| datatype.class(text.as_bytes(), json::root(text.as_bytes()));
        assert_eq!(class(Datatype::Fp32, "1"), class(Datatype::Fp32, "-1.5e3"));
        assert_ne!(class(Datatype::Fp32, "NaN"), class(Datatype::Fp32, "1"));
        assert_eq!(class(Datatype::Int64, "9007199254740993"), Some(b'i'));
        for (datatype, text) in [
            (Datatype::Int64, "1.0"),
            (Datatype::Uint8, "\"1\""),
            (Datatype::Fp16, "1"),
            (Datatype::Bf16, "1.5"),
            (Datatype::Bytes, "1"),
            (Datatype::Bool, "1.5"),
            (Datatype::Fp64, "null"),
            (Datatype::Fp64, "true"),
        ] {
            assert_eq!(class(datatype, text), None, "{datatype:?} {text}");
        }
        let read = |text: &str| Datatype::read(text.as_bytes(), json::root(text.as_bytes()));
        assert_eq!(read("\"BF16\""), Some(Datatype::Bf16));
        assert_eq!((read("\"fp32\""), read("\"FP8\""), read("7")), (None, None, None));
    }
}
