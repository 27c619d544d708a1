//! Results in a tensor: each row along its first dimension is one.

use super::ResultList;
use crate::call::MismatchKind;
use crate::items::FlatTensor;
use crate::json::{JsonType, ObjectIndex, Span, kind};
use crate::shape::{ProtocolShape, ResultLayout};

// === impl ResultList ===

impl ResultList {
    /// Returns the rows of the tensor in a response, and the tensor. `None` if the response has none.
    ///
    /// # Errors
    /// The rows are not `total`, the numbers do not match the shape, or there are results in a list,
    /// too.
    pub(super) fn tensor(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        shape: &ProtocolShape,
        total: usize,
    ) -> Result<Option<(Self, FlatTensor)>, MismatchKind> {
        let Some(pointers) = &shape.tensor else { return Ok(None) };
        if root.find(&pointers.at)?.is_none() {
            return Ok(None);
        }
        let lists = if let ResultLayout::Lists(lists) = &shape.results { lists.as_slice() } else { &[] };
        for list in lists {
            if root.find(list)?.is_some() {
                return Err(MismatchKind::Shape);
            }
        }
        let tensor = FlatTensor::find(doc, root, pointers)?.ok_or(MismatchKind::Shape)?;
        if tensor.dimensions.rows != total {
            return Err(MismatchKind::Count);
        }
        // A server of Python writes null for a number that is not finite.
        let is_number = |element: Span| matches!(kind(doc, element.start), JsonType::Number | JsonType::Null);
        let rows = tensor.cut(doc, &vec![1; total], is_number).ok_or(MismatchKind::Shape)?;
        let values = tensor.values;
        let list =
            Self { key: values.key, whole: values.value, keys: Vec::new(), values: rows.clone(), elements: rows };
        Ok(Some((list, tensor)))
    }
}
