//! Cuts the outputs of a batch into the rows of its members.
//!
//! Every output must have the rows of all members, in order, and its data must match its shape. Each
//! output keeps the form in which the server sent it: Triton returns blobs, `KServe` typed contents,
//! and `MLServer` the form of the inputs, blobs with empty contents beside them.

use bytes::Bytes;
use http::StatusCode;
use http::header::HeaderMap;

use super::frame::{self, FrameError, MessageWriter};
use super::status;
use super::tensor::{self, ROW_FIELDS, TensorMessage};
use super::wire::{self, WireFields, WireType};
use crate::call::{Call, MismatchKind, Reply, SharedRequest};
use crate::ids;
use crate::json::Span;
use crate::v2::binary;
use crate::v2::tensor::Datatype;

pub(crate) const MODEL_NAME: u32 = 1;
pub(crate) const MODEL_VERSION: u32 = 2;
pub(crate) const ID: u32 = 3;
pub(crate) const OUTPUTS: u32 = 5;
pub(crate) const RAW_CONTENTS: u32 = 6;

/// Maximum number of outputs of a response that is split. Models have a few.
const OUTPUTS_MAX: usize = 1024;

/// The parts of a response to a batch that its members receive.
#[derive(Debug)]
pub(crate) struct MessageSplit {
    pub(super) body: Bytes,
    pub(super) message: Span,
    /// Number of rows of each member.
    pub(super) rows: Vec<usize>,
    pub(super) outputs: Vec<SplitOutput>,
}

/// An output, cut into the parts of the members.
#[derive(Debug)]
pub(super) struct SplitOutput {
    pub(super) tensor: TensorMessage,
    parts: Vec<Span>,
}

/// Name, datatype and shape of a row of an output, and whether its data is typed.
type OutputDescription<'a> = (&'a [u8], Datatype, Vec<usize>, bool);

// === impl MessageSplit ===

impl MessageSplit {
    /// Cuts the outputs, after the whole response is validated.
    pub(crate) fn new(members: &[&Call], body: &Bytes) -> Result<Self, MismatchKind> {
        let message = frame::message(body).map_err(|error| match error {
            FrameError::Compressed => MismatchKind::Compressed,
            FrameError::Length => MismatchKind::NotJson,
        })?;
        let (mut outputs, mut raw) = (Vec::new(), Vec::new());
        for field in WireFields::new(body, message) {
            let field = field.map_err(|_| MismatchKind::NotJson)?;
            let list = match field.number {
                OUTPUTS => &mut outputs,
                RAW_CONTENTS => &mut raw,
                _ => continue,
            };
            if list.len() == OUTPUTS_MAX || field.wire != WireType::Bytes {
                return Err(MismatchKind::Shape);
            }
            list.push(field.value);
        }
        if outputs.is_empty() || !raw.is_empty() && raw.len() != outputs.len() {
            return Err(MismatchKind::Shape);
        }
        let rows = members.iter().filter_map(|call| call.message.as_ref()).map(|request| request.rows).collect();
        let mut split = Self { body: body.clone(), message, rows, outputs: Vec::with_capacity(outputs.len()) };
        for (index, output) in outputs.into_iter().enumerate() {
            split.add_output(output, raw.get(index).copied())?;
        }
        Ok(split)
    }

    fn add_output(&mut self, message: Span, raw: Option<Span>) -> Result<(), MismatchKind> {
        let tensor = tensor::read(&self.body, message).ok_or(MismatchKind::Shape)?;
        let (datatype, dimensions) = (tensor.datatype, &tensor.dimensions);
        if dimensions.rows != self.rows.iter().sum::<usize>() {
            return Err(MismatchKind::Count);
        }
        let parts = match (raw, tensor.elements) {
            (Some(raw), None) => {
                let blob = self.body.slice(raw.start..raw.end);
                binary::cut_rows(&blob, datatype, dimensions, &self.rows).map(|parts| binary::to_spans(raw, &parts))
            }
            (None, Some(elements)) => tensor::cut_elements(&self.body, elements, (datatype, dimensions), &self.rows),
            _ => None,
        };
        let parts = parts.ok_or(MismatchKind::Shape)?;
        self.outputs.push(SplitOutput { tensor, parts });
        Ok(())
    }

