//! Engines for text generation that name themselves. They form batches from concurrent calls, token
//! by token, so that calls for text are merged before them only where a policy requests it.

use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::pointer::Pointer;
use crate::published::{NotJson, PublishedLimits};

/// Owners of models, as engines write them in their list of models. Ollama takes one prompt in a
/// call.
const OWNERS: [&[u8]; 5] = [b"vllm", b"sglang", b"lmdeploy", b"llamacpp", b"library"];
/// Maximum number of models that are read. An engine has a few, and a gateway may list thousands.
const MODELS_MAX: usize = 64;
const ENGINE: PublishedLimits =
    PublishedLimits { items_max: None, weight_max: None, has_no_batch: false, batches_itself: true, model_kind: None };

/// Returns `true` if a `Server` header is that of an engine.
#[must_use]
pub fn is_engine(server: &str) -> bool {
    server.trim().eq_ignore_ascii_case("llama.cpp")
}

/// Parses the response to `GET /v1/models`.
///
/// # Errors
/// [`NotJson`] if the response is not JSON, as that of a page for all paths.
pub(crate) fn parse_models(body: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
    json::validate(body, JsonRules::PUBLISHED).map_err(|_| NotJson)?;
    let find = |at: Span, name: &str| json::find(body, at, &Pointer::from_static(name)).ok().flatten();
    let is_list = |list: &Span| kind(body, list.start) == JsonType::Array;
    let list = find(json::root(body), "/data").map(|found| found.value).filter(is_list);
    let owner =
        |model: Span| find(model, "/owned_by").filter(|owner| kind(body, owner.value.start) == JsonType::String);
    let is_owned =
        |model: Span| owner(model).is_some_and(|owner| OWNERS.contains(&&*unescape(owner.value.inner_bytes(body))));
    let mut models = list.into_iter().flat_map(|list| Elements::new(body, list)).take(MODELS_MAX);
    Ok(models.any(is_owned).then_some(ENGINE))
}

/// Parses the response to `GET /version`. That of vLLM has one member.
///
/// # Errors
/// [`NotJson`] if the response is not JSON.
pub(crate) fn parse_version(body: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
    json::validate(body, JsonRules::PUBLISHED).map_err(|_| NotJson)?;
    let root = json::root(body);
    if kind(body, root.start) != JsonType::Object {
        return Ok(None);
    }
    let mut members = Members::new(body, root);
    let (first, second) = (members.next(), members.next());
    let is_version = first.is_some_and(|member| {
        member.key.inner_bytes(body) == b"version" && kind(body, member.value.start) == JsonType::String
    });
    Ok((is_version && second.is_none()).then_some(ENGINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_recognised_by_the_owner_of_their_models() {
        for owner in ["vllm", "sglang", "lmdeploy", "llamacpp", "library"] {
            let body = format!(r#"{{"object":"list","data":[{{"id":"a"}},{{"id":"m","owned_by":"{owner}"}}]}}"#);
            assert_eq!(parse_models(body.as_bytes()), Ok(Some(ENGINE)), "{owner}");
        }
        for body in [
            r#"{"data":[{"id":"m","owned_by":"openai"}]}"#,
            r#"{"data":[{"id":"vllm","owned_by":7}]}"#,
            r#"{"data":{"owned_by":"vllm"}}"#,
            r#"{"owned_by":"vllm"}"#,
            r#"{"data":[]}"#,
            r#"["vllm"]"#,
        ] {
            assert_eq!(parse_models(body.as_bytes()), Ok(None), "{body}");
        }
        assert_eq!(parse_models(b"<html>vllm</html>"), Err(NotJson));
    }

    #[test]
    fn only_a_version_and_nothing_else_is_that_of_an_engine() {
        assert_eq!(parse_version(br#"{"version":"0.9.1"}"#), Ok(Some(ENGINE)));
        for body in [r#"{"version":"1","commit":"a"}"#, r#"{"version":2}"#, r#"{"major":"1"}"#, "{}", r#""1.0""#] {
            assert_eq!(parse_version(body.as_bytes()), Ok(None), "{body}");
        }
        assert_eq!(parse_version(b"v1"), Err(NotJson));
    }

    #[test]
    fn the_name_of_a_server_is_that_of_an_engine_as_a_whole() {
        assert!(is_engine("llama.cpp") && is_engine(" LLAMA.CPP"));
        assert!(!is_engine("uvicorn") && !is_engine("not llama.cpp"));
    }
}
