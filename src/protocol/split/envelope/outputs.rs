//! The parts of the outputs of a batch that are neither data nor its shape: names, parameters, and
//! members that the protocol does not define.

use super::super::quote;
use super::EnvelopeWalker;
use crate::call::Call;
use crate::json::{Elements, JsonType, Members, Span, kind, unescape};
use crate::v2::{self, binary};

/// Name of the parameter of `MLServer` for the codec of a tensor, and the names of its own codecs.
pub(super) const CONTENT_TYPE: &[u8] = b"content_type";
pub(super) const CONTENT_TYPES: [&[u8]; 6] = [b"np", b"pd", b"str", b"base64", b"datetime", b"hg_json"];

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
            ("name", JsonType::String) if self.members.is_some_and(|members| is_name(self.text(value), members)) => {}
            ("parameters", JsonType::Object) => {
                for member in Members::new(self.doc, value) {
                    let name = unescape(member.key.inner_bytes(self.doc));
                    let is_codec = *name == *CONTENT_TYPE && self.is_content_type(member.value);
                    if *name != *binary::SIZE.as_bytes() && !is_codec {
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

    /// Returns `true` for the name of a codec of `MLServer`.
    pub(super) fn is_content_type(&self, value: Span) -> bool {
        kind(self.doc, value.start) == JsonType::String && CONTENT_TYPES.contains(&self.text(value))
    }

    /// Returns the content of a string, as written.
    pub(super) fn text(&self, value: Span) -> &[u8] {
        value.inner_bytes(self.doc)
    }
}

/// Returns `true` if a text is the model of the calls, from their path or their message, or may be
/// the name of another one.
pub(super) fn is_model_name(text: &[u8], members: &[&Call]) -> bool {
    let is_requested = |leader: &&Call| match &leader.message {
        None => v2::model(leader.head.uri.path()).is_some_and(|model| model.as_bytes() == text),
        Some(message) => !text.is_empty() && message.model == text,
    };
    members.first().is_some_and(is_requested) || is_name(text, members)
}

/// Returns `true` if a text is a version number, or may be the name of a version.
pub(super) fn is_version(text: &[u8], members: &[&Call]) -> bool {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if is_number { !quote::quotes_digits(text, members) } else { is_name(text, members) }
}

/// Returns `true` if a text may be the name of a model or of an output, and quotes no input. A name
/// without a letter may be a number of a tensor, which is not searched for in its binary form. The
/// letters of a name cannot come from inputs that hold numbers only.
pub(super) fn is_name(text: &[u8], members: &[&Call]) -> bool {
    let has_letter = text.iter().any(u8::is_ascii_alphabetic);
    let may_hold_text = members.iter().any(|call| call.tensors_may_hold_text() == Some(true));
    super::is_name(text)
        && has_letter
        && !quote::quotes_digits(text, members)
        && !quote::quotes_number(text, members)
        && !(may_hold_text && quote::shares_text(text, members))
}
