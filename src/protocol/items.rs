//! Where a call's items stand in its body, of what class they are and how much.

use crate::batching::Weight;
use crate::protocol::Reason;
use crate::protocol::json::{self, Ambiguous, Elements, Found, Kind, Members, Span, kind};
use crate::protocol::pointer::Pointer;
use crate::protocol::shape::{Bare, Class, ItemIs, Measure, Shape};

/// The items of one call, by their places in its body.
#[derive(Debug, Default)]
pub(crate) struct Items {
    /// One for each pointer of the shape.
    pub(crate) slots: Vec<Slot>,
    /// The call holds one item bare, not a list of one.
    pub(crate) scalar: bool,
    /// Bytes that a shared call must not have.
    pub(crate) cuts: Vec<Span>,
}

/// One array of items.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The value that is replaced.
    pub(crate) value: Span,
    /// Its key, where it takes another name on a shared call.
    pub(crate) key: Option<Span>,
    /// The items.
    pub(crate) items: Vec<Span>,
}

/// Why no items were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Ambiguous,
    Form,
    /// More than may be merged, this many.
    Many(usize),
}

/// Finds the items of a checked body.
///
/// # Errors
/// They are not there, not of a form that can be merged, or too many; of those too many no span is kept.
pub(crate) fn locate(doc: &[u8], root: Span, shape: &Shape, count_max: usize) -> Result<Items, Refusal> {
    let single = match &shape.single {
        Some(pointer) => json::find(doc, root, pointer)?,
        None => None,
    };
    if let Some(found) = single {
        for pointer in &shape.items {
            if json::find(doc, root, pointer)?.is_some() {
                return Err(Refusal::Form);
            }
        }
        return locate_single(doc, found);
    }
    let mut slots = Vec::with_capacity(shape.items.len());
    let mut scalar = false;
    for pointer in &shape.items {
        let found = json::find(doc, root, pointer)?.ok_or(Refusal::Form)?;
        let (items, bare) = list(doc, found.value, shape, count_max)?;
        let first = slots.is_empty();
        if !first && (bare != scalar || slots.first().is_some_and(|slot: &Slot| slot.items.len() != items.len())) {
            return Err(Refusal::Form);
        }
        scalar = bare;
        slots.push(Slot { value: found.value, key: None, items });
    }
    Ok(Items { slots, scalar, cuts: Vec::new() })
}

fn locate_single(doc: &[u8], found: Found) -> Result<Items, Refusal> {
    let empty = found.value.len() <= 2 && kind(doc, found.value.start) == Kind::String;
    if empty || kind(doc, found.value.start) == Kind::Null {
        return Err(Refusal::Form);
    }
    let slot = Slot { value: found.value, key: found.key, items: vec![found.value] };
    Ok(Items { slots: vec![slot], scalar: true, cuts: Vec::new() })
}

/// The items of one array, and whether it is one item bare.
fn list(doc: &[u8], value: Span, shape: &Shape, count_max: usize) -> Result<(Vec<Span>, bool), Refusal> {
    match kind(doc, value.start) {
        Kind::Array => {}
        // "" is not [""]: servers refuse the one and take the other.
        Kind::String if value.len() > 2 && shape.bare != Bare::Never => return Ok((vec![value], true)),
        Kind::Object | Kind::Number | Kind::Bool if shape.bare == Bare::Always => return Ok((vec![value], true)),
        Kind::Object | Kind::String | Kind::Number | Kind::Bool | Kind::Null => return Err(Refusal::Form),
    }
    let flat = Elements::new(doc, value).next().is_some_and(|first| kind(doc, first.start) == Kind::Number);
    if flat && shape.item_is != ItemIs::Element {
        let fits = if shape.item_is == ItemIs::Tokens { is_tokens(doc, value) } else { is_numbers(doc, value) };
        return if fits { Ok((vec![value], true)) } else { Err(Refusal::Form) };
    }
    let mut items = Vec::new();
    let mut elements = Elements::new(doc, value);
    for element in elements.by_ref() {
        if items.len() == count_max {
            return Err(Refusal::Many(count_max + 1 + elements.count()));
        }
        if shape.item_is == ItemIs::Numbers && kind(doc, element.start) != Kind::Array {
            return Err(Refusal::Form);
        }
        items.push(element);
    }
    if items.is_empty() { Err(Refusal::Form) } else { Ok((items, false)) }
}

