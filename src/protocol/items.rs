//! The items of a call: their positions in its body, and their class, which decides which items may
//! share a batch. `weight` has their weights.

mod removal;
mod tensor;
mod weight;

use std::num::NonZeroUsize;

use crate::json::{self, DuplicateKey, Elements, JsonType, LocatedValue, Members, Span, kind};
use crate::pointer::Pointer;
use crate::shape::{BareValue, Class, ItemIs, ProtocolShape};

pub(crate) use removal::{cut_members, removal_spans};
pub(crate) use tensor::{FlatTensor, ItemTensor};
use weight::first_type;
pub(crate) use weight::{is_token_list, item_weight, number_at, weigh, weigh_texts};

/// The items of a call, as positions in its body.
#[derive(Debug, Default)]
pub(crate) struct ItemSpans {
    /// One slot for each list of the protocol at the position of the items.
    pub(crate) slots: Vec<Slot>,
    /// `true` if the call has a single bare item rather than a list, not even for a part of it.
    pub(crate) scalar: bool,
    /// Byte ranges that are removed in a shared call.
    pub(crate) cuts: Vec<Span>,
    /// Index of the position of the items among those of the protocol (`ProtocolShape::positions`).
    pub(crate) position: usize,
    /// Number of bytes that a shared call needs in addition, because it repeats the single value of
    /// the first list for each item.
    pub(crate) repeated_bytes: usize,
    /// `true` if the single item is a bare text, which a shared call writes as a list of one.
    pub(crate) is_wrapped: bool,
    /// The text that the server reads beside the items, and `true` if it reads the text with each.
    pub(crate) shared_text: Option<(Span, bool)>,
    /// Number of results for each item, if the call requests a number.
    pub(crate) results_each: Option<NonZeroUsize>,
    /// The tensor that has the items as its rows, if they are not in a list.
    pub(crate) tensor: Option<ItemTensor>,
}

/// One list of items, or a bare item.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Span of the list or the bare item, which a shared call replaces.
    pub(crate) value: Span,
    /// Key of the value, if a shared call replaces it by the name of the list.
    pub(crate) key: Option<Span>,
    /// Spans of the items.
    pub(crate) items: Vec<Span>,
}

/// Maximum number of results for each item: that of OpenAI.
const RESULTS_EACH_MAX: usize = 128;

/// Reason for which the items of a call cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemError {
    /// A key occurs twice, or differs from a known one only in case.
    Ambiguous,
    /// The items are missing, or have a form that cannot be merged.
    Form,
    /// The call has this number of items, which is more than may be merged.
    Many(usize),
}

/// Locates the items of a validated body.
///
/// # Errors
/// The items are missing, have a form that cannot be merged, or are too many. No spans are kept in
/// the latter case.
pub(crate) fn locate(doc: &[u8], root: Span, shape: &ProtocolShape, count_max: usize) -> Result<ItemSpans, ItemError> {
    if shape.is_sole_member {
        return locate_sole_member(doc, root, shape, count_max);
    }
    if let Some(rows) = tensor::locate(doc, root, shape, count_max)? {
        return Ok(rows);
    }
    let single = shape.single.as_ref().map(|pointer| json::find(doc, root, pointer)).transpose()?;
    if let Some(found) = single.flatten() {
        for pointer in &shape.items {
            if json::find(doc, root, pointer)?.is_some() {
                return Err(ItemError::Form);
            }
        }
        return locate_single(doc, found);
    }
    let (position, lists) = choose_position(doc, root, shape)?;
    let mut slots = Vec::with_capacity(lists.len());
    let mut forms = Vec::with_capacity(lists.len());
    for pointer in lists {
        let found = json::find(doc, root, pointer)?.ok_or(ItemError::Form)?;
        let (items, bare) = locate_list(doc, found.value, shape, count_max)?;
        forms.push(bare);
        slots.push(Slot { value: found.value, key: None, items });
    }
    let repeated_bytes = if shape.repeats_first { repeat_first(&mut slots) } else { 0 };
    let are_parallel = slots.windows(2).all(|pair| pair[0].items.len() == pair[1].items.len());
    let have_one_form = shape.repeats_first || forms.windows(2).all(|pair| pair[0] == pair[1]);
    if !are_parallel || !have_one_form {
        return Err(ItemError::Form);
    }
    // A bare value beside a list is repeated, so the call has as many items as the list.
    let scalar = forms.iter().all(|bare| *bare);
    let first = slots.first().and_then(|slot| slot.items.first());
    let is_bare = first.is_some_and(|item| kind(doc, item.start) == JsonType::String);
    let is_wrapped = scalar && shape.item_is == ItemIs::TextOrPair && is_bare;
    let shared_text = shared_text(doc, root, shape)?;
    Ok(ItemSpans {
        slots,
        scalar,
        position,
        is_wrapped,
        repeated_bytes,
        shared_text,
        results_each: results_each(doc, root, shape)?,
        ..ItemSpans::default()
    })
}

