//! Options of calls together with what the files of a model state: prompts and functions of scores.

use serde_json::{Value, json};

use super::TestModel;
use super::routes::{A, CLS, SEP, call};
use crate::{ErrorKind, ModelRoute};

#[test]
fn embeddings_of_openai_honour_the_fields_of_embed() {
    let model = TestModel::embedding();
    let long = "a ".repeat(100);
    let embed = |fields: Value| {
        let mut body = json!({"input": "a", "normalize": false});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        call(&model, &ModelRoute::Embeddings, &body)
    };
    let first = |fields: Value| embed(fields).unwrap()["data"][0]["embedding"][0].as_f64();
    assert_eq!(first(json!({})), Some(f64::from(CLS + A + SEP)));
    assert_eq!(first(json!({"prompt_name": "query"})), Some(f64::from(CLS + A + 1 + A + 2 + A + SEP)), "b c a");
    let text = format!("{long}b");
    let cut = first(json!({"input": text, "truncation_direction": "left"}));
    assert_eq!(cut, Some(f64::from(CLS + 29 * A + A + 1 + SEP)));
    for fields in [
        json!({"input": long, "truncate": false}),
        json!({"prompt_name": "other"}),
        json!({"input_type": "query"}),
        json!({"normalize": "no"}),
    ] {
        assert!(embed(fields.clone()).is_err(), "{fields}");
    }
    assert!(embed(json!({"input_type": null})).is_ok());
    let plain = TestModel::copy("bert", &json!({}), None);
    assert!(call(&plain, &ModelRoute::Embeddings, &json!({"input": "a", "input_type": "query"})).is_ok());
}

#[test]
fn the_default_prompt_of_the_model_applies_to_texts_and_refuses_ids() {
    let prompts = |text: &str| json!({"prompts": {"query": text}, "default_prompt_name": "query"});
    let model = TestModel::copy("bert", &json!({}), Some(&prompts("b c ")));
    let answer = call(&model, &ModelRoute::Embed, &json!({"inputs": "a", "normalize": false})).unwrap();
    assert_eq!(answer[0][0].as_f64(), Some(f64::from(CLS + A + 1 + A + 2 + A + SEP)), "b c a");
    for (route, body) in
        [(ModelRoute::Embed, json!({"inputs": ["a", [4, 9]]})), (ModelRoute::Embeddings, json!({"input": [4, 9]}))]
    {
        let error = call(&model, &route, &body).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{body}");
        assert!(error.message.contains("\"query\""), "{}", error.message);
    }
    let empty = TestModel::copy("bert", &json!({}), Some(&prompts("")));
    assert!(call(&empty, &ModelRoute::Embed, &json!({"inputs": [4, 9]})).is_ok(), "an empty prompt changes nothing");
}

#[test]
fn scores_follow_the_number_of_labels_and_not_the_function_that_the_files_name() {
    let identity = json!({"activation_fn": "torch.nn.modules.linear.Identity"});
    let reranker = TestModel::copy("bert-rerank", &json!({"problem_type": "regression"}), Some(&identity));
    let sigmoid = 1.0 / (1.0 + (-24.0_f64).exp());
    let ranked = call(&reranker, &ModelRoute::Rerank, &json!({"query": "f", "texts": ["a"]})).unwrap();
    assert!((ranked[0]["score"].as_f64().unwrap() - sigmoid).abs() < 1e-6, "{ranked}");
    let ranked = call(&reranker, &ModelRoute::Rerank, &json!({"query": "f", "documents": ["a"]})).unwrap();
    let score = ranked["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((score - sigmoid).abs() < 1e-6, "{ranked}");
    let labels = json!({"id2label": {"0": "joy", "1": "anger", "2": "calm"}});
    let classifier = TestModel::copy("distilbert-classify", &labels, Some(&identity));
    let predict = |raw: bool| {
        let answer = call(&classifier, &ModelRoute::Predict, &json!({"inputs": "a c e", "raw_scores": raw})).unwrap();
        (0..3).map(|at| answer[at]["score"].as_f64().unwrap()).sum::<f64>()
    };
    assert!((predict(false) - 1.0).abs() < 1e-6);
    assert!((predict(true) - 63.0).abs() < 1e-6, "raw scores are the logits");
}
