//! `/tokenize` and `/decode` of TEI, which execute nothing.

use std::sync::Arc;

use groupage_engine::TokenDetail;
use groupage_runtime::memory::BufferBudget;
use serde::{Deserialize, Serialize, Serializer};

use crate::error::CallError;
use crate::inputs::{EncodeOptions, Texts, check_count, parse_body};
use crate::model::{ServedModel, token_error};
use crate::prepared::PreparedCall;
use crate::response_memory::ResponseList;

/// Memory of a listed token: 80 bytes while the tokenizer has it and then as JSON, and 80 in between.
/// A token has at least one byte of its text, or is one of a few that the model adds. A normalizer
/// that lengthens a text may exceed this; what it produced is charged when it exists.
const LISTED_TOKEN_BYTES: usize = 160;
/// Maximum number of tokens that a model adds to a text.
const ADDED_TOKENS_MAX: usize = 16;
/// Memory of the text of a token while a list is decoded, in addition to its bytes.
const DECODED_TOKEN_BYTES: usize = 40;
/// Number of times that the bytes of a decoded text are in memory: twice as text, and as JSON.
const DECODED_COPIES: usize = 3;

#[derive(Deserialize)]
struct TokenizeRequest {
    inputs: Texts,
    /// `true` by default.
    add_special_tokens: Option<bool>,
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct DecodeRequest {
    ids: IdLists,
    /// `true` by default.
    skip_special_tokens: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a list of such lists")]
enum IdLists {
    One(Vec<u32>),
    List(Vec<Vec<u32>>),
}

/// Tokens of one text.
struct ListedTokens(Vec<TokenDetail>);

/// A token. Positions are in bytes of UTF-8, as of TEI.
#[derive(Serialize)]
struct SimpleToken<'a> {
    id: u32,
    text: &'a str,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

pub(super) fn prepare_tokenize(
    model: &Arc<ServedModel>,
    body: &[u8],
    buffers: &BufferBudget,
) -> Result<PreparedCall, CallError> {
    let TokenizeRequest { inputs, add_special_tokens, prompt_name } = parse_body(body)?;
    let options = EncodeOptions { prompt_name, ..EncodeOptions::default() };
    let adds_special = add_special_tokens.unwrap_or(true);
    let mut response = ResponseList::new(buffers);
    for text in inputs.into_list("inputs")? {
        let text = model.with_prompt(&text, &options)?;
        response.push((text.len() + ADDED_TOKENS_MAX) * LISTED_TOKEN_BYTES, || {
            let tokens = model.model().tokenizer().list_tokens(&text, adds_special);
            tokens.map(ListedTokens).map_err(|error| token_error(&error))
        })?;
    }
    Ok(PreparedCall::answered(response.finish()))
}

pub(super) fn prepare_decode(
    model: &Arc<ServedModel>,
    body: &[u8],
    buffers: &BufferBudget,
) -> Result<PreparedCall, CallError> {
    let DecodeRequest { ids, skip_special_tokens } = parse_body(body)?;
    let lists = match ids {
        IdLists::One(ids) if ids.is_empty() => Vec::new(),
        IdLists::One(ids) => vec![ids],
        IdLists::List(lists) => lists,
    };
    check_count(lists.len(), "ids")?;
    let skips_special = skip_special_tokens.unwrap_or(true);
    let tokenizer = model.model().tokenizer();
    let mut response = ResponseList::new(buffers);
    for ids in &lists {
        let bytes = ids.len() * DECODED_TOKEN_BYTES + DECODED_COPIES * tokenizer.vocabulary_bytes(ids);
        response.push(bytes, || tokenizer.decode(ids, skips_special).map_err(|error| token_error(&error)))?;
    }
    Ok(PreparedCall::answered(response.finish()))
}

// === impl ListedTokens ===

impl Serialize for ListedTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(SimpleToken::from))
    }
}

// === impl SimpleToken ===

impl<'a> From<&'a TokenDetail> for SimpleToken<'a> {
    fn from(detail: &'a TokenDetail) -> Self {
        let TokenDetail { id, text, is_special, span } = detail;
        let (start, stop) = (span.map(|(start, _)| start), span.map(|(_, stop)| stop));
        Self { id: *id, text, special: *is_special, start, stop }
    }
}