/// Repeats the only item of the first list for each item of the second, and returns the number of
/// bytes that this adds to a shared call.
fn repeat_first(slots: &mut [Slot]) -> usize {
    if let [first, second, ..] = slots
        && let [item] = first.items[..]
    {
        first.items = vec![item; second.items.len()];
        return item.len().saturating_mul(second.items.len().saturating_sub(1));
    }
    0
}

/// Returns the index and the lists of the position at which a call has its items.
///
/// # Errors
/// The call has items at no position, or lists of several positions.
fn choose_position<'a>(doc: &[u8], root: Span, shape: &'a ProtocolShape) -> Result<(usize, &'a [Pointer]), ItemError> {
    if shape.alternatives.is_empty() {
        return Ok((0, &shape.items));
    }
    let mut present: Vec<&Pointer> = Vec::new();
    for pointer in shape.positions().flatten() {
        if !present.contains(&pointer) && json::find(doc, root, pointer)?.is_some() {
            present.push(pointer);
        }
    }
    let is_present =
        |lists: &&[Pointer]| lists.len() == present.len() && lists.iter().all(|pointer| present.contains(&pointer));
    shape.positions().enumerate().find(|(_, lists)| is_present(lists)).ok_or(ItemError::Form)
}

/// Returns the text that the server reads beside the items, if the protocol has one.
///
/// # Errors
/// The text is missing or of another type.
fn shared_text(doc: &[u8], root: Span, shape: &ProtocolShape) -> Result<Option<(Span, bool)>, ItemError> {
    let Some(text) = &shape.shared_text else { return Ok(None) };
    let found = json::find(doc, root, &text.at)?.filter(|found| kind(doc, found.value.start) == JsonType::String);
    found.map(|found| Some((found.value, text.with_each))).ok_or(ItemError::Form)
}

/// Returns the number of results for each item, if the call names it.
///
/// # Errors
/// The field is not a positive integer within the maximum.
fn results_each(doc: &[u8], root: Span, shape: &ProtocolShape) -> Result<Option<NonZeroUsize>, ItemError> {
    let Some(generation) = shape.generation else { return Ok(None) };
    let Some(found) = json::find(doc, root, &Pointer::from_static(generation.count))? else { return Ok(None) };
    let text = found.value.of(doc);
    if text == b"null" {
        return Ok(None);
    }
    let count = std::str::from_utf8(text).ok().and_then(|text| text.parse::<NonZeroUsize>().ok());
    count.filter(|count| count.get() <= RESULTS_EACH_MAX).map(Some).ok_or(ItemError::Form)
}

/// Locates the items in the only member of a document.
fn locate_sole_member(doc: &[u8], root: Span, shape: &ProtocolShape, count_max: usize) -> Result<ItemSpans, ItemError> {
    let mut members = Members::new(doc, root);
    let (Some(member), None) = (members.next(), members.next()) else { return Err(ItemError::Form) };
    let (items, scalar) = locate_list(doc, member.value, shape, count_max)?;
    let slot = Slot { value: member.value, key: None, items };
    Ok(ItemSpans { slots: vec![slot], scalar, ..ItemSpans::default() })
}

/// Locates an item in the field for a single item.
fn locate_single(doc: &[u8], found: LocatedValue) -> Result<ItemSpans, ItemError> {
    let empty = found.value.len() <= 2 && kind(doc, found.value.start) == JsonType::String;
    if empty || kind(doc, found.value.start) == JsonType::Null {
        return Err(ItemError::Form);
    }
    let slot = Slot { value: found.value, key: found.key, items: vec![found.value] };
    Ok(ItemSpans { slots: vec![slot], scalar: true, ..ItemSpans::default() })
}

