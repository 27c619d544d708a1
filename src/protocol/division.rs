//! Division of a call that is too large into parts: calls like it, each with some of its items, in
//! order.
//!
//! A part is a call of its own in every respect. It has the bytes of the whole call, except that
//! its lists have only its own items, and it is parsed like any other call. A call is divided only
//! if the responses to its parts can be joined to exactly what the whole call would receive.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;

use crate::batching::PartLimits;
use crate::call::{Call, MergeEligibility};
use crate::headers::GRPC_ACCEPT_ENCODING;
use crate::identity::DigestKey;
use crate::items::{Slot, item_weight};
use crate::json::{self, Span};
use crate::route::Endpoint;
use crate::shape::{Measure, Payload, ResultLayout};
use crate::v2::division::TensorDivision;
use crate::v2::grpc::division::MessageDivision;

/// Maximum number of parts of a call: the default of `limits.batchItemsMax`. A call of 2048 inputs,
/// the maximum of OpenAI, has as many parts in front of a server that accepts 16.
pub const CALL_PARTS_MAX: usize = 128;
/// Maximum number of bytes of all parts together, as a multiple of those of the call: each part
/// repeats the bytes outside the items.
const GROWTH_MAX: usize = 2;
/// Number of bytes that all parts together may have in any case, beyond [`GROWTH_MAX`]: the default
/// of `limits.itemBytesMax`, the maximum size of a merged call.
const PARTS_BYTES_MIN: usize = 1 << 20;

/// The parts into which a call is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DivisionPlan {
    /// Items of each part: ranges of the items of the call.
    pub ranges: Vec<Range<usize>>,
    /// Number of bytes of the bodies of all parts.
    pub bytes: usize,
}

