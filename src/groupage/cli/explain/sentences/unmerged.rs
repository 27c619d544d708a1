//! Sentence about calls that could not be merged, by reason.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::format::{describe_reason, format_percent};
use super::{REASON_MIN, REASONS_MAX};
use crate::cli::explain::facts::{LabelCounts, ProxyFacts, ratio};

/// Reason of calls that no adapter recognised. Its causes are reported one by one, because each has
/// its own advice.
const NOT_RECOGNISED: &str = "not_recognised";
/// Maximum number of routes that one sentence names.
const ROUTES_MAX: usize = 3;

/// Returns a sentence about the calls that were not merged, with its numbers.
pub(super) fn explain(facts: &ProxyFacts) -> Option<(String, Value)> {
    let is_explained = |word: &str| word == "no_gain" || word == "policy_observe" && facts.predicted.is_some();
    let passed = facts.passed.iter().filter(|(word, _)| !is_explained(word));
    let mut reasons: Vec<(&str, String, u64)> = passed.flat_map(|(word, calls)| details(facts, word, *calls)).collect();
    reasons.sort_by_key(|(.., calls)| std::cmp::Reverse(*calls));
    let calls = reasons.iter().fold(0_u64, |sum, (.., calls)| sum.saturating_add(*calls));
    reasons.retain(|(.., calls)| ratio(*calls, facts.calls) >= REASON_MIN);
    let parts: Vec<String> = reasons
        .iter()
        .take(REASONS_MAX)
        .map(|(word, meaning, calls)| format!("{} `{word}` ({meaning})", format_percent(ratio(*calls, facts.calls))))
        .collect();
    let counts = |counts: &LabelCounts| counts.iter().cloned().collect::<BTreeMap<_, _>>();
    let numbers = json!({
        "calls": calls,
        "of": facts.calls,
        "reasons": counts(&facts.passed),
        "not_recognised": counts(&facts.unrecognised),
    });
    let share = format_percent(ratio(calls, facts.calls));
    (!parts.is_empty())
        .then(|| (format!("{share} of {} calls could not be merged: {}", facts.calls, parts.join(", ")), numbers))
}

/// Returns the parts of one reason, each with its meaning and its calls.
fn details<'a>(facts: &ProxyFacts, word: &'a str, calls: u64) -> Vec<(&'a str, String, u64)> {
    if word != NOT_RECOGNISED || facts.unrecognised.is_empty() {
        return vec![(word, describe_reason(word).to_owned(), calls)];
    }
    let causes = facts.unrecognised.iter();
    causes.map(|(cause, calls)| (word, describe_cause(cause, &facts.passing_routes), *calls)).collect()
}

/// Returns the meaning of a cause for which no adapter recognised calls, with the remedy where one
/// exists.
fn describe_cause(cause: &str, passing_routes: &LabelCounts) -> String {
    match cause {
        "method" => "the method is not POST, so they are not inference calls",
        "route" => return describe_passing_routes(passing_routes),
        "reranking" => "reranking, which is passed through as it is: each call has a query of its own",
        "management" => "a path of KServe V2 other than inference, which is passed through as it is",
        "unlisted" => {
            "an adapter supports their path, but the policy lists `routes` and none matches it: add a route with the path, such as `{path: /v1/embeddings}`, `{path: /embed}` or `{path: /v1/models/*}`"
        }
        "unnamed" => {
            "an adapter supports their path on a route that names the protocol: add one, such as `protocol: OpenAI` for a path that ends in `/embeddings`, `KServeV1` for `:predict` and `:explain`, or `OpenInferenceV2` for `/infer`"
        }
        "no_adapter" => {
            "no adapter supports the path; if the body contains a list of items and the answer a list of results, declare a route with `protocol: Generic`"
        }
        _ => describe_reason(NOT_RECOGNISED),
    }
    .to_owned()
}

/// Names the routes of the policy that pass calls through, those with the most calls first.
fn describe_passing_routes(routes: &LabelCounts) -> String {
    let mut routes: Vec<_> = routes.iter().collect();
    routes.sort_by_key(|(_, calls)| std::cmp::Reverse(*calls));
    let named: Vec<String> = routes.iter().take(ROUTES_MAX).map(|(route, _)| format!("`{route}`")).collect();
    let more = routes.len().saturating_sub(ROUTES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match named.len() {
        0 => "a route of the policy passes them through".to_owned(),
        1 => format!("the policy's route {} passes them through", named.join("")),
        _ => format!("the policy's routes {}{more} pass them through", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::explain::facts::words;

    fn text(unrecognised: &[(&str, u64)], routes: &[(&str, u64)]) -> String {
        let facts = ProxyFacts {
            calls: 100,
            passed: words(&[("not_recognised", 50)]),
            unrecognised: words(unrecognised),
            passing_routes: words(routes),
            ..ProxyFacts::default()
        };
        explain(&facts).unwrap().0
    }

    #[test]
    fn each_cause_of_unrecognised_calls_has_its_own_share_and_advice() {
        let found = text(&[("method", 20), ("no_adapter", 30)], &[]);
        let expected =
            "50 % of 100 calls could not be merged: 30 % `not_recognised` (no adapter supports the path; if ";
        assert!(found.starts_with(expected), "{found}");
        assert!(
            found.ends_with("20 % `not_recognised` (the method is not POST, so they are not inference calls)"),
            "{found}"
        );
    }

    #[test]
    fn a_generic_route_is_advised_only_where_no_adapter_supports_the_path() {
        for cause in ["method", "route", "reranking", "management", "unlisted", "unnamed", "new_word"] {
            let found = text(&[(cause, 50)], &[("/predict", 50)]);
            assert!(!found.contains("Generic"), "{cause}: {found}");
        }
        assert!(!text(&[], &[]).contains("Generic"), "a log has no causes");
        assert!(
            text(&[("unlisted", 50)], &[]).contains("an adapter supports their path, but the policy lists `routes`")
        );
    }

    #[test]
    fn routes_that_pass_calls_through_are_named() {
        let one = text(&[("route", 50)], &[("/predict", 50)]);
        assert!(one.contains("(the policy's route `/predict` passes them through)"), "{one}");
        let many = text(&[("route", 50)], &[("/a", 1), ("/b", 9), ("/c", 3), ("/d", 2)]);
        assert!(many.contains("routes `/b`, `/c`, `/d` and 1 more pass them through"), "{many}");
    }
}
