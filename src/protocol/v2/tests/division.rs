//! Calls with more rows than a server accepts, in parts.

use http::HeaderValue;

use super::*;
use crate::tests::division::{items, join, reply};

/// Divides a call into parts of at most `rows` rows.
fn divide(call: &Call, rows: u32) -> Option<Vec<Call>> {
    let mut head = http::Request::post(PATH).body(()).unwrap().into_parts().0;
    head.headers.clone_from(&call.head.headers);
    let plan = v2().plan_division(call, &items(rows))?;
    let calls = v2().divide_call(call, &head, &plan, &secret())?;
    assert!(calls.iter().map(|part| part.body.len()).sum::<usize>() <= plan.bytes);
    Some(calls)
}

fn texts(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| String::from_utf8_lossy(&call.body).into_owned()).collect()
}

#[test]
fn a_part_has_its_own_rows_of_each_input() {
    let body = r#"{"id":"q","inputs":[{"name":"x","shape":[3,2],"datatype":"FP32","data":[1.5, 2.5,3.5,4.5,5.5 ,6.5]},{"name":"y","shape":[3,1],"datatype":"INT64","data":[[1], [2],[3]]}]}"#;
    let call = read(&v2(), PATH, body);
    let parts = divide(&call, 2).unwrap();
    let expected = [
        r#"{"id":"q","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[1.5, 2.5,3.5,4.5]},{"name":"y","shape":[2,1],"datatype":"INT64","data":[[1], [2]]}]}"#,
        r#"{"id":"q","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[5.5 ,6.5]},{"name":"y","shape":[1,1],"datatype":"INT64","data":[[3]]}]}"#,
    ];
    assert_eq!(texts(&parts), expected);
    assert!(parts.iter().all(|part| key(part) == key(&call)), "the parts may share batches with other calls");
    assert!(divide(&call, 3).is_none());
    // Rows of another kind may be read differently without the others.
    assert!(divide(&read(&v2(), PATH, &fp32("[2,1]", "[1,NaN]")), 1).is_none());
}

#[test]
fn the_response_has_the_rows_of_all_parts() {
    let calls = divide(&read(&v2(), PATH, &fp32("[3,1]", "[1,2,3]")), 2).unwrap();
    let answer = |id: &str, rows: u32, data: &str| {
        reply(&format!(
            r#"{{"id": "{id}", "model_name":"m","outputs":[{{"name":"o","datatype":"FP32","shape":[{rows},2],"data":[{data}]}}]}}"#
        ))
    };
    let joined = join(&v2(), &calls, &[answer("a", 2, "1.0, 2.0, 3.0, 4.0"), answer("b", 1, "5.0, 6.0")]).unwrap();
    assert_eq!(joined.body, answer("a", 3, "1.0, 2.0, 3.0, 4.0, 5.0, 6.0").body);
    let nested = join(&v2(), &calls, &[answer("a", 2, "[1, 2], [3, 4]"), answer("b", 1, "[5, 6]")]).unwrap();
    assert_eq!(nested.body, answer("a", 3, "[1, 2], [3, 4], [5, 6]").body);
    let few = join(&v2(), &calls, &[answer("a", 2, "1.0, 2.0, 3.0, 4.0"), answer("b", 2, "5.0, 6.0, 7.0, 8.0")]);
    assert_eq!(few.unwrap_err(), MismatchKind::Count);
    let mut other = answer("b", 1, "5.0, 6.0");
    other.body = Bytes::from(String::from_utf8(other.body.to_vec()).unwrap().replace(r#""m""#, r#""n""#));
    assert_eq!(join(&v2(), &calls, &[answer("a", 2, "1, 2, 3, 4"), other]).unwrap_err(), MismatchKind::Undeclared);
}

#[test]
fn tensors_in_binary_form_are_cut_and_joined() {
    let document = |rows: u32, size: u32| {
        format!(
            r#"{{"inputs":[{{"name":"x","shape":[{rows},1],"datatype":"INT16","parameters":{{"binary_data_size":{size}}}}}]}}"#
        )
    };
    let whole = document(3, 6);
    let call = read_binary(&v2(), whole.len(), [whole.as_bytes(), b"aabbcc"].concat());
    let parts = divide(&call, 2).unwrap();
    for (part, (document, tensor)) in parts.iter().zip([(document(2, 4), "aabb"), (document(1, 2), "cc")]) {
        assert_eq!(part.head.headers[HEADER_LENGTH], document.len().to_string());
        assert_eq!(part.body, document + tensor);
    }
    let answer = |rows: u32, size: u32, tensor: &str| {
        let document = document(rows, size).replace("inputs", "outputs");
        let mut answer = reply(&(document.clone() + tensor));
        answer.headers.insert(HEADER_LENGTH, HeaderValue::from(document.len()));
        answer
    };
    let joined = join(&v2(), &parts, &[answer(2, 4, "AABB"), answer(1, 2, "CC")]).unwrap();
    let expected = answer(3, 6, "AABBCC");
    assert_eq!((joined.body, &joined.headers[HEADER_LENGTH]), (expected.body, &expected.headers[HEADER_LENGTH]));
}
