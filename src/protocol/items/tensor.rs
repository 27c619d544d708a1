//! Tensors in place of lists: the rows along the first dimension are the items of a call, or the
//! results of a response.
//!
//! A tensor of one dimension in a call is usually one example with several features, and a model that
//! reads the whole vector would mix the values of several callers. It has no rows. In a response, one
//! dimension is one number for each row.
//!
//! Such a tensor is an object with a shape and a flat list of numbers, row by row. It has no
//! datatype, so a server derives that of the whole array from all numbers. Tensors with names and
//! datatypes are left out: several of them make one call (`v2`).

use super::{ItemError, ItemSpans, Slot};
use crate::json::{DuplicateKey, Elements, JsonType, LocatedValue, ObjectIndex, Span, kind, scalar_class};
use crate::shape::{ProtocolShape, TensorPointers};
use crate::v2::tensor::{DataForm, Dimensions, json_rows};

/// First byte of the class of a tensor, which no class of an item in a list begins with.
const TENSOR_CLASS: u8 = b'#';
/// Classes of integers and of floating-point numbers, as written by `json::class`.
const INTEGER: u8 = b'i';
const FLOAT: u8 = b'f';

/// A tensor, as positions in a document.
#[derive(Debug)]
pub(crate) struct FlatTensor {
    /// The first number of the shape, which counts the rows.
    pub(crate) count: Span,
    /// The list of numbers.
    pub(crate) values: LocatedValue,
    pub(crate) dimensions: Dimensions,
}

/// A tensor that has the items of a call as its rows.
#[derive(Debug)]
pub(crate) struct ItemTensor {
    /// The first number of the shape, which counts the rows.
    pub(crate) count: Span,
    /// The class of the numbers, in which calls of one batch agree. The other dimensions are
    /// compared as a part of the document.
    pub(crate) class: Vec<u8>,
}

/// Locates the rows of the tensor of a validated body. `None` if the call has none.
///
/// # Errors
/// The numbers do not match the shape, which has less than two dimensions, there is a list of items
/// beside the tensor, or the rows are too many.
pub(super) fn locate(
    doc: &[u8],
    root: Span,
    shape: &ProtocolShape,
    count_max: usize,
) -> Result<Option<ItemSpans>, ItemError> {
    let Some(pointers) = &shape.tensor else { return Ok(None) };
    let root = ObjectIndex::new(doc, root);
    if root.find(&pointers.at)?.is_none() {
        return Ok(None);
    }
    for list in shape.positions().flatten() {
        if root.find(list)?.is_some() {
            return Err(ItemError::Form);
        }
    }
    let tensor = FlatTensor::find(doc, &root, pointers)?.ok_or(ItemError::Form)?;
    if tensor.dimensions.row.is_empty() {
        return Err(ItemError::Form);
    }
    let rows = tensor.dimensions.rows;
    // The positions of rows that are too many are not kept.
    let parts = if rows > count_max { vec![rows] } else { vec![1; rows] };
    let mut classes: Vec<u8> = Vec::new();
    let is_number = |element: Span| {
        let class = scalar_class(doc, element).filter(|_| kind(doc, element.start) == JsonType::Number);
        classes.extend(class.filter(|class| !classes.contains(class)));
        class.is_some()
    };
    let items = tensor.cut(doc, &parts, is_number).ok_or(ItemError::Form)?;
    if rows > count_max {
        return Err(ItemError::Many(rows));
    }
    // An array with a floating-point number has no integers.
    if classes.contains(&FLOAT) {
        classes.retain(|class| *class != INTEGER);
    }
    classes.push(TENSOR_CLASS);
    classes.sort_unstable();
    let slot = Slot { value: tensor.values.value, key: None, items };
    let tensor = Some(ItemTensor { count: tensor.count, class: classes });
    Ok(Some(ItemSpans { slots: vec![slot], tensor, ..ItemSpans::default() }))
}

// === impl FlatTensor ===

impl FlatTensor {
    /// Locates a tensor. `None` if it has no shape or no list, or if the shape has no rows or no
    /// numbers in a row.
    ///
    /// # Errors
    /// A key on the path to it occurs twice.
    pub(crate) fn find(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        pointers: &TensorPointers,
    ) -> Result<Option<Self>, DuplicateKey> {
        let [shape, values] = pointers.members().map(|pointer| root.find(pointer));
        let (Some(shape), Some(values)) = (shape?, values?) else { return Ok(None) };
        let Some(dimensions) = Dimensions::read(doc, shape.value) else { return Ok(None) };
        let count = Elements::new(doc, shape.value).next();
        Ok(count.map(|count| Self { count, values, dimensions }))
    }

