//! Settings of tokenizers, against token ids of the `transformers` library
//! (`tokenizer_goldens.py`).

use super::*;

#[test]
fn settings_of_tokenizers_have_the_ids_of_transformers() {
    for case in read_json(&goldens().join("tokenizers.json")).as_array().unwrap() {
        let name = case["model"].as_str().unwrap();
        let copy = copy_of(name);
        let path = copy.path().join("tokenizer.json");
        let mut file = read_json(&path);
        file.as_object_mut().unwrap().extend(case["file"].as_object().unwrap().clone());
        std::fs::write(path, file.to_string()).unwrap();
        if !case["config"].is_null() {
            std::fs::write(copy.path().join("tokenizer_config.json"), case["config"].to_string()).unwrap();
        }
        let sentence = serde_json::json!({"max_seq_length": 32, "do_lower_case": case["lowercases"]});
        std::fs::write(copy.path().join("sentence_bert_config.json"), sentence.to_string()).unwrap();
        let model = Model::open(copy.path()).unwrap();
        for result in case["results"].as_array().unwrap() {
            let (first, pair) = (result["text"].as_str().unwrap(), result["pair"].as_str());
            let sequence = match pair {
                Some(second) => model.tokenizer().encode_pair(first, second, true).unwrap(),
                None => model.tokenizer().encode_text(first, true).unwrap(),
            };
            let list = |field: &str| -> Vec<u32> { serde_json::from_value(result[field].clone()).unwrap() };
            let place = format!("{name} with {} and {}: {first:?} {pair:?}", case["config"], case["file"]);
            assert_eq!(sequence.ids(), list("ids"), "{place}");
            // The layers of other architectures have no segment types.
            if name == "bert" {
                assert_eq!(sequence.type_ids(), list("type_ids"), "{place}");
            }
        }
    }
}

/// `İ` has two bytes, and three in lowercase.
#[test]
fn positions_are_those_of_the_text_before_its_conversion_to_lowercase() {
    let copy = copy_of("bert");
    let sentence = serde_json::json!({"max_seq_length": 32, "do_lower_case": true});
    std::fs::write(copy.path().join("sentence_bert_config.json"), sentence.to_string()).unwrap();
    let model = Model::open(copy.path()).unwrap();
    let text = "İ A Man";
    let tokens = model.tokenizer().list_tokens(text, false).unwrap();
    let parts: Vec<&str> = tokens.iter().filter_map(|token| token.span).filter_map(|(a, b)| text.get(a..b)).collect();
    assert!(parts.len() == tokens.len() && parts.concat().ends_with("AMan"), "{tokens:?}");
    assert_eq!(tokens.last().unwrap().span.unwrap().1, text.len());
}
