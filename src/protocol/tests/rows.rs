//! Protocols of tabular models: MLflow and Seldon, and the toolkit of `SageMaker`.

use super::*;

const MLFLOW: &str = "/invocations";
const SELDON: &str = "/api/v0.1/predictions";

#[test]
fn rows_in_different_members_never_share_a_batch() {
    let endpoint = endpoint(MLFLOW, RouteProtocol::MlFlow);
    let calls = [
        r#"{"dataframe_split":{"columns":["x"],"data":[[1]]}}"#,
        r#"{"dataframe_split":{"columns":["y"],"data":[[1]]}}"#,
        r#"{"dataframe_records":[{"x":1}]}"#,
        r#"{"dataframe_records":[{"x":1.5}]}"#,
        r#"{"dataframe_records":[{"x":null}]}"#,
        r#"{"dataframe_records":[{"x":1},{"x":null}]}"#,
        r#"{"dataframe_records":[{"x":1,"y":1}]}"#,
        r#"{"instances":[[1]]}"#,
        r#"{"inputs":[[1]]}"#,
        r#"{"inputs":[[1]],"params":{"k":1}}"#,
    ]
    .map(|body| read(&endpoint, MLFLOW, body));
    for (place, call) in calls.iter().enumerate() {
        assert_eq!(call.unbatched_reason(), None, "{call:?}");
        assert!(calls.iter().skip(place + 1).all(|other| !may_share_batch(call, other)), "{place}");
    }
    assert!(may_share_batch(&calls[2], &read(&endpoint, MLFLOW, r#"{"dataframe_records":[{"x":2}, {"x":3}]}"#)));
    assert_eq!(read(&endpoint, MLFLOW, r#"{"instances":[NaN]}"#).unbatched_reason(), None);
}

/// A data frame takes its columns from the records in order, and a server that accepts several
/// formats chooses one by the first item.
#[test]
fn the_order_of_columns_and_of_kinds_of_rows_separates_calls() {
    let mlflow = endpoint(MLFLOW, RouteProtocol::MlFlow);
    let records = |rows: &str| read(&mlflow, MLFLOW, &format!(r#"{{"dataframe_records":[{rows}]}}"#));
    let (ab, ba) = (r#"{"a":1.0,"b":2.0}"#, r#"{"b":20.0,"a":10.0}"#);
    let (both, swapped) = (records(&format!("{ab},{ba}")), records(&format!("{ba},{ab}")));
    assert!(may_share_batch(&records(ab), &records(r#"{"\u0061":3.0, "b":4.0}"#)));
    assert!(!may_share_batch(&records(ab), &records(ba)));
    assert!(!may_share_batch(&both, &swapped));
    assert!(may_share_batch(&both, &records(&format!("{ab},{ba},{ba},{ab}"))));
    let predict = "/v1/models/m:predict";
    let kserve = endpoint(predict, RouteProtocol::KServeV1);
    let instances = |items: &str| read(&kserve, predict, &format!(r#"{{"instances":[{items}]}}"#));
    assert!(may_share_batch(&instances(r#""x",1"#), &instances(r#""y",2,"z""#)));
    assert!(!may_share_batch(&instances(r#""x",1"#), &instances(r#"1,"x""#)));
    // Rows of one layout have no order.
    assert!(may_share_batch(&instances("1,2.5"), &instances("2.5,1")));
    assert!(may_share_batch(&records(r#"{"a":1},{"a":null}"#), &records(r#"{"a":null},{"a":2}"#)));
}

#[test]
fn rows_that_have_no_single_position_are_sent_unbatched() {
    let endpoint = endpoint(MLFLOW, RouteProtocol::MlFlow);
    for body in [
        r#"{"dataframe_split":{"columns":["x"],"index":[7],"data":[[1]]}}"#,
        r#"{"dataframe_split":{"columns":["x"],"data":[]}}"#,
        r#"{"instances":[1],"inputs":[1]}"#,
        r#"{"inputs":{"x":[1]}}"#,
        r#"{"inputs":"text"}"#,
        r#"{"messages":[]}"#,
        "{}",
    ] {
        assert_eq!(read(&endpoint, MLFLOW, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    let case = read(&endpoint, MLFLOW, r#"{"instances":[1],"Instances":[2]}"#);
    assert_eq!(case.unbatched_reason(), Some(UnmergeableReason::AmbiguousJson));
}

#[test]
fn a_response_in_columns_is_a_mismatch() {
    let endpoint = endpoint(MLFLOW, RouteProtocol::MlFlow);
    let call = read(&endpoint, MLFLOW, r#"{"inputs":[[1]]}"#);
    let error = split(&endpoint, &[&call, &call], r#"{"predictions":{"a":[1,2]}}"#).unwrap_err();
    assert_eq!(error.what, MismatchKind::Shape);
}

#[test]
fn the_id_of_a_call_is_left_out_and_repeated_in_its_response() {
    let endpoint = endpoint(SELDON, RouteProtocol::Seldon);
    let call = |id: &str, row: u8| {
        read(&endpoint, SELDON, &format!(r#"{{"data":{{"ndarray":[[{row}]]}},"meta":{{"puid":"{id}","tags":{{}}}}}}"#))
    };
    let (one, other) = (call("first", 1), call("second", 2));
    assert!(may_share_batch(&one, &other));
    let sent = endpoint.write_batch(&[&one, &other], None);
    assert_eq!(sent.body, r#"{"data":{"ndarray":[[1],[2]]},"meta":{"tags":{}}}"#);
    let response = r#"{"meta":{"puid":"upstream"},"data":{"ndarray":[[3],[4]]}}"#;
    let replies = split(&endpoint, &[&one, &other], response).unwrap();
    assert_eq!(
        bodies(&replies),
        [
            r#"{"meta":{"puid":"first"},"data":{"ndarray":[[3]]}}"#,
            r#"{"meta":{"puid":"second"},"data":{"ndarray":[[4]]}}"#,
        ]
    );
    let plain = read(&endpoint, SELDON, r#"{"data":{"ndarray":[[1]]}}"#);
    let other = read(&endpoint, SELDON, r#"{"data":{"ndarray":[[2]],"names":["f"]}}"#);
    assert!(!may_share_batch(&plain, &other) && !may_share_batch(&plain, &one));
    let replies = split(&endpoint, &[&plain, &plain], response).unwrap();
    let [first, second] = <[&str; 2]>::try_from(bodies(&replies)).unwrap();
    assert!(!first.contains("upstream") && !second.contains("upstream") && first != second, "{first} {second}");
}

#[test]
fn names_of_columns_are_shared_unless_they_may_quote_a_row() {
    let endpoint = endpoint(SELDON, RouteProtocol::Seldon);
    let calls =
        ["private", "other"].map(|text| read(&endpoint, SELDON, &format!(r#"{{"data":{{"ndarray":[["{text}"]]}}}}"#)));
    let split = |names: &str| {
        let response = format!(r#"{{"data":{{"names":{names},"ndarray":[[3],[4]]}}}}"#);
        split(&endpoint, &[&calls[0], &calls[1]], &response).map(|_| ()).map_err(|error| error.what)
    };
    assert_eq!(split(r#"["t:0","t:1"]"#), Ok(()));
    for names in [r#"["private"]"#, r#"["is privat"]"#, r#"{"a":1}"#, r#"[["t"]]"#, "[1]"] {
        assert_eq!(split(names), Err(MismatchKind::Undeclared), "{names}");
    }
    // Short texts and digits in rows of several columns.
    let rows = [r#"["bob",3]"#, r#"[7,"4711"]"#].map(|row| format!(r#"{{"data":{{"ndarray":[{row}]}}}}"#));
    let calls = rows.map(|body| read(&endpoint, SELDON, &body));
    for (names, expected) in [(r#"["bob"]"#, false), (r#"["n-4711"]"#, false), (r#"["t:0"]"#, true)] {
        let response = format!(r#"{{"data":{{"names":{names},"ndarray":[[3],[4]]}}}}"#);
        let pair = [&calls[0], &calls[0]];
        let pair = if names.contains("4711") { [&calls[1], &calls[1]] } else { pair };
        assert_eq!(super::split(&endpoint, &pair, &response).is_ok(), expected, "{names}");
    }
    for body in [
        r#"{"data":{"tftensor":{"dtype":"DT_FLOAT"}}}"#,
        r#"{"data":{"ndarray":[[1]],"tensor":{}}}"#,
        r#"{"strData":"a"}"#,
        r#"{"jsonData":{},"data":{"ndarray":[[1]]}}"#,
    ] {
        assert_eq!(read(&endpoint, SELDON, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn only_lists_of_texts_are_merged_on_sagemaker() {
    let endpoint = endpoint(MLFLOW, RouteProtocol::SageMaker);
    let list = read(&endpoint, MLFLOW, r#"{"inputs":["a"]}"#);
    assert!(may_share_batch(&list, &read(&endpoint, MLFLOW, r#"{"inputs":["b","c"]}"#)));
    assert!(!may_share_batch(&list, &read(&endpoint, MLFLOW, r#"{"inputs":["b"],"parameters":{"top_k":1}}"#)));
    for body in [r#"{"inputs":"a"}"#, r#"{"inputs":[{"question":"a"}]}"#, r#"{"inputs":{"text":"a"}}"#] {
        assert_eq!(read(&endpoint, MLFLOW, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}
