//! The parts of a message of Protocol Buffers that belong to no row: names, parameters, the id, and
//! fields that the protocol does not define.

use super::outputs::{CONTENT_TYPE, CONTENT_TYPES, is_model_name, is_name, is_version};
use super::{UndeclaredPart, agreement, undeclared_id_part};
use crate::call::Call;
use crate::evidence::{AGREEMENT_FLAG, MEMBERS_MAX};
use crate::json::Span;
use crate::v2::grpc::frame;
use crate::v2::grpc::request::entry_name;
use crate::v2::grpc::split::{ID, MODEL_NAME, MODEL_VERSION, OUTPUTS, RAW_CONTENTS};
use crate::v2::grpc::tensor::PARAMETERS;
use crate::v2::grpc::wire::{WireField, WireFields};

/// Fields of an output: the name, and those that are validated and cut elsewhere.
const OUTPUT_NAME: u32 = 1;
const OUTPUT_DATA: [u32; 3] = [2, 3, 5];

/// A traversal of a response that collects its undeclared parts.
struct MessageWalker<'a> {
    body: &'a [u8],
    /// The members of the shared call. `None` for an unbatched response: all its texts are listed,
    /// to be compared with those of batch responses.
    members: Option<&'a [&'a Call]>,
    found: Vec<UndeclaredPart>,
}

/// Returns the undeclared parts of a response; empty if it is no message.
pub(in crate::split) fn undeclared_in_message(body: &[u8], members: Option<&[&Call]>) -> Vec<UndeclaredPart> {
    let mut walker = MessageWalker { body, members, found: Vec::new() };
    if let Ok(message) = frame::message(body) {
        walker.visit(message);
    }
    walker.found
}

// === impl MessageWalker ===

impl MessageWalker<'_> {
    fn visit(&mut self, message: Span) {
        let mut outputs = 0_usize;
        for field in WireFields::new(self.body, message).flatten() {
            let text = field.value.of(self.body);
            match field.number {
                MODEL_NAME if self.members.is_some_and(|members| is_model_name(text, members)) => {}
                MODEL_VERSION if self.members.is_some_and(|members| is_version(text, members)) => {}
                MODEL_NAME => self.add_text("/model_name", field.value),
                MODEL_VERSION => self.add_text("/model_version", field.value),
                ID => {
                    if let Some(length) = undeclared_id_part(text) {
                        self.add_text("/id", Span { start: field.value.start, end: field.value.start + length });
                    }
                }
                PARAMETERS => self.visit_parameter("", field),
                OUTPUTS => {
                    self.visit_output(&format!("/outputs/{outputs}"), field.value);
                    outputs += 1;
                }
                RAW_CONTENTS => {}
                number => self.add(&format!("/{number}"), field.whole, AGREEMENT_FLAG),
            }
        }
    }

    fn visit_output(&mut self, path: &str, output: Span) {
        for field in WireFields::new(self.body, output).flatten() {
            let text = field.value.of(self.body);
            match field.number {
                OUTPUT_NAME if self.members.is_some_and(|members| is_name(text, members)) => {}
                OUTPUT_NAME => self.add_text(&format!("{path}/name"), field.value),
                PARAMETERS => self.visit_parameter(path, field),
                number if OUTPUT_DATA.contains(&number) => {}
                number => self.add(&format!("{path}/{number}"), field.whole, AGREEMENT_FLAG),
            }
        }
    }

    /// Visits an entry of a map, which is listed by its name.
    fn visit_parameter(&mut self, path: &str, entry: WireField) {
        let name = entry_name(self.body, entry).unwrap_or_default();
        let text = agreement::parameter_text(self.body, entry);
        if name == CONTENT_TYPE && text.is_some_and(|text| CONTENT_TYPES.contains(&text)) {
            return;
        }
        let path = format!("{path}/parameters/{}", String::from_utf8_lossy(name));
        self.add(&path, entry.whole, text.map_or(AGREEMENT_FLAG, agreement::of_text));
    }

    fn add_text(&mut self, path: &str, text: Span) {
        self.add(path, text, agreement::of_text(text.of(self.body)));
    }

    /// Adds a part to the list, which ends with one part more than the maximum.
    fn add(&mut self, path: &str, value: Span, agreement: u32) {
        if self.found.len() <= MEMBERS_MAX {
            self.found.push(UndeclaredPart { path: path.as_bytes().to_vec(), value, agreement });
        }
    }
}
