//! Parsing of `tokenizer.json`, with checks that the parser of the `tokenizers` crate does not
//! make.
//!
//! For some files that the parser accepts, the crate panics or reserves gigabytes. Models are
//! downloaded and may be damaged, so a file is checked before and after it is parsed, and panics
//! are caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{ModelWrapper, PostProcessor as _, Tokenizer};

use super::TokenError;
use crate::error::LoadError;

/// Upper limit of `max_input_chars_per_word` of a `WordPiece` model. Published models have 100. The
/// time to divide a word into its parts grows with the cube of its length.
const WORD_CHARS_MAX: usize = 256;

/// A parsed `tokenizer.json`.
pub(super) struct TokenizerFile {
    pub(super) tokenizer: Tokenizer,
    /// Side of truncation, if the file states one.
    pub(super) direction: Option<TruncationDirection>,
}

/// Fields of the file that are checked before it is parsed. All other fields are skipped.
#[derive(Deserialize)]
struct CheckedParts {
    #[serde(default)]
    normalizer: Value,
}

/// Parses the file, and removes its padding and its truncation from the tokenizer. An error has the
/// reason, and the part of the file that it concerns.
pub(super) fn parse(bytes: &[u8]) -> Result<TokenizerFile, (String, &'static str)> {
    let whole_file = |reason: String| (reason, "the file");
    let parts: CheckedParts = serde_json::from_slice(bytes).map_err(|error| whole_file(error.to_string()))?;
    check_normalizer(&parts.normalizer).map_err(|reason| (reason, "field `normalizer`"))?;
    let parsed =
        catch_unwind(|| Tokenizer::from_bytes(bytes)).map_err(|_| whole_file("contradictory fields".to_owned()))?;
    let mut tokenizer = parsed.map_err(|error| whole_file(error.to_string()))?;
    let direction = tokenizer.get_truncation().map(|truncation| truncation.direction);
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| whole_file(error.to_string()))?;
    Ok(TokenizerFile { tokenizer, direction })
}

/// Checks a tokenizer to which all settings were applied. An error has the reason, and the part of
/// the file that it concerns.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), (String, &'static str)> {
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model()
        && model.max_input_chars_per_word > WORD_CHARS_MAX
    {
        let reason = format!("{}, above the maximum of {WORD_CHARS_MAX}", model.max_input_chars_per_word);
        return Err((reason, "field `model.max_input_chars_per_word`"));
    }
    // The post-processor has a template for one text and another for a pair. Each of these calls
    // applies one of them, so that an invalid template panics here and not in a call.
    let encode = || {
        drop(tokenizer.encode("a b", true));
        drop(tokenizer.encode(("a b", "a b"), true));
    };
    let reason = "a text or a pair of texts that cannot be encoded";
    catch_unwind(AssertUnwindSafe(encode)).map_err(|_| (reason.to_owned(), "field `post_processor` or `normalizer`"))
}

/// Checks that special tokens are added to a text. Encoders of all architectures of this crate were
/// trained with them, and without them they give other vectors. The classes of the `transformers`
/// library build a template of their own, so that its files may lack one.
pub(super) fn check_special_tokens(tokenizer: &Tokenizer, file: &Path) -> Result<(), LoadError> {
    if tokenizer.get_post_processor().is_some_and(|post| post.added_tokens(false) > 0) {
        return Ok(());
    }
    Err(LoadError {
        file: file.display().to_string(),
        place: "field `post_processor`".to_owned(),
        found: "nothing that adds special tokens".to_owned(),
        expected: "a template with the special tokens of the model, such as [CLS] and [SEP]".to_owned(),
        advice: "load and save the tokenizer with `AutoTokenizer` of the `transformers` library, which adds it",
    })
}

/// Runs a function of the `tokenizers` crate, and returns an error if it panics: damaged tables
/// cause a panic only when a text needs them.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> Result<T, TokenError>) -> Result<T, TokenError> {
    let panicked = || TokenError::Tokenizer("`tokenizer.json` is damaged: download it again".to_owned());
    // Encoding does not change the tokenizer, except for its cache of words behind a lock, so it is
    // consistent after a panic.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(panicked()))
}

/// Checks the tables of all normalizers of the type `Precompiled` (those of `SentencePiece`
/// models), at any depth.
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

/// Checks the size of the trie in a `precompiled_charsmap`, which is Base64. Its first four bytes
/// have the size in little-endian order, and the trie follows. The parser reserves memory of this
/// size and reads the first element of the trie, without a check of either.
fn check_charsmap(table: &str) -> Result<(), String> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte).and_then(|at| u64::try_from(at).ok());
    // Six Base64 digits have 36 bits, of which the first 32 are the size.
    let digits = table.bytes().take(6).map(digit).collect::<Option<Vec<_>>>().filter(|digits| digits.len() == 6);
    let bits = digits.map(|digits| digits.iter().fold(0, |bits, digit| bits << 6 | digit) >> 4);
    let size = bits.and_then(|bits| u32::try_from(bits).ok()).map(u32::swap_bytes);
    let rest = (table.len() / 4 * 3).saturating_sub(4);
    match size.and_then(|size| usize::try_from(size).ok()) {
        Some(size) if size >= 4 && size <= rest => Ok(()),
        Some(size) => {
            Err(format!("`precompiled_charsmap` with a trie of {size} bytes, where {rest} bytes follow its size"))
        }
        None => Err("`precompiled_charsmap` that is not Base64".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trie_of_a_table_is_within_it() {
        // Sizes of 4, 0 and 2^32 - 1 bytes, and of 8 bytes where only 4 follow; then tables that
        // are too short or not Base64.
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
