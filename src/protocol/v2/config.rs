//! The configuration of a model, as far as Triton publishes it: whether the first dimension of its
//! tensors is the batch, and how large a batch may be.

use crate::json::{self, JsonRules, JsonType, kind};
use crate::pointer::Pointer;
use crate::published::{NotJson, PublishedLimits};

/// Section of a model whose calls are parts of sequences.
const STATEFUL: &str = "/sequence_batching";
/// Section of a model that answers a call with any number of responses.
const DECOUPLED: &str = "/model_transaction_policy/decoupled";
/// Section of a model for which the server forms batches.
const DYNAMIC: &str = "/dynamic_batching";

/// Parses the response to `GET /v2/models/{model}/config`. Returns `None` if it does not have the
/// maximum size of a batch.
///
/// A maximum of zero means that the first dimension is not the batch. The calls of a model with
/// state or with several responses to a call depend on each other or cannot be joined, so they are
/// treated in the same way.
///
/// # Errors
/// [`NotJson`] if the response is not JSON.
pub(crate) fn parse_model_config(config: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
    json::validate(config, JsonRules { lenient: true, strict: true, nesting_max: 64 }).map_err(|_| NotJson)?;
    let root = json::root(config);
    let find = |name: &str| json::find(config, root, &Pointer::from_static(name)).ok().flatten();
    let size = find("/max_batch_size").and_then(|found| std::str::from_utf8(found.value.of(config)).ok()?.parse().ok());
    let Some(size): Option<i64> = size else { return Ok(None) };
    let has_section = |name: &str| find(name).is_some_and(|found| kind(config, found.value.start) == JsonType::Object);
    let is_decoupled = find(DECOUPLED).is_some_and(|found| found.value.of(config) == b"true");
    let size = if has_section(STATEFUL) || is_decoupled { 0 } else { size };
    Ok(Some(model_limits(size, has_section(DYNAMIC))))
}

/// Returns the limits of a model with this maximum size of a batch; zero if its first dimension is
/// not the batch.
pub(crate) fn model_limits(size: i64, batches_itself: bool) -> PublishedLimits {
    let items_max = Some(u32::try_from(size.max(1)).unwrap_or(u32::MAX));
    PublishedLimits { items_max, has_no_batch: size < 1, batches_itself, ..PublishedLimits::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_of_a_model_is_parsed() {
        let limits = |config: &str| parse_model_config(config.as_bytes());
        let items = |config: &str| limits(config).unwrap().unwrap().items_max;
        assert_eq!(items(r#"{"name":"m","max_batch_size":8,"input":[{"dims":[2]}]}"#), Some(8));
        assert_eq!(items(r#"{"max_batch_size":0}"#), Some(1));
        assert_eq!(items(r#"{"max_batch_size":-1}"#), Some(1));
        assert_eq!(items(r#"{"max_batch_size":8,"sequence_batching":{}}"#), Some(1));
        assert_eq!(items(r#"{"max_batch_size":8,"model_transaction_policy":{"decoupled":true}}"#), Some(1));
        assert_eq!(items(r#"{"max_batch_size":8,"model_transaction_policy":{"decoupled":false}}"#), Some(8));
        let has_no_batch = |config: &str| limits(config).unwrap().unwrap().has_no_batch;
        assert!(has_no_batch(r#"{"max_batch_size":0}"#) && has_no_batch(r#"{"max_batch_size":-1}"#));
        assert!(has_no_batch(r#"{"max_batch_size":8,"sequence_batching":{}}"#));
        assert!(!has_no_batch(r#"{"max_batch_size":1}"#), "one row at a time, which a larger call is divided into");
        assert!(!limits(r#"{"max_batch_size":8}"#).unwrap().unwrap().batches_itself);
        assert!(limits(r#"{"max_batch_size":8,"dynamic_batching":{}}"#).unwrap().unwrap().batches_itself);
        for none in ["{}", "[]", r#"{"max_batch_size":"8"}"#, r#"{"max_batch_size":1,"max_batch_size":2}"#] {
            assert_eq!(limits(none), Ok(None), "{none}");
        }
        assert_eq!(limits("<html>"), Err(NotJson));
    }
}
