use proptest::prelude::*;

use super::*;
use crate::json;

fn ledger(weights: &[u64], counts: &[usize]) -> ShareWeights {
    ShareWeights { weights: weights.to_vec(), counts: counts.to_vec(), identical: false, counted: false }
}

fn check(body: &str, ledger: &ShareWeights, expected: &[&[&str]]) {
    let doc = body.as_bytes();
    let counters = divide_usage(doc, json::root(doc), ledger, None).unwrap();
    let parts: Vec<Vec<&str>> = counters.iter().map(|c| c.parts.iter().map(String::as_str).collect()).collect();
    assert_eq!(parts, expected, "{body}");
}

#[test]
fn totals_go_by_the_largest_remainder_and_ties_to_the_earlier() {
    assert_eq!(largest_remainder(9, &[3, 2]), [5, 4]);
    assert_eq!(largest_remainder(12, &[3, 2, 1]), [6, 4, 2]);
    assert_eq!(largest_remainder(7, &[1, 2]), [3, 4]);
    assert_eq!(largest_remainder(1, &[1, 1]), [1, 0]);
    assert_eq!(largest_remainder(5, &[0, 0]), [3, 2]);
    assert_eq!(largest_remainder(0, &[3, 2]), [0, 0]);
}

#[test]
fn a_total_is_the_sum_of_each_callers_own_parts() {
    let ledger = ledger(&[3, 2], &[1, 1]);
    check(
        r#"{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0,"prompt_tokens_details":null}"#,
        &ledger,
        &[&["5", "4"], &["5", "4"]],
    );
    check(
        r#"{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}"#,
        &ledger,
        &[&["5", "4"], &["2", "1"], &["7", "5"]],
    );
    check(r#"{"prompt_tokens_details":{"cached_tokens":4}}"#, &ledger, &[&["2", "2"]]);
    check(r#"{"prompt_tokens":9.0,"total_tokens":0.50}"#, &ledger, &[&["5.0", "4.0"], &["0.30", "0.20"]]);
}

#[test]
fn completion_tokens_go_by_the_results_and_the_total_is_exact_if_both_parts_are() {
    let items = ShareWeights { counted: true, ..ledger(&[3, 2], &[1, 1]) };
    let results = ShareWeights { counted: true, ..ledger(&[1, 4], &[1, 1]) };
    let body = br#"{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,"completion_tokens_details":{"audio_tokens":10}}"#;
    let counters = divide_usage(body, json::root(body), &items, Some(&results)).unwrap();
    let parts: Vec<_> = counters.iter().map(|counter| (counter.parts.join(" "), counter.exact)).collect();
    let exact = |parts: &str| (parts.to_owned(), true);
    assert_eq!(parts, [exact("3 2"), exact("1 4"), exact("4 6"), ("3 7".to_owned(), false)]);
}

#[test]
fn a_number_that_is_no_sum_over_items_cannot_be_shared() {
    for body in [r#"{"cost":0.5}"#, r#"{"total_tokens":-1}"#, r#"{"total_tokens":1e3}"#, r#"{"x":[1]}"#] {
        let doc = body.as_bytes();
        assert_eq!(
            divide_usage(doc, json::root(doc), &ledger(&[1, 1], &[1, 1]), None).map(|_| ()),
            Err(IndivisibleCounter),
            "{body}"
        );
    }
    check(r#"{"cost":0.0,"unit":"usd","n":0}"#, &ledger(&[1, 1], &[1, 1]), &[]);
}

#[test]
fn identical_items_and_counted_ids_are_exact() {
    let same = ShareWeights { identical: true, ..ledger(&[3, 3, 3], &[1, 2]) };
    assert_eq!(same.apportion(12, true), (vec![4, 4, 4], true));
    let ids = ShareWeights { counted: true, ..ledger(&[3, 2], &[1, 1]) };
    assert_eq!(ids.apportion(5, true), (vec![3, 2], true));
    assert!(!ids.apportion(7, true).1);
}

proptest! {
    #[test]
    fn the_parts_add_up_to_the_total(total in 0_u64..1_000_000_000_000, weights in prop::collection::vec(0_u64..1_000_000, 1..40)) {
        let parts = largest_remainder(u128::from(total), &weights);
        prop_assert_eq!(parts.iter().sum::<u128>(), u128::from(total));
        if u128::from(total) >= weights.len() as u128 {
            prop_assert!(parts.iter().all(|part| *part >= 1));
        }
    }

    #[test]
    fn a_decimal_is_written_as_it_was_read(whole in 0_u32..100_000, fraction in "[0-9]{0,9}") {
        let text = if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") };
        prop_assert_eq!(Decimal::parse(text.as_bytes()).unwrap().to_text(), text);
    }
}
