use super::facts::{FACTS_MAX, NAME_INPUTS};
use super::*;

fn member(name: u64, value: u64) -> PartDigest {
    PartDigest { name, value, is_member: true, needed: AGREEMENT_MIN }
}

/// Returns the standing of value 7 after unbatched responses with these values, each for a
/// different input.
fn standing(values: &[u64]) -> Constancy {
    let mut facts = KeyFacts::default();
    values.iter().zip(0..).for_each(|(value, input)| facts.observe(member(1, *value), || input));
    facts.standing(member(1, 7))
}

#[test]
fn a_fact_is_constant_once_several_unbatched_answers_agree() {
    assert_eq!(standing(&[]), Constancy::Unknown);
    assert_eq!(standing(&[7]), Constancy::Learning);
    assert_eq!(standing(&[7, 7]), Constancy::Constant);
    assert_eq!(standing(&[8]), Constancy::Unknown);
    assert_eq!(standing(&[8, 8]), Constancy::Varies(None), "alone it is another");
    assert_eq!(standing(&[8, 7, 7]), Constancy::Varies(None), "it may repeat by chance");
    assert_eq!(standing(&[8, 7, 7, 7, 7, 7, 7, 7, 7]), Constancy::Constant, "a server of a new version");
}

#[test]
fn a_name_is_known_once_the_responses_to_many_inputs_have_it() {
    let mut facts = KeyFacts::default();
    for input in 0..=u64::from(NAME_INPUTS) {
        assert!(!facts.facts.iter().any(|fact| fact.is_known_name(1)), "{input}");
        // The member has another value in each response, so it varies from the second one on.
        facts.observe(member(1, input), || input);
    }
    assert!(facts.facts.iter().any(|fact| fact.is_known_name(1)));
    assert!(!facts.facts.iter().any(|fact| fact.is_known_name(2)));
}

#[test]
fn answers_to_a_single_input_are_no_evidence() {
    let mut facts = KeyFacts::default();
    (0..9).for_each(|_| facts.observe(member(1, 7), || 3));
    assert_eq!(facts.standing(member(1, 7)), Constancy::Learning);
}

#[test]
fn facts_and_keys_are_bounded() {
    let mut cache = KeyCache::default();
    for key in 0..10_000 {
        (0..100).for_each(|name| cache.entry(key).observe(member(name, 7), || 1));
    }
    assert!(cache.young.len() + cache.old.len() <= 2 * KEYS_MAX);
    assert!(cache.entry(9_999).facts.len() <= FACTS_MAX);
    assert!(cache.get(9_999).is_some() && cache.get(9_500).is_some() && cache.get(1).is_none());
}