/// The rows of the tensors of a call, cut into parts.
enum RowDivision<'a> {
    /// Tensors in a JSON document.
    Document(TensorDivision<'a>),
    /// Tensors in a gRPC message.
    Message(MessageDivision<'a>),
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns `true` if the call may be divided: it has several items, may be sent again, and the
    /// responses to its parts can be joined exactly.
    #[must_use]
    pub fn is_divisible(&self, call: &Call) -> bool {
        let shape = &self.shape;
        // The order of results that the server sorts is not known across parts. An item that fails
        // is reported by the status of the response if its part has no other one, and in its result
        // otherwise. A result map is not joined.
        let can_join = match shape.payload {
            Payload::Items => {
                !shape.sorted && shape.per_item_error.is_none() && !matches!(shape.results, ResultLayout::Map { .. })
            }
            Payload::Tensors | Payload::GrpcTensors => true,
            Payload::Generation(_) => false,
        };
        // A text that the server reads once in a call would be counted with every part: in counters of
        // the body, or in headers, which are not known before the response.
        let counts_once = shape.shared_text.as_ref().is_none_or(|text| text.with_each);
        let is_plain = item_count(call) > 1 && !call.found.scalar && !call.streaming;
        self.idempotent && can_join && counts_once && is_plain && call.unbatched_reason().is_none()
    }

    /// Plans the division of a call into parts within the limits. `None` if there are too many, or if
    /// they have too many bytes together.
    #[must_use]
    pub fn plan_division(&self, call: &Call, limits: &PartLimits) -> Option<DivisionPlan> {
        if !self.is_divisible(call) {
            return None;
        }
        let ranges = self.part_ranges(call, limits);
        if !(2..=CALL_PARTS_MAX).contains(&ranges.len()) {
            return None;
        }
        let bytes: usize = match data_len(call) {
            // The numbers of rows and bytes have at most as many digits as those of the call.
            Some(data) => (call.body.len() - data) * ranges.len() + data,
            None => ranges.iter().map(|range| part_len(call, range)).sum::<Option<_>>()?,
        };
        let bytes_max = call.body.len().saturating_mul(GROWTH_MAX).max(PARTS_BYTES_MIN);
        (bytes <= bytes_max).then_some(DivisionPlan { ranges, bytes })
    }

    /// Divides a call as planned. `None` if a part has another merge key than the call: the server
    /// may then interpret its items differently without the others.
    #[must_use]
    pub fn divide_call(&self, call: &Call, head: &Parts, plan: &DivisionPlan, secret: &DigestKey) -> Option<Vec<Call>> {
        let mut head = head.clone();
        // Responses are joined as they are, and one without a coding is acceptable to every client.
        [ACCEPT_ENCODING, CONTENT_LENGTH, GRPC_ACCEPT_ENCODING].iter().for_each(|name| _ = head.headers.remove(name));
        let rows = RowDivision::new(call, &plan.ranges);
        if rows.is_none() && row_count(call).is_some() {
            return None;
        }
        let part = |(place, range): (usize, &Range<usize>)| {
            let body = match &rows {
                Some(rows) => rows.part_body(place, &mut head.headers)?,
                None => part_body(call, range)?,
            };
            let part = self.parse_call(&head, body, secret);
            let is_same = item_count(&part) == range.len() && !part.found.scalar && part.merge == call.merge;
            (is_same && matches!(part.merge, MergeEligibility::With(_))).then_some(part)
        };
        plan.ranges.iter().enumerate().map(part).collect()
    }

    /// Returns the ranges of items of the parts: each takes as many as the limits allow.
    fn part_ranges(&self, call: &Call, limits: &PartLimits) -> Vec<Range<usize>> {
        let items_max = usize::try_from(limits.items).unwrap_or(usize::MAX).max(1);
        let bytes_max = usize::try_from(limits.bytes).unwrap_or(usize::MAX);
        let count = item_count(call);
        let each: Vec<Range<usize>> = (0..count).map(|row| row..row + 1).collect();
        let rows = RowDivision::new(call, &each);
        let item_bytes = |place: usize| -> usize {
            let row = rows.as_ref().map(|rows| rows.data_len(place));
            row.unwrap_or_else(|| items_at(call, place).map(|(_, item)| item.len()).sum())
        };
        let list_bytes: usize = (0..count).map(item_bytes).fold(0, usize::saturating_add);
        // Number of bytes outside the items, which each part repeats.
        let envelope = call.body.len().saturating_sub(list_bytes);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let (mut start, mut sum, mut heaviest, mut bytes) = (0, 0_u64, 0_u64, envelope);
        for (place, weight) in self.item_weights(call).into_iter().enumerate() {
            let size = item_bytes(place);
            let count = place - start;
            // The weight of the part if each item is padded to the heaviest.
            let padded = u64::try_from(count + 1).unwrap_or(u64::MAX).saturating_mul(heaviest.max(weight));
            let fits = count < items_max
                && sum.saturating_add(weight) <= limits.weight
                && padded <= limits.padded_weight
                && bytes.saturating_add(size) <= bytes_max;
            if count > 0 && !fits {
                ranges.push(start..place);
                (start, sum, heaviest, bytes) = (place, 0, 0, envelope);
            }
            sum = sum.saturating_add(weight);
            heaviest = heaviest.max(weight);
            bytes = bytes.saturating_add(size);
        }
        ranges.push(start..count);
        ranges
    }

    /// Returns the weights of the items: those at default rates, scaled to the weight of the call,
    /// which may have been computed at learned rates, and rounded up.
    fn item_weights(&self, call: &Call) -> Vec<u64> {
        let places = 0..item_count(call);
        if self.shape.weight == Measure::Items || row_count(call).is_some() {
            return places.map(|_| 1).collect();
        }
        let beside = call.found.shared_text.filter(|(_, with_each)| *with_each).map(|(text, _)| text);
        let weight_of = |place| {
            let items = items_at(call, place).map(|(_, item)| item).chain(beside);
            items.map(|item| item_weight(&call.body, item, &self.shape.weight)).fold(0, u64::saturating_add)
        };
        let weights: Vec<u64> = places.map(weight_of).collect();
        let by_default = weights.iter().copied().fold(0, u64::saturating_add);
        let scaled =
            |weight: u64| (u128::from(weight) * u128::from(call.weight.sum)).div_ceil(by_default.max(1).into());
        weights.into_iter().map(|weight| u64::try_from(scaled(weight)).unwrap_or(u64::MAX)).collect()
    }
}

// === impl RowDivision ===

impl<'a> RowDivision<'a> {
    /// Cuts the rows of a call. `None` if it has no tensors, or the parts do not have all of its rows.
    fn new(call: &'a Call, ranges: &[Range<usize>]) -> Option<Self> {
        let document = TensorDivision::new(call, ranges).map(Self::Document);
        document.or_else(|| MessageDivision::new(call, ranges).map(Self::Message))
    }

    /// Returns the number of bytes of the data of a part.
    fn data_len(&self, part: usize) -> usize {
        match self {
            Self::Document(rows) => rows.data_len(part),
            Self::Message(rows) => rows.data_len(part),
        }
    }

    /// Returns the body of a part, and completes its headers.
    fn part_body(&self, part: usize, headers: &mut HeaderMap) -> Option<Bytes> {
        match self {
            Self::Document(rows) => rows.part_body(part, headers),
            Self::Message(rows) => rows.part_body(part),
        }
    }
}

/// Returns the number of rows of the tensors of a call; `None` if it has no tensors.
fn row_count(call: &Call) -> Option<usize> {
    let rows = call.tensors.as_ref().map(|tensors| tensors.rows);
    rows.or_else(|| call.message.as_ref().map(|message| message.rows))
}

/// Returns the number of bytes of all rows of the tensors of a call; `None` if it has no tensors.
fn data_len(call: &Call) -> Option<usize> {
    let bytes = call.tensors.as_ref().map(|tensors| tensors.data_len());
    bytes.or_else(|| call.message.as_ref().map(|message| message.data_len()))
}

/// Returns the number of items, or of rows of tensors.
fn item_count(call: &Call) -> usize {
    row_count(call).unwrap_or_else(|| call.found.count())
}

/// Iterates over the parts of the item at an index: one in each list, with its slot.
fn items_at(call: &Call, place: usize) -> impl Iterator<Item = (&Slot, Span)> {
    call.found.slots.iter().filter_map(move |slot| Some((slot, *slot.items.get(place)?)))
}

/// Returns the span of each list of a call that a part replaces, and the span from the first to the
/// last item of the part in it.
fn part_lists(call: &Call, range: &Range<usize>) -> Option<Vec<(Span, Span)>> {
    let mut lists: Vec<(Span, Span)> = Vec::new();
    for slot in &call.found.slots {
        // A single value that is combined with every value of another list is kept.
        if slot.items.len() > 1 && slot.items.first() == slot.items.get(1) {
            continue;
        }
        let own = slot.items.get(range.clone())?;
        lists.push((slot.value, Span { start: own.first()?.start, end: own.last()?.end }));
    }
    Some(lists)
}

/// Returns the position of the number of rows in a call, and the number of rows of a part as text.
/// `None` if the items are not the rows of a tensor.
fn part_rows(call: &Call, range: &Range<usize>) -> Option<(Span, String)> {
    call.found.tensor.as_ref().map(|tensor| (tensor.count, range.len().to_string()))
}

/// Returns the number of bytes of the body of a part.
fn part_len(call: &Call, range: &Range<usize>) -> Option<usize> {
    let (lists, rows) = (part_lists(call, range)?, part_rows(call, range));
    let replaced = lists.iter().map(|(list, _)| *list).chain(rows.iter().map(|(count, _)| *count));
    let left_out: usize = replaced.map(Span::len).sum();
    let own = lists.iter().map(|(_, own)| own.len() + 2).chain(rows.iter().map(|(_, text)| text.len()));
    Some(call.body.len().saturating_sub(left_out) + own.sum::<usize>())
}

/// Returns the body of a part: that of the call, with the part's own items in place of each list,
/// and their number in place of that of all rows.
fn part_body(call: &Call, range: &Range<usize>) -> Option<Bytes> {
    let (lists, rows) = (part_lists(call, range)?, part_rows(call, range));
    let items = lists.iter().map(|(list, own)| (*list, [&b"["[..], own.of(&call.body), b"]"]));
    let count = rows.iter().map(|(count, text)| (*count, [&b""[..], text.as_bytes(), b""]));
    let mut edits: Vec<(Span, [&[u8]; 3])> = items.chain(count).collect();
    edits.sort_by_key(|(span, _)| span.start);
    let mut out = Vec::with_capacity(part_len(call, range)?);
    json::splice(&call.body, Span::whole(&call.body), edits, &mut out, |_, text, out| {
        text.iter().for_each(|piece| out.extend_from_slice(piece));
    });
    Some(Bytes::from(out))
}
