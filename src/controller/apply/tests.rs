use super::*;
use crate::status::{ConditionFinding, ConditionStatus, to_conditions};

fn status(reason: &str, throughput: u64) -> BatchPolicyStatus {
    let finding = ConditionFinding::new(ConditionType::Accepted, ConditionStatus::True, reason, "m");
    let now = k8s_openapi::jiff::Timestamp::from_second(1).unwrap();
    let summary = crate::api::v1alpha1::BatchingSummary { throughput: Some(throughput), ..Default::default() };
    BatchPolicyStatus {
        conditions: to_conditions(&[], &[finding], 1, now),
        summary: Some(summary),
        ..BatchPolicyStatus::default()
    }
}

#[test]
fn a_known_or_written_status_is_not_written_again() {
    let (a, b) = (status("A", 1), status("A", 2));
    assert_eq!(write_interval(&a, None, &a), None);
    assert_eq!(write_interval(&a, Some(&b), &b), None, "it was written and is not seen yet");
    assert_eq!(write_interval(&a, None, &b), Some(GRADUAL_INTERVAL));
    assert_eq!(write_interval(&a, Some(&b), &status("B", 2)), Some(DISCRETE_INTERVAL));
    assert_eq!(write_interval(&b, Some(&a), &b), None, "back at what is seen");
}

#[test]
fn foreign_conditions_and_the_order_of_conditions_cause_no_write() {
    let next = status("A", 1);
    let mut known = next.clone();
    let mut theirs = known.conditions[0].clone();
    theirs.type_ = "Theirs".into();
    known.conditions.insert(0, theirs);
    assert_eq!(write_interval(&own_conditions(&known), None, &next), None);
}
