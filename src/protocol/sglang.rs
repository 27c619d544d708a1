//! SGLang's own route of generated text, at `/generate`: a list of prompts in `text`, or of lists of
//! token ids in `input_ids`, and a list of results at the root. A prompt outside of a list is
//! answered with its result outside of a list.
//!
//! The parameters of sampling may be a list with those of each prompt. They are part of the merge
//! key instead: all prompts of a call are answered when the longest one is, so that a call for few
//! tokens would wait for its neighbours. The format is that of `GenerateReqInput` in SGLang 0.5.

use crate::pointer::Pointer;
use crate::shape::{
    BareValue, Class, ItemIs, Measure, ProtocolShape, ResultType, TextGeneration, TokenIds, UnbatchedIf,
};

/// Last step of the path.
pub(crate) const SUFFIX: &str = "/generate";

const KNOWN: [&str; 34] = [
    "rid",
    "session_id",
    "text",
    "input_ids",
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "modalities",
    "sampling_params",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_text_in_logprobs",
    "return_sampling_mask",
    "return_hidden_states",
    "stream",
    "session_params",
    "lora_path",
    "custom_logit_processor",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "kv_router_hint",
    "positional_embed_overrides",
    "routed_dp_rank",
    "data_parallel_rank",
    "conversation_id",
    "background",
    "priority",
    "extra_key",
    "cache_salt",
];

static UNBATCHED: [(&str, UnbatchedIf); 26] = [
    // State of this call alone: its id, its session, and the worker that has its cache.
    ("rid", UnbatchedIf::Set),
    ("session_id", UnbatchedIf::Set),
    ("session_params", UnbatchedIf::Set),
    ("conversation_id", UnbatchedIf::Set),
    ("background", UnbatchedIf::NotFalse),
    ("bootstrap_host", UnbatchedIf::Set),
    ("bootstrap_port", UnbatchedIf::Set),
    ("bootstrap_room", UnbatchedIf::Set),
    ("bootstrap_pair_key", UnbatchedIf::Set),
    ("kv_router_hint", UnbatchedIf::Set),
    // One for each prompt.
    ("input_embeds", UnbatchedIf::Set),
    ("image_data", UnbatchedIf::Set),
    ("video_data", UnbatchedIf::Set),
    ("audio_data", UnbatchedIf::Set),
    ("modalities", UnbatchedIf::Set),
    ("positional_embed_overrides", UnbatchedIf::Set),
    ("token_ids_logprob", UnbatchedIf::Set),
    ("sampling_params", UnbatchedIf::List),
    ("return_logprob", UnbatchedIf::List),
    ("logprob_start_len", UnbatchedIf::List),
    ("top_logprobs_num", UnbatchedIf::List),
    ("return_hidden_states", UnbatchedIf::List),
    ("lora_path", UnbatchedIf::List),
    ("custom_logit_processor", UnbatchedIf::List),
    ("extra_key", UnbatchedIf::List),
    ("cache_salt", UnbatchedIf::List),
];

/// Several results for each prompt: a single prompt is then answered with a list.
const UNBATCHED_BELOW: [&str; 1] = ["/sampling_params/n"];

/// Returns the shape of `/generate`.
pub(crate) fn generate() -> ProtocolShape {
    ProtocolShape {
        alternatives: vec![vec![Pointer::from_static("/input_ids")]],
        bare: BareValue::Strings,
        item_is: ItemIs::Tokens,
        class: Class::Text { objects: false },
        unwrap: true,
        element: ResultType::Object,
        generation: Some(TextGeneration {
            count: "/sampling_params/n",
            token_ids: TokenIds::Unavailable,
            has_prompt_ids: false,
            streams: false,
            ends_with_counts: false,
        }),
        weight: Measure::Tokens,
        known: &KNOWN,
        unbatched_fields: &UNBATCHED,
        unbatched_members: &UNBATCHED_BELOW,
        ..ProtocolShape::plain("/text", "")
    }
}