fn is_numbers(doc: &[u8], list: Span) -> bool {
    Elements::new(doc, list).all(|element| kind(doc, element.start) == Kind::Number)
}

/// Whether a list holds token ids: integers, and at least one.
fn is_tokens(doc: &[u8], list: Span) -> bool {
    let mut any = false;
    for element in Elements::new(doc, list) {
        any = true;
        if kind(doc, element.start) != Kind::Number || !json::is_integer(element.of(doc)) {
            return false;
        }
    }
    any
}

/// Writes the class of a call's items: the set of their classes, array by array. Calls of different sets never share a batch.
///
/// # Errors
/// The class does not allow them together, or a key stands twice in one.
pub(crate) fn class(doc: &[u8], items: &Items, shape: &Shape, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut one = Vec::new();
    for slot in &items.slots {
        let mut classes: Vec<Vec<u8>> = Vec::new();
        for item in &slot.items {
            one.clear();
            match shape.class {
                Class::None => {}
                Class::Strict(scalars) => json::class(doc, *item, scalars, &mut one)?,
                Class::Text { objects } => text_class(doc, *item, objects, &mut one)?,
            }
            if let Err(place) = classes.binary_search(&one) {
                classes.insert(place, one.clone());
            }
        }
        // A list that mixes kinds of text is read differently from server to server.
        let kinds = |classes: &[Vec<u8>]| classes.iter().any(|class| class.first() != classes[0].first());
        if matches!(shape.class, Class::Text { .. }) && kinds(&classes) {
            return Err(Refusal::Form);
        }
        for class in classes {
            out.extend_from_slice(&class);
            out.push(b'|');
        }
        out.push(b';');
    }
    Ok(())
}

fn text_class(doc: &[u8], item: Span, objects: bool, out: &mut Vec<u8>) -> Result<(), Refusal> {
    match kind(doc, item.start) {
        Kind::String => out.push(b's'),
        Kind::Array if is_tokens(doc, item) => out.push(b't'),
        Kind::Object if objects => {
            // An object with a role is a turn of a conversation, not an item.
            let role = Pointer::known("/role");
            if json::find(doc, item, &role)?.is_some() {
                return Err(Refusal::Form);
            }
            json::keys_class(doc, item, out)?;
        }
        Kind::Array | Kind::Object | Kind::Number | Kind::Bool | Kind::Null => return Err(Refusal::Form),
    }
    Ok(())
}

/// The coarse form of a call's items, for what is learned about them: one byte, so that shapes do not multiply the classes.
pub(crate) fn form(doc: &[u8], items: &Items) -> u8 {
    let first = items.slots.first().and_then(|slot| slot.items.first());
    match first.map(|item| kind(doc, item.start)) {
        Some(Kind::Object) => b'{',
        Some(Kind::Array) => b'[',
        Some(Kind::String) => b's',
        Some(Kind::Number) => b'0',
        Some(Kind::Bool) => b'b',
        Some(Kind::Null) | None => b'n',
    }
}

/// Sum and maximum of the items' weights, where an item of parallel arrays is all of its parts.
pub(crate) fn weigh(doc: &[u8], items: &Items, measure: &Measure) -> Weight {
    let count = items.slots.first().map_or(0, |slot| slot.items.len());
    let each = (0..count).map(|index| {
        let parts = items.slots.iter().filter_map(|slot| slot.items.get(index));
        if *measure == Measure::Items {
            1
        } else {
            parts.map(|item| amount(doc, *item, measure)).fold(0, u64::saturating_add)
        }
    });
    each.fold(Weight::default(), |weight, one| Weight { sum: weight.sum.saturating_add(one), max: weight.max.max(one) })
}

/// How much one item is.
pub(crate) fn amount(doc: &[u8], item: Span, measure: &Measure) -> u64 {
    let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    let here = kind(doc, item.start);
    match measure {
        Measure::Bytes => count(json::unescaped_len(item.of(doc))),
        Measure::Chars => chars(doc, item).unwrap_or(1),
        Measure::ListLen if here == Kind::Array => count(Elements::new(doc, item).count()),
        Measure::Items | Measure::ListLen => 1,
        Measure::At(pointer) => number_at(doc, item, pointer).unwrap_or(1),
        Measure::Text => match here {
            Kind::String => json::code_points(item.inside(doc)),
            Kind::Array => count(Elements::new(doc, item).count()),
            Kind::Object => text_member(doc, item).map_or(1, |text| json::code_points(text.inside(doc))),
            Kind::Number | Kind::Bool | Kind::Null => 1,
        },
        Measure::Tokens => match here {
            Kind::Array => count(Elements::new(doc, item).count()).max(1),
            Kind::Object => {
                let text = text_member(doc, item).map_or_else(|| item.of(doc), |text| text.inside(doc));
                count(json::unescaped_len(text).div_ceil(4)).max(1)
            }
            Kind::String => count(json::unescaped_len(item.inside(doc)).div_ceil(4)).max(1),
            Kind::Number | Kind::Bool | Kind::Null => 1,
        },
    }
}

