//! Comparison of two responses with tensors in binary form.

use http::HeaderValue;

use super::*;
use crate::{AnswerComparison, AnswerContent};

/// Compares two responses to a call of one row, with a document and a tensor of two numbers.
fn compare(documents: [&str; 2], tensors: &[Vec<u8>; 2]) -> AnswerComparison {
    let endpoint = v2();
    let call = read(&endpoint, PATH, &fp32("[1,1]", "[1]"));
    let bodies: [Bytes; 2] =
        std::array::from_fn(|place| Bytes::from([documents[place].as_bytes(), tensors[place].as_slice()].concat()));
    let headers = documents.map(|doc| {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER_LENGTH, HeaderValue::from(doc.len()));
        headers
    });
    let content = |place: usize| AnswerContent { headers: &headers[place], body: &bodies[place] };
    endpoint.compare_answers(&call, content(0), content(1))
}

fn document(id: &str, datatype: &str, size: usize) -> String {
    format!(
        r#"{{"id":"{id}","model_name":"m","outputs":[{{"name":"o","datatype":"{datatype}","shape":[1,2],"parameters":{{"binary_data_size":{size}}}}}]}}"#
    )
}

fn floats(numbers: [f32; 2]) -> Vec<u8> {
    numbers.map(f32::to_le_bytes).concat()
}

#[test]
fn binary_numbers_are_compared_as_those_of_a_document() {
    let (one, other) = (document("a", "FP32", 8), document("b", "FP32", 8));
    let compared = |numbers| compare([&one, &other], &[floats([800.0, 0.5]), floats(numbers)]);
    assert_eq!(compared([800.0, 0.5]), AnswerComparison::Equal);
    assert!(matches!(compared([801.0, 0.5]), AnswerComparison::Rounded(_)));
    let AnswerComparison::Different(found) = compared([800.0, 90.0]) else { panic!("not different") };
    assert_eq!(found.at, "/outputs/0/data");
}

#[test]
fn other_elements_and_documents_have_to_be_equal() {
    let exact = document("a", "INT32", 8);
    let integers = |second: u8| vec![1, 0, 0, 0, second, 0, 0, 0];
    assert_eq!(compare([&exact, &exact], &[integers(2), integers(2)]), AnswerComparison::Equal);
    let different = [
        compare([&exact, &exact], &[integers(2), integers(3)]),
        compare([&exact, &document("a", "FP32", 8)], &[integers(2), integers(2)]),
        // A response that is cut short.
        compare([&exact, &exact], &[integers(2), vec![1, 0, 0, 0]]),
    ];
    assert!(different.iter().all(|one| matches!(one, AnswerComparison::Different(_))), "{different:?}");
}
