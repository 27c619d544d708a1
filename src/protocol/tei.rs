//! Text Embeddings Inference (TEI): its own routes, and the limits that it publishes.
//!
//! TEI forms batches by itself. Without a route that names the protocol, `/embed` and the embeddings
//! of `OpenAI` are merged only for other servers that implement them, so the endpoint requires the data
//! that `/info` publishes.

use crate::items::number_at;
use crate::json::{self, JsonRules, Span};
use crate::pointer::Pointer;
use crate::published::{ModelKind, NotJson, PublishedLimits};

pub(crate) use routes::{TeiRoute, documents, is_model_path, unknown_model};

mod routes;

/// Parses the response to `GET /info`. Returns `None` if it names no limits, since the server is
/// then not known to observe the limits of this protocol.
///
/// A server that publishes `max_batch_tokens` has a token budget to fill, so it forms batches
/// itself. So does Text Generation Inference, which publishes `max_total_tokens`, the budget of one
/// call.
///
/// # Errors
/// [`NotJson`] if the response is not JSON, as that of a gateway or of a page for all paths.
pub(crate) fn parse_info(info: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
    json::validate(info, JsonRules::PUBLISHED).map_err(|_| NotJson)?;
    let root = json::root(info);
    let number = |name| number_at(info, root, &Pointer::from_static(name)).filter(|number| *number > 0);
    let items_max = number("/max_client_batch_size");
    let weight_max = number("/max_batch_tokens");
    if items_max.is_none() && weight_max.is_none() {
        return Ok(None);
    }
    Ok(Some(PublishedLimits {
        items_max: items_max.map(|items| u32::try_from(items).unwrap_or(u32::MAX)),
        weight_max,
        has_no_batch: false,
        batches_itself: weight_max.is_some() || number("/max_total_tokens").is_some(),
        model_kind: model_kind(info, root),
    }))
}

/// Returns the type of the model from the only member of `model_type`.
fn model_kind(info: &[u8], root: Span) -> Option<ModelKind> {
    const KINDS: [(&str, ModelKind); 3] = [
        ("/model_type/embedding", ModelKind::Embedding),
        ("/model_type/classifier", ModelKind::Classifier),
        ("/model_type/reranker", ModelKind::Reranker),
    ];
    let is_present = |name: &str| matches!(json::find(info, root, &Pointer::from_static(name)), Ok(Some(_)));
    let mut present = KINDS.into_iter().filter(|(name, _)| is_present(name)).map(|(_, kind)| kind);
    present.next().filter(|_| present.next().is_none())
}

/// Returns the model and revision from the response to `GET /info`. A change of either means
/// another model.
#[must_use]
pub fn parse_info_model(info: &[u8]) -> Option<String> {
    json::validate(info, JsonRules::PUBLISHED).ok()?;
    let root = json::root(info);
    let text = |name: &str| -> Option<&str> {
        let found = json::find(info, root, &Pointer::from_static(name)).ok()??;
        // Compared as written. `null` means that no name is published.
        std::str::from_utf8(found.value.of(info)).ok()?.strip_prefix('"')?.strip_suffix('"')
    };
    let model = text("/model_id")?;
    Some(text("/model_sha").map_or_else(|| model.to_owned(), |revision| format!("{model} {revision}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_the_info_of_tei_are_parsed() {
        let info = br#"{"model_id":"m","max_concurrent_requests":512,"max_batch_tokens":16384,"max_batch_requests":null,"max_client_batch_size":32}"#;
        let expected = PublishedLimits {
            items_max: Some(32),
            weight_max: Some(16384),
            batches_itself: true,
            ..PublishedLimits::default()
        };
        assert_eq!(parse_info(info), Ok(Some(expected)));
        let info = br#"{"max_client_batch_size": 8}"#;
        assert_eq!(parse_info(info), Ok(Some(PublishedLimits { items_max: Some(8), ..PublishedLimits::default() })));
    }

    #[test]
    fn text_generation_inference_batches_by_itself() {
        let info = br#"{"model_id":"m","max_best_of":2,"max_total_tokens":4096,"max_client_batch_size":4,"router":"text-generation-router"}"#;
        let expected = PublishedLimits { items_max: Some(4), batches_itself: true, ..PublishedLimits::default() };
        assert_eq!(parse_info(info), Ok(Some(expected)));
    }

    #[test]
    fn the_type_of_a_model_is_the_only_member_of_its_object() {
        let kind = |model_type: &str| {
            let info = format!(r#"{{"max_client_batch_size":8,"model_type":{model_type}}}"#);
            parse_info(info.as_bytes()).unwrap().unwrap().model_kind
        };
        assert_eq!(kind(r#"{"embedding":{"pooling":"cls"}}"#), Some(ModelKind::Embedding));
        assert_eq!(kind(r#"{"classifier":{"id2label":{"0":"a"}}}"#), Some(ModelKind::Classifier));
        assert_eq!(kind(r#"{"reranker":{"id2label":{"0":"a"}}}"#), Some(ModelKind::Reranker));
        for unknown in [r#""embedding""#, "null", "{}", r#"{"splade":{}}"#, r#"{"embedding":{},"reranker":{}}"#] {
            assert_eq!(kind(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_model_is_identified_by_its_name_and_revision() {
        let named = |info: &str| parse_info_model(info.as_bytes());
        assert_eq!(named(r#"{"model_id":"bge","model_sha":"a1","max_batch_tokens":9}"#).as_deref(), Some("bge a1"));
        assert_eq!(named(r#"{"model_id":"bge","model_sha":null}"#).as_deref(), Some("bge"));
        for none in
            ["{}", r#"{"model_id":7}"#, r#"{"model_sha":"a1"}"#, "not found", r#"{"model_id":"a","model_id":"b"}"#]
        {
            assert_eq!(named(none), None, "{none}");
        }
    }

    #[test]
    fn an_invalid_info_publishes_no_limits() {
        let twice = r#"{"max_client_batch_size":8,"max_client_batch_size":9}"#;
        for body in ["{}", "[1]", r#"{"max_client_batch_size":"8"}"#, twice] {
            assert_eq!(parse_info(body.as_bytes()), Ok(None), "{body}");
        }
        for body in ["", "not found", "<html>"] {
            assert_eq!(parse_info(body.as_bytes()), Err(NotJson), "{body}");
        }
    }
}
