//! Token ids of prompts and results, which a shared call requests to count the tokens of each
//! member.
//!
//! The members did not request them, so they are removed again from what a member receives.

use super::results::{HiddenPart, LocatedResults};
use crate::call::MismatchKind;
use crate::items;
use crate::json::{self, Elements, JsonType, Span, kind};
use crate::pointer::Pointer;
use crate::shape::{ProtocolShape, TextGeneration, TokenIds};

/// Members of a result: the tokens of its prompt, and its own.
const PROMPT: &str = "/prompt_token_ids";
const RESULT: &str = "/token_ids";

/// Numbers of tokens.
pub(super) struct TokenCounts {
    /// Of each item; `None` if the server does not report them.
    pub(super) items: Option<Vec<u64>>,
    /// Of each result, in the order of the items.
    pub(super) results: Vec<u64>,
}

/// Counts the tokens of items with `each` results. Returns `None` unless the response has the token
/// ids of all results, and of all items if the server reports those.
pub(super) fn count(
    doc: &[u8],
    results: &LocatedResults,
    generation: TextGeneration,
    each: usize,
) -> Option<TokenCounts> {
    let list = results.lists.first()?;
    let total = results.item_at.len();
    let mut items = vec![0; total / each.max(1)];
    let mut counts = vec![0; total];
    for (element, place) in list.elements.iter().zip(&results.item_at) {
        if generation.has_prompt_ids {
            // The results of an item repeat the tokens of its prompt.
            *items.get_mut(place / each.max(1))? = list_len(doc, *element, PROMPT)?;
        }
        *counts.get_mut(*place)? = list_len(doc, *element, RESULT)?;
    }
    Some(TokenCounts { items: generation.has_prompt_ids.then_some(items), results: counts })
}

/// Returns the parts of each result that its client did not request.
pub(super) fn hidden_parts(
    doc: &[u8],
    results: &LocatedResults,
    shape: &ProtocolShape,
) -> Result<Vec<Vec<HiddenPart>>, MismatchKind> {
    let pointers = [PROMPT, RESULT].map(Pointer::from_static);
    let elements = results.lists.first().map(|list| list.elements.as_slice()).unwrap_or_default();
    let is_null = shape.generation.is_some_and(|generation| generation.token_ids == TokenIds::NullUnlessRequested);
    let hidden = |element: &Span| -> Result<Vec<HiddenPart>, MismatchKind> {
        if !is_null {
            let (cuts, _) = items::removal_spans(doc, *element, &pointers)?;
            return Ok(cuts.into_iter().map(|cut| (cut, &b""[..])).collect());
        }
        let mut parts = Vec::new();
        for pointer in &pointers {
            parts.extend(json::find(doc, *element, pointer)?.map(|found| (found.value, &b"null"[..])));
        }
        Ok(parts)
    };
    elements.iter().map(hidden).collect()
}

fn list_len(doc: &[u8], element: Span, pointer: &str) -> Option<u64> {
    let found = json::find(doc, element, &Pointer::from_static(pointer)).ok()??;
    let is_list = kind(doc, found.value.start) == JsonType::Array;
    if is_list { u64::try_from(Elements::new(doc, found.value).count()).ok() } else { None }
}
