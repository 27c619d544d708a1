//! Profiles: their names, and the selection of those to keep.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::UnixSeconds;
use crate::api::v1alpha1::{LimitsSpec, SchedulingSpec};
use crate::config::{parse_duration, parse_size};

/// Number of hexadecimal digits of a hash in a name: 40 bits, so that two profiles of a policy
/// share a hash with a probability of one in 10¹².
const HASH_DIGITS: usize = 10;
/// Maximum length of a name that is also used as a label value.
const NAME_MAX: usize = 63;

/// An existing profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingProfile {
    /// Name of the profile.
    pub name: String,
    /// Time of creation.
    pub created: UnixSeconds,
    /// `true` if this policy generated the profile from its own limits and scheduling. A user's own
    /// profile is never removed.
    pub generated: bool,
}

/// Returns the hash of a profile's content: ten hexadecimal digits. Different notations of one
/// value (`1s`, `1000ms`) and different orders of keys have the same hash.
#[must_use]
pub fn profile_hash(limits: Option<&LimitsSpec>, scheduling: Option<&SchedulingSpec>) -> String {
    hash_digits(&canonical_json(limits, scheduling), None)
}

/// Returns the name of the profile that a policy generates from its own limits and scheduling:
/// `<policy>-<hash>`. A policy name that is too long is truncated. The hash then covers the full
/// name, so that two long names never share a profile.
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
#[must_use]
pub fn canonical_json(limits: Option<&LimitsSpec>, scheduling: Option<&SchedulingSpec>) -> String {
    let mut all = Map::new();
    // A spec of plain strings and numbers always serializes. If it did not, it would hash like an
    // absent one.
    let value = |spec: Option<Value>| spec.and_then(normalize).unwrap_or_else(|| Value::Object(Map::new()));
    all.insert("limits".to_owned(), value(limits.and_then(|limits| serde_json::to_value(limits).ok())));
    all.insert("scheduling".to_owned(), value(scheduling.and_then(|spec| serde_json::to_value(spec).ok())));
    Value::Object(all).to_string()
}

/// Returns the generated profiles to remove: all unused ones but the newest `limit`. `used`
/// contains the profiles that pods run and those that the policy refers to.
#[must_use]
pub fn prune(existing: &[ExistingProfile], used: &BTreeSet<&str>, limit: usize) -> Vec<String> {
    let mut idle: Vec<&ExistingProfile> =
        existing.iter().filter(|profile| profile.generated && !used.contains(profile.name.as_str())).collect();
    idle.sort_by(|one, other| other.created.cmp(&one.created).then_with(|| one.name.cmp(&other.name)));
    idle.into_iter().skip(limit).map(|profile| profile.name.clone()).collect()
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

    fn hash_of(limits: &str, scheduling: &str) -> String {
        let limits: LimitsSpec = serde_json::from_str(limits).unwrap();
        let scheduling: SchedulingSpec = serde_json::from_str(scheduling).unwrap();
        profile_hash(Some(&limits), Some(&scheduling))
    }

    #[test]
    fn equivalent_specs_have_equal_hashes_and_others_have_different_ones() {
        let base = hash_of(r#"{"queueDelayMax": "1s", "batchBytesMax": "1Ki"}"#, "{}");
        assert_eq!(base.len(), 10);
        assert!(base.chars().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(base, hash_of(r#"{"batchBytesMax": 1024, "queueDelayMax": "1000ms"}"#, "{}"));
        assert_ne!(base, hash_of(r#"{"queueDelayMax": "2s", "batchBytesMax": "1Ki"}"#, "{}"));
        assert_ne!(base, hash_of(r#"{"queueDelayMax": "1s", "batchBytesMax": "1Ki"}"#, r#"{"preset": "balanced"}"#));
        assert_eq!(hash_of("{}", "{}"), profile_hash(None, None), "empty and absent values are equal");
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

    #[test]
    fn pruning_keeps_the_newest_unused_profiles_and_those_of_users() {
        let profile = |name: &str, created, generated| ExistingProfile {
            name: name.to_owned(),
            created: UnixSeconds(created),
            generated,
        };
        let existing = [
            profile("old", 1, true),
            profile("used", 2, true),
            profile("mine", 3, false),
            profile("newer", 4, true),
            profile("newest", 5, true),
        ];
        assert_eq!(prune(&existing, &BTreeSet::from(["used"]), 2), ["old"]);
        assert_eq!(prune(&existing, &BTreeSet::from(["used"]), 0), ["newest", "newer", "old"]);
        assert_eq!(prune(&existing, &BTreeSet::from(["used", "old"]), 10), [""; 0]);
    }
}
