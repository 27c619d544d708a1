//! The chunks of a stream of generated texts: which result one belongs to, and the parts of it that
//! are not the result.

use crate::call::MismatchKind;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::pointer::Pointer;
use crate::shape::{Counters, ProtocolShape, ResultLayout};

use super::super::envelope::USAGE;

/// Member of a result that is set in its last chunk.
const FINISH_REASON: &str = "/finish_reason";
const ERROR: &str = "/error";
const OBJECT: &str = "/object";
/// Maximum number of digits of a number of tokens in one result.
const COUNT_DIGITS_MAX: usize = 9;

/// Content of an event with data.
#[derive(Debug)]
pub(super) enum Chunk {
    /// A piece of one result.
    Result(ResultChunk),
    /// An error of the whole call.
    Error,
    /// Totals, at this position, or anything else without a result.
    NoResult(Option<Span>),
}

/// A piece of one result, as positions in the data of its event.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultChunk {
    /// Number of the result among those of the batch.
    pub(super) result: usize,
    pub(super) index: Span,
    /// The list with the result.
    pub(super) results: Span,
    pub(super) is_last: bool,
    pub(super) id: Option<Span>,
    /// The numbers of tokens; null if the chunk has none.
    pub(super) usage: Option<Span>,
}

/// Numbers of tokens in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkCounts {
    pub(super) prompt: u64,
    pub(super) completion: u64,
    /// Nothing but known numbers is beside them.
    pub(super) is_plain: bool,
}

// === impl Chunk ===

impl Chunk {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// The data is not JSON, or does not belong to exactly one result.
    pub(super) fn read(doc: &[u8], shape: &ProtocolShape) -> Result<Self, MismatchKind> {
        json::validate(doc, JsonRules::ANSWER).map_err(|_| MismatchKind::NotJson)?;
        let root = json::root(doc);
        let find = |within, pointer: &Pointer| -> Result<Option<Span>, MismatchKind> {
            Ok(json::find(doc, within, pointer)?.map(|found| found.value))
        };
        let is_set = |value: Option<Span>| value.is_some_and(|value| value.of(doc) != b"null");
        let object = find(root, &Pointer::from_static(OBJECT))?;
        if is_set(find(root, &Pointer::from_static(ERROR))?) || object.is_some_and(|name| name.of(doc) == b"\"error\"")
        {
            return Ok(Self::Error);
        }
        let (ResultLayout::Lists(lists), Some(index)) = (&shape.results, &shape.index) else {
            return Err(MismatchKind::Shape);
        };
        let results = lists.first().map(|list| find(root, list)).transpose()?.flatten().ok_or(MismatchKind::Shape)?;
        if kind(doc, results.start) != JsonType::Array {
            return Err(MismatchKind::Shape);
        }
        let mut elements = Elements::new(doc, results);
        let usage = match &shape.counters {
            Counters::Usage(pointer) => find(root, pointer)?,
            Counters::None | Counters::Totals { .. } => None,
        };
        let Some(element) = elements.next() else { return Ok(Self::NoResult(usage)) };
        if elements.next().is_some() || kind(doc, element.start) != JsonType::Object {
            return Err(MismatchKind::Shape);
        }
        let index = find(element, &index.at)?.ok_or(MismatchKind::Index)?;
        let text = std::str::from_utf8(index.of(doc)).ok().filter(|text| json::is_integer(text.as_bytes()));
        let result = text.and_then(|text| text.parse().ok()).ok_or(MismatchKind::Index)?;
        Ok(Self::Result(ResultChunk {
            result,
            index,
            results,
            // Older versions of SGLang write an empty text until the end.
            is_last: is_set(
                find(element, &Pointer::from_static(FINISH_REASON))?.filter(|reason| reason.of(doc) != b"\"\""),
            ),
            id: shape.ids.first().map(|id| find(root, id)).transpose()?.flatten(),
            usage,
        }))
    }
}

// === impl ChunkCounts ===

impl ChunkCounts {
    /// Reads the numbers of tokens of a chunk. `None` if it has none, or if they are no numbers of
    /// tokens.
    pub(super) fn read(doc: &[u8], usage: Span) -> Option<Self> {
        if kind(doc, usage.start) != JsonType::Object {
            return None;
        }
        let mut counts = Self { prompt: 0, completion: 0, is_plain: true };
        let mut has_prompt = false;
        for member in Members::new(doc, usage) {
            let name = unescape(member.key.inner_bytes(doc));
            let value = member.value.of(doc);
            let number = parse_count(value);
            match &*name {
                b"prompt_tokens" => (counts.prompt, has_prompt) = (number?, true),
                // A server may write null before the first token.
                b"completion_tokens" if value != b"null" => counts.completion = number?,
                _ => {}
            }
            counts.is_plain &=
                USAGE.iter().any(|known| *known.as_bytes() == *name) && (number.is_some() || value == b"null");
        }
        has_prompt.then_some(counts)
    }
}

fn parse_count(text: &[u8]) -> Option<u64> {
    let is_count = text.len() <= COUNT_DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_count)?.parse().ok()
}