/// The number at `pointer` inside the value, if it is a natural one.
pub(crate) fn number_at(doc: &[u8], value: Span, pointer: &Pointer) -> Option<u64> {
    let found = json::find(doc, value, pointer).ok()??;
    std::str::from_utf8(found.value.of(doc)).ok()?.parse().ok()
}

/// Code points of all strings in a value; none if it holds no string.
fn chars(doc: &[u8], value: Span) -> Option<u64> {
    match kind(doc, value.start) {
        Kind::String => Some(json::code_points(value.inside(doc))),
        Kind::Array => sum(Elements::new(doc, value).map(|element| chars(doc, element))),
        Kind::Object => sum(Members::new(doc, value).map(|member| chars(doc, member.value))),
        Kind::Number | Kind::Bool | Kind::Null => None,
    }
}

fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.flatten().fold(None, |sum, part| Some(sum.unwrap_or(0).saturating_add(part)))
}

fn text_member(doc: &[u8], object: Span) -> Option<Span> {
    let found = json::find(doc, object, &Pointer::known("/text")).ok()??;
    (kind(doc, found.value.start) == Kind::String).then_some(found.value)
}

/// The bytes to cut so that the values at `pointers` are gone from the document: each with its key and one adjoining comma.
///
/// # Errors
/// A key on the way stands twice.
pub(crate) fn cuts(doc: &[u8], root: Span, pointers: &[Pointer]) -> Result<(Vec<Span>, Vec<usize>), Ambiguous> {
    let mut parents: Vec<(Span, Vec<usize>)> = Vec::new();
    let mut starts = Vec::new();
    for (index, pointer) in pointers.iter().enumerate() {
        let below = |other: &Pointer| other.holds(pointer) && other != pointer;
        let again = pointers.iter().take(index).any(|other| other == pointer);
        let Some(found) = json::find(doc, root, pointer)? else { continue };
        let (Some(parent), false) = (found.parent, again || pointers.iter().any(below)) else { continue };
        if found.key.is_none() {
            continue;
        }
        starts.push(found.value.start);
        match parents.iter_mut().find(|(span, _)| *span == parent) {
            Some((_, cut)) => cut.push(found.value.start),
            None => parents.push((parent, vec![found.value.start])),
        }
    }
    starts.sort_unstable();
    let mut cuts: Vec<_> = parents.iter().flat_map(|(parent, cut)| cut_members(doc, *parent, cut)).collect();
    cuts.sort_unstable_by_key(|cut| cut.start);
    Ok((cuts, starts))
}

fn cut_members(doc: &[u8], object: Span, cut: &[usize]) -> Vec<Span> {
    let mut out = Vec::new();
    let mut kept_end = None;
    // Where members to cut began, until it is known whether a kept one follows.
    let mut open: Option<Span> = None;
    for member in Members::new(doc, object) {
        if cut.contains(&member.value.start) {
            let start = open.map_or(member.key.start, |run| run.start);
            open = Some(Span { start, end: member.value.end });
            continue;
        }
        if let Some(run) = open.take() {
            out.push(Span { start: run.start, end: member.key.start });
        }
        kept_end = Some(member.value.end);
    }
    if let Some(run) = open {
        out.push(Span { start: kept_end.unwrap_or(run.start), end: run.end });
    }
    out
}

// === impl Refusal ===

impl Refusal {
    /// The reason to go alone.
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::Ambiguous => Reason::AmbiguousJson,
            Self::Form => Reason::ItemForm,
            Self::Many(_) => Reason::ClientBatchFull,
        }
    }
}

impl From<Ambiguous> for Refusal {
    fn from(_: Ambiguous) -> Self {
        Self::Ambiguous
    }
}
