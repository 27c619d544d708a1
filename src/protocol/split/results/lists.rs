//! The forms in which a response has its results: in one list or in parallel ones, in columns, in a
//! map, or as the rows of a tensor.
//!
//! Each is located, and has exactly the results of the items that were sent, or the response is a
//! mismatch.

use super::ResultList;
use crate::call::MismatchKind;
use crate::items::FlatTensor;
use crate::json::{Elements, JsonType, Members, ObjectIndex, Span, kind};
use crate::pointer::Pointer;
use crate::shape::{ProtocolShape, ResultLayout, ResultType};

// === impl ResultList ===

impl ResultList {
    /// Returns the rows of the tensor in a response, and the tensor. `None` if the response has
    /// none.
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

    /// Returns the lists of a response, or its map.
    pub(super) fn all(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        shape: &ProtocolShape,
        total: usize,
    ) -> Result<Vec<Self>, MismatchKind> {
        let array = |pointer| Self::array(doc, root, pointer, total, shape.element);
        match &shape.results {
            ResultLayout::Lists(pointers) => pointers.iter().map(array).collect(),
            ResultLayout::Columns { at, names, echo } => {
                let mut lists = Self::columns(doc, root, at, names, total)?;
                if root.find(echo)?.is_some_and(|found| kind(doc, found.value.start) != JsonType::Null) {
                    lists.push(array(echo)?);
                }
                Ok(lists)
            }
            ResultLayout::Map { at, .. } => Ok(vec![Self::map(doc, root, at, total)?]),
        }
    }

    fn array(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        pointer: &Pointer,
        total: usize,
        element: ResultType,
    ) -> Result<Self, MismatchKind> {
        let found = root.find(pointer)?.ok_or(MismatchKind::Shape)?;
        Self::list(doc, (found.key, found.value), total, element)
    }

    /// Returns the list at `pointer`, or those in an object there. Members of the object without a
    /// list are null.
    fn columns(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        pointer: &Pointer,
        names: &[&str],
        total: usize,
    ) -> Result<Vec<Self>, MismatchKind> {
        let found = root.find(pointer)?.ok_or(MismatchKind::Shape)?;
        if kind(doc, found.value.start) != JsonType::Object {
            return Ok(vec![Self::list(doc, (found.key, found.value), total, ResultType::Any)?]);
        }
        let mut lists = Vec::new();
        for member in Members::new(doc, found.value) {
            // A name could quote an input.
            if !names.iter().any(|name| name.as_bytes() == member.key.inner_bytes(doc)) {
                return Err(MismatchKind::Undeclared);
            }
            if kind(doc, member.value.start) != JsonType::Null {
                lists.push(Self::list(doc, (Some(member.key), member.value), total, ResultType::Any)?);
            }
        }
        if lists.is_empty() { Err(MismatchKind::Shape) } else { Ok(lists) }
    }

    fn list(
        doc: &[u8],
        (key, whole): (Option<Span>, Span),
        total: usize,
        element: ResultType,
    ) -> Result<Self, MismatchKind> {
        if kind(doc, whole.start) != JsonType::Array {
            return Err(MismatchKind::Shape);
        }
        // One element too many is enough for the error. Reading the rest would waste memory.
        let elements: Vec<Span> = Elements::new(doc, whole).take(total + 1).collect();
        if elements.len() != total {
            return Err(MismatchKind::Count);
        }
        let fits = |span: &Span| match element {
            ResultType::Any => true,
            ResultType::Object => kind(doc, span.start) == JsonType::Object,
            ResultType::Array => kind(doc, span.start) == JsonType::Array,
            ResultType::String => kind(doc, span.start) == JsonType::String,
            // A server of Python writes null for a number that is not finite.
            ResultType::Number => matches!(kind(doc, span.start), JsonType::Number | JsonType::Null),
        };
        if !elements.iter().all(fits) {
            return Err(MismatchKind::Shape);
        }
        Ok(Self { key, whole, keys: Vec::new(), values: elements.clone(), elements })
    }

    fn map(doc: &[u8], root: &ObjectIndex<'_>, pointer: &Pointer, total: usize) -> Result<Self, MismatchKind> {
        let found = root.find(pointer)?.ok_or(MismatchKind::Shape)?;
        if kind(doc, found.value.start) != JsonType::Object {
            return Err(MismatchKind::Shape);
        }
        let members: Vec<_> = Members::new(doc, found.value).take(total + 1).collect();
        if members.len() != total {
            return Err(MismatchKind::Count);
        }
        let elements = members.iter().map(|member| Span { start: member.key.start, end: member.value.end }).collect();
        let values = members.iter().map(|member| member.value).collect();
        let keys = members.iter().map(|member| member.key).collect();
        Ok(Self { key: found.key, whole: found.value, keys, elements, values })
    }
}