/// Returns the items of one list, and `true` if the value is a single bare item.
fn locate_list(
    doc: &[u8],
    value: Span,
    shape: &ProtocolShape,
    count_max: usize,
) -> Result<(Vec<Span>, bool), ItemError> {
    match kind(doc, value.start) {
        JsonType::Array => {}
        // An empty string differs from a list with one: servers reject the former and accept the
        // latter.
        JsonType::String if value.len() > 2 && shape.bare != BareValue::Never => return Ok((vec![value], true)),
        JsonType::Object | JsonType::Number | JsonType::Bool if shape.bare == BareValue::Always => {
            return Ok((vec![value], true));
        }
        JsonType::Object | JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => {
            return Err(ItemError::Form);
        }
    }
    if shape.item_is == ItemIs::Conversation {
        return if is_list_of(doc, value, JsonType::Object) { Ok((vec![value], true)) } else { Err(ItemError::Form) };
    }
    if shape.item_is == ItemIs::TextOrPair {
        return locate_texts(doc, value, count_max);
    }
    // A list that begins with a number is a single item on routes where an item is a list of
    // numbers.
    if first_type(doc, value) == Some(JsonType::Number) && !matches!(shape.item_is, ItemIs::Element | ItemIs::Row) {
        let is_item = if shape.item_is == ItemIs::Tokens {
            is_tokens(doc, value)
        } else {
            is_list_of(doc, value, JsonType::Number)
        };
        return if is_item { Ok((vec![value], true)) } else { Err(ItemError::Form) };
    }
    let mut items = Vec::new();
    let mut elements = Elements::new(doc, value);
    for element in elements.by_ref() {
        if items.len() == count_max {
            return Err(ItemError::Many(count_max + 1 + elements.count()));
        }
        if matches!(shape.item_is, ItemIs::Numbers | ItemIs::Row) && kind(doc, element.start) != JsonType::Array {
            return Err(ItemError::Form);
        }
        items.push(element);
    }
    if items.is_empty() { Err(ItemError::Form) } else { Ok((items, false)) }
}

/// Returns the items of a list of texts and pairs, and `true` if the list itself is a single item.
fn locate_texts(doc: &[u8], value: Span, count_max: usize) -> Result<(Vec<Span>, bool), ItemError> {
    let is_item = |list: Span| Elements::new(doc, list).nth(2).is_none() && is_list_of(doc, list, JsonType::String);
    if is_item(value) {
        return Ok((vec![value], true));
    }
    let items: Vec<Span> = Elements::new(doc, value).take(count_max + 1).collect();
    if items.is_empty() || !items.iter().all(|item| is_item(*item)) {
        return Err(ItemError::Form);
    }
    if items.len() > count_max {
        return Err(ItemError::Many(Elements::new(doc, value).count()));
    }
    Ok((items, false))
}

/// Returns `true` for a list of token ids: integers only, and at least one.
fn is_tokens(doc: &[u8], list: Span) -> bool {
    let mut ids = Elements::new(doc, list).peekable();
    ids.peek().is_some() && ids.all(|id| json::is_integer(id.of(doc)))
}

