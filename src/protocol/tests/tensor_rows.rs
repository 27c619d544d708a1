//! Tensors without a name (`data.tensor` of Seldon): their rows are joined, and cut again.

use proptest::prelude::*;

use super::*;
use crate::batching::Weight;

const PATH: &str = "/api/v1.0/predictions";

fn seldon() -> Arc<Endpoint> {
    endpoint(PATH, RouteProtocol::Seldon)
}

/// Returns a call with this tensor and nothing else.
fn tensor_call(endpoint: &Endpoint, shape: &str, values: &str) -> Call {
    read(endpoint, PATH, &format!(r#"{{"data":{{"tensor":{{"shape":{shape},"values":{values}}}}}}}"#))
}

/// Returns a response with this tensor and nothing else.
fn tensor_answer(shape: &str, values: &str) -> String {
    format!(r#"{{"data":{{"tensor":{{"shape":{shape},"values":{values}}}}}}}"#)
}

#[test]
fn rows_are_joined_as_written_and_shapes_are_rewritten() {
    let endpoint = seldon();
    let one = r#"{"meta":{"puid":"first"},"data":{"names":["a","b"],"tensor":{"shape":[ 1 ,2],"values":[1.0, 2.50]}}}"#;
    let other =
        r#"{"data":{"tensor":{"values":[3e0 ,4,-0.0,6],"shape":[2,2]},"names":["a","b"]},"meta":{"puid":"second"}}"#;
    let calls = [one, other].map(|body| read(&endpoint, PATH, body));
    assert!(may_share_batch(&calls[0], &calls[1]), "{calls:?}");
    assert_eq!(calls.each_ref().map(|call| call.items), [1, 2]);
    assert_eq!(calls[1].weight, Weight { sum: 2, max: 1 });
    let members = [&calls[0], &calls[1]];
    let sent = endpoint.write_batch(&members, None);
    assert_eq!(
        sent.body,
        r#"{"meta":{},"data":{"names":["a","b"],"tensor":{"shape":[ 3 ,2],"values":[1.0, 2.50,3e0 ,4,-0.0,6]}}}"#
    );
    let response = r#"{"data":{"names":["t:0"],"tensor":{"shape":[3, 1],"values":[0.1, 0.20, 0.3]}},"meta":{"puid":"up"}}
"#;
    assert_eq!(
        bodies(&split(&endpoint, &members, response).unwrap()),
        [
            "{\"data\":{\"names\":[\"t:0\"],\"tensor\":{\"shape\":[1, 1],\"values\":[0.1]}},\"meta\":{\"puid\":\"first\"}}\n",
            "{\"data\":{\"names\":[\"t:0\"],\"tensor\":{\"shape\":[2, 1],\"values\":[0.20, 0.3]}},\"meta\":{\"puid\":\"second\"}}\n",
        ]
    );
}

#[test]
fn the_form_of_a_response_does_not_depend_on_that_of_the_calls() {
    let endpoint = seldon();
    let tensor = tensor_call(&endpoint, "[1,2]", "[1,2]");
    let list = read(&endpoint, PATH, r#"{"data":{"ndarray":[[1,2]]}}"#);
    for call in [&tensor, &list] {
        let texts = split(&endpoint, &[call, call], r#"{"data":{"ndarray":["cat","dog"]}}"#).unwrap();
        assert_eq!(bodies(&texts), [r#"{"data":{"ndarray":["cat"]}}"#, r#"{"data":{"ndarray":["dog"]}}"#]);
        let numbers = split(&endpoint, &[call, call], &tensor_answer("[2]", "[null,0.5]")).unwrap();
        assert_eq!(bodies(&numbers), [tensor_answer("[1]", "[null]"), tensor_answer("[1]", "[0.5]")]);
    }
}

#[test]
fn calls_that_differ_in_more_than_their_rows_never_share_a_batch() {
    let endpoint = seldon();
    let calls = [
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,4]}}}"#,
        r#"{"data":{"tensor":{"shape":[1,2,2],"values":[1,2,3,4]}}}"#,
        r#"{"data":{"tensor":{"shape":[2,2],"values":[1,2,3,4]}}}"#,
        r#"{"data":{"tensor":{"shape":[4,1],"values":[1,2,3,4]}}}"#,
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,4.0]}}}"#,
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,18446744073709551616]}}}"#,
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,4]},"names":["a"]}}"#,
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,4],"dtype":"f"}}}"#,
        r#"{"data":{"tensor":{"shape":[1,4],"values":[1,2,3,4]}},"meta":{"tags":{"a":1}}}"#,
        r#"{"data":{"ndarray":[[1,2,3,4]]}}"#,
    ]
    .map(|body| read(&endpoint, PATH, body));
    for (place, call) in calls.iter().enumerate() {
        assert_eq!(call.unbatched_reason(), None, "{place}");
        assert!(calls.iter().skip(place + 1).all(|other| !may_share_batch(call, other)), "{place}");
    }
    assert!(may_share_batch(&calls[0], &tensor_call(&endpoint, "[2,4]", "[5,6,7,8,9,10,11,12]")));
    assert!(may_share_batch(&calls[4], &tensor_call(&endpoint, "[1,4]", "[0.5,6,7,8]")), "both are floats");
}

