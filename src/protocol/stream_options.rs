//! Options of a streamed response, read from a call and written to a shared call.
//!
//! Options are part of the merge key, so the members of a batch have the same ones. A member that
//! requests the numbers of its tokens receives them when its last result ends, which is before the
//! server reports the totals of the batch. They are therefore taken from the chunks, each of which
//! has the numbers of its own result if a shared call requests it.

use crate::json::{self, DuplicateKey, JsonType, Span, kind};
use crate::pointer::Pointer;
use crate::shape::{ProtocolShape, TokenIds};

const STREAM: &str = "/stream";
const OPTIONS: &str = "/stream_options";
const INCLUDE_USAGE: &str = "/stream_options/include_usage";
const CONTINUOUS_USAGE: &str = "/stream_options/continuous_usage_stats";
/// Member that is added to the options of a shared call, and its value.
const REQUEST_COUNTS: &[u8] = b",\"continuous_usage_stats\":true";
const TRUE: &[u8] = b"true";

/// The options of a call that requests a stream and may be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// The stream ends with the numbers of tokens.
    pub(crate) include_usage: bool,
    /// Each chunk has the numbers of tokens up to it.
    pub(crate) continuous_usage: bool,
}

/// Reason for which a call that requests a stream cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamOptionsError {
    /// A key occurs twice.
    Ambiguous,
    /// The options have an unknown form, or the server does not report the tokens of each member.
    Unmergeable,
}

// === impl StreamOptions ===

impl StreamOptions {
    /// Reads the options of a call; `None` if it requests no stream. The policy lets the fields
    /// `merge_over` differ between members.
    ///
    /// # Errors
    /// The call requests a stream that cannot be merged.
    pub(crate) fn read(
        doc: &[u8],
        root: Span,
        shape: &ProtocolShape,
        merge_over: &[Pointer],
    ) -> Result<Option<Self>, StreamOptionsError> {
        let Some(generation) = shape.generation.filter(|generation| generation.streams) else { return Ok(None) };
        let find = |pointer| json::find(doc, root, &Pointer::from_static(pointer));
        if find(STREAM)?.is_none_or(|stream| stream.value.of(doc) != TRUE) {
            return Ok(None);
        }
        let is_option = |field: &Pointer| {
            [STREAM, OPTIONS].iter().any(|name| Pointer::from_static(name).tokens().first() == field.tokens().first())
        };
        if merge_over.iter().any(is_option) {
            return Err(StreamOptionsError::Unmergeable);
        }
        let is_object = |options: Span| matches!(kind(doc, options.start), JsonType::Object | JsonType::Null);
        if find(OPTIONS)?.is_some_and(|options| !is_object(options.value)) {
            return Err(StreamOptionsError::Unmergeable);
        }
        let switch = |pointer| match find(pointer)?.map(|found| found.value.of(doc)) {
            None | Some(b"false" | b"null") => Ok(false),
            Some(b"true") => Ok(true),
            // Servers may read another value as true.
            Some(_) => Err(StreamOptionsError::Unmergeable),
        };
        let options = Self { include_usage: switch(INCLUDE_USAGE)?, continuous_usage: switch(CONTINUOUS_USAGE)? };
        let is_counted = generation.token_ids != TokenIds::Unavailable;
        // The shares of a total are estimates, and are known only after the slowest member.
        if (options.include_usage || options.continuous_usage) && !is_counted {
            return Err(StreamOptionsError::Unmergeable);
        }
        Ok(Some(options))
    }

    /// Returns the position in the leader's body and the text that make the server report the
    /// tokens of each result, if the members request numbers of tokens and the leader's body does
    /// not do so.
    pub(crate) fn counting_edit(self, doc: &[u8]) -> Option<(Span, &'static [u8])> {
        if !self.include_usage || self.continuous_usage {
            return None;
        }
        let find = |pointer| json::find(doc, json::root(doc), &Pointer::from_static(pointer)).ok().flatten();
        if let Some(found) = find(CONTINUOUS_USAGE) {
            return Some((found.value, TRUE));
        }
        // The object has a member, so a comma is correct.
        let end = find(OPTIONS)?.value.end.saturating_sub(1);
        Some((Span { start: end, end }, REQUEST_COUNTS))
    }
}

// === impl StreamOptionsError ===

impl From<DuplicateKey> for StreamOptionsError {
    fn from(_: DuplicateKey) -> Self {
        Self::Ambiguous
    }
}
