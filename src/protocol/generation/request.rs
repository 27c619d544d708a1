//! Size and form of a request for text: tokens of the prompt, tokens requested, and whether the
//! response streams.

use memchr::memmem;

use crate::batching::Weight;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::shape::StreamRule;
use crate::tokens::{TextMeter, TextSize};

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
/// Fields with further input that is not measured. The number of tokens that the server reports
/// then gives no information about the prompt.
const BESIDE: [&str; 9] = [
    "images",
    "tools",
    "functions",
    "documents",
    "context",
    "conversation",
    "previous_response_id",
    "suffix",
    "input_suffix",
];
/// Fields with the number of responses for each prompt.
const RESPONSES: [&str; 2] = ["n", "best_of"];
/// Maximum number of responses: that of OpenAI.
const RESPONSES_MAX: u64 = 128;
/// Tokens of the response of a call that names no maximum: the power of two next to the mean of
/// LMSYS-Chat-1M, a public collection of chats, 215 (Zheng et al., ICLR 2024). Without it, long
/// responses would be free for callers that name no maximum.
const OUTPUT_DEFAULT: u64 = 256;
/// Images and other media are written as data URLs, whose length gives no information about tokens.
const DATA_URL: &[u8] = b"data:";
/// Parts of the names of fields with media.
const MEDIA: [&[u8]; 3] = [b"image", b"audio", b"video"];

/// The fields of a text request that the proxy reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GenerationRequest {
    /// The model as written; empty if the body names none.
    pub(crate) model: Box<[u8]>,
    pub(crate) prompt: TextSize,
    /// Maximum number of tokens of all responses.
    pub(crate) output_max: u64,
    /// `true` if the server reads nothing but the prompt.
    pub(crate) is_whole: bool,
    pub(crate) streaming: bool,
}

/// Reads a request. The prompt of a body that is not one JSON object is empty.
pub(crate) fn read(
    streams: StreamRule,
    body: &[u8],
    nesting_max: usize,
    meter: &mut TextMeter<'_>,
) -> GenerationRequest {
    let rules = JsonRules { lenient: false, strict: false, nesting_max };
    let root = json::validate(body, rules).ok().map(|()| json::root(body));
    let mut found = GenerationRequest { is_whole: true, ..GenerationRequest::default() };
    let (mut output_max, mut responses, mut requested) = (None, 1, None);
    let root = root.filter(|root| kind(body, root.start) == JsonType::Object);
    for member in root.into_iter().flat_map(|root| Members::new(body, root)) {
        let name = unescape(member.key.inner_bytes(body));
        let is_one_of = |names: &[&str]| names.iter().any(|one| one.as_bytes() == &*name);
        if is_one_of(&PROMPT) {
            found.add_prompt(body, member.value, meter);
        } else if is_one_of(&OUTPUT_MAX) {
            output_max = output_max.max(number(body, member.value));
        } else if is_one_of(&PARAMETERS) && kind(body, member.value.start) == JsonType::Object {
            output_max = output_max.max(nested_output_max(body, member.value));
        } else if is_one_of(&RESPONSES) {
            responses = number(body, member.value).unwrap_or(1).clamp(responses, RESPONSES_MAX);
        } else if is_one_of(&BESIDE) {
            found.is_whole = false;
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
    found.output_max = output_max.unwrap_or(OUTPUT_DEFAULT).saturating_mul(responses);
    found
}

// === impl GenerationRequest ===

impl GenerationRequest {
    /// Returns the tokens of the prompt at default rates, plus the maximum number of tokens of the
    /// responses.
    pub(crate) fn weight(&self) -> Weight {
        let sum = self.prompt.default_tokens().saturating_add(self.output_max).max(1);
        Weight { sum, max: sum }
    }

    /// Adds all texts in a value; each number counts as a token. The depth was bounded when the
    /// document was validated.
    fn add_prompt(&mut self, doc: &[u8], value: Span, meter: &mut TextMeter<'_>) {
        match kind(doc, value.start) {
            JsonType::String if value.inner_bytes(doc).starts_with(DATA_URL) => self.is_whole = false,
            JsonType::String => self.prompt += meter.measure(value.inner_bytes(doc)),
            JsonType::Number => self.prompt += TextSize::of_tokens(1),
            JsonType::Bool | JsonType::Null => {}
            JsonType::Array => Elements::new(doc, value).for_each(|element| self.add_prompt(doc, element, meter)),
            JsonType::Object => {
                for member in Members::new(doc, value) {
                    let name = member.key.inner_bytes(doc);
                    self.is_whole &= !MEDIA.iter().any(|part| memmem::find(name, part).is_some());
                    self.add_prompt(doc, member.value, meter);
                }
            }
        }
    }
}

fn nested_output_max(doc: &[u8], object: Span) -> Option<u64> {
    let is_max = |member: &json::Member| {
        let name = unescape(member.key.inner_bytes(doc));
        OUTPUT_MAX.iter().any(|one| one.as_bytes() == &*name)
    };
    Members::new(doc, object).filter(is_max).filter_map(|member| number(doc, member.value)).max()
}

/// Returns a non-negative integer; `None` for any other value, such as the -1 of an unlimited
/// number.
fn number(doc: &[u8], value: Span) -> Option<u64> {
    std::str::from_utf8(value.of(doc)).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::GenerationFormat;

    fn read_at(path: &str, body: &str) -> (u64, bool) {
        let found =
            read(GenerationFormat::of_path(path).unwrap().streams, body.as_bytes(), 64, &mut TextMeter::default());
        (found.weight().sum, found.streaming)
    }

    #[test]
    fn the_weight_is_the_prompt_and_the_requested_tokens() {
        for (path, body, expected) in [
            ("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"12345678"}],"max_tokens":50}"#, 53),
            ("/v1/completions", r#"{"prompt":[1,2,3],"max_tokens":16}"#, 19),
            ("/generate", r#"{"inputs":"1234","parameters":{"max_new_tokens":7}}"#, 8),
            ("/api/generate", r#"{"prompt":"1234","options":{"num_predict":-1}}"#, 257),
            ("/v1/responses", r#"{"input":"1234","max_output_tokens":9}"#, 10),
            (
                "/v1/messages",
                r#"{"system":"1234","messages":[{"content":[{"url":"data:image/png;base64,AAAA"}]}]}"#,
                257,
            ),
            ("/v1/completions", "not json", 256),
            ("/v1/completions", r#"["prompt"]"#, 256),
            ("/v1/completions", r#"{"prompt":"1234","max_tokens":10,"n":3,"best_of":4}"#, 41),
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
