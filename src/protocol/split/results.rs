//! Results of a response: located, counted, and assigned to their items.

mod lists;

use std::collections::HashMap;

use crate::call::{Call, MismatchKind};
use crate::items::FlatTensor;
use crate::json::{self, DuplicateKey, ObjectIndex, Span, unescape};
use crate::shape::{ProtocolShape, ResultIndex, ResultLayout};

/// The results and their assignment to clients.
#[derive(Debug)]
pub(super) struct LocatedResults {
    /// Parallel lists, or a single map.
    pub(super) lists: Vec<ResultList>,
    /// The tensor that has the results as its rows, if they are in no list of their own.
    pub(super) tensor: Option<FlatTensor>,
    /// For each client, the positions of its results in the order in which they are written.
    pub(super) positions: Vec<Vec<usize>>,
    /// For each position, the number of its result in the order of the items, counted over all
    /// clients. An item has several results if its call requests them.
    pub(super) item_at: Vec<usize>,
    /// For each element of the first list, the position of its index.
    pub(super) index: Vec<Option<Span>>,
    /// For each client, the number of its first result.
    pub(super) starts: Vec<usize>,
    /// Number that is added to each index: zero, except in a part of a divided call.
    pub(super) first_index: usize,
    /// For each element of the first list, the parts that no client receives, in order, each with
    /// its replacement; empty if there are none.
    pub(super) hidden: Vec<Vec<HiddenPart>>,
}

