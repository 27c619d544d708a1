//! Every route and every form of its inputs, with the results of the fake executor.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use groupage_engine::{Executor as _, PackedBatch};
use serde_json::{Value, json};

use super::forwarded_calls::parts;
use super::{FakeExecutor, HIDDEN, TestModel};
use crate::{CallError, ModelRoute, prepare_call};

/// Token ids of the models: special tokens, and single letters from [`A`] on.
pub(super) const CLS: u32 = 2;
pub(super) const SEP: u32 = 3;
pub(super) const A: u32 = 19;

/// Executes a call and returns the response.
pub(super) fn call(model: &TestModel, route: &ModelRoute, body: &Value) -> Result<Value, CallError> {
    let mut prepared = prepare_call(&model.served, route, body.to_string().as_bytes(), &parts().buffers)?;
    let mut batch = PackedBatch::new(10_000);
    for sequence in prepared.take_sequences() {
        batch.push(&sequence.tokens, sequence.kind).unwrap();
    }
    let results = FakeExecutor::new(10_000).execute(&batch).unwrap();
    Ok(serde_json::from_slice(&prepared.render(results)?).unwrap())
}

/// The embedding of the fake executor for token ids, scaled to unit length.
fn unit(ids: &[u32]) -> Vec<f64> {
    let sum = f64::from(ids.iter().sum::<u32>());
    let raw: Vec<f64> = (0..HIDDEN).map(|at| sum / (1.0 + at as f64)).collect();
    let norm = raw.iter().map(|value| value * value).sum::<f64>().sqrt();
    raw.iter().map(|value| value / norm).collect()
}

fn assert_close(found: &Value, expected: &[f64]) {
    let found: Vec<f64> = found.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn embeddings_of_openai_take_texts_and_ids_alone_and_in_lists() {
    let model = TestModel::embedding();
    let ids = [CLS, A, A + 1, SEP];
    for (input, expected) in [
        (json!("a b"), vec![ids.to_vec()]),
        (json!(["a b"]), vec![ids.to_vec()]),
        (json!(["a b", "h"]), vec![ids.to_vec(), vec![CLS, A + 7, SEP]]),
        (json!([4, 9]), vec![vec![4, 9]]),
        (json!([[4, 9], [5]]), vec![vec![4, 9], vec![5]]),
    ] {
        let body = json!({"model": "any", "input": input, "user": "u"});
        let answer = call(&model, &ModelRoute::Embeddings, &body).unwrap();
        let tokens: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), expected.len(), "{input}");
        for (index, (element, ids)) in data.iter().zip(&expected).enumerate() {
            assert_eq!((&element["object"], &element["index"]), (&json!("embedding"), &json!(index)));
            assert_close(&element["embedding"], &unit(ids));
        }
    }
}

