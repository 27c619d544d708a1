//! The parts of the outputs of a batch that are neither data nor its shape: names, parameters, and
//! members that the protocol does not define.

use super::super::quote;
use super::EnvelopeWalker;
use crate::call::Call;
use crate::json::{Elements, JsonType, Members, Span, kind, unescape};
use crate::v2::{self, binary};

// === impl EnvelopeWalker ===

impl EnvelopeWalker<'_> {
    /// Visits the list of outputs. Their data and their shapes are validated and cut elsewhere.
    pub(super) fn visit_outputs(&mut self, outputs: Span, path: &mut Vec<String>) {
        for (index, output) in Elements::new(self.doc, outputs).enumerate() {
            path.push(index.to_string());
            for member in Members::new(self.doc, output) {
                let name = String::from_utf8_lossy(&unescape(member.key.inner_bytes(self.doc))).into_owned();
                path.push(name);
                self.visit_output_member(member.value, path);
                path.pop();
            }
            path.pop();
        }
    }

    fn visit_output_member(&mut self, value: Span, path: &mut Vec<String>) {
        if self.declared.iter().any(|pointer| pointer.tokens() == *path) {
            return;
        }
        let name = path.last().map(String::as_str).unwrap_or_default();
        match (name, kind(self.doc, value.start)) {
            // A datatype is a word of the protocol, or the response is rejected.
            ("data" | "shape" | "datatype", _) | ("parameters", JsonType::Null) => {}
            ("name", JsonType::String) if self.members.is_some_and(|members| self.is_name(value, members)) => {}
            ("parameters", JsonType::Object) => {
                for member in Members::new(self.doc, value) {
                    let name = unescape(member.key.inner_bytes(self.doc));
                    if *name != *binary::SIZE.as_bytes() {
                        path.push(String::from_utf8_lossy(&name).into_owned());
                        if !self.declared.iter().any(|pointer| pointer.tokens() == *path) {
                            self.add(member.value, path);
                        }
                        path.pop();
                    }
                }
            }
            _ => self.add(value, path),
        }
    }

    /// Returns `true` if a text is the model in the path of the calls, or may be the name of another
    /// one.
    pub(super) fn is_model_name(&self, value: Span, members: &[&Call]) -> bool {
        let leader = members.first().and_then(|leader| v2::model(leader.head.uri.path()));
        leader.is_some_and(|model| model.as_bytes() == value.inner_bytes(self.doc)) || self.is_name(value, members)
    }

    /// Returns `true` if a text is a version number, or may be the name of a version.
    pub(super) fn is_version(&self, value: Span, members: &[&Call]) -> bool {
        let text = value.inner_bytes(self.doc);
        let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        if is_number { !quote::quotes_digits(text, members) } else { self.is_name(value, members) }
    }

    /// Returns `true` if a text may be the name of a model or of an output, and quotes no input. The
    /// letters of a name cannot come from inputs that hold numbers only.
    fn is_name(&self, value: Span, members: &[&Call]) -> bool {
        let text = value.inner_bytes(self.doc);
        let has_letter = text.iter().any(u8::is_ascii_alphabetic);
        let may_hold_text = members.iter().filter_map(|call| call.tensors.as_ref()).any(|own| own.may_hold_text);
        super::is_name(text)
            && !quote::quotes_digits(text, members)
            && (has_letter && !may_hold_text || !quote::shares_text(text, members))
    }
}
