//! Calls that are not accepted, by kind of error.

use serde_json::{Value, json};

use super::TestModel;
use super::forwarded_calls::parts;
use super::routes::call;
use crate::{ErrorKind, ModelRoute, prepare_call};

fn kind(model: &TestModel, route: &ModelRoute, body: &Value) -> ErrorKind {
    match call(model, route, body) {
        Err(error) => error.kind,
        Ok(answer) => panic!("{route:?} {body}: {answer}"),
    }
}

#[test]
fn a_body_that_is_not_accepted_is_refused_on_every_route() {
    let (embedding, reranker, classifier) = (TestModel::embedding(), TestModel::reranker(), TestModel::classifier());
    for (model, route, empty, wrong) in [
        (&embedding, ModelRoute::Embeddings, json!({"input": []}), json!({"input": {}})),
        (&embedding, ModelRoute::Embed, json!({"inputs": []}), json!({"inputs": [1.5]})),
        (&embedding, ModelRoute::EmbedAll, json!({"inputs": []}), json!({"inputs": null})),
        (&classifier, ModelRoute::Predict, json!({"inputs": []}), json!({"inputs": ["a", "b", "c"]})),
        (&classifier, ModelRoute::Predict, json!({"inputs": []}), json!({"inputs": [["a", "b", "c"]]})),
        (&classifier, ModelRoute::Predict, json!({"inputs": []}), json!({"inputs": ["a", ["b"]]})),
        (&reranker, ModelRoute::Rerank, json!({"query": "q", "texts": []}), json!({"query": "q"})),
        (&reranker, ModelRoute::Rerank, json!({"query": "q", "documents": []}), json!({"documents": ["a"]})),
        (
            &reranker,
            ModelRoute::Rerank,
            json!({"query": "q", "texts": []}),
            json!({"query": "q", "texts": ["a"], "documents": ["a"]}),
        ),
        (
            &reranker,
            ModelRoute::Rerank,
            json!({"query": "q", "documents": []}),
            json!({"query": "q", "documents": ["a"], "top_n": 0}),
        ),
        (
            &embedding,
            ModelRoute::Similarity,
            json!({"inputs": {"source_sentence": "a", "sentences": []}}),
            json!({"inputs": ["a"]}),
        ),
        (&embedding, ModelRoute::Tokenize, json!({"inputs": []}), json!({"inputs": [1]})),
        (&embedding, ModelRoute::Decode, json!({"ids": []}), json!({"ids": ["a"]})),
    ] {
        assert_eq!(kind(model, &route, &empty), ErrorKind::Empty, "{route:?} {empty}");
        assert_eq!(kind(model, &route, &wrong), ErrorKind::Invalid, "{route:?} {wrong}");
        assert_eq!(kind(model, &route, &json!({})), ErrorKind::Invalid, "{route:?} without fields");
        let broken = prepare_call(&model.served, &route, b"{\"inputs\": ", &parts().buffers).unwrap_err();
        assert_eq!(broken.kind, ErrorKind::Malformed, "{route:?}");
    }
}

#[test]
fn an_input_that_is_too_long_and_not_to_be_cut_is_refused_with_the_limit() {
    let model = TestModel::embedding();
    let long = "a ".repeat(100);
    for (route, body) in [
        (ModelRoute::Embed, json!({"inputs": long, "truncate": false})),
        (ModelRoute::Embed, json!({"inputs": vec![5; 33], "truncate": false})),
        (ModelRoute::EmbedAll, json!({"inputs": ["a", long], "truncate": false, "truncation_direction": "left"})),
        (
            ModelRoute::Similarity,
            json!({"inputs": {"source_sentence": "a", "sentences": [long]}, "parameters": {"truncate": false}}),
        ),
    ] {
        let error = call(&model, &route, &body).unwrap_err();
        assert_eq!((error.kind.status().as_u16(), error.kind.tei_type()), (422, "Validation"), "{route:?}");
        assert!(error.message.contains("32"), "{}", error.message);
    }
    let reranker = TestModel::reranker();
    for field in ["texts", "documents"] {
        let body = json!({"query": "a", field: [long], "truncate": false});
        assert_eq!(kind(&reranker, &ModelRoute::Rerank, &body), ErrorKind::Invalid, "{field}");
    }
    let body = json!({"inputs": long, "truncate": false});
    assert_eq!(kind(&TestModel::classifier(), &ModelRoute::Predict, &body), ErrorKind::Invalid);
    let body = json!({"inputs": vec!["a"; 2049]});
    assert_eq!(kind(&model, &ModelRoute::Embed, &body), ErrorKind::TooLarge, "too many inputs");
}

