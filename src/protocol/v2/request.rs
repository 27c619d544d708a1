//! Reads the tensors of a call, and determines what other calls must have in common with it.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};

use super::KNOWN;
use super::binary::{self, Framing, LengthPlace};
use super::tensor::{DataForm, Datatype, Dimensions, integer, json_rows, members};
use crate::items::{ItemError, ItemSpans, Slot};
use crate::json::{Elements, JsonType, Members, Span, kind, unescape};

/// Maximum number of inputs of a merged call. Models with more are rare, and each input adds to
/// the cost of reading the calls of a batch.
pub(crate) const INPUTS_MAX: usize = 64;

/// Members of an input.
const INPUT: [&str; 5] = ["name", "shape", "datatype", "parameters", "data"];
/// Prefixes of parameters that refer to state at the server, which a batch cannot have: a sequence
/// of calls, or a region of memory that the client shares with the server.
const STATE_PREFIXES: [&[u8]; 2] = [b"sequence_", b"shared_memory_"];

/// The tensors of a call, as positions in its body.
#[derive(Debug)]
pub(crate) struct TensorRequest {
    pub(crate) framing: Framing,
    /// Number of rows of each input.
    pub(crate) rows: usize,
    /// The id, a JSON string that is not empty: Triton takes an empty one for none, and returns none.
    pub(crate) id: Option<Span>,
    pub(crate) inputs: Vec<TensorInput>,
    /// An input may contain text, which a response could quote.
    pub(crate) may_hold_text: bool,
    /// The form of the inputs, in which calls of one batch agree.
    pub(crate) class: Vec<u8>,
}

/// An input of a call.
#[derive(Debug)]
pub(crate) struct TensorInput {
    /// The first number of the shape.
    pub(crate) rows: Span,
    pub(crate) datatype: Datatype,
    pub(crate) dimensions: Dimensions,
    pub(crate) data: InputData,
}

/// Position of the data of an input.
#[derive(Debug)]
pub(crate) enum InputData {
    /// In the document: the list, and its elements without the outer brackets.
    Json { list: Span, elements: Span },
    /// After the document: the number of its bytes as written there, and the bytes.
    Binary { size: Span, offset: usize, bytes: Bytes },
}

/// A reader of the inputs of a call.
struct InputReader<'a> {
    body: &'a Bytes,
    doc: &'a [u8],
    /// Offset of the next tensor in binary form.
    next: usize,
    class: Vec<u8>,
}

/// Reads the tensors of a call from its validated document `doc`, which is the beginning of `body`.
///
/// # Errors
/// The call cannot be merged: the tensors do not match their shapes, differ in their rows, or refer
/// to state at the server.
pub(crate) fn read(
    (body, framing): (&Bytes, Framing),
    doc: &[u8],
    root: Span,
    rows_max: usize,
) -> Result<TensorRequest, ItemError> {
    let [id, parameters, inputs, outputs] = members(doc, root, KNOWN)?;
    let inputs = inputs.filter(|inputs| kind(doc, inputs.start) == JsonType::Array).ok_or(ItemError::Form)?;
    let mut stateful = parameters.is_some_and(|parameters| has_state(doc, parameters));
    if outputs.is_some_and(|outputs| kind(doc, outputs.start) != JsonType::Array) {
        return Err(ItemError::Form);
    }
    for output in outputs.into_iter().flat_map(|outputs| Elements::new(doc, outputs)) {
        if kind(doc, output.start) != JsonType::Object {
            return Err(ItemError::Form);
        }
        let [parameters] = members(doc, output, ["parameters"])?;
        stateful |= parameters.is_some_and(|parameters| has_state(doc, parameters));
    }
    if stateful {
        return Err(ItemError::Form);
    }
    let mut reader = InputReader { body, doc, next: framing.tensors_start(body), class: Vec::new() };
    let mut found = TensorRequest {
        framing,
        rows: 0,
        id: id.filter(|id| kind(doc, id.start) == JsonType::String && !id.inner_bytes(doc).is_empty()),
        inputs: Vec::new(),
        may_hold_text: false,
        class: Vec::new(),
    };
    for input in Elements::new(doc, inputs) {
        if found.inputs.len() == INPUTS_MAX {
            return Err(ItemError::Form);
        }
        let input = reader.read_input(input)?;
        if !found.inputs.is_empty() && input.dimensions.rows != found.rows {
            return Err(ItemError::Form);
        }
        found.rows = input.dimensions.rows;
        // Bytes of an image may be text as well.
        found.may_hold_text |= matches!(input.datatype, Datatype::Bytes | Datatype::Uint8 | Datatype::Int8);
        found.inputs.push(input);
    }
    if found.inputs.is_empty() || reader.next != body.len() {
        return Err(ItemError::Form);
    }
    if found.rows > rows_max {
        return Err(ItemError::Many(found.rows));
    }
    found.class = reader.class;
    found.class.push(if found.id.is_some() { b'+' } else { b'-' });
    Ok(found)
}

