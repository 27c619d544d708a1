//! Reads the tensors of a call, and determines what other calls must have in common with it.

use bytes::Bytes;

use super::frame;
use super::tensor::{self, PARAMETERS, ROW_FIELDS, TensorMessage};
use super::wire::{self, BadMessage, WireField, WireFields, WireType};
use crate::items::{ItemError, ItemSpans, Slot};
use crate::json::Span;
use crate::v2::binary;
use crate::v2::request::{INPUTS_MAX, is_state_name};
use crate::v2::tensor::Datatype;

const MODEL_NAME: u32 = 1;
const MODEL_VERSION: u32 = 2;
pub(super) const ID: u32 = 3;
pub(super) const INPUTS: u32 = 5;
const OUTPUTS: u32 = 6;
pub(super) const RAW_CONTENTS: u32 = 7;
/// Field of the parameters of a requested output, a map.
const OUTPUT_PARAMETERS: u32 = 2;

/// Maximum number of requested outputs, and of compared fields in a message: those of the protocol
/// and a few dozen parameters.
const FIELDS_MAX: usize = 128;

/// Maximum number of bytes of the fields that calls of a batch have in common, in canonical form: a
/// thousand times those of a usual call. Merge keys are kept beside the body.
const COMMON_BYTES_MAX: usize = 256 << 10;

/// The tensors of a call, as positions in its body.
#[derive(Debug)]
pub(crate) struct InferRequest {
    /// The message in the body.
    pub(super) message: Span,
    /// Number of rows of each input.
    pub(crate) rows: usize,
    /// The id; `None` if it is empty, which is its default.
    pub(crate) id: Option<Span>,
    pub(super) inputs: Vec<InferInput>,
    /// An input may contain text, which a response could quote.
    pub(crate) may_hold_text: bool,
    /// Name and version of the model; empty if the call names none.
    pub(crate) model: Bytes,
    pub(crate) version: Bytes,
    /// Position of the name of the model.
    pub(crate) model_span: Span,
    /// All other fields in canonical form, as a JSON object: a list of its members is reported to
    /// operators by name.
    pub(crate) fields: Vec<u8>,
}

/// An input of a call.
#[derive(Debug)]
pub(super) struct InferInput {
    pub(super) tensor: TensorMessage,
    pub(super) data: TensorData,
}

/// Position of the data of an input.
#[derive(Debug, Clone, Copy)]
pub(super) enum TensorData {
    /// A blob beside the inputs.
    Raw(Span),
    /// The elements of the typed contents.
    Typed(Span),
}

/// The fields of a request.
#[derive(Debug, Default)]
struct RequestFields {
    model: Option<Span>,
    version: Option<Span>,
    id: Option<Span>,
    inputs: Vec<Span>,
    outputs: Vec<Span>,
    raw: Vec<Span>,
}

/// Reads the call with this body.
///
/// # Errors
/// The call cannot be merged: the tensors do not match their shapes, differ in their rows, or refer
/// to state at the server.
pub(crate) fn read(body: &Bytes, rows_max: usize) -> Result<InferRequest, ItemError> {
    let message = frame::message(body).map_err(|_| ItemError::Form)?;
    let fields = RequestFields::read(body, message)?;
    let has_raw = !fields.raw.is_empty();
    if fields.inputs.is_empty() || has_raw && fields.raw.len() != fields.inputs.len() {
        return Err(ItemError::Form);
    }
    let mut inputs = Vec::with_capacity(fields.inputs.len());
    for (index, input) in fields.inputs.iter().enumerate() {
        inputs.push(read_input(body, *input, fields.raw.get(index).copied())?);
    }
    let rows = inputs.first().map_or(0, |input| input.tensor.dimensions.rows);
    if inputs.iter().any(|input| input.tensor.dimensions.rows != rows) {
        return Err(ItemError::Form);
    }
    if rows > rows_max {
        return Err(ItemError::Many(rows));
    }
    let is_text = |input: &InferInput| {
        // Bytes of an image may be text as well.
        matches!(input.tensor.datatype, Datatype::Bytes | Datatype::Uint8 | Datatype::Int8)
    };
    // Copied, because a look-up of the model's configuration outlives the body.
    let part = |span: Option<Span>| span.map_or_else(Bytes::new, |span| Bytes::copy_from_slice(span.of(body)));
    Ok(InferRequest {
        message,
        rows,
        id: fields.id.filter(|id| id.len() > 0),
        may_hold_text: inputs.iter().any(is_text),
        model: part(fields.model),
        version: part(fields.version),
        model_span: fields.model.unwrap_or(Span { start: 0, end: 0 }),
        fields: fields.canonical(body, message, &inputs)?,
        inputs,
    })
}