#[test]
fn base64_is_that_of_little_endian_floats() {
    let model = TestModel::embedding();
    let body = json!({"input": "a", "encoding_format": "float"});
    let floats = call(&model, &ModelRoute::Embeddings, &body).unwrap();
    let body = json!({"input": "a", "encoding_format": "base64"});
    let coded = call(&model, &ModelRoute::Embeddings, &body).unwrap();
    let bytes = STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let written: Vec<f32> = serde_json::from_value(floats["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(decoded, written, "the text of a float parses back to the same bits");
    assert_eq!(decoded.len(), HIDDEN);
}

#[test]
fn dimensions_cut_an_embedding_before_it_is_scaled() {
    let model = TestModel::embedding();
    for (route, body) in [
        (ModelRoute::Embeddings, json!({"input": "a", "dimensions": 2})),
        (ModelRoute::Embed, json!({"inputs": "a", "dimensions": 2})),
    ] {
        let answer = call(&model, &route, &body).unwrap();
        let embedding = if route == ModelRoute::Embed { &answer[0] } else { &answer["data"][0]["embedding"] };
        let norm = (1.0_f64 + 0.25).sqrt();
        assert_close(embedding, &[1.0 / norm, 0.5 / norm]);
    }
}

#[test]
fn embed_returns_a_list_and_scales_unless_declined() {
    let model = TestModel::embedding();
    let scaled = call(&model, &ModelRoute::Embed, &json!({"inputs": "a b"})).unwrap();
    assert_close(&scaled[0], &unit(&[CLS, A, A + 1, SEP]));
    let raw = call(&model, &ModelRoute::Embed, &json!({"inputs": ["a b", [4, 9]], "normalize": false})).unwrap();
    assert_eq!((raw[0][0].as_f64(), raw[1][0].as_f64()), (Some(44.0), Some(13.0)));
    assert_eq!(raw.as_array().unwrap().len(), 2);
}

#[test]
fn a_prompt_is_put_in_front_of_texts() {
    let model = TestModel::embedding();
    let body = json!({"inputs": "a", "prompt_name": "query", "normalize": false});
    let answer = call(&model, &ModelRoute::Embed, &body).unwrap();
    assert_eq!(answer[0][0].as_f64(), Some(f64::from(CLS + A + 1 + A + 2 + A + SEP)), "b c a");
    let body = json!({"inputs": "a", "prompt_name": "query"});
    let tokens = call(&model, &ModelRoute::Tokenize, &body).unwrap();
    assert_eq!(tokens[0].as_array().unwrap().len(), 5);
}

#[test]
fn a_text_that_is_too_long_is_cut_unless_the_call_declines() {
    let model = TestModel::embedding();
    let long = "a ".repeat(100);
    for body in [
        json!({"inputs": long, "normalize": false}),
        json!({"inputs": long, "normalize": false, "truncate": null}),
        json!({"inputs": long, "normalize": false, "truncate": true, "truncation_direction": "Right"}),
    ] {
        let answer = call(&model, &ModelRoute::Embed, &body).unwrap();
        assert_eq!(answer[0][0].as_f64(), Some(f64::from(CLS + 30 * A + SEP)), "{body}");
    }
    let answer = call(&model, &ModelRoute::Embeddings, &json!({"input": ["a", long]})).unwrap();
    assert_eq!(answer["usage"]["total_tokens"], 3 + 32, "the route of OpenAI has the same default");
    let scored = call(&TestModel::classifier(), &ModelRoute::Predict, &json!({"inputs": long}));
    assert_eq!(scored.unwrap().as_array().unwrap().len(), 3);
    let body = json!({"query": "a", "texts": [long]});
    assert_eq!(call(&TestModel::reranker(), &ModelRoute::Rerank, &body).unwrap().as_array().unwrap().len(), 1);
    let body = json!({"inputs": {"source_sentence": "a", "sentences": [long]}});
    assert_eq!(call(&model, &ModelRoute::Similarity, &body).unwrap().as_array().unwrap().len(), 1);
    let body = json!({"inputs": "a", "truncate": true, "truncation_direction": "left"});
    assert!(call(&model, &ModelRoute::Embed, &body).is_ok(), "a text that is not cut has no direction");
}

#[test]
fn embed_all_returns_a_row_for_every_token() {
    let model = TestModel::embedding();
    let answer = call(&model, &ModelRoute::EmbedAll, &json!({"inputs": ["a", [9, 8, 7, 6]]})).unwrap();
    let rows: Vec<usize> = answer.as_array().unwrap().iter().map(|rows| rows.as_array().unwrap().len()).collect();
    assert_eq!(rows, [3, 4]);
    assert_eq!((answer[0][1][0].as_f64(), answer[0][1][31].as_f64()), (Some(1900.0), Some(1931.0)));
}

#[test]
fn predictions_are_sorted_and_have_the_form_of_the_inputs() {
    let model = TestModel::classifier();
    // The logits are the second to fourth token.
    let predict = |inputs: Value, raw: bool| {
        call(&model, &ModelRoute::Predict, &json!({"inputs": inputs, "raw_scores": raw})).unwrap()
    };
    let one =
        json!([{"score": 23.0, "label": "calm"}, {"score": 21.0, "label": "anger"}, {"score": 19.0, "label": "joy"}]);
    for inputs in [json!("a c e"), json!(["a c e"])] {
        assert_eq!(predict(inputs, true), one);
    }
    assert_eq!(predict(json!([["a c e"]]), true), json!([one]), "a list of lists is a batch");
    let pair = predict(json!(["a", "j"]), true);
    assert_eq!(pair[0], json!({"score": 28.0, "label": "calm"}), "the second text belongs to the sequence: {pair}");
    let batch = predict(json!([["a", "j"], ["a c e"]]), true);
    assert_eq!(batch, json!([pair, one]), "pairs and texts may be mixed");
    let scores = predict(json!("a c e"), false);
    let sum: f64 = (0..3).map(|at| scores[at]["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "softmax of several labels: {scores}");
}

#[test]
fn rerank_of_tei_sorts_texts_by_their_scores() {
    let model = TestModel::reranker();
    let body = json!({"query": "f", "texts": ["a", "j", "d"], "raw_scores": true, "return_text": true});
    let answer = call(&model, &ModelRoute::Rerank, &body).unwrap();
    // The logit is the second token of the pair, that of the query, so scores are equal and in
    // reverse order.
    assert_eq!(
        answer,
        json!([{"index": 2, "text": "d", "score": 24.0}, {"index": 1, "text": "j", "score": 24.0}, {"index": 0, "text": "a", "score": 24.0}])
    );
    let body = json!({"query": "f", "texts": ["a"]});
    let answer = call(&model, &ModelRoute::Rerank, &body).unwrap();
    let sigmoid = 1.0 / (1.0 + (-24.0_f64).exp());
    assert!((answer[0]["score"].as_f64().unwrap() - sigmoid).abs() < 1e-6, "{answer}");
    assert!(answer[0].get("text").is_none());
}

#[test]
fn rerank_with_documents_has_the_members_of_cohere_and_jina() {
    let model = TestModel::reranker();
    let documents = json!(["a", {"text": "j"}, "d"]);
    let body = json!({"model": "any", "query": "f", "documents": documents, "top_n": 2, "return_documents": true});
    let answer = call(&model, &ModelRoute::Rerank, &body).unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!((&results[0]["index"], &results[1]["index"]), (&json!(0), &json!(1)), "equal scores keep their order");
    assert_eq!(results[1]["document"], json!({"text": "j"}));
    assert_eq!(answer["usage"], json!({"total_tokens": 15}));
    assert_eq!(answer["meta"], json!({"billed_units": {"search_units": 1}}));
    let body = json!({"query": "f", "documents": ["a ".repeat(100)]});
    let answer = call(&model, &ModelRoute::Rerank, &body).unwrap();
    assert_eq!(answer["usage"]["total_tokens"], 32, "a document that is too long is cut");
    assert!(answer["results"][0].get("document").is_none());
}

#[test]
fn similarity_is_the_cosine_with_each_sentence() {
    let model = TestModel::embedding();
    let body = json!({"inputs": {"source_sentence": "a", "sentences": ["b", "c d"]}, "parameters": {"truncate": true}});
    let answer = call(&model, &ModelRoute::Similarity, &body).unwrap();
    // All embeddings of the fake executor have the same direction.
    assert_close(&answer, &[1.0, 1.0]);
}

#[test]
fn tokenize_names_each_token_with_its_position() {
    let model = TestModel::embedding();
    let answer = call(&model, &ModelRoute::Tokenize, &json!({"inputs": "a 日"})).unwrap();
    assert_eq!(
        answer,
        json!([[
            {"id": 2, "text": "[CLS]", "special": true, "start": null, "stop": null},
            {"id": 19, "text": "a", "special": false, "start": 0, "stop": 1},
            {"id": 1, "text": "日", "special": false, "start": 2, "stop": 5},
            {"id": 3, "text": "[SEP]", "special": true, "start": null, "stop": null},
        ]])
    );
    let answer = call(&model, &ModelRoute::Tokenize, &json!({"inputs": ["a", "b c"], "add_special_tokens": false}));
    let counts: Vec<usize> =
        answer.unwrap().as_array().unwrap().iter().map(|one| one.as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn decode_returns_a_text_for_each_list() {
    let model = TestModel::embedding();
    let decode = |body: Value| call(&model, &ModelRoute::Decode, &body).unwrap();
    assert_eq!(decode(json!({"ids": [2, 19, 20, 3]})), json!(["a b"]));
    assert_eq!(decode(json!({"ids": [[19], [20, 21]]})), json!(["a", "b c"]));
    assert_eq!(decode(json!({"ids": [2, 19], "skip_special_tokens": false})), json!(["[CLS] a"]));
}

#[test]
fn a_text_that_is_too_long_is_cut_at_the_side_of_the_call() {
    let model = TestModel::embedding();
    let text = format!("{}b", "a ".repeat(50));
    let ids = |kept: &[u32]| [&[CLS], kept, &[SEP]].concat();
    for (side, expected) in [
        (json!("left"), ids(&[&[A; 29][..], &[A + 1]].concat())),
        (json!("Left"), ids(&[&[A; 29][..], &[A + 1]].concat())),
        (json!("right"), ids(&[A; 30])),
        (json!(null), ids(&[A; 30])),
    ] {
        let body = json!({"inputs": text, "truncation_direction": side});
        let answer = call(&model, &ModelRoute::EmbedAll, &body).unwrap();
        let firsts: Vec<f64> = answer[0].as_array().unwrap().iter().map(|row| row[0].as_f64().unwrap()).collect();
        assert_eq!(firsts, expected.iter().map(|id| f64::from(*id) * 100.0).collect::<Vec<_>>(), "{side}");
    }
}