    /// Cuts the list into parts with these numbers of rows. `None` if it does not have exactly
    /// these rows, or if `is_element` rejects an element.
    pub(crate) fn cut(&self, doc: &[u8], parts: &[usize], is_element: impl FnMut(Span) -> bool) -> Option<Vec<Span>> {
        let found = json_rows(doc, self.values.value, &self.dimensions, parts, is_element)?;
        (found.form == DataForm::Flat).then_some(found.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::seldon;

    fn locate_text(tensor: &str) -> Result<Option<ItemSpans>, ItemError> {
        let doc = format!(r#"{{"data":{{"tensor":{tensor}}}}}"#);
        locate(doc.as_bytes(), json::root(doc.as_bytes()), &seldon::predictions(), 4)
    }

    fn class(values: &str) -> Vec<u8> {
        locate_text(&format!(r#"{{"shape":[1,2],"values":{values}}}"#)).unwrap().unwrap().tensor.unwrap().class
    }

    #[test]
    fn rows_are_the_items_of_a_call() {
        let doc = br#"{"data":{"tensor":{"values":[1, 2,3 ,4,5,6],"shape":[ 3,2]}}}"#;
        let found = locate(doc, json::root(doc), &seldon::predictions(), 4).unwrap().unwrap();
        let rows: Vec<&[u8]> = found.slots[0].items.iter().map(|item| item.of(doc)).collect();
        assert_eq!(rows, [&b"1, 2"[..], b"3 ,4", b"5,6"]);
        assert_eq!((found.count(), found.tensor.unwrap().count.of(doc)), (3, &b"3"[..]));
    }

    #[test]
    fn an_array_with_a_float_is_one_of_floats() {
        assert_eq!(class("[1,2.5]"), class("[0.1,1e3]"));
        assert_ne!(class("[1,2]"), class("[1,2.5]"));
        // An integer of more than 64 bits makes an array of another type.
        assert_ne!(class("[1,2]"), class("[1,18446744073709551616]"));
        assert_ne!(class("[0.1,2.5]"), class("[0.1,18446744073709551616]"));
    }

    #[test]
    fn a_tensor_of_one_dimension_has_no_rows() {
        for tensor in [r#"{"shape":[4],"values":[1,2,3,4]}"#, r#"{"shape":[1],"values":[1]}"#] {
            assert_eq!(locate_text(tensor).err(), Some(ItemError::Form), "{tensor}");
        }
        assert_eq!(locate_text(r#"{"shape":[4,1],"values":[1,2,3,4]}"#).unwrap().unwrap().count(), 4);
    }

    #[test]
    fn numbers_that_do_not_match_the_shape_are_no_rows() {
        for tensor in [
            r#"{"shape":[2,2],"values":[1,2,3]}"#,
            r#"{"shape":[2,2],"values":[1,2,3,4,5]}"#,
            r#"{"shape":[2,1],"values":[[1],[2]]}"#,
            r#"{"shape":[2,1],"values":[1,"2"]}"#,
            r#"{"shape":[2,1],"values":[1,null]}"#,
            r#"{"shape":[2,1],"values":[true,false]}"#,
            r#"{"shape":[0,2],"values":[]}"#,
            r#"{"shape":[],"values":[1]}"#,
            r#"{"shape":[2.0,1],"values":[1,2]}"#,
            r#"{"shape":[-1,1],"values":[1,2]}"#,
            r#"{"shape":2,"values":[1,2]}"#,
            r#"{"shape":[2,1],"values":"12"}"#,
            r#"{"shape":[5,1],"values":[1]}"#,
            r#"{"shape":[9223372036854775807,9],"values":[1]}"#,
            r#"{"values":[1]}"#,
            r#"{"shape":[1]}"#,
            "[1]",
            "null",
        ] {
            assert_eq!(locate_text(tensor).err(), Some(ItemError::Form), "{tensor}");
        }
        assert_eq!(locate_text(r#"{"shape":[5,1],"values":[1,2,3,4,5]}"#).err(), Some(ItemError::Many(5)));
        assert_eq!(locate_text(r#"{"shape":[1,1],"shape":[1,1],"values":[1]}"#).err(), Some(ItemError::Ambiguous));
    }
}
