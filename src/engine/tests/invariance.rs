//! The result of a sequence depends on that sequence alone, bit for bit.

use super::*;

/// Sequences of many lengths, up to the limit of the models.
fn sequences(model: &Model) -> Vec<TokenSequence> {
    let lengths = [1, 2, 31, 32, 7, 13, 32, 1, 5, 24, 17, 3, 6, 12, 30, 19, 32, 8];
    let id = |sequence: usize, at: usize| u32::try_from((sequence * 31 + at * 7919) % 160).unwrap();
    let ids = |(sequence, length)| (0..length).map(|at| id(sequence, at)).collect::<Vec<_>>();
    let tokenizer = model.tokenizer();
    lengths.into_iter().enumerate().map(|sequence| tokenizer.encode_ids(&ids(sequence), false).unwrap()).collect()
}

fn bits(results: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    results.into_iter().map(|values| values.into_iter().map(f32::to_bits).collect()).collect()
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_any_batch() {
    for name in MODELS {
        let model = Model::open(&goldens().join(name)).unwrap();
        let sequences = sequences(&model);
        let kind = if model.head().is_some() { OutputKind::Logits } else { OutputKind::TokenStates };
        let mut executor = executor(&model, 1);
        let together = bits(execute(&mut executor, &sequences, kind));
        let reversed: Vec<_> = sequences.iter().rev().cloned().collect();
        let mut reversed = bits(execute(&mut executor, &reversed, kind));
        reversed.reverse();
        assert_eq!(together, reversed, "{name}");
        for (sequence, expected) in sequences.into_iter().zip(together) {
            let single = bits(execute(&mut executor, &[sequence], kind));
            assert_eq!(single, [expected], "{name}");
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    for name in MODELS {
        let model = Model::open(&goldens().join(name)).unwrap();
        let sequences = sequences(&model);
        let one = bits(execute(&mut executor(&model, 1), &sequences, OutputKind::TokenStates));
        for threads in [2, 3, 8] {
            let many = bits(execute(&mut executor(&model, threads), &sequences, OutputKind::TokenStates));
            assert_eq!(one, many, "{name} on {threads} threads");
        }
    }
}

#[test]
fn a_batch_with_different_kinds_of_results_keeps_their_order() {
    let model = Model::open(&goldens().join("bert-rerank")).unwrap();
    let kinds = [OutputKind::Logits, OutputKind::Embedding, OutputKind::TokenStates];
    check_mixed_kinds(&mut executor(&model, 2), &sequences(&model), kinds);
}