fn read_input(body: &Bytes, message: Span, raw: Option<Span>) -> Result<InferInput, ItemError> {
    let tensor = tensor::read(body, message).filter(|tensor| tensor.name.is_some()).ok_or(ItemError::Form)?;
    let (datatype, dimensions) = (tensor.datatype, &tensor.dimensions);
    let rows = [dimensions.rows];
    let data = match (raw, tensor.elements) {
        // Servers differ in whether they accept empty contents beside a blob.
        (Some(raw), None) if !tensor.has_empty_contents => {
            let blob = body.slice(raw.start..raw.end);
            binary::cut_rows(&blob, datatype, dimensions, &rows).map(|_| TensorData::Raw(raw))
        }
        (None, Some(elements)) => {
            tensor::cut_elements(body, elements, (datatype, dimensions), &rows).map(|_| TensorData::Typed(elements))
        }
        _ => None,
    };
    Ok(InferInput { data: data.ok_or(ItemError::Form)?, tensor })
}

/// Returns the fields of a message that calls of a batch have in common, without those in `skipped`:
/// by number, and those of the map `map` by name, because encoders write maps in any order.
fn common_fields(doc: &[u8], message: Span, map: u32, skipped: &[u32]) -> Result<Vec<u8>, ItemError> {
    let mut fields: Vec<(u32, &[u8], Span)> = Vec::new();
    for field in WireFields::new(doc, message) {
        let field = field?;
        if skipped.contains(&field.number) {
            continue;
        }
        if fields.len() == FIELDS_MAX {
            return Err(ItemError::Form);
        }
        let name = if field.number == map { entry_name(doc, field)? } else { b"" };
        if is_state_name(name) {
            return Err(ItemError::Form);
        }
        fields.push((field.number, name, field.whole));
    }
    fields.sort_by_key(|(number, name, _)| (*number, *name));
    // Of two entries of a map with one name, the last counts.
    if fields.windows(2).any(|pair| pair[0].0 == map && pair[0].0 == pair[1].0 && pair[0].1 == pair[1].1) {
        return Err(ItemError::Form);
    }
    let mut out = Vec::new();
    for (_, _, whole) in fields {
        push_part(&mut out, whole.of(doc));
    }
    Ok(out)
}

/// Returns the name in an entry of a map.
pub(crate) fn entry_name(doc: &[u8], entry: WireField) -> Result<&[u8], BadMessage> {
    if entry.wire != WireType::Bytes {
        return Err(BadMessage);
    }
    let mut name = None;
    for field in WireFields::new(doc, entry.value) {
        let field = field?;
        if field.number == 1 && field.wire == WireType::Bytes {
            wire::set_once(&mut name, field.value)?;
        }
    }
    Ok(name.map_or(b"", |name| name.of(doc)))
}

