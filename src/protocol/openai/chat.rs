//! OpenAI chat, for vLLM: several conversations are one call to `/v1/chat/completions/batch`, with a
//! list of conversations as `messages`. The result has one choice for each.
//!
//! vLLM takes no streams, no tools, no beam search and one choice in this form. The other calls are
//! queued as those for text on any server (`generation`).

use super::indexed_results;
use crate::shape::{Class, ItemIs, ListPath, Measure, ProtocolShape, TextGeneration, TokenIds, UnbatchedIf};

/// Last steps of the path.
pub(crate) const SUFFIX: &str = "/chat/completions";
/// Further steps of the path of shared calls.
const LIST_STEPS: &str = "/batch";

const KNOWN: [&str; 36] = [
    "model",
    "messages",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "user",
    "use_beam_search",
    "chat_template",
    "chat_template_kwargs",
    "echo",
    "return_token_ids",
    "priority",
    "cache_salt",
    "request_id",
    "session_id",
    "kv_transfer_params",
];

const UNBATCHED: [(&str, UnbatchedIf); 12] = [
    ("n", UnbatchedIf::UnlessOne),
    ("best_of", UnbatchedIf::UnlessOne),
    ("tools", UnbatchedIf::Set),
    ("functions", UnbatchedIf::Set),
    ("use_beam_search", UnbatchedIf::NotFalse),
    // The response has the tokens of one prompt, beside its choices.
    ("prompt_logprobs", UnbatchedIf::Set),
    ("return_token_ids", UnbatchedIf::NotFalse),
    // The batch form names these tokens by their ids if it returns ids, as it is requested to.
    ("logprobs", UnbatchedIf::NotFalse),
    // State of this call alone: a transfer of its cache, its session, and the id of its response.
    ("kv_transfer_params", UnbatchedIf::Set),
    ("session_id", UnbatchedIf::Set),
    ("request_id", UnbatchedIf::Set),
    ("rid", UnbatchedIf::Set),
];

/// Returns the shape of `/v1/chat/completions`.
pub(crate) fn completions() -> ProtocolShape {
    ProtocolShape {
        item_is: ItemIs::Conversation,
        class: Class::Conversations,
        generation: Some(TextGeneration {
            count: "/n",
            token_ids: TokenIds::NullUnlessRequested,
            has_prompt_ids: false,
            streams: false,
            ends_with_counts: false,
        }),
        id_from_request: true,
        share_by: Measure::Bytes,
        known: &KNOWN,
        unbatched_fields: &UNBATCHED,
        envelope: &[
            "object",
            "model",
            "created",
            "service_tier",
            "system_fingerprint",
            "prompt_logprobs",
            "prompt_token_ids",
            "kv_transfer_params",
        ],
        upstream_path: Some(ListPath::Below(LIST_STEPS)),
        ..indexed_results("/messages", "/choices")
    }
}
