//! The forms in which a protocol accepts a single item: in a list, bare, or in a field of its own.
//!
//! A server may answer each form differently, and a policy declares how. To compare the two, a call
//! is written in each form that its protocol accepts.

use bytes::Bytes;
use strum::{IntoStaticStr, VariantArray};

use crate::call::{Call, MergeEligibility};
use crate::items;
use crate::json::{self, Span, to_json_string};
use crate::route::Endpoint;
use crate::shape::Payload;

/// The form in which a call holds its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CallForm {
    /// A list of items.
    List,
    /// A bare item in place of the list.
    Bare,
    /// An item in a field of its own.
    Single,
}

// === impl CallForm ===

impl CallForm {
    /// Returns the name used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the form of a call that may be merged; `None` for any other call, for a protocol
    /// with a single form, and for a tensor.
    #[must_use]
    pub fn form_of(&self, call: &Call) -> Option<CallForm> {
        if self.shape.payload != Payload::Items || call.found.tensor.is_some() {
            return None;
        }
        let slot = call.found.slots.first().filter(|_| matches!(call.merge, MergeEligibility::With(_)))?;
        Some(match (slot.key, call.found.scalar) {
            (Some(_), _) => CallForm::Single,
            (None, true) => CallForm::Bare,
            (None, false) => CallForm::List,
        })
    }

    /// Returns the body of a call that may be merged, with only the item at this place, in this form.
    /// `None` if there is no such item, or if the protocol does not accept the form, or not for this
    /// item.
    #[must_use]
    pub fn body_in_form(&self, call: &Call, form: CallForm, place: usize) -> Option<Bytes> {
        if self.shape.payload != Payload::Items || call.found.tensor.is_some() {
            return None;
        }
        let doc = &call.body;
        let mut edits: Vec<(Span, Vec<u8>)> = Vec::new();
        for (index, slot) in call.found.slots.iter().enumerate() {
            let list = self.shape.positions().nth(call.found.position)?.get(index)?;
            let (name, key) = match form {
                CallForm::Single => (self.shape.single.as_ref()?.name()?, true),
                CallForm::List | CallForm::Bare => (list.name()?, false),
            };
            let found = || json::find(doc, json::root(doc), list).ok().flatten()?.key;
            match slot.key.or_else(found) {
                Some(span) => edits.push((span, to_json_string(name))),
                None if key => return None,
                None => {}
            }
            let item = slot.items.get(place)?.of(doc);
            let value = if form == CallForm::List { [b"[", item, b"]"].concat() } else { item.to_vec() };
            edits.push((slot.value, value));
        }
        edits.sort_by_key(|(span, _)| span.start);
        let mut out = Vec::with_capacity(doc.len());
        json::splice(doc, Span::whole(doc), edits, &mut out, |_, text, out| out.extend_from_slice(&text));
        // A list in place of a bare item would be read as several items.
        let read = items::locate(&out, json::root(&out), &self.shape, 1).ok()?;
        let slot = read.slots.first()?;
        let is_form = read.scalar == (form != CallForm::List) && slot.key.is_some() == (form == CallForm::Single);
        is_form.then(|| Bytes::from(out))
    }
}