/// Returns `true` if parameters refer to state at the server.
fn has_state(doc: &[u8], parameters: Span) -> bool {
    kind(doc, parameters.start) == JsonType::Object
        && Members::new(doc, parameters).any(|member| is_state_name(&unescape(member.key.inner_bytes(doc))))
}

/// Returns `true` for the name of a parameter that refers to state at the server.
pub(crate) fn is_state_name(name: &[u8]) -> bool {
    let has = |prefix: &&[u8]| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    STATE_PREFIXES.iter().any(has)
}

// === impl InputReader ===

impl InputReader<'_> {
    fn read_input(&mut self, input: Span) -> Result<TensorInput, ItemError> {
        let doc = self.doc;
        if kind(doc, input.start) != JsonType::Object {
            return Err(ItemError::Form);
        }
        let [name, shape, datatype, parameters, data] = members(doc, input, INPUT)?;
        let is_named = name.is_some_and(|name| kind(doc, name.start) == JsonType::String);
        let (Some(shape), Some(datatype), true) = (shape, datatype, is_named) else { return Err(ItemError::Form) };
        let dimensions = Dimensions::read(doc, shape).ok_or(ItemError::Form)?;
        let datatype = Datatype::read(doc, datatype).ok_or(ItemError::Form)?;
        let size = match parameters {
            Some(parameters) if has_state(doc, parameters) => return Err(ItemError::Form),
            Some(parameters) if kind(doc, parameters.start) == JsonType::Object => {
                let [size] = members(doc, parameters, [binary::SIZE])?;
                size
            }
            _ => None,
        };
        let data = match (data, size) {
            (Some(list), None) => self.json_data(list, datatype, &dimensions),
            (None, Some(size)) => self.binary_data(size, datatype, &dimensions),
            _ => None,
        };
        let rows = Elements::new(doc, shape).next().ok_or(ItemError::Form)?;
        Ok(TensorInput { rows, datatype, dimensions, data: data.ok_or(ItemError::Form)? })
    }

    fn json_data(&mut self, list: Span, datatype: Datatype, dimensions: &Dimensions) -> Option<InputData> {
        let mut classes = Vec::new();
        let is_element = |element: Span| {
            let Some(class) = datatype.class(self.doc, element) else { return false };
            if !classes.contains(&class) {
                classes.push(class);
            }
            true
        };
        let found = json_rows(self.doc, list, dimensions, &[dimensions.rows], is_element)?;
        classes.sort_unstable();
        self.class.push(if found.form == DataForm::Flat { b'[' } else { b'{' });
        self.class.append(&mut classes);
        Some(InputData::Json { list, elements: *found.parts.first()? })
    }

    fn binary_data(&mut self, size: Span, datatype: Datatype, dimensions: &Dimensions) -> Option<InputData> {
        let offset = self.next;
        self.next = offset.checked_add(integer(self.doc, size)?).filter(|end| *end <= self.body.len())?;
        let bytes = self.body.slice(offset..self.next);
        binary::cut_rows(&bytes, datatype, dimensions, &[dimensions.rows])?;
        self.class.push(b'#');
        Some(InputData::Binary { size, offset, bytes })
    }
}

// === impl TensorRequest ===

impl TensorRequest {
    /// Returns everything that is replaced in a shared call as slots, with the data as their items.
    /// The rest of the document is compared.
    pub(crate) fn to_spans(&self) -> ItemSpans {
        let slot = |value: Span, items: Vec<Span>| Slot { value, key: None, items };
        let mut slots = Vec::with_capacity(2 * self.inputs.len() + 1);
        for input in &self.inputs {
            slots.push(match &input.data {
                InputData::Json { list, elements } => slot(*list, vec![*elements]),
                InputData::Binary { size, offset, bytes } => {
                    slot(*size, vec![Span { start: *offset, end: offset + bytes.len() }])
                }
            });
            slots.push(slot(input.rows, Vec::new()));
        }
        slots.extend(self.id.map(|id| slot(id, Vec::new())));
        ItemSpans { slots, ..ItemSpans::default() }
    }

