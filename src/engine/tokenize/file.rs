//! The file `tokenizer.json`, parsed with checks of what the `tokenizers` crate takes on trust.
//!
//! The crate panics, or reserves gigabytes, for some files that its parser accepts. Models are
//! downloaded, so that a file is checked before and after it is parsed, and panics are caught.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{ModelWrapper, Tokenizer};

use super::TokenError;

/// Maximum of `max_input_chars_per_word` of a `WordPiece` model. Published models have 100. The
/// search for the parts of a word takes time that grows with the cube of its length.
const WORD_CHARS_MAX: usize = 256;

/// A tokenizer, and the side of truncation of its file.
pub(super) struct TokenizerFile {
    pub(super) tokenizer: Tokenizer,
    pub(super) direction: Option<TruncationDirection>,
}

/// Parts of the file that are checked before it is parsed. Others are skipped, not stored.
#[derive(Deserialize)]
struct CheckedParts {
    #[serde(default)]
    normalizer: Value,
}

/// Parses the file, without its padding and the length of its truncation. An error is the reason,
/// and the part of the file.
pub(super) fn parse(bytes: &[u8]) -> Result<TokenizerFile, (String, &'static str)> {
    let whole = |reason: String| (reason, "the file");
    let parts: CheckedParts = serde_json::from_slice(bytes).map_err(|error| whole(error.to_string()))?;
    check_normalizer(&parts.normalizer).map_err(|reason| (reason, "field `normalizer`"))?;
    let parsed = catch_unwind(|| Tokenizer::from_bytes(bytes)).map_err(|_| whole("contradictory fields".to_owned()))?;
    let mut tokenizer = parsed.map_err(|error| whole(error.to_string()))?;
    let direction = tokenizer.get_truncation().map(|truncation| truncation.direction);
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| whole(error.to_string()))?;
    Ok(TokenizerFile { tokenizer, direction })
}

/// Checks a tokenizer with all its settings. An error is the reason, and the part of the file.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), (String, &'static str)> {
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model()
        && model.max_input_chars_per_word > WORD_CHARS_MAX
    {
        let reason = format!("{}, above the maximum of {WORD_CHARS_MAX}", model.max_input_chars_per_word);
        return Err((reason, "field `model.max_input_chars_per_word`"));
    }
    // Both templates of the post-processor are used, whatever the texts are.
    let encode = || {
        drop(tokenizer.encode("a b", true));
        drop(tokenizer.encode(("a b", "a b"), true));
    };
    let reason = "a text or a pair of texts that cannot be encoded";
    catch_unwind(AssertUnwindSafe(encode)).map_err(|_| (reason.to_owned(), "field `post_processor` or `normalizer`"))
}

/// Runs a function of the `tokenizers` crate. A panic is an error, because damaged tables are found
/// only when a text needs them.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> Result<T, TokenError>) -> Result<T, TokenError> {
    let panicked = || TokenError::Tokenizer("`tokenizer.json` is damaged: download it again".to_owned());
    // The tokenizer is not changed by its use, except for its cache of words, which has a lock.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panicked()))
}

/// Checks the tables of all `Precompiled` normalizers, which are those of `SentencePiece`.
fn check_normalizer(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match value {
            Value::String(table) if name == "precompiled_charsmap" => check_charsmap(table),
            _ => check_normalizer(value),
        }),
        Value::Array(elements) => elements.iter().try_for_each(check_normalizer),
        _ => Ok(()),
    }
}

/// Checks the size of the trie at the beginning of a table in Base64: its first four bytes, in
/// little-endian order. The parser reserves memory for this size, and reads the first element.
fn check_charsmap(table: &str) -> Result<(), String> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte).and_then(|at| u64::try_from(at).ok());
    // Six digits have 36 bits.
    let digits = table.bytes().take(6).map(digit).collect::<Option<Vec<_>>>().filter(|digits| digits.len() == 6);
    let bits = digits.map(|digits| digits.iter().fold(0, |bits, digit| bits << 6 | digit) >> 4);
    let size = bits.and_then(|bits| u32::try_from(bits).ok()).map(u32::swap_bytes);
    let rest = (table.len() / 4 * 3).saturating_sub(4);
    match size.and_then(|size| usize::try_from(size).ok()) {
        Some(size) if size >= 4 && size <= rest => Ok(()),
        Some(size) => Err(format!("`precompiled_charsmap` with a trie of {size} bytes, of {rest} bytes in total")),
        None => Err("`precompiled_charsmap` that is not Base64".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trie_of_a_table_is_within_it() {
        // Tries of 4 bytes, of 0, of 2^32 - 1, and of 8 with 4 that follow.
        for (table, is_whole) in [
            ("BAAAAAAAAAA=", true),
            ("AAAAAA==", false),
            ("/////w==", false),
            ("CAAAAAAAAAA=", false),
            ("BAAA", false),
            ("", false),
            ("BAAA!AAAAAA=", false),
        ] {
            assert_eq!(check_charsmap(table).is_ok(), is_whole, "{table}");
        }
        let nested = serde_json::json!({"type": "Sequence", "normalizers": [{"precompiled_charsmap": "/////w=="}]});
        assert!(check_normalizer(&nested).unwrap_err().contains("4294967295"));
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = catch_panic(|| -> Result<(), _> { panic!("a bug") }).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
}