/// Appends bytes after their length, so that different lists of parts never have the same bytes.
fn push_part(out: &mut Vec<u8>, part: &[u8]) {
    wire::write_varint(out, u64::try_from(part.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(part);
}

/// Appends a member with the value in hexadecimal, which cannot be mistaken for JSON.
fn push_member(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":\"");
    for byte in value {
        out.extend([byte >> 4, byte & 0xf].map(|half| DIGITS.get(usize::from(half)).copied().unwrap_or_default()));
    }
    out.extend_from_slice(b"\",");
}

// === impl RequestFields ===

impl RequestFields {
    fn read(doc: &[u8], message: Span) -> Result<Self, ItemError> {
        let mut found = Self::default();
        for field in WireFields::new(doc, message) {
            let field = field?;
            let once = match field.number {
                MODEL_NAME => &mut found.model,
                MODEL_VERSION => &mut found.version,
                ID => &mut found.id,
                INPUTS | OUTPUTS | RAW_CONTENTS => {
                    let (list, max) = match field.number {
                        INPUTS => (&mut found.inputs, INPUTS_MAX),
                        OUTPUTS => (&mut found.outputs, FIELDS_MAX),
                        _ => (&mut found.raw, INPUTS_MAX),
                    };
                    if list.len() == max || field.wire != WireType::Bytes {
                        return Err(ItemError::Form);
                    }
                    list.push(field.value);
                    continue;
                }
                _ => continue,
            };
            if field.wire != WireType::Bytes {
                return Err(ItemError::Form);
            }
            wire::set_once(once, field.value)?;
        }
        Ok(found)
    }

    /// Returns everything but the rows and the id in canonical form.
    fn canonical(&self, doc: &[u8], message: Span, inputs: &[InferInput]) -> Result<Vec<u8>, ItemError> {
        let mut out = b"{".to_vec();
        for (name, value) in [("model_name", self.model), ("model_version", self.version)] {
            push_member(&mut out, name, value.map_or(&[], |value| value.of(doc)));
        }
        let named = [MODEL_NAME, MODEL_VERSION, ID, INPUTS, OUTPUTS, RAW_CONTENTS];
        push_member(&mut out, "parameters", &common_fields(doc, message, PARAMETERS, &named)?);
        let mut text = Vec::new();
        for input in inputs {
            push_part(&mut text, &common_fields(doc, input.tensor.message, PARAMETERS, &ROW_FIELDS)?);
            let row = &input.tensor.dimensions.row;
            wire::write_varint(&mut text, u64::try_from(row.len()).unwrap_or(u64::MAX));
            row.iter().for_each(|length| wire::write_varint(&mut text, u64::try_from(*length).unwrap_or(u64::MAX)));
        }
        push_member(&mut out, "inputs", &text);
        text.clear();
        for output in &self.outputs {
            push_part(&mut text, &common_fields(doc, *output, OUTPUT_PARAMETERS, &[])?);
        }
        push_member(&mut out, "outputs", &text);
        out.push(b'}');
        if out.len() > COMMON_BYTES_MAX { Err(ItemError::Form) } else { Ok(out) }
    }
}

impl From<BadMessage> for ItemError {
    fn from(_: BadMessage) -> Self {
        Self::Form
    }
}

// === impl InferRequest ===

impl InferRequest {
    /// Returns the number of bytes of all rows.
    pub(crate) fn data_len(&self) -> usize {
        self.inputs.iter().map(|input| input.data.span().len()).sum()
    }

    /// Returns the data of the inputs as items.
    pub(crate) fn to_spans(&self) -> ItemSpans {
        let slot = |input: &InferInput| {
            let data = input.data.span();
            Slot { value: data, key: None, items: vec![data] }
        };
        ItemSpans { slots: self.inputs.iter().map(slot).collect(), ..ItemSpans::default() }
    }

    /// Returns what calls of one batch have in common apart from the other fields: the form of their
    /// data, and the presence of an id.
    pub(crate) fn key_class(&self) -> [u8; 2] {
        [self.coarse_form(), if self.id.is_some() { b'+' } else { b'-' }]
    }

    /// Returns the coarse form of the call for its cost class.
    pub(crate) fn coarse_form(&self) -> u8 {
        let is_raw = self.inputs.iter().any(|input| matches!(input.data, TensorData::Raw(_)));
        if is_raw { b'#' } else { b'[' }
    }
}

// === impl TensorData ===

impl TensorData {
    pub(super) const fn span(self) -> Span {
        match self {
            Self::Raw(span) | Self::Typed(span) => span,
        }
    }
}
