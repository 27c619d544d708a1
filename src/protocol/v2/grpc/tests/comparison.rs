//! Comparison of two messages.

use super::*;
use crate::{AnswerComparison, AnswerContent};

/// Compares two responses to a call of one row.
fn compare(messages: [Vec<u8>; 2]) -> AnswerComparison {
    let call = read(&raw(b"\x01", b"aa", b""));
    let headers = HeaderMap::new();
    let [merged, unbatched] = messages.map(|message| framed(&message));
    let content = |body| AnswerContent { headers: &headers, body };
    grpc().compare_answers(&call, content(&merged), content(&unbatched))
}

/// Returns a response with an output of two numbers.
fn answer(id: &str, datatype: &str, numbers: [f32; 2], is_typed: bool) -> Vec<u8> {
    let data = numbers.map(f32::to_le_bytes).concat();
    let contents = is_typed.then(|| field(6, &data));
    let output = tensor("o", datatype, b"\x01\x02", contents.as_deref());
    let mut message = [field(1, b"m"), field(3, id.as_bytes()), field(5, &output)].concat();
    if !is_typed {
        message.extend(field(6, &data));
    }
    message
}

#[test]
fn floats_of_blobs_and_of_typed_contents_may_be_rounded() {
    for is_typed in [false, true] {
        let compared =
            |numbers| compare([answer("a", "FP32", [800.0, 0.5], is_typed), answer("b", "FP32", numbers, is_typed)]);
        assert_eq!(compared([800.0, 0.5]), AnswerComparison::Equal);
        assert!(matches!(compared([801.0, 0.5]), AnswerComparison::Rounded(_)));
        assert!(matches!(compared([800.0, 90.0]), AnswerComparison::Different(_)));
    }
}

#[test]
fn another_model_form_or_datatype_is_a_difference() {
    let own = || answer("a", "FP32", [1.0, 2.0], false);
    let other_model = [field(1, b"n"), field(2, b"1")].concat();
    for other in [
        answer("a", "FP32", [1.0, 2.0], true),
        answer("a", "INT32", [1.0, 2.0], false),
        [other_model, own()[3..].to_vec()].concat(),
        b"\x05".to_vec(),
    ] {
        let compared = compare([own(), other]);
        assert!(matches!(compared, AnswerComparison::Different(_)), "{compared:?}");
    }
}
