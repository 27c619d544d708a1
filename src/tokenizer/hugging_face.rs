//! The format of the `tokenizers` crate of Hugging Face.

use std::fmt;

use groupage_protocol::TokenCounter;
use tokenizers::Tokenizer;

/// A tokenizer that counts.
pub(super) struct FileTokenizer(Tokenizer);

impl FileTokenizer {
    /// Parses the content of a `tokenizer.json`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        // Files often pad to, or cut at, a length that servers do not use.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        Ok(Self(tokenizer))
    }
}

impl TokenCounter for FileTokenizer {
    fn count(&self, text: &str) -> Option<u64> {
        let encoding = self.0.encode_fast(text, true).ok()?;
        u64::try_from(encoding.len()).ok()
    }
}

impl fmt::Debug for FileTokenizer {
    /// Prints the size only: a vocabulary has a hundred thousand entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTokenizer").field("vocabulary", &self.0.get_vocab_size(true)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of words with a token before and after each text, and the lengths of a file for
    /// short texts.
    const FILE: &str = r#"{
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [
            {"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 1, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 2, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}
            }
        },
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "heavy": 4, "light": 5}, "unk_token": "[UNK]"}
    }"#;

    #[test]
    fn tokens_are_counted_with_those_that_the_model_adds_and_without_padding() {
        let tokenizer = FileTokenizer::parse(FILE.as_bytes()).unwrap();
        for (text, tokens) in [("", 2), ("light", 3), ("Heavy light unknown", 5), ("light, light; light", 7)] {
            assert_eq!(tokenizer.count(text), Some(tokens), "{text:?}");
        }
        assert_eq!(tokenizer.count(&"light ".repeat(1000)), Some(1002), "texts are not cut");
        assert!(format!("{tokenizer:?}").len() < 100);
    }

    #[test]
    fn other_content_is_an_error() {
        for content in ["", "{}", r#"{"model":{"type":"Other"}}"#, "no json"] {
            assert!(FileTokenizer::parse(content.as_bytes()).is_err(), "{content}");
        }
    }
}