/// Writes the class of a call's items: for each array, the set of the classes of its items. Calls
/// with different sets never share a batch. If rows have several layouts, the classes are in the
/// order in which they first occur, because servers choose a format by the first row, and a data
/// frame takes its columns from its records in order.
///
/// # Errors
/// The items are of classes that may not be combined, or a key occurs twice in one of them.
pub(crate) fn class(doc: &[u8], items: &ItemSpans, shape: &ProtocolShape, out: &mut Vec<u8>) -> Result<(), ItemError> {
    if let Some(tensor) = &items.tensor {
        out.extend_from_slice(&tensor.class);
        return Ok(());
    }
    // The keys of the lists are left out of the merge key with the items, so the position is
    // written here.
    if !shape.alternatives.is_empty() {
        out.extend_from_slice(format!("{}:", items.position).as_bytes());
    }
    let mut item_class = Vec::new();
    for slot in &items.slots {
        let (mut classes, mut firsts): (Vec<Vec<u8>>, Vec<FirstOfClass>) = Default::default();
        for item in &slot.items {
            item_class.clear();
            match shape.class {
                Class::None => {}
                Class::Strict(scalars) => json::write_class(doc, *item, scalars, &mut item_class)?,
                Class::Strings if kind(doc, item.start) == JsonType::String => {}
                Class::StringLists if is_list_of(doc, *item, JsonType::String) => {}
                Class::Conversations if is_list_of(doc, *item, JsonType::Object) => {}
                Class::Strings | Class::StringLists | Class::Conversations => return Err(ItemError::Form),
                Class::Text { objects } => text_class(doc, *item, objects, &mut item_class)?,
            }
            if let Err(place) = classes.binary_search(&item_class) {
                classes.insert(place, item_class.clone());
                firsts.push(FirstOfClass { item: *item, class: item_class.clone() });
            }
        }
        // Servers differ in how they interpret a list of texts, token ids and objects together.
        let is_mixed = |classes: &[Vec<u8>]| classes.iter().any(|class| class.first() != classes[0].first());
        if matches!(shape.class, Class::Text { .. }) && is_mixed(&classes) {
            return Err(ItemError::Form);
        }
        if matches!(shape.class, Class::Strict(_)) && have_several_layouts(doc, &firsts) {
            classes = firsts.into_iter().map(|first| first.class).collect();
        }
        for class in classes {
            out.extend_from_slice(&class);
            out.push(b'|');
        }
        out.push(b';');
    }
    Ok(())
}

/// The first item of a class.
struct FirstOfClass {
    item: Span,
    class: Vec<u8>,
}

/// Returns `true` if not all items are of one JSON type and, for objects, have the same keys in the
/// same order.
fn have_several_layouts(doc: &[u8], firsts: &[FirstOfClass]) -> bool {
    let layout = |first: &FirstOfClass| {
        let mut out = Vec::new();
        json::write_layout(doc, first.item, &mut out);
        out
    };
    let mut layouts = firsts.iter().map(layout);
    layouts.next().is_some_and(|leading| layouts.any(|other| other != leading))
}

/// Returns `true` for a list with elements of one type, which is not empty.
fn is_list_of(doc: &[u8], item: Span, element: JsonType) -> bool {
    let mut elements = Elements::new(doc, item).peekable();
    kind(doc, item.start) == JsonType::Array
        && elements.peek().is_some()
        && elements.all(|own| kind(doc, own.start) == element)
}

/// Writes the class of a text: `s` for a string, `t` for token ids, or the keys of an object.
fn text_class(doc: &[u8], item: Span, objects: bool, out: &mut Vec<u8>) -> Result<(), ItemError> {
    match kind(doc, item.start) {
        JsonType::String => out.push(b's'),
        JsonType::Array if is_tokens(doc, item) => out.push(b't'),
        JsonType::Object if objects => {
            // An object with a role is a turn of a conversation rather than an item.
            let role = Pointer::from_static("/role");
            if json::find(doc, item, &role)?.is_some() {
                return Err(ItemError::Form);
            }
            json::write_keys_class(doc, item, out)?;
        }
        JsonType::Array | JsonType::Object | JsonType::Number | JsonType::Bool | JsonType::Null => {
            return Err(ItemError::Form);
        }
    }
    Ok(())
}

/// Returns the coarse form of a call's items for its cost class: a single byte, so that shapes do
/// not multiply the classes.
pub(crate) fn coarse_form(doc: &[u8], items: &ItemSpans) -> u8 {
    let first = items.slots.first().and_then(|slot| slot.items.first());
    match first.map(|item| kind(doc, item.start)) {
        Some(JsonType::Object) => b'{',
        Some(JsonType::Array) => b'[',
        Some(JsonType::String) => b's',
        Some(JsonType::Number) => b'0',
        Some(JsonType::Bool) => b'b',
        Some(JsonType::Null) | None => b'n',
    }
}

// === impl ItemSpans ===

impl ItemSpans {
    /// Returns the number of items.
    pub(crate) fn count(&self) -> usize {
        self.slots.first().map_or(0, |slot| slot.items.len())
    }

    /// Returns the number of results of each item.
    pub(crate) fn results_each(&self) -> usize {
        self.results_each.map_or(1, NonZeroUsize::get)
    }
}

// === impl ItemError ===

impl From<DuplicateKey> for ItemError {
    fn from(_: DuplicateKey) -> Self {
        Self::Ambiguous
    }
}
