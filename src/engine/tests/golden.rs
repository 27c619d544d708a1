//! Models with random weights, against the `transformers` library in 64-bit floating point
//! (`goldens.py`).

use super::*;
use crate::{Pooling, TokenError, Truncation};

/// Largest difference by element, of hidden states with elements of about 1.
const DIFFERENCE_MAX: f32 = 1e-5;

#[test]
fn every_architecture_and_head_has_the_values_of_transformers() {
    for name in MODELS {
        let folder = goldens().join(name);
        let model = Model::open(&folder).unwrap();
        let mut executor = executor(&model, 2);
        for case in read_json(&folder.join("expected.json")).as_array().unwrap() {
            let (text, pair) = (case["text"].as_str().unwrap(), case.get("pair").and_then(|pair| pair.as_str()));
            let sequence = match pair {
                Some(pair) => model.tokenizer().encode_pair(text, pair, true).unwrap(),
                None => model.tokenizer().encode_text(text, true).unwrap(),
            };
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(sequence.ids(), ids, "{name}: {text:?}");
            let sequence = [sequence];
            let check = |kind: OutputKind, found: &[f32], expected: &[f32]| {
                let difference = difference(found, expected);
                assert!(difference < DIFFERENCE_MAX, "{name}: {kind:?} of {text:?}: {difference}");
            };
            let pooled = execute(&mut executor, &sequence, OutputKind::Embedding);
            check(OutputKind::Embedding, &pooled[0], &numbers(&case["pooled"]));
            let states = execute(&mut executor, &sequence, OutputKind::TokenStates);
            let last = states[0].chunks_exact(48).next_back().unwrap();
            check(OutputKind::TokenStates, last, &numbers(&case["last_state"]));
            assert_eq!(states[0].len(), ids.len() * 48);
            if model.head().is_some() {
                let logits = execute(&mut executor, &sequence, OutputKind::Logits);
                check(OutputKind::Logits, &logits[0], &numbers(&case["logits"]));
            }
        }
    }
}

#[test]
fn the_files_of_a_model_are_reported() {
    let model = Model::open(&goldens().join("bert-rerank")).unwrap();
    assert_eq!((model.name(), model.tokens_max(), model.normalizes()), ("bert-rerank", 32, true));
    assert_eq!((model.pooling(), model.config().hidden, model.config().layers), (Pooling::First, 48, 2));
    assert_eq!(model.head().unwrap().labels.len(), 1);
    assert_eq!(model.weight_types().into_iter().collect::<Vec<_>>(), ["BF16"]);
    let report = executor(&model, 2).report().clone();
    assert_eq!((report.threads, report.tokens_max, report.rejected.len()), (2, TOKENS_MAX, 0));
    assert!(report.weight_bytes > 100_000 && report.scratch_bytes > 1_000_000 && report.file_bytes > 80_000);
}

#[test]
fn only_a_classifier_needs_no_module_for_pooling() {
    let alone = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"}]"#;
    for (name, accepted) in [("bert", false), ("bert-rerank", true)] {
        let copy = copy_of(name);
        std::fs::write(copy.path().join("modules.json"), alone).unwrap();
        assert_eq!(Model::open(copy.path()).is_ok(), accepted, "{name}");
    }
}

#[test]
fn the_length_of_inputs_can_be_lowered_and_not_raised() {
    let open = || Model::open(&goldens().join("bert")).unwrap();
    let own = open().tokens_max();
    assert_eq!(open().with_tokens_max(own + 1).tokens_max(), own);
    let model = open().with_tokens_max(9);
    let long = "fox ".repeat(20);
    assert_eq!(model.tokenizer().encode_text(&long, true).unwrap().len(), 9);
    assert!(matches!(model.tokenizer().encode_text(&long, false), Err(TokenError::TooLong { tokens_max: 9, .. })));
}

#[test]
fn inputs_outside_of_the_limits_are_refused() {
    let model = Model::open(&goldens().join("roberta")).unwrap();
    let tokenizer = model.tokenizer();
    let long = "fox ".repeat(100);
    let TokenError::TooLong { tokens, tokens_max: 32 } = tokenizer.encode_text(&long, false).unwrap_err() else {
        panic!("not refused")
    };
    assert!(tokens > 100);
    let cut = tokenizer.encode_text(&long, true).unwrap();
    assert_eq!((cut.len(), cut.is_truncated()), (32, true));
    assert_eq!(tokenizer.encode_ids(&[], true), Err(TokenError::Empty));
    let unknown = TokenError::UnknownId { id: 160, position: 1, vocabulary: 160 };
    assert_eq!(tokenizer.encode_ids(&[5, 160], true), Err(unknown));
    assert_eq!(tokenizer.encode_ids(&[5; 33], false), Err(TokenError::TooLong { tokens: 33, tokens_max: 32 }));
    assert_eq!(tokenizer.encode_ids(&[5; 33], true).unwrap().len(), 32);
}

#[test]
fn tokens_are_left_out_at_the_side_of_the_call() {
    let model = Model::open(&goldens().join("bert")).unwrap();
    let tokenizer = model.tokenizer();
    let words = ["the", "quick", "brown", "fox", "jumps"];
    let text: Vec<&str> = (0..53).map(|at| words[at * at % words.len()]).collect();
    let text = text.join(" ");
    let listed = tokenizer.list_tokens(&text, false).unwrap();
    let all: Vec<u32> = listed.iter().map(|token| token.id).collect();
    let inner = |truncation| {
        let sequence = tokenizer.encode_text(&text, truncation).unwrap();
        assert!(sequence.is_truncated());
        sequence.ids()[1..31].to_vec()
    };
    assert_ne!(all[..30], all[all.len() - 30..]);
    assert_eq!(inner(Truncation::Left), all[all.len() - 30..]);
    assert_eq!(inner(Truncation::Right), all[..30]);
    assert_eq!(inner(Truncation::ModelSide), all[..30], "the files of this model state no side");
    let pair = tokenizer.encode_pair("fox", &text, Truncation::Left).unwrap();
    assert_eq!(pair.ids()[3..31], all[all.len() - 28..], "[CLS] fox [SEP] … [SEP]");
    let ids: Vec<u32> = (5..55).collect();
    assert_eq!(tokenizer.encode_ids(&ids, Truncation::Left).unwrap().ids(), &ids[18..]);
    assert!(matches!(tokenizer.encode_ids(&ids, Truncation::Refused), Err(TokenError::TooLong { tokens: 50, .. })));
}

#[test]
fn tokens_are_listed_with_their_positions_and_decoded() {
    let model = Model::open(&goldens().join("bert")).unwrap();
    let tokenizer = model.tokenizer();
    let text = "a manß eats";
    let tokens = tokenizer.list_tokens(text, true).unwrap();
    let (first, last) = (tokens.first().unwrap(), tokens.last().unwrap());
    assert_eq!((first.text.as_str(), first.is_special, first.span), ("[CLS]", true, None));
    assert_eq!((last.text.as_str(), last.is_special), ("[SEP]", true));
    for token in tokens.iter().filter(|token| !token.is_special) {
        let (start, end) = token.span.unwrap();
        assert_eq!(Some(token.text.as_str()), text.get(start..end));
    }
    let inner = tokenizer.list_tokens(text, false).unwrap();
    assert_eq!(inner.last().unwrap().span.unwrap().1, text.len(), "positions are in bytes");
    let sequence = tokenizer.encode_text("a man is eating food", false).unwrap();
    assert_eq!(tokenizer.decode(sequence.ids(), true).unwrap(), "a man is eating food");
}
