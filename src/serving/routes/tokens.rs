//! `/tokenize` and `/decode` of TEI, which execute nothing.

use std::sync::Arc;

use groupage_engine::{OffsetUnit, TokenDetail};
use serde::{Deserialize, Serialize};

use crate::error::CallError;
use crate::inputs::{EncodeOptions, Texts, check_count, parse_body};
use crate::model::{ServedModel, token_error};
use crate::prepared::PreparedCall;

#[derive(Deserialize)]
struct TokenizeRequest {
    inputs: Texts,
    /// `true` by default.
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct DecodeRequest {
    ids: IdLists,
    /// `true` by default.
    #[serde(default)]
    skip_special_tokens: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or a list of such lists")]
enum IdLists {
    One(Vec<u32>),
    List(Vec<Vec<u32>>),
}

/// A token. Positions are in code points.
#[derive(Serialize)]
struct SimpleToken {
    id: u32,
    text: String,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

pub(super) fn prepare_tokenize(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let TokenizeRequest { inputs, add_special_tokens, prompt_name } = parse_body(body)?;
    let options = EncodeOptions { prompt_name, ..EncodeOptions::default() };
    let adds_special = add_special_tokens.unwrap_or(true);
    let tokenize = |text: String| {
        let text = model.with_prompt(&text, &options)?;
        let tokens = model.model().tokenizer().list_tokens(&text, adds_special, OffsetUnit::Chars);
        Ok(tokens.map_err(|error| token_error(&error))?.into_iter().map(SimpleToken::from).collect::<Vec<_>>())
    };
    let tokens = inputs.into_list("inputs")?.into_iter().map(tokenize).collect::<Result<Vec<_>, CallError>>()?;
    PreparedCall::answered(&tokens)
}

pub(super) fn prepare_decode(model: &Arc<ServedModel>, body: &[u8]) -> Result<PreparedCall, CallError> {
    let DecodeRequest { ids, skip_special_tokens } = parse_body(body)?;
    let lists = match ids {
        IdLists::One(ids) if ids.is_empty() => Vec::new(),
        IdLists::One(ids) => vec![ids],
        IdLists::List(lists) => lists,
    };
    check_count(lists.len(), "ids")?;
    let skips_special = skip_special_tokens.unwrap_or(true);
    let decode =
        |ids: &Vec<u32>| model.model().tokenizer().decode(ids, skips_special).map_err(|error| token_error(&error));
    let texts = lists.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
    PreparedCall::answered(&texts)
}

// === impl SimpleToken ===

impl From<TokenDetail> for SimpleToken {
    fn from(TokenDetail { id, text, is_special, span }: TokenDetail) -> Self {
        Self { id, text, special: is_special, start: span.map(|(start, _)| start), stop: span.map(|(_, stop)| stop) }
    }
}
