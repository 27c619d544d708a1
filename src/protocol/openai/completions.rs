//! OpenAI completions: generation of text that continues one or more prompts.
//!
//! `prompt` is a string, a list of strings, a list of token ids, or a list of such lists. The
//! result with number `k` of the prompt at `place` has the index `place * n + k`. Parameters of
//! sampling are part of the merge key, so calls that differ in one of them never share a batch.
//!
//! Streamed responses are split by `split::stream`.

use super::{chat, indexed_results};
use crate::shape::{BareValue, Class, ItemIs, ProtocolShape, TextGeneration, TokenIds, UnbatchedIf};

/// Paths that are recognised even if no policy names them. KServe's runtime of Hugging Face models
/// serves the second.
pub(crate) const PATHS: [&str; 2] = [PATH, "/openai/v1/completions"];
/// The one of them whose calls are merged once the server is known to be no engine. KServe's list of
/// models names no engine, so that one behind the other path would not be known.
pub(crate) const PATH: &str = "/v1/completions";
/// Last step of the path.
const SUFFIX: &str = "/completions";

const KNOWN: [&str; 37] = [
    "model",
    "prompt",
    "prompt_embeds",
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "min_tokens",
    "n",
    "num_return_sequences",
    "presence_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "user",
    "use_beam_search",
    "response_format",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "priority",
    "cache_salt",
    "request_id",
    "rid",
    "session_id",
    "kv_transfer_params",
    "ignore_eos",
];

static UNBATCHED: [(&str, UnbatchedIf); 10] = [
    // The first, see `unbatched_fields`: the server draws random numbers for a batch as a whole.
    ("seed", UnbatchedIf::Set),
    // The prompt is a tensor.
    ("prompt_embeds", UnbatchedIf::Set),
    // The text behind the insertion belongs to one prompt.
    ("suffix", UnbatchedIf::Set),
    // More candidates than results are generated, and only the totals show their tokens.
    ("best_of", UnbatchedIf::UnlessEqual("n")),
    // Another name of `n`, on servers built on transformers.
    ("num_return_sequences", UnbatchedIf::Set),
    ("use_beam_search", UnbatchedIf::NotFalse),
    // State of this call alone: a transfer of its cache, its session, and the id of its response.
    ("kv_transfer_params", UnbatchedIf::Set),
    ("session_id", UnbatchedIf::Set),
    ("request_id", UnbatchedIf::Set),
    ("rid", UnbatchedIf::Set),
];

/// Variant of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletionsVariant {
    OpenAi,
    Vllm,
    SgLang,
    /// Accepts texts, but no token ids.
    Tgi,
}

/// Returns `true` for a path of completions. Those of chat have the same ending.
pub(crate) fn is_path(path: &str) -> bool {
    path.ends_with(SUFFIX) && !path.ends_with(chat::SUFFIX)
}

/// Returns the fields of calls that are sent unbatched. Engines draw random numbers for each prompt,
/// so that those of a call with a seed do not depend on its neighbours.
fn unbatched_fields(variant: CompletionsVariant) -> &'static [(&'static str, UnbatchedIf)] {
    match variant {
        CompletionsVariant::OpenAi => &UNBATCHED,
        CompletionsVariant::Vllm | CompletionsVariant::SgLang | CompletionsVariant::Tgi => {
            UNBATCHED.split_first().map_or(&[], |(_, rest)| rest)
        }
    }
}

/// Returns the shape of `/v1/completions`.
pub(crate) fn completions(variant: CompletionsVariant) -> ProtocolShape {
    let token_ids = match variant {
        CompletionsVariant::OpenAi | CompletionsVariant::Tgi => TokenIds::Unavailable,
        CompletionsVariant::Vllm => TokenIds::NullUnlessRequested,
        CompletionsVariant::SgLang => TokenIds::AbsentUnlessRequested,
    };
    ProtocolShape {
        bare: BareValue::Strings,
        item_is: ItemIs::Tokens,
        class: if variant == CompletionsVariant::Tgi { Class::Strings } else { Class::Text { objects: false } },
        generation: Some(TextGeneration {
            count: "/n",
            token_ids,
            has_prompt_ids: true,
            streams: true,
            ends_with_counts: variant == CompletionsVariant::Tgi,
        }),
        id_from_request: variant == CompletionsVariant::Vllm,
        known: &KNOWN,
        unbatched_fields: unbatched_fields(variant),
        envelope: &["object", "model", "created", "service_tier", "system_fingerprint", "kv_transfer_params"],
        // The index orders the results, which TGI writes in the order of their completion.
        ..indexed_results("/prompt", "/choices")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_is_no_path_of_completions() {
        for path in ["/v1/completions", "/completions", "/openai/v1/completions"] {
            assert!(is_path(path), "{path}");
        }
        for path in ["/v1/chat/completions", "/chat/completions", "/completion", "/v1/completions/"] {
            assert!(!is_path(path), "{path}");
        }
    }
}