    /// Returns everything but the id, the parameters and the data: the model and its version, and of
    /// each output the name, the datatype, the shape of a row, and whether its data is typed.
    pub(crate) fn description(&self) -> (Vec<&[u8]>, Vec<OutputDescription<'_>>) {
        let model = WireFields::new(&self.body, self.message).flatten();
        let model = model.filter(|field| matches!(field.number, MODEL_NAME | MODEL_VERSION));
        let describe = |SplitOutput { tensor, .. }: &'_ SplitOutput| {
            let name = tensor.name.map_or(&[][..], |name| name.of(&self.body));
            (name, tensor.datatype, tensor.dimensions.row.clone(), tensor.elements.is_some())
        };
        (model.map(|field| field.whole.of(&self.body)).collect(), self.outputs.iter().map(describe).collect())
    }

    /// Returns the fields of the message and of its outputs that have neither an id nor data, in
    /// order.
    pub(super) fn other_fields(&self) -> Vec<&[u8]> {
        let fields = |message: Span, left_out: &'static [u32]| {
            let fields = WireFields::new(&self.body, message).flatten();
            fields.filter(|field| !left_out.contains(&field.number)).map(|field| field.whole.of(&self.body))
        };
        let outputs = self.outputs.iter().flat_map(|output| fields(output.tensor.message, &ROW_FIELDS));
        fields(self.message, &[ID, OUTPUTS, RAW_CONTENTS]).chain(outputs).collect()
    }

    /// Returns the data of each output of a response to a single call.
    pub(crate) fn data(&self) -> Vec<(Datatype, &[u8])> {
        let data = |(index, output): (usize, &SplitOutput)| Some((output.tensor.datatype, self.data_at(index, 0)?));
        self.outputs.iter().enumerate().filter_map(data).collect()
    }

    /// Returns the data of an output that belongs to a member.
    pub(super) fn data_at(&self, output: usize, member: usize) -> Option<&[u8]> {
        Some(self.outputs.get(output)?.parts.get(member)?.of(&self.body))
    }

    /// Returns the length of the response to a member, apart from edits.
    fn reply_len(&self, member: usize) -> usize {
        // The parts of an output follow each other.
        let whole = |parts: &[Span]| Some(parts.last()?.end - parts.first()?.start);
        let in_outputs: usize = self.outputs.iter().filter_map(|output| whole(&output.parts)).sum();
        let own: usize = self.outputs.iter().filter_map(|output| output.parts.get(member)).map(|part| part.len()).sum();
        self.body.len().saturating_sub(in_outputs) + own
    }

    /// Returns the response to a member with these headers.
    pub(crate) fn reply(&self, member: usize, call: &Call, sent: &SharedRequest, headers: HeaderMap) -> Reply {
        let doc = &self.body;
        let part = |index: usize| self.data_at(index, member).unwrap_or_default();
        let rows = self.rows.get(member).copied().unwrap_or_default();
        let mut body = MessageWriter::with_capacity(self.reply_len(member) + ids::EDITS_LEN);
        let out = body.bytes();
        let (mut output, mut raw) = (0, 0);
        for field in WireFields::new(doc, self.message).flatten() {
            match field.number {
                ID => wire::write_bytes(out, ID, &own_id(field.value.of(doc), call, sent)),
                OUTPUTS => {
                    if let Some(own) = self.outputs.get(output) {
                        let elements = [part(output)];
                        let is_typed = own.tensor.elements.is_some();
                        own.tensor.write(doc, OUTPUTS, rows, if is_typed { &elements } else { &[] }, out);
                    }
                    output += 1;
                }
                RAW_CONTENTS => {
                    wire::write_bytes(out, RAW_CONTENTS, part(raw));
                    raw += 1;
                }
                _ => out.extend_from_slice(field.whole.of(doc)),
            }
        }
        Reply { status: StatusCode::OK, headers, body: body.finish(), trailers: Some(status::ok_trailers()) }
    }
}

/// Returns the id that the member would have received alone: its own if the server returned that of
/// the shared call, else a random one of the same form.
fn own_id(id: &[u8], call: &Call, sent: &SharedRequest) -> Vec<u8> {
    let own = call.message.as_ref().and_then(|request| request.id);
    match own {
        Some(own) if id == sent.request_id.as_bytes() => own.of(&call.body).to_vec(),
        _ => ids::random_like(id, false),
    }
}