#[test]
fn a_call_without_a_single_position_of_its_rows_is_sent_unbatched() {
    let endpoint = seldon();
    for body in [
        r#"{"data":{"tensor":{"shape":[1,1],"values":[1]},"ndarray":[[1]]}}"#,
        r#"{"data":{"tensor":{"shape":[1,1],"values":[1]},"tftensor":{}}}"#,
        r#"{"data":{"tensor":null,"ndarray":[[1]]}}"#,
        r#"{"data":{"tensor":{"shape":[1,2],"values":[1]}}}"#,
        r#"{"data":{"tensor":{}},"strData":"a"}"#,
    ] {
        assert_eq!(read(&endpoint, PATH, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    for body in [
        r#"{"data":{"tensor":{"shape":[1,1],"Shape":[2,1],"values":[1]}}}"#,
        r#"{"data":{"tensor":{"shape":[1,1],"values":[1]},"Tensor":{}}}"#,
        r#"{"data":{"tensor":{"shape":[1,1],"values":[1],"values":[1]}}}"#,
    ] {
        assert_eq!(read(&endpoint, PATH, body).unbatched_reason(), Some(UnmergeableReason::AmbiguousJson), "{body}");
    }
    let rows = vec!["1"; 129].join(",");
    let many = tensor_call(&endpoint, "[129,1]", &format!("[{rows}]"));
    assert_eq!((many.unbatched_reason(), many.items), (Some(UnmergeableReason::ClientBatchFull), 129));
    let over =
        RouteRules { merge_over_fields: vec![pointer("/data/tensor/shape")], ..rules(PATH, RouteProtocol::Seldon) };
    let cut = tensor_call(&endpoint_of(over, PATH), "[1,1]", "[1]");
    assert_eq!(cut.unbatched_reason(), Some(UnmergeableReason::ItemForm), "a removed shape counts no rows");
}

/// The vector may be one example with four features, and its results one row.
#[test]
fn an_array_of_one_dimension_is_sent_unbatched() {
    let endpoint = seldon();
    for body in [
        r#"{"data":{"tensor":{"shape":[4],"values":[1,2,3,4]}}}"#,
        r#"{"data":{"ndarray":[1,2,3,4]}}"#,
        r#"{"data":{"ndarray":[1.5]}}"#,
        r#"{"data":{"ndarray":["a",2]}}"#,
        r#"{"data":{"ndarray":["a text"]}}"#,
        r#"{"data":{"ndarray":[[1],2]}}"#,
    ] {
        assert_eq!(read(&endpoint, PATH, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn a_tensor_that_does_not_have_the_rows_of_all_members_is_a_mismatch() {
    let endpoint = seldon();
    let (one, other) = (tensor_call(&endpoint, "[1,2]", "[1,2]"), tensor_call(&endpoint, "[2,2]", "[1,2,3,4]"));
    let mismatch = |answer: &str| split(&endpoint, &[&one, &other], answer).unwrap_err().what;
    for (shape, values) in [("[2,1]", "[1,2]"), ("[4,1]", "[1,2,3,4]"), ("[1,3]", "[1,2,3]")] {
        assert_eq!(mismatch(&tensor_answer(shape, values)), MismatchKind::Count, "{shape} {values}");
    }
    for (shape, values) in [
        ("[3,1]", "[1,2]"),
        ("[3,1]", "[1,2,3,4]"),
        ("[3,2]", "[1,2,3]"),
        ("[3,1]", "[[1],[2],[3]]"),
        ("[3]", r#"["1","2","3"]"#),
        ("[3]", "[1,2,{}]"),
        ("[3.0]", "[1,2,3]"),
        ("3", "[1,2,3]"),
        ("[]", "[1,2,3]"),
    ] {
        assert_eq!(mismatch(&tensor_answer(shape, values)), MismatchKind::Shape, "{shape} {values}");
    }
    for answer in [
        r#"{"data":{"tensor":{"values":[1,2,3]}}}"#,
        r#"{"data":{"tensor":{"shape":[3],"shape":[3],"values":[1,2,3]}}}"#,
        r#"{"data":{"tensor":{"shape":[3],"values":[1,2,3]},"ndarray":[1,2,3]}}"#,
        r#"{"data":{"tensor":null}}"#,
        r#"{"data":{}}"#,
    ] {
        assert_eq!(mismatch(answer), MismatchKind::Shape, "{answer}");
    }
}

#[test]
fn no_part_of_a_response_may_quote_the_rows_of_another_member() {
    let endpoint = seldon();
    let rows = ["[0.123456, 0.654321]", "[0.111222,0.333444]"];
    let calls = rows.map(|values| tensor_call(&endpoint, "[1,2]", values));
    let split =
        |answer: &str| split(&endpoint, &[&calls[0], &calls[1]], answer).map(|_| ()).map_err(|mismatch| mismatch.what);
    let echoed = tensor_answer("[2,2]", "[0.123456,0.654321,0.111222,0.333444]");
    assert_eq!(split(&echoed), Ok(()), "its own row");
    let swapped = tensor_answer("[2,2]", "[0.111222, 0.333444,0.123456,0.654321]");
    assert_eq!(split(&swapped), Err(MismatchKind::Undeclared));
    let named = |name: &str| format!(r#"{{"data":{{"names":["{name}"],"tensor":{{"shape":[2,1],"values":[1,2]}}}}}}"#);
    assert_eq!(split(&named("t:0")), Ok(()));
    assert_eq!(split(&named("x0.111222")), Err(MismatchKind::Undeclared));
    let member = tensor_answer("[2,1]", r#"[1,2],"input":0.111222"#);
    assert_eq!(split(&member), Err(MismatchKind::Undeclared), "a member that the protocol does not define");
}

/// Numbers in the spellings of several languages. None is wider than 64 bits.
fn number() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,5})(\\.[0-9]{1,9})?([eE][+-]?[0-9])?"
}

/// Returns the body of a call or a response with these rows, each with numbers of these dimensions.
fn written(rows: &[Vec<String>], row: &[usize], (id, space): (Option<&str>, &str)) -> String {
    let lengths: Vec<String> =
        std::iter::once(rows.len()).chain(row.iter().copied()).map(|len| len.to_string()).collect();
    let shape = lengths.join(&format!("{space},"));
    let values: Vec<&str> = rows.iter().flatten().map(String::as_str).collect();
    let values = values.join(&format!(",{space}"));
    let tensor = format!("\"tensor\":{{{space}\"shape\":[{space}{shape}],\"values\" :[{space}{values}{space}]}}");
    let meta = id.map_or("{}".to_owned(), |id| format!("{{\"puid\":\"{id}\"}}"));
    format!("{{\"meta\":{meta},{space}\"data\":{{\"names\":[\"p\"],{tensor}{space}}}}}{space}")
}

/// Returns the body of a response with these rows in a list.
fn written_as_list(rows: &[Vec<String>], (id, space): (&str, &str)) -> String {
    let rows: Vec<String> = rows.iter().map(|row| format!("[{}]", row.join(","))).collect();
    let rows = rows.join(&format!("{space},"));
    format!("{{\"data\":{{\"ndarray\":{space}[{rows}{space}]}},\"meta\":{{\"puid\":\"{id}\"}}}}")
}

/// Returns the first numbers of a pool as rows of this length, beginning at `start`.
fn rows_of(pool: &[String], start: usize, (count, len): (usize, usize)) -> Vec<Vec<String>> {
    let mut numbers = pool.iter().cycle().skip(start).cloned();
    (0..count).map(|_| numbers.by_ref().take(len).collect()).collect()
}

proptest! {
    /// Joining and splitting yields exactly the bytes that each call would have received alone.
    #[test]
    fn split_undoes_join_of_rows(
        counts in prop::collection::vec(1..4_usize, 2..5),
        row in prop::collection::vec(1..4_usize, 1..3),
        result in prop::collection::vec(1..4_usize, 0..3),
        inputs in prop::collection::vec(number(), 7..30),
        results in prop::collection::vec(prop_oneof![number(), Just("NaN".to_owned()), Just("null".to_owned())], 7..30),
        space in prop_oneof![Just(""), Just(" "), Just("\n\t "), Just("  ")],
    ) {
        let endpoint = seldon();
        let (row_len, result_len) = (row.iter().product(), result.iter().product());
        let ids: Vec<String> = (0..counts.len()).map(|member| format!("puid-{member}")).collect();
        let mut given: Vec<Vec<Vec<String>>> =
            counts.iter().enumerate().map(|(member, count)| rows_of(&inputs, member, (*count, row_len))).collect();
        // Numbers of one class: the array of each call has a floating-point number.
        given.iter_mut().for_each(|rows| "0.50".clone_into(&mut rows[0][0]));
        let calls: Vec<Call> = given.iter().zip(&ids).map(|(rows, id)| {
            read(&endpoint, PATH, &written(rows, &row, (Some(id), space)))
        }).collect();
        for (call, count) in calls.iter().zip(&counts) {
            prop_assert_eq!(call.unbatched_reason(), None, "{:?}", call.body);
            prop_assert!(call.merge == calls[0].merge, "{:?} {:?}", call.body, calls[0].body);
            prop_assert_eq!(usize::try_from(call.items).unwrap(), *count);
        }
        let members: Vec<&Call> = calls.iter().collect();
        let sent = endpoint.write_batch(&members, None);
        prop_assert_eq!(one_spelling(&sent.body), one_spelling(written(&given.concat(), &row, (None, "")).as_bytes()));

        let answers: Vec<Vec<Vec<String>>> =
            counts.iter().enumerate().map(|(member, count)| rows_of(&results, member, (*count, result_len))).collect();
        let replies = split(&endpoint, &members, &written(&answers.concat(), &result, (Some("upstream"), space))).unwrap();
        for ((rows, id), body) in answers.iter().zip(&ids).zip(bodies(&replies)) {
            prop_assert_eq!(body, written(rows, &result, (Some(id), space)));
        }
        let replies = split(&endpoint, &members, &written_as_list(&answers.concat(), ("upstream", space))).unwrap();
        for ((rows, id), body) in answers.iter().zip(&ids).zip(bodies(&replies)) {
            prop_assert_eq!(body, written_as_list(rows, (id, space)));
        }
    }

    /// A response with one changed byte still has the rows of all members, or no member receives a
    /// part of it.
    #[test]
    fn a_damaged_tensor_is_cut_soundly_or_not_at_all(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let endpoint = seldon();
        let (one, other) = (tensor_call(&endpoint, "[1,2]", "[1,2]"), tensor_call(&endpoint, "[2,2]", "[1,2,3,4]"));
        let sent = endpoint.write_batch(&[&one, &other], None);
        let mut body = tensor_answer("[3,2]", "[1,2,3,4,5,6]").into_bytes();
        let place = at.index(body.len());
        body[place] = byte;
        let body = Bytes::from(body);
        if let Ok(replies) = split_sent(&endpoint, &[&one, &other], &sent, StatusCode::OK, &HeaderMap::new(), &body) {
            let rows: Vec<u64> = replies.iter().map(|reply| {
                let document: Value = serde_json::from_slice(&reply.body).unwrap();
                document["data"]["tensor"]["shape"][0].as_u64().unwrap()
            }).collect();
            prop_assert_eq!(rows, [1, 2]);
        }
    }
}
