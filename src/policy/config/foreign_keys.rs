//! Configuration keys of other batchers, and the equivalent keys of a policy, for the help text of
//! an unknown key: users may bring a configuration along.
//!
//! Names are spelled as in their source: KServe from its `Batcher` type, Triton from
//! `model_config.proto`, TF Serving from `session_bundle_config.proto`, BentoML, `MLServer`, Ray
//! Serve, LitServe, `TorchServe`, DJL, TEI, infinity and vLLM from their documented options. Case,
//! underscores and dashes are ignored when names are compared, because one batcher has
//! `maxBatchSize` and another one `--max-batch-size`.
//!
//! Configuration files of other batchers are not imported. Most of their values are fixed numbers
//! for something that Groupage measures, so a copied value would be worse than none.

/// Names that several batchers use for one setting.
pub(super) struct ForeignKey {
    /// The names, in one of the batchers' spellings each.
    pub(super) names: &'static [&'static str],
    /// The batchers that use them, as in the help text.
    pub(super) of: &'static str,
    /// Path of the equivalent key of a policy; `[]` is any index of a list.
    pub(super) key: &'static str,
    /// Difference in meaning, appended to the key with its own punctuation.
    pub(super) note: &'static str,
}

const fn entry(names: &'static [&'static str], of: &'static str, key: &'static str, note: &'static str) -> ForeignKey {
    ForeignKey { names, of, key, note }
}

/// All known names. Tests compare the keys with the schema.
pub(super) const PEERS: &[ForeignKey] = &[
    entry(
        &["maxBatchSize", "batch_size", "max_batch_requests"],
        "KServe, Triton, BentoML, TF Serving, TEI and others",
        "limits.batchItemsMax",
        ", an upper limit: the size itself is learned",
    ),
    entry(
        &["preferred_batch_size", "allowed_batch_sizes"],
        "Triton, TF Serving",
        "limits.batchItemsMax",
        ", an upper limit: the best sizes are learned",
    ),
    entry(
        &["max-client-batch-size"],
        "TEI, infinity",
        "limits.batchItemsMax",
        "; the value that TEI publishes at /info is used automatically",
    ),
    entry(
        &[
            "maxLatency",
            "max_queue_delay_microseconds",
            "batch_timeout_micros",
            "maxBatchDelay",
            "max_batch_time",
            "batch_wait_timeout_s",
            "batch_timeout",
            "batch_delay",
        ],
        "KServe, Triton, TF Serving, TorchServe and others",
        "limits.queueDelayMax",
        " with a unit, such as 5ms: an upper limit that calls rarely wait for",
    ),
    entry(&["max_latency_ms"], "BentoML", "slo.latencyP99", " with a unit, such as 150ms"),
    entry(&["timeout"], "KServe", "routes[].timeout", " with a unit, such as 30s"),
    entry(
        &["default_timeout_microseconds"],
        "Triton",
        "slo.latencyP99",
        " with a unit, such as 150ms; with `late: Refuse` it also ends calls only while they are queued",
    ),
    entry(
        &["max_queue_size", "max_enqueued_batches", "jobQueueSize", "queue_size"],
        "Triton, TF Serving, TorchServe, DJL, infinity",
        "limits.queueItemsMax",
        ", counted in items; 0 never means unlimited",
    ),
    entry(
        &["max-concurrent-requests", "max_queued_requests"],
        "TEI, Ray Serve",
        "limits.queueItemsMax",
        ", counted in queued items; `limits.slotsMax` limits the batches in flight",
    ),
    entry(
        &["instance_group", "count", "num_batch_threads", "max_concurrent_batches"],
        "Triton, TF Serving, Ray Serve",
        "limits.slotsMax",
        ", an upper limit: the number of batches that the server runs at once is learned",
    ),
    entry(
        &["priority_levels", "default_priority_level"],
        "Triton",
        "priority.classes",
        ", by name; the first is the default",
    ),
    entry(
        &["max-batch-tokens", "max_num_batched_tokens"],
        "TEI, vLLM",
        "limits.batchWeightMax",
        ", in the protocol's unit of weight",
    ),
    entry(
        &["max_num_seqs"],
        "vLLM",
        "limits.standAsideMax",
        ": such an engine batches by itself, so calls are forwarded one by one, at most this many at once",
    ),
    entry(
        &["batcher", "dynamic_batching", "batching_parameters"],
        "KServe, Triton, TF Serving",
        "scheduling",
        ", which learns size and wait by itself; upper limits are under `limits`",
    ),
];

/// Normalized names that are too common to identify another batcher, except at the top level.
const COMMON: [&str; 2] = ["timeout", "count"];

/// Returns the help text for the unknown key `name` of the section `path` (empty at the top level),
/// if other batchers use this name.
pub(super) fn hint(name: &str, path: &str) -> Option<String> {
    // No known name is longer, and an unknown key may be a megabyte long.
    if name.len() > 64 {
        return None;
    }
    let normalized = normalize_name(name);
    // Inside a section, a common word is more likely a misplaced key of the schema.
    if !path.is_empty() && COMMON.contains(&normalized.as_str()) {
        return None;
    }
    let known = PEERS.iter().find(|entry| entry.names.iter().any(|name| normalize_name(name) == normalized))?;
    Some(format!("this is a key of {}; use `{}`{}", known.of, known.key, known.note))
}

/// Normalizes the spelling of a name: lower case, without underscores and dashes.
fn normalize_name(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::schema::{SPEC, walk};
    use super::super::{ConfigCode, load};
    use super::*;

    #[test]
    fn foreign_names_are_unique_and_map_to_existing_keys() {
        let mut paths = Vec::new();
        walk(SPEC, "", &mut |path, _| paths.push(path.to_owned()));
        let mut names: Vec<String> =
            PEERS.iter().flat_map(|entry| entry.names).map(|name| normalize_name(name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in PEERS {
            assert!(paths.iter().any(|path| path == entry.key), "{} is not a key", entry.key);
        }
    }

    #[test]
    fn foreign_names_are_recognised_in_any_spelling() {
        for name in ["maxBatchSize", "max_batch_size", "max-batch-size", "MAX_BATCH_SIZE"] {
            assert!(hint(name, "").unwrap().contains("`limits.batchItemsMax`"), "{name}");
        }
        assert_eq!(hint("maxBatchSizes", ""), None);
        assert!(hint("timeout", "").is_some() && hint("timeout", "proxy.connection").is_none());
        assert_eq!(hint(&"_".repeat(1 << 20), ""), None);
    }

    #[test]
    fn a_key_of_another_batcher_is_reported_with_its_equivalent() {
        for entry in PEERS {
            for name in entry.names {
                let errors = load(&format!("mode: Batch\n{name}: 1\n"), "p").unwrap_err();
                let [finding] = errors.findings.as_slice() else { panic!("{name}: one finding") };
                assert_eq!((finding.code, finding.line()), (ConfigCode::UnknownKey, Some(2)), "{name}");
                let help = finding.help.as_deref().unwrap_or_default();
                assert!(help.contains(&format!("`{}`", entry.key)), "{name}: {help}");
            }
        }
    }
}
