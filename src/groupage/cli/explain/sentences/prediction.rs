//! Sentence about mode `Observe`: the predicted effect of batching, its benefit, and the evidence
//! for it.

use serde_json::{Value, json};

use super::super::facts::{Prediction, ratio};
use super::format::{format_micros, format_period};

/// Part of the calls by which those of the simulation must exceed them to be mentioned.
const MORE_PART: u64 = 10;

/// Returns a sentence about the prediction, with its numbers.
pub(super) fn explain(prediction: &Prediction) -> (String, Value) {
    let Prediction { over_seconds, calls, executions, carried, items, latency_us, passed_us, unserved, .. } =
        *prediction;
    let numbers = json!({
        "over_seconds": over_seconds, "benefit": prediction.benefit, "side_by_side": prediction.side_by_side, "calls": calls,
        "upstream_calls": executions, "items": items, "latency_us": latency_us, "passed_us": passed_us,
        "unserved": unserved, "measured_items": prediction.measured_items, "steady_load": prediction.steady_load,
    });
    if calls == 0 {
        let reason = if prediction.steady_load {
            "the load never varied, so the time of a call without a queue is unknown, and with it the effect of batching"
        } else {
            "too few calls have passed to predict the effect of batching"
        };
        return (format!("mode Observe: {reason}"), numbers);
    }
    let would = format!(
        "batching would have made {executions} upstream calls out of {carried}, with {:.1} items each, and answered in {} on average ({} without batching) in the last {}",
        ratio(items, executions),
        format_micros(latency_us),
        format_micros(passed_us),
        format_period(over_seconds),
    );
    let mut text = match prediction.benefit.as_str() {
        "nothing_to_merge" => {
            let several = match prediction.side_by_side {
                0 | 1 => String::new(),
                several => format!(", since the server runs at least {several} at once"),
            };
            format!(
                "mode Observe: batching is not worth it here: nearly every call would be forwarded as it is now{several}; {would}"
            )
        }
        "slower" => format!("mode Observe: batching is not worth it here: calls would be answered later; {would}"),
        _ => format!("mode Observe: {would}"),
    };
    if carried > calls.saturating_add(calls / MORE_PART) {
        text += &format!(
            "; callers that wait for each answer sent {calls} calls, and would have sent more if answered sooner"
        );
    }
    if unserved > 0 {
        text += &format!("; it would have refused or expired {unserved} of {calls}");
    }
    text += &match prediction.measured_items {
        _ if prediction.benefit == "nothing_to_merge" => String::new(),
        0 | 1 => "; no call has several items, so the latency of a batch is an estimate: half that of an unbatched call, plus the same half for every item".to_owned(),
        most => format!("; the latency of up to {most} items was measured"),
    };
    (text, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predicted(benefit: &str) -> Prediction {
        Prediction {
            over_seconds: 90,
            benefit: benefit.to_owned(),
            side_by_side: 64,
            steady_load: false,
            calls: 400,
            executions: 50,
            carried: 400,
            items: 400,
            latency_us: 22_000,
            passed_us: 60_000,
            unserved: 0,
            measured_items: 8,
        }
    }

    #[test]
    fn a_prediction_names_its_window_and_its_measured_sizes() {
        let expected = "mode Observe: batching would have made 50 upstream calls out of 400, with 8.0 items each, and answered in 22 ms on average (60 ms without batching) in the last 90 s; the latency of up to 8 items was measured";
        assert_eq!(explain(&predicted("worth")).0, expected);
        assert!(explain(&Prediction { measured_items: 1, ..predicted("worth") }).0.contains("is an estimate"));
        assert!(explain(&Prediction { calls: 0, ..predicted("unknown") }).0.contains("too few calls"));
    }

    #[test]
    fn a_load_that_never_varied_is_named_in_place_of_a_number_of_calls() {
        let (text, numbers) = explain(&Prediction { calls: 0, steady_load: true, ..predicted("unknown") });
        assert!(text.contains("the load never varied, so the time of a call without a queue is unknown"), "{text}");
        assert_eq!(numbers["steady_load"], true);
    }

    #[test]
    fn calls_that_callers_would_have_sent_in_addition_are_explained() {
        let (text, _) = explain(&Prediction { carried: 900, ..predicted("worth") });
        assert!(text.contains("out of 900") && text.contains("sent 400 calls, and would have sent more"), "{text}");
    }

    #[test]
    fn a_prediction_without_benefit_begins_with_that_statement() {
        let (text, numbers) = explain(&predicted("nothing_to_merge"));
        let expected = "mode Observe: batching is not worth it here: nearly every call would be forwarded as it is now, since the server runs at least 64 at once; batching would";
        assert!(text.starts_with(expected) && !text.contains("estimate"), "{text}");
        assert_eq!(numbers["benefit"], "nothing_to_merge");
        assert!(
            explain(&predicted("slower"))
                .0
                .starts_with("mode Observe: batching is not worth it here: calls would be answered later")
        );
    }
}
