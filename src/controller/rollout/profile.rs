//! Names of profiles, which contain a hash of their content.

use serde_json::{Map, Value};

use crate::api::v1alpha1::{LimitsSpec, SchedulingSpec};
use crate::config::{parse_duration, parse_size};

/// Number of hexadecimal digits of a hash in a name: 40 bits, so that two profiles of a policy
/// share a hash with a probability of one in 10¹².
const HASH_DIGITS: usize = 10;
/// Maximum length of a name that is also used as a label value.
const NAME_MAX: usize = 63;

/// Returns the name of the profile that a policy generates from its own limits and scheduling:
/// `<policy>-<hash>`. A policy name that is too long is truncated. The hash then covers the full
/// name, so that two long names never share a profile. Different notations of one value (`1s`,
/// `1000ms`) and different orders of keys have the same hash.
#[must_use]
pub fn profile_name(policy: &str, limits: Option<&LimitsSpec>, scheduling: Option<&SchedulingSpec>) -> String {
    let text = canonical_json(limits, scheduling);
    if policy.len() + 1 + HASH_DIGITS <= NAME_MAX {
        return format!("{policy}-{}", hash_digits(&text, None));
    }
    let prefix: String = policy.chars().take(NAME_MAX - 1 - HASH_DIGITS).collect();
    format!("{}-{}", prefix.trim_end_matches(['-', '.']), hash_digits(&text, Some(policy)))
}

/// Serializes the content of a profile as canonical JSON: keys are sorted, absent values omitted,
/// and each value has one notation.
fn canonical_json(limits: Option<&LimitsSpec>, scheduling: Option<&SchedulingSpec>) -> String {
    let mut all = Map::new();
    // A spec of plain strings and numbers always serializes. If it did not, it would hash like an
    // absent one.
    let value = |spec: Option<Value>| spec.and_then(normalize).unwrap_or_else(|| Value::Object(Map::new()));
    all.insert("limits".to_owned(), value(limits.and_then(|limits| serde_json::to_value(limits).ok())));
    all.insert("scheduling".to_owned(), value(scheduling.and_then(|spec| serde_json::to_value(spec).ok())));
    Value::Object(all).to_string()
}

fn hash_digits(text: &str, also: Option<&str>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(text.as_bytes());
    if let Some(also) = also {
        hasher.update(b"\0").update(also.as_bytes());
    }
    hasher.finalize().to_hex().chars().take(HASH_DIGITS).collect()
}

/// Converts a value to its canonical notation. Returns `None` for an empty value.
fn normalize(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) => {
            // Keys are sorted here, regardless of the order that `serde_json` keeps.
            let mut pairs: Vec<(String, Value)> =
                map.into_iter().filter_map(|(key, value)| Some((key, normalize(value)?))).collect();
            pairs.sort_by(|one, other| one.0.cmp(&other.0));
            (!pairs.is_empty()).then(|| Value::Object(pairs.into_iter().collect()))
        }
        Value::Array(values) => Some(Value::Array(values.into_iter().filter_map(normalize).collect())),
        Value::String(text) => Some(match (parse_size(&text), parse_duration(&text)) {
            (Some(bytes), _) => Value::from(bytes),
            (None, Some(time)) => Value::String(format!("{}ns", time.as_nanos())),
            (None, None) => Value::String(text),
        }),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(limits: &str, scheduling: &str) -> String {
        let limits: LimitsSpec = serde_json::from_str(limits).unwrap();
        let scheduling: SchedulingSpec = serde_json::from_str(scheduling).unwrap();
        profile_name("p", Some(&limits), Some(&scheduling))
    }

    #[test]
    fn equivalent_specs_have_equal_hashes_and_others_have_different_ones() {
        let base = name_of(r#"{"queueDelayMax": "1s", "batchBytesMax": "1Ki"}"#, "{}");
        let digits = base.strip_prefix("p-").unwrap();
        assert!(digits.len() == 10 && digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{base}");
        assert_eq!(base, name_of(r#"{"batchBytesMax": 1024, "queueDelayMax": "1000ms"}"#, "{}"));
        assert_ne!(base, name_of(r#"{"queueDelayMax": "2s", "batchBytesMax": "1Ki"}"#, "{}"));
        assert_ne!(base, name_of(r#"{"queueDelayMax": "1s", "batchBytesMax": "1Ki"}"#, r#"{"preset": "balanced"}"#));
        assert_eq!(name_of("{}", "{}"), profile_name("p", None, None), "empty and absent values are equal");
    }

    #[test]
    fn the_hash_of_a_profile_never_changes_with_the_version_of_this_program() {
        // Otherwise an upgrade of the controller would start a rollout.
        let limits: LimitsSpec = serde_json::from_str(r#"{"slotsMax": 4, "queueDelayMax": "5ms"}"#).unwrap();
        assert_eq!(
            canonical_json(Some(&limits), None),
            r#"{"limits":{"queueDelayMax":"5000000ns","slotsMax":4},"scheduling":{}}"#
        );
        assert_eq!(profile_name("embedder", Some(&limits), None), "embedder-86fe63ff36");
    }

    #[test]
    fn a_long_profile_name_is_cut_to_63_characters_and_stays_unique() {
        let (one, other) = ("a".repeat(80), format!("{}b", "a".repeat(79)));
        let names = [profile_name(&one, None, None), profile_name(&other, None, None)];
        assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
        assert_ne!(names[0], names[1]);
    }
}
