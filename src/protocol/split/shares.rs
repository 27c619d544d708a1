//! Weights by which the counters of a batch response are divided among its members: from the
//! response if it has counts or token ids, else from the requests.

use super::results::LocatedResults;
use super::token_ids;
use crate::call::Call;
use crate::items::{self, item_weight};
use crate::json::Span;
use crate::shape::{Measure, ProtocolShape};
use crate::usage::ShareWeights;

/// The weights for the counters of one response.
pub(super) struct CounterShares {
    /// Weights of the items.
    pub(super) items: ShareWeights,
    /// Weights of the results, for counters that count them.
    pub(super) results: Option<ShareWeights>,
}

// === impl CounterShares ===

impl CounterShares {
    /// Determines the weights: numbers of tokens if the response has the token ids of every item
    /// and result, else the protocol's measure.
    pub(super) fn new(doc: &[u8], results: &LocatedResults, shape: &ProtocolShape, members: &[&Call]) -> Self {
        let mut shares = Self { items: weigh_items(doc, results, shape, members), results: None };
        let Some(generation) = shape.generation else { return shares };
        let each = members.first().map_or(1, |leader| leader.found.results_each());
        let counts: Vec<usize> = results.positions.iter().map(Vec::len).collect();
        let own = |weights, counted| ShareWeights { weights, counts: counts.clone(), identical: false, counted };
        shares.results = Some(match token_ids::count(doc, results, generation, each) {
            Some(tokens) => {
                if let Some(weights) = tokens.items {
                    shares.items =
                        ShareWeights { weights, identical: false, counted: true, counts: shares.items.counts };
                }
                own(tokens.results, true)
            }
            None => own(weigh_results(doc, results), false),
        });
        shares
    }
}

/// Returns the weights of the items: from the result if it carries a number, else from the request.
fn weigh_items(doc: &[u8], results: &LocatedResults, shape: &ProtocolShape, members: &[&Call]) -> ShareWeights {
    let mut weights = Vec::with_capacity(results.item_at.len());
    let mut are_token_ids = true;
    let mut first: Option<Vec<&[u8]>> = None;
    let mut identical = true;
    for call in members {
        for index in 0..call.found.count() {
            let parts: Vec<Span> = call.found.slots.iter().filter_map(|slot| slot.items.get(index).copied()).collect();
            are_token_ids &= parts.iter().all(|part| items::is_token_list(&call.body, *part));
            let bytes: Vec<&[u8]> = parts.iter().map(|part| part.of(&call.body)).collect();
            identical &= first.get_or_insert_with(|| bytes.clone()) == &bytes;
            let beside = call.found.shared_text.filter(|(_, with_each)| *with_each).map(|(text, _)| text);
            let part = |part: &Span| item_weight(&call.body, *part, &shape.share_by);
            weights.push(parts.iter().chain(&beside).map(part).fold(0, u64::saturating_add));
        }
    }
    if let Measure::At(pointer) = &shape.share_by {
        let values = results.lists.first().map(|list| list.values.as_slice()).unwrap_or_default();
        for (value, item) in values.iter().zip(&results.item_at) {
            if let (Some(weight), Some(number)) = (weights.get_mut(*item), items::number_at(doc, *value, pointer)) {
                *weight = number;
            }
        }
    }
    let counted = match shape.share_by {
        // The server counts tokens, which only lists of token ids show.
        Measure::Text => are_token_ids,
        Measure::ListLen | Measure::At(_) => true,
        Measure::Items | Measure::Bytes | Measure::Chars | Measure::Tokens => false,
    };
    ShareWeights { weights, counts: members.iter().map(|call| call.found.count()).collect(), identical, counted }
}

/// Returns the weights of generated texts, in the order of their items.
fn weigh_results(doc: &[u8], results: &LocatedResults) -> Vec<u64> {
    let mut weights = vec![0; results.item_at.len()];
    let elements = results.lists.first().map(|list| list.elements.as_slice()).unwrap_or_default();
    for (element, item) in elements.iter().zip(&results.item_at) {
        if let Some(weight) = weights.get_mut(*item) {
            *weight = item_weight(doc, *element, &Measure::Text);
        }
    }
    weights
}
