//! Tokenizers that make the `tokenizers` crate panic, or take gigabytes or cubic time.

use super::*;

/// Files that the parser of the `tokenizers` crate accepts, and whose use panics or takes
/// gigabytes.
#[test]
fn hostile_tokenizers_are_refused() {
    let sequence = |id: &str| serde_json::json!({"Sequence": {"id": id, "type_id": 0}});
    let special = serde_json::json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}});
    let template = |single: &[&serde_json::Value]| {
        serde_json::json!({"post_processor": {"type": "TemplateProcessing", "single": single,
            "pair": [sequence("A"), sequence("B")], "special_tokens": {}}})
    };
    let table = |table: &str| {
        let normalizer = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": table});
        serde_json::json!({"normalizer": {"type": "Sequence", "normalizers": [normalizer]}})
    };
    let words = serde_json::json!({"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 1, "a": 0},
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 1_000_000_000}});
    for (fields, part) in [
        (table("AAAAAA=="), "field `normalizer`: found `precompiled_charsmap` with a trie of 0 bytes"),
        (table("/////w=="), "field `normalizer`: found `precompiled_charsmap` with a trie of 4294967295 bytes"),
        (template(&[&special, &sequence("A")]), "field `post_processor`"),
        (template(&[&sequence("B")]), "field `post_processor`"),
        (words, "field `model.max_input_chars_per_word`: found 1000000000"),
    ] {
        let copy = copy_of("modernbert");
        let path = copy.path().join("tokenizer.json");
        let mut text = read_json(&path);
        text.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        std::fs::write(&path, text.to_string()).unwrap();
        let error = Model::open(copy.path()).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("tokenizer.json"), "{error}");
    }
}

/// A table with a trie that leads outside of itself for some texts only.
#[test]
fn a_panic_of_the_tokenizer_is_an_error_of_the_text() {
    let copy = copy_of("modernbert");
    let path = copy.path().join("tokenizer.json");
    let mut text = read_json(&path);
    // All elements of the trie are empty, but for that of the first byte of 日, 0xe6, whose offset is
    // beyond the table.
    let mut units = [0_u32; 256];
    units[0xe6] = 0xe6 | 1 << 8 | 0xffff << 10;
    let mut bytes = u32::to_le_bytes(1024).to_vec();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend([0; 2]);
    text["normalizer"] = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": base64(&bytes)});
    std::fs::write(&path, text.to_string()).unwrap();
    let model = Model::open(copy.path()).unwrap();
    let tokenizer = model.tokenizer();
    tokenizer.encode_text("a man eats", true).unwrap();
    for error in [tokenizer.encode_text("日", true), tokenizer.encode_pair("a", "日", true)] {
        assert!(error.unwrap_err().to_string().contains("damaged"));
    }
    let long = "a ".repeat(5 << 20);
    assert!(tokenizer.encode_text(&long, true).unwrap_err().to_string().contains("10485760 bytes"));
}

/// Encodes bytes, a multiple of three, in Base64.
fn base64(bytes: &[u8]) -> String {
    let alphabet: Vec<char> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let digits = |three: &[u8]| {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| alphabet[bits >> shift & 63])
    };
    bytes.chunks_exact(3).flat_map(digits).collect()
}
