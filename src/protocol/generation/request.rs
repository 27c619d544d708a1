//! Size and form of a request for text: tokens of the prompt, tokens requested, and whether the
//! response streams.

use crate::batching::Weight;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::shape::StreamRule;

/// Fields with the text that the model reads.
const PROMPT: [&str; 10] = [
    "messages",
    "prompt",
    "input",
    "inputs",
    "text",
    "text_input",
    "input_ids",
    "system",
    "instructions",
    "input_prefix",
];
/// Fields with the maximum number of tokens of the response.
const OUTPUT_MAX: [&str; 6] =
    ["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict", "n_predict"];
/// Objects in which some servers expect these fields.
const PARAMETERS: [&str; 3] = ["parameters", "sampling_params", "options"];
/// Mean number of bytes of a token of English text, as for other texts (`items::weight`).
const TOKEN_BYTES: usize = 4;
/// Images and other media are written as data URLs, whose length says nothing about tokens.
const DATA_URL: &[u8] = b"data:";

/// What is read of a request for text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GenerationRequest {
    /// The model as written; empty if the body names none.
    pub(crate) model: Box<[u8]>,
    /// Estimated tokens of the prompt, plus the maximum number of tokens of the response.
    pub(crate) weight: Weight,
    pub(crate) streaming: bool,
}

/// Reads a request. A body that is not one JSON object has the weight one.
pub(crate) fn read(streams: StreamRule, body: &[u8], nesting_max: usize) -> GenerationRequest {
    let rules = JsonRules { lenient: false, strict: false, nesting_max };
    let root = json::validate(body, rules).ok().map(|()| json::root(body));
    let mut found = GenerationRequest::default();
    let (mut prompt, mut output_max, mut requested) = (0_u64, 0_u64, None);
    let root = root.filter(|root| kind(body, root.start) == JsonType::Object);
    for member in root.into_iter().flat_map(|root| Members::new(body, root)) {
        let name = unescape(member.key.inner_bytes(body));
        let is_one_of = |names: &[&str]| names.iter().any(|one| one.as_bytes() == &*name);
        if is_one_of(&PROMPT) {
            prompt = prompt.saturating_add(tokens(body, member.value));
        } else if is_one_of(&OUTPUT_MAX) {
            output_max = output_max.max(number(body, member.value));
        } else if is_one_of(&PARAMETERS) && kind(body, member.value.start) == JsonType::Object {
            output_max = output_max.max(nested_output_max(body, member.value));
        } else if &*name == b"stream" {
            requested = Some(member.value.of(body) == b"true");
        } else if &*name == b"model" {
            found.model = member.value.of(body).into();
        }
    }
    found.streaming = match streams {
        StreamRule::Always => true,
        StreamRule::UnlessDeclined => requested.unwrap_or(true),
        StreamRule::IfRequested => requested.unwrap_or(false),
    };
    let sum = prompt.saturating_add(output_max).max(1);
    found.weight = Weight { sum, max: sum };
    found
}

fn nested_output_max(doc: &[u8], object: Span) -> u64 {
    let is_max = |member: &json::Member| {
        let name = unescape(member.key.inner_bytes(doc));
        OUTPUT_MAX.iter().any(|one| one.as_bytes() == &*name)
    };
    Members::new(doc, object).filter(is_max).map(|member| number(doc, member.value)).max().unwrap_or(0)
}

/// Returns a non-negative integer; zero for any other value, such as the -1 of an unlimited number.
fn number(doc: &[u8], value: Span) -> u64 {
    std::str::from_utf8(value.of(doc)).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the estimated number of tokens of all texts in a value; each number counts as a token.
/// The depth was bounded when the document was validated.
fn tokens(doc: &[u8], value: Span) -> u64 {
    match kind(doc, value.start) {
        JsonType::String if value.inner_bytes(doc).starts_with(DATA_URL) => 0,
        JsonType::String => {
            u64::try_from(json::unescaped_len(value.inner_bytes(doc)).div_ceil(TOKEN_BYTES)).unwrap_or(u64::MAX)
        }
        JsonType::Number => 1,
        JsonType::Bool | JsonType::Null => 0,
        JsonType::Array => Elements::new(doc, value).map(|element| tokens(doc, element)).fold(0, u64::saturating_add),
        JsonType::Object => {
            Members::new(doc, value).map(|member| tokens(doc, member.value)).fold(0, u64::saturating_add)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::GenerationFormat;

    fn read_at(path: &str, body: &str) -> (u64, bool) {
        let found = read(GenerationFormat::of_path(path).unwrap().streams, body.as_bytes(), 64);
        (found.weight.sum, found.streaming)
    }

    #[test]
    fn the_weight_is_the_prompt_and_the_requested_tokens() {
        for (path, body, expected) in [
            ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"12345678"}],"max_tokens":50}"#, 53),
            ("/v1/completions", r#"{"prompt":[1,2,3],"max_tokens":16}"#, 19),
            ("/generate", r#"{"inputs":"1234","parameters":{"max_new_tokens":7}}"#, 8),
            ("/api/generate", r#"{"prompt":"1234","options":{"num_predict":-1}}"#, 1),
            ("/v1/responses", r#"{"input":"1234","max_output_tokens":9}"#, 10),
            ("/v1/messages", r#"{"system":"1234","messages":[{"content":[{"url":"data:image/png;base64,AAAA"}]}]}"#, 1),
            ("/v1/completions", "not json", 1),
            ("/v1/completions", r#"["prompt"]"#, 1),
        ] {
            assert_eq!(read_at(path, body).0, expected, "{body}");
        }
    }

    #[test]
    fn a_stream_is_requested_by_the_body_or_by_the_path() {
        for (path, body, streaming) in [
            ("/v1/chat/completions", r#"{"stream":true}"#, true),
            ("/v1/chat/completions", r#"{"stream":false}"#, false),
            ("/v1/chat/completions", "{}", false),
            ("/api/chat", "{}", true),
            ("/api/chat", r#"{"stream":false}"#, false),
            ("/generate_stream", "{}", true),
        ] {
            assert_eq!(read_at(path, body).1, streaming, "{path} {body}");
        }
    }
}
