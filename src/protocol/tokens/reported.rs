//! Numbers of input tokens that responses report.

use http::{HeaderMap, StatusCode};

use super::TokenCalibration;
use crate::call::Call;
use crate::headers::COMPUTE_TOKENS;
use crate::json::{self, JsonRules, Members, Span, unescape};
use crate::pointer::Pointer;
use crate::route::Endpoint;
use crate::shape::{CostShare, Counters, Measure, Payload};
use crate::split::{BatchResponse, counts_first_item_only, has_content_coding};

/// Members of `usage` with the tokens of the input, in order of preference. Servers without an output
/// report only a total.
const INPUT: [&[u8]; 3] = [b"prompt_tokens", b"input_tokens", b"total_tokens"];
/// Last names of other counters of input tokens: of Ollama and Cohere.
const TOTALS: [&str; 2] = ["prompt_eval_count", "input_tokens"];

// === impl Endpoint ===

impl Endpoint {
    /// Learns the rates of tokens from a complete response to calls that were sent together.
    pub fn observe_tokens(&self, calls: &[&Call], answer: BatchResponse<'_>, calibration: &TokenCalibration) {
        let BatchResponse { status, headers, body } = answer;
        let has_one_item = || calls.iter().map(|call| call.found.count()).sum::<usize>() <= 1;
        if status != StatusCode::OK || has_content_coding(headers) || counts_first_item_only(headers) && !has_one_item()
        {
            return;
        }
        // Finding the counter is a pass over the response, so most are not read.
        let Some(sample) = calibration.begin_sample(calls) else { return };
        if let Some(tokens) = self.reported_tokens(headers, body) {
            calibration.record(&sample, tokens);
        }
    }

    /// Returns `true` if responses of the protocol report the number of input tokens. Counters that a
    /// policy declares may count anything.
    pub(crate) fn reports_tokens(&self) -> bool {
        let is_text = matches!(self.shape.payload, Payload::Generation(_)) || self.shape.share_by == Measure::Text;
        is_text && self.rules.generic.is_none()
    }

    fn reported_tokens(&self, headers: &HeaderMap, body: &[u8]) -> Option<u64> {
        if let Some(tokens) = headers.get(COMPUTE_TOKENS).and_then(|value| number(value.as_bytes())) {
            return Some(tokens);
        }
        if matches!(self.shape.counters, Counters::None) {
            return None;
        }
        json::validate(body, JsonRules::ANSWER).ok()?;
        let root = json::root(body);
        let find = |pointer: &Pointer| json::find(body, root, pointer).ok().flatten().map(|found| found.value);
        match &self.shape.counters {
            Counters::None | Counters::Totals { share: CostShare::Drop, .. } => None,
            // With generated texts, the total is not that of the input.
            Counters::Usage(pointer) => {
                let names = if self.shape.generation.is_some() { &INPUT[..2] } else { &INPUT[..] };
                input_of_usage(body, find(pointer)?, names)
            }
            Counters::Totals { at, .. } => {
                let is_input = |pointer: &&Pointer| pointer.name().is_some_and(|name| TOTALS.contains(&name));
                at.iter().filter(is_input).find_map(|pointer| number(find(pointer)?.of(body)))
            }
        }
    }
}

fn input_of_usage(doc: &[u8], usage: Span, names: &[&[u8]]) -> Option<u64> {
    let member = |name: &[u8]| {
        let is_named = |member: &json::Member| *unescape(member.key.inner_bytes(doc)) == *name;
        Members::new(doc, usage).find(is_named).and_then(|member| number(member.value.of(doc)))
    };
    names.iter().find_map(|name| member(name))
}

/// Returns a non-negative integer. Cohere writes whole numbers with a decimal point.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_suffix(".0").unwrap_or(text).parse().ok()
}