    /// Returns the number of bytes of all rows.
    pub(crate) fn data_len(&self) -> usize {
        let len = |input: &TensorInput| match &input.data {
            InputData::Json { elements, .. } => elements.len(),
            InputData::Binary { bytes, .. } => bytes.len(),
        };
        self.inputs.iter().map(len).sum()
    }

    /// Returns what calls of one batch have in common apart from the rest of the document: the form
    /// and the datatype of their data, the presence of an id, and the framing of the body.
    pub(crate) fn key_class(&self, headers: &HeaderMap) -> Vec<u8> {
        let mut class = self.class.clone();
        match self.framing {
            Framing::Json if headers.contains_key(header::CONTENT_TYPE) => {}
            Framing::Json => class.push(b'?'),
            Framing::Binary { place: LengthPlace::Header, .. } => {
                class.push(b'|');
                let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
                class.extend_from_slice(content_type);
            }
            // The type has the length, in which calls of one batch differ.
            Framing::Binary { place: LengthPlace::ContentType, .. } => class.extend_from_slice(b"|typed"),
        }
        class
    }

    /// Returns the coarse form of the call for its cost class.
    pub(crate) fn coarse_form(&self) -> u8 {
        let is_binary = |input: &TensorInput| matches!(input.data, InputData::Binary { .. });
        if self.inputs.iter().any(is_binary) { b'#' } else { b'[' }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn read_text(doc: &str) -> Result<TensorRequest, ItemError> {
        json::validate(doc.as_bytes(), json::JsonRules { lenient: true, strict: true, nesting_max: 64 }).unwrap();
        let body = Bytes::from(doc.to_owned());
        read((&body, Framing::Json), doc.as_bytes(), json::root(doc.as_bytes()), 8)
    }

    fn input(rest: &str) -> String {
        format!(r#"{{"inputs":[{{"name":"x","shape":[2,1],"datatype":"FP32","data":[1,2]{rest}"#)
    }

    #[test]
    fn inputs_with_the_same_rows_are_read() {
        let found = read_text(&input(r#"},{"name":"y","shape":[2],"datatype":"BYTES","data":["a","b"]}],"id":"q"}"#));
        let found = found.unwrap();
        assert_eq!((found.rows, found.inputs.len(), found.may_hold_text), (2, 2, true));
        assert!(found.id.is_some());
        assert_eq!(found.to_spans().slots.len(), 5);
    }

    #[test]
    fn a_call_that_a_batch_cannot_represent_is_not_merged() {
        for doc in [
            input(r#"},{"name":"y","shape":[1],"datatype":"INT8","data":[1]}]}"#),
            input(r#","parameters":{"shared_memory_region":"r"}}]}"#),
            input(r#"}],"parameters":{"sequence_id":0}}"#),
            input(r#"}],"parameters":{"Sequence_Start":true}}"#),
            input(r#"}],"outputs":[{"name":"o","parameters":{"shared_memory_offset":0}}]}"#),
            input(r#","parameters":{"binary_data_size":8}}]}"#),
            r#"{"inputs":[]}"#.to_owned(),
            r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP8","data":[1]}]}"#.to_owned(),
            r#"{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}"#.to_owned(),
            r#"{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}"#.to_owned(),
            r#"{"inputs":{"name":"x"}}"#.to_owned(),
        ] {
            assert_eq!(read_text(&doc).unwrap_err(), ItemError::Form, "{doc}");
        }
        for doc in [input(r#","Shape":[3]}]}"#), input(r#","data":[1,2]}]}"#), input(r#"}],"Id":"q"}"#)] {
            assert_eq!(read_text(&doc).unwrap_err(), ItemError::Ambiguous, "{doc}");
        }
        let many = r#"{"inputs":[{"name":"x","shape":[9],"datatype":"UINT8","data":[1,2,3,4,5,6,7,8,9]}]}"#;
        assert_eq!(read_text(many).unwrap_err(), ItemError::Many(9));
    }
}