/// A part of an element that no client receives, and the bytes in its place.
pub(super) type HiddenPart = (Span, &'static [u8]);

/// An array, or the members of a map.
#[derive(Debug)]
pub(super) struct ResultList {
    /// Key of the list in its object.
    pub(super) key: Option<Span>,
    /// Span of the list, including its brackets.
    pub(super) whole: Span,
    /// Keys of a map.
    keys: Vec<Span>,
    /// Spans that are spliced: an element of an array, or a member of a map with its key.
    pub(super) elements: Vec<Span>,
    /// Spans of the values.
    pub(super) values: Vec<Span>,
}

// === impl LocatedResults ===

impl LocatedResults {
    /// Locates the results and checks them against the items that were sent.
    pub(super) fn find(
        doc: &[u8],
        root: &ObjectIndex<'_>,
        shape: &ProtocolShape,
        members: &[&Call],
    ) -> Result<Self, MismatchKind> {
        let counts: Vec<usize> = members.iter().map(|call| call.found.count() * call.found.results_each()).collect();
        let total: usize = counts.iter().sum();
        let starts: Vec<usize> =
            counts.iter().scan(0, |next, count| Some(std::mem::replace(next, *next + count))).collect();
        let (lists, tensor) = match ResultList::tensor(doc, root, shape, total)? {
            Some((list, tensor)) => (vec![list], Some(tensor)),
            None => (ResultList::all(doc, root, shape, total)?, None),
        };
        let (item_at, index) = match &shape.results {
            ResultLayout::Lists(_) | ResultLayout::Columns { .. } => {
                by_index(doc, &lists, shape.index.as_ref(), total)?
            }
            ResultLayout::Map { .. } => (by_key(doc, &lists, members, total)?, vec![None; total]),
        };
        // A list that the server sorts, or a map, keeps the order of the response for each client.
        let keep_order = shape.sorted || matches!(shape.results, ResultLayout::Map { .. });
        let mut position_of = vec![0; total];
        for (position, item) in item_at.iter().enumerate() {
            if let Some(place) = position_of.get_mut(*item) {
                *place = position;
            }
        }
        let of_member = |(start, count): (&usize, &usize)| -> Vec<usize> {
            let own = *start..start + count;
            if keep_order {
                return (0..total)
                    .filter(|position| item_at.get(*position).is_some_and(|item| own.contains(item)))
                    .collect();
            }
            own.filter_map(|item| position_of.get(item).copied()).collect()
        };
        let positions = starts.iter().zip(&counts).map(of_member).collect();
        Ok(Self { lists, tensor, positions, item_at, index, starts, first_index: 0, hidden: Vec::new() })
    }

    /// Returns the values of each client, in all lists.
    pub(super) fn values(&self) -> Vec<Vec<Span>> {
        let at = |position: usize| self.lists.iter().filter_map(move |list| list.values.get(position).copied());
        let own = |positions: &Vec<usize>| positions.iter().flat_map(|position| at(*position)).collect();
        self.positions.iter().map(own).collect()
    }

    /// Returns the length of a client's response within a document of `doc_len` bytes, apart from
    /// edits: its own elements, and everything outside of the lists.
    pub(super) fn reply_len(&self, doc_len: usize, member: usize) -> usize {
        let positions = self.positions.get(member).map(Vec::as_slice).unwrap_or_default();
        let own = |list: &ResultList| -> usize {
            let between = list.separator().map_or(1, Span::len);
            let elements = positions.iter().filter_map(|position| list.elements.get(*position));
            elements.map(|element| element.len() + between).sum()
        };
        let in_lists: usize = self.lists.iter().map(|list| list.whole.len()).sum();
        doc_len.saturating_sub(in_lists) + self.lists.iter().map(own).sum::<usize>()
    }

    /// Appends the element at `position` of a list, with its index counted from the client's first
    /// item.
    pub(super) fn write_element(&self, doc: &[u8], list: usize, position: usize, start: usize, out: &mut Vec<u8>) {
        let element = self.lists.get(list).and_then(|list| list.elements.get(position)).copied();
        let Some(element) = element else { return };
        if list > 0 {
            out.extend_from_slice(element.of(doc));
            return;
        }
        let index = self.index.get(position).copied().flatten();
        let item = self.item_at.get(position).copied().unwrap_or(0).saturating_sub(start) + self.first_index;
        let item = item.to_string();
        let hidden = self.hidden.get(position).map(Vec::as_slice).unwrap_or_default();
        let mut edits: Vec<(Span, &[u8])> = hidden.to_vec();
        edits.extend(index.map(|index| (index, item.as_bytes())));
        edits.sort_unstable_by_key(|(span, _)| span.start);
        json::splice(doc, element, edits, out, |_, text, out| out.extend_from_slice(text));
    }

    /// Appends a client's part of a list, with the upstream's own bytes before, between and after
    /// the elements.
    pub(super) fn write_list(&self, doc: &[u8], list: usize, member: usize, out: &mut Vec<u8>) {
        let (Some(from), Some(positions)) = (self.lists.get(list), self.positions.get(member)) else { return };
        let start = self.starts.get(member).copied().unwrap_or(0);
        let (Some(first), Some(last)) = (from.elements.first(), from.elements.last()) else { return };
        let between = from.separator().map_or(&b","[..], |between| between.of(doc));
        out.extend_from_slice(Span { start: from.whole.start, end: first.start }.of(doc));
        for (place, position) in positions.iter().enumerate() {
            if place > 0 {
                out.extend_from_slice(between);
            }
            self.write_element(doc, list, *position, start, out);
        }
        out.extend_from_slice(Span { start: last.end, end: from.whole.end }.of(doc));
    }
}

// === impl ResultList ===

impl ResultList {
    /// Returns the bytes between the first two elements.
    fn separator(&self) -> Option<Span> {
        let (first, second) = (self.elements.first()?, self.elements.get(1)?);
        Some(Span { start: first.end, end: second.start })
    }
}

impl From<DuplicateKey> for MismatchKind {
    fn from(_: DuplicateKey) -> Self {
        Self::Shape
    }
}

type ItemOrder = (Vec<usize>, Vec<Option<Span>>);

/// Returns the item of each position from the indexes of the elements, which must be exactly those
/// of the items. Without indexes, the results are in order.
fn by_index(
    doc: &[u8],
    lists: &[ResultList],
    index: Option<&ResultIndex>,
    total: usize,
) -> Result<ItemOrder, MismatchKind> {
    let in_order = || ((0..total).collect(), vec![None; total]);
    let (Some(index), Some(list)) = (index, lists.first()) else { return Ok(in_order()) };
    let mut found = Vec::with_capacity(total);
    for element in &list.elements {
        found.push(json::find(doc, *element, &index.at)?.map(|found| found.value));
    }
    if index.optional && found.iter().all(Option::is_none) {
        return Ok(in_order());
    }
    // Each index must be within range and occur exactly once.
    let mut assigned = vec![false; total];
    let mut item_at = Vec::with_capacity(total);
    for span in &found {
        let text = span.map(|span| span.of(doc)).filter(|text| json::is_integer(text));
        let item = text.and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
        let place =
            item.and_then(|item| assigned.get_mut(item)).filter(|assigned| !**assigned).ok_or(MismatchKind::Index)?;
        *place = true;
        item_at.extend(item);
    }
    Ok((item_at, found))
}

/// Returns the item of each member of a map. The keys must be exactly those of the items.
fn by_key(doc: &[u8], lists: &[ResultList], members: &[&Call], total: usize) -> Result<Vec<usize>, MismatchKind> {
    let keys = members.iter().flat_map(|call| call.exclusive.iter().map(AsRef::as_ref));
    let mut items: HashMap<&[u8], usize> = keys.zip(0..).collect();
    if items.len() != total {
        return Err(MismatchKind::Shape);
    }
    let keys = lists.first().map(|list| list.keys.as_slice()).unwrap_or_default();
    let item = |key: &Span| items.remove(unescape(key.inner_bytes(doc)).as_ref()).ok_or(MismatchKind::Index);
    keys.iter().map(item).collect()
}