#[test]
fn an_empty_input_is_refused_alone_and_in_a_list() {
    let (embedding, reranker, classifier) = (TestModel::embedding(), TestModel::reranker(), TestModel::classifier());
    let similar = |source: &str, sentence: &str| {
        let inputs = json!({"source_sentence": source, "sentences": ["a", sentence]});
        (&embedding, ModelRoute::Similarity, json!({"inputs": inputs}))
    };
    for ((model, route, body), place) in [
        ((&embedding, ModelRoute::Embed, json!({"inputs": ""})), "`inputs` cannot"),
        ((&embedding, ModelRoute::Embed, json!({"inputs": ["a", ""]})), "`inputs[1]` cannot"),
        ((&embedding, ModelRoute::Embed, json!({"inputs": "", "prompt_name": "query"})), "`inputs` cannot"),
        ((&embedding, ModelRoute::EmbedAll, json!({"inputs": [[5], []]})), "`inputs[1]` cannot"),
        ((&embedding, ModelRoute::Embeddings, json!({"input": ""})), "`input` cannot"),
        ((&embedding, ModelRoute::Embeddings, json!({"input": ["a", ""]})), "`input[1]` cannot"),
        (similar("", "a"), "`inputs.source_sentence` cannot"),
        (similar("a", ""), "`inputs.sentences[1]` cannot"),
        ((&embedding, ModelRoute::Tokenize, json!({"inputs": ""})), "`inputs` cannot"),
        ((&embedding, ModelRoute::Tokenize, json!({"inputs": ["a", ""]})), "`inputs[1]` cannot"),
        ((&classifier, ModelRoute::Predict, json!({"inputs": ""})), "`inputs` cannot"),
        ((&classifier, ModelRoute::Predict, json!({"inputs": [["a"], [""]]})), "`inputs[1]` cannot"),
        ((&classifier, ModelRoute::Predict, json!({"inputs": ["", ""]})), "`inputs` cannot"),
        (
            (&reranker, ModelRoute::Rerank, json!({"query": "", "texts": ["a", ""]})),
            "`query` and `texts[1]` cannot both",
        ),
        (
            (&reranker, ModelRoute::Rerank, json!({"query": "", "documents": [{"text": ""}]})),
            "`query` and `documents[0]` cannot both",
        ),
    ] {
        let error = call(model, &route, &body).unwrap_err();
        assert_eq!((error.kind.status().as_u16(), error.kind.tei_type()), (400, "Empty"), "{route:?} {body}");
        assert_eq!(error.message, format!("{place} be empty"), "{route:?} {body}");
    }
    let half = json!({"query": "a", "texts": [""]});
    assert!(call(&reranker, &ModelRoute::Rerank, &half).is_ok(), "a pair with one text is not empty");
}

#[test]
fn options_that_are_not_accepted_are_named() {
    let model = TestModel::embedding();
    for (body, part) in [
        (json!({"inputs": "a", "dimensions": 0}), "`dimensions`"),
        (json!({"inputs": "a", "dimensions": 49}), "1 to 48"),
        (json!({"inputs": "a", "prompt_name": "other"}), "query"),
        (json!({"inputs": [4, 5], "prompt_name": "query"}), "`prompt_name`"),
        (json!({"inputs": [4, 5000]}), "5000"),
        (json!({"inputs": "a", "truncation_direction": "up"}), "expected one of `Left`, `left`"),
        (json!({"inputs": "a", "truncate": "yes"}), "expected a boolean at line 1 column 30"),
    ] {
        let error = call(&model, &ModelRoute::Embed, &body).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{body}");
        assert!(error.message.contains(part), "{body}: {}", error.message);
    }
    let body = json!({"input": "a", "encoding_format": "bytes"});
    assert_eq!(kind(&model, &ModelRoute::Embeddings, &body), ErrorKind::Invalid);
}

#[test]
fn a_model_answers_only_the_routes_of_its_kind() {
    let (embedding, reranker, classifier) = (TestModel::embedding(), TestModel::reranker(), TestModel::classifier());
    let (embed, rerank) = (json!({"inputs": "a"}), json!({"query": "a", "texts": ["b"]}));
    for (model, route, body) in [
        (&embedding, ModelRoute::Predict, &embed),
        (&embedding, ModelRoute::Rerank, &rerank),
        (&classifier, ModelRoute::Embed, &embed),
        (&classifier, ModelRoute::Rerank, &rerank),
        (&reranker, ModelRoute::Embeddings, &json!({"input": "a"})),
        (&reranker, ModelRoute::EmbedAll, &embed),
    ] {
        assert_eq!(kind(model, &route, body), ErrorKind::WrongModel, "{route:?}");
    }
    assert!(call(&reranker, &ModelRoute::Predict, &embed).is_ok(), "a reranker also predicts");
    let roots = [&embedding, &classifier, &reranker].map(|model| model.served.root_route());
    assert_eq!(roots, [ModelRoute::Embed, ModelRoute::Predict, ModelRoute::Rerank], "`POST /` follows the model");
}
