//! Division of large calls: the bodies of the parts, the calls that stay whole, and the joined
//! response.

use super::*;
use crate::batching::PartLimits;

const OPEN: PartLimits =
    PartLimits { items: u32::MAX, weight: u64::MAX, padded_weight: u64::MAX, bytes: u64::MAX, concurrent: 1 };

/// Returns the limits of parts with at most this number of items.
pub(crate) fn items(items: u32) -> PartLimits {
    PartLimits { items, ..OPEN }
}

fn divide(endpoint: &Endpoint, target: &str, body: &str, limits: &PartLimits) -> Option<Vec<Call>> {
    let json = [("content-type", "application/json"), ("host", "h")];
    let call = read(endpoint, target, body);
    let plan = endpoint.plan_division(&call, limits)?;
    let calls = endpoint.divide_call(&call, &parts(target, &json), &plan, &secret())?;
    assert_eq!(calls.iter().map(|call| call.body.len()).sum::<usize>(), plan.bytes);
    Some(calls)
}

fn bodies(parts: &[Call]) -> Vec<&str> {
    parts.iter().map(|part| std::str::from_utf8(&part.body).unwrap()).collect()
}

pub(crate) fn reply(body: &str) -> Reply {
    let body = Bytes::from(body.to_owned());
    Reply { status: StatusCode::OK, headers: HeaderMap::new(), body, trailers: None }
}

/// Joins the responses to the parts of a call.
pub(crate) fn join(endpoint: &Endpoint, calls: &[Call], replies: &[Reply]) -> Result<Reply, MismatchKind> {
    let answers: Vec<PartAnswer<'_>> =
        calls.iter().zip(replies).map(|(call, reply)| PartAnswer { call, reply }).collect();
    endpoint.join_answers(&answers).map_err(|mismatch| mismatch.what)
}

/// Divides a call into parts of `each` items, splits the response to the whole call among them, and
/// joins the results.
fn split_and_join(endpoint: &Endpoint, target: &str, (body, each): (&str, u32), answer: &str) -> String {
    let calls = divide(endpoint, target, body, &items(each)).unwrap();
    let replies = split(endpoint, &calls.iter().collect::<Vec<_>>(), answer).unwrap();
    String::from_utf8(join(endpoint, &calls, &replies).unwrap().body.to_vec()).unwrap()
}

#[test]
fn a_part_has_the_bytes_of_the_call_and_its_own_items() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let body = r#"{ "model" : "m", "input" : [ "a" ,"b", "c\u00e9",  "d" , "e" ] , "user":"u" }"#;
    let parts = divide(&endpoint, "/v1/embeddings", body, &items(2)).unwrap();
    let expected = [
        r#"{ "model" : "m", "input" : ["a" ,"b"] , "user":"u" }"#,
        r#"{ "model" : "m", "input" : ["c\u00e9",  "d"] , "user":"u" }"#,
        r#"{ "model" : "m", "input" : ["e"] , "user":"u" }"#,
    ];
    assert_eq!(bodies(&parts), expected);
    let whole = read(&endpoint, "/v1/embeddings", body);
    assert!(parts.iter().all(|part| part.merge == whole.merge), "the parts may share batches with other calls");
    assert_eq!(parts.iter().map(|part| part.items).collect::<Vec<_>>(), [2, 2, 1]);
}

#[test]
fn parts_end_at_the_limits_on_weight_and_bytes() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    // Each number of letters is the weight of a text in tokens, times four.
    let body = r#"{"input":["aaaaaaaa","bbbb","cccc","dddddddddddd","eeee"]}"#;
    let counts = |limits: PartLimits| {
        let parts = divide(&endpoint, "/v1/embeddings", body, &limits)?;
        Some(parts.iter().map(|part| part.items).collect::<Vec<_>>())
    };
    assert_eq!(counts(PartLimits { weight: 3, ..OPEN }), Some(vec![2, 1, 1, 1]));
    assert_eq!(counts(PartLimits { padded_weight: 4, ..OPEN }), Some(vec![2, 1, 1, 1]));
    assert_eq!(counts(PartLimits { weight: 4, ..OPEN }), Some(vec![3, 2]));
    assert_eq!(counts(PartLimits { bytes: 35, ..OPEN }), Some(vec![2, 1, 1, 1]), "16 bytes are no items");
    assert_eq!(counts(OPEN), None, "there is nothing to divide");
}

#[test]
fn a_call_whose_parts_would_repeat_a_large_member_stays_whole() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let texts: Vec<String> = (0..100).map(|text| format!("\"{text}\"")).collect();
    let with = |user: usize| {
        let body = format!(r#"{{"input":[{}],"user":"{}"}}"#, texts.join(","), "u".repeat(user));
        divide(&endpoint, "/v1/embeddings", &body, &items(1)).map(|parts| parts.len())
    };
    assert_eq!(with(1000), Some(100));
    assert_eq!(with(900_000), None, "they would have 90 MB together");
}

#[test]
fn the_weight_that_is_known_of_a_call_is_divided_among_its_items() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let mut call = read(&endpoint, "/v1/embeddings", r#"{"input":["aaaaaaaa","bbbb","cccc","dddd"]}"#);
    let counts = |call: &Call| {
        let plan = endpoint.plan_division(call, &PartLimits { weight: 6, ..OPEN })?;
        Some(plan.ranges.iter().map(ExactSizeIterator::len).collect::<Vec<_>>())
    };
    assert_eq!((call.weight.sum, counts(&call)), (5, None));
    // The server has reported twice as many tokens for such texts.
    call.weight.sum = 10;
    assert_eq!(counts(&call), Some(vec![2, 2]));
}

#[test]
fn calls_whose_responses_cannot_be_joined_exactly_stay_whole() {
    let embeddings = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let whole = |endpoint: &Endpoint, target: &str, body: &str| {
        assert!(divide(endpoint, target, body, &items(1)).is_none(), "{body}");
    };
    whole(&embeddings, "/v1/embeddings", r#"{"input":[1,2,3]}"#);
    whole(&embeddings, "/v1/embeddings", r#"{"input":["a","b"],"late_chunking":true}"#);
    let rerank = endpoint("/rerank", RouteProtocol::Tei);
    whole(&rerank, "/rerank", r#"{"query":"q","texts":["a","b"]}"#);
    let similarity = endpoint("/similarity", RouteProtocol::Tei);
    whole(&similarity, "/similarity", r#"{"inputs":{"source_sentence":"s","sentences":["a","b"]}}"#);
    let completions = endpoint("/v1/completions", RouteProtocol::OpenAi);
    whole(&completions, "/v1/completions", r#"{"prompt":["a","b"],"stream":true}"#);
    let never_again = RouteRules { idempotent: Some(false), ..rules("/v1/embeddings", RouteProtocol::OpenAi) };
    whole(&endpoint_of(never_again, "/v1/embeddings"), "/v1/embeddings", r#"{"input":["a","b"]}"#);
    let many: Vec<String> = (0..129).map(|item| item.to_string()).collect();
    let list_rules = RouteRules { item_count_max: 4096, ..rules("/m:predict", RouteProtocol::KServeV1) };
    let list = endpoint_of(list_rules, "/m:predict");
    let many = format!(r#"{{"instances":[{}]}}"#, many.join(","));
    assert!(divide(&list, "/m:predict", &many, &items(2)).is_some());
    whole(&list, "/m:predict", &many);
}

#[test]
fn rows_of_several_kinds_stay_whole_because_their_parts_would_be_read_differently() {
    let endpoint = endpoint("/invocations", RouteProtocol::MlFlow);
    let divides = |body| divide(&endpoint, "/invocations", body, &items(1)).is_some();
    assert!(divides(r#"{"inputs":[[1.5],[2.5]]}"#));
    assert!(!divides(r#"{"inputs":[[1],["a"]]}"#));
}

#[test]
fn the_rows_of_a_tensor_are_divided_and_joined_with_their_numbers() {
    let path = "/api/v1.0/predictions";
    let endpoint = endpoint(path, RouteProtocol::Seldon);
    let row = |row: usize| format!("{row}.5, {row}.0");
    let rows = |rows: std::ops::Range<usize>| rows.map(row).collect::<Vec<_>>().join(", ");
    let call = |count: usize, rows: &str| {
        format!(r#"{{"data": {{"tensor": {{"shape": [{count}, 2], "values": [{rows}]}}}}, "meta": {{"puid": "own"}}}}"#)
    };
    let body = call(11, &rows(0..11));
    let parts = divide(&endpoint, path, &body, &items(10)).unwrap();
    assert_eq!(bodies(&parts), [call(10, &rows(0..10)), call(1, &rows(10..11))]);
    for each in [1, 4, 10] {
        assert_eq!(split_and_join(&endpoint, path, (&body, each), &call(11, &rows(20..31))), call(11, &rows(20..31)));
        let list = r#"{"data":{"ndarray":[0,1,2,3,4,5,6,7,8,9,10]}}"#;
        assert_eq!(split_and_join(&endpoint, path, (&body, each), list), list);
    }
    let tensor = |shape: &str| reply(&format!(r#"{{"data":{{"tensor":{{"shape":{shape},"values":[1,2]}}}}}}"#));
    let calls = divide(&endpoint, path, &call(2, &rows(0..2)), &items(1)).unwrap();
    let join = |first: Reply, second: Reply| join(&endpoint, &calls, &[first, second]).map(|_| ());
    assert_eq!(join(tensor("[1,2]"), tensor("[1,2]")), Ok(()));
    assert_eq!(join(tensor("[1,2]"), tensor("[1,2,1]")), Err(MismatchKind::Shape));
    assert_eq!(join(tensor("[1,2]"), reply(r#"{"data":{"ndarray":[[1,2]]}}"#)), Err(MismatchKind::Shape));
}

#[test]
fn joining_is_the_inverse_of_splitting() {
    let embeddings = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let answer = concat!(
        "{\"object\": \"list\", \"data\": [\n  {\"object\": \"embedding\", \"index\": 0, \"embedding\": [1.50, 2e-3]},",
        "\n  {\"object\": \"embedding\", \"index\": 1, \"embedding\": [3]},",
        "\n  {\"object\": \"embedding\", \"index\": 2, \"embedding\": [4]}\n], \"model\": \"m\", ",
        "\"usage\": {\"prompt_tokens\": 9, \"total_tokens\": 9}}\n"
    );
    let body = r#"{"model":"m","input":["a","b","c"]}"#;
    for each in [1, 2] {
        assert_eq!(split_and_join(&embeddings, "/v1/embeddings", (body, each), answer), answer);
    }
    let predict = endpoint("/m:predict", RouteProtocol::KServeV1);
    let answer = r#"{"predictions": [[0.10], [0.20], [0.30], [0.40], [0.50]]}"#;
    let body = r#"{"instances":[[1],[2],[3],[4],[5]]}"#;
    assert_eq!(split_and_join(&predict, "/m:predict", (body, 2), answer), answer);
    let completions = endpoint("/v1/completions", RouteProtocol::OpenAi);
    let choice = |index: usize| format!(r#"{{"index":{index},"text":"t{index}","finish_reason":"stop"}}"#);
    let choices: Vec<String> = (0..6).map(choice).collect();
    let answer = format!(r#"{{"object":"text_completion","choices":[{}]}}"#, choices.join(","));
    let body = r#"{"prompt":["a","b","c"],"n":2}"#;
    assert_eq!(split_and_join(&completions, "/v1/completions", (body, 2), &answer), answer);
}

#[test]
fn a_bare_query_is_repeated_in_each_part() {
    let score = endpoint("/score", RouteProtocol::Vllm);
    let body = r#"{"text_1":"q","text_2":["a","b","c"]}"#;
    let parts = divide(&score, "/score", body, &items(2)).unwrap();
    assert_eq!(bodies(&parts), [r#"{"text_1":"q","text_2":["a","b"]}"#, r#"{"text_1":"q","text_2":["c"]}"#]);
    let answer = r#"{"data":[{"index":0,"score":0.1},{"index":1,"score":0.2},{"index":2,"score":0.3}],"usage":{"prompt_tokens":9,"total_tokens":9}}"#;
    assert_eq!(split_and_join(&score, "/score", (body, 2), answer), answer);
}

#[test]
fn one_id_is_kept_and_counters_are_added_up() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let calls = divide(&endpoint, "/v1/embeddings", r#"{"input":["a","b"]}"#, &items(1)).unwrap();
    let answer = |id: &str, tokens: u32| {
        reply(&format!(
            r#"{{"id":"embd-{id}","data":[{{"index":0,"embedding":[1]}}],"usage":{{"prompt_tokens":{tokens},"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#
        ))
    };
    let mut replies = [answer("11111111", 7), answer("22222222", 12)];
    replies[1].headers.insert(headers::USAGE, HeaderValue::from_static("estimated"));
    let joined = join(&endpoint, &calls, &replies).unwrap();
    let expected = r#"{"id":"embd-11111111","data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1]}],"usage":{"prompt_tokens":19,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    assert_eq!(std::str::from_utf8(&joined.body).unwrap(), expected);
    assert_eq!(joined.headers[headers::USAGE], "estimated");
}

#[test]
fn the_counters_in_headers_of_tei_are_added_up() {
    let endpoint = endpoint("/embed", RouteProtocol::Tei);
    let calls = divide(&endpoint, "/embed", r#"{"inputs":["a","b"]}"#, &items(1)).unwrap();
    let mut replies = [reply("[[1]]"), reply("[[2]]")];
    for (reply, tokens) in replies.iter_mut().zip(["3", "4"]) {
        reply.headers.insert("x-compute-tokens", HeaderValue::from_static(tokens));
        reply.headers.insert("content-length", HeaderValue::from_static("5"));
    }
    let joined = join(&endpoint, &calls, &replies).unwrap();
    assert_eq!((&joined.body[..], &joined.headers["x-compute-tokens"]), (&b"[[1],[2]]"[..], &HeaderValue::from(7)));
    assert!(!joined.headers.contains_key("content-length"));
}

#[test]
fn responses_that_may_depend_on_the_number_of_items_are_not_joined() {
    let endpoint = endpoint("/m:predict", RouteProtocol::KServeV1);
    let calls = divide(&endpoint, "/m:predict", r#"{"instances":[[1],[2]]}"#, &items(1)).unwrap();
    let join = |first: &str, second: &str| join(&endpoint, &calls, &[reply(first), reply(second)]).map(|_| ());
    assert_eq!(join(r#"{"predictions":[1]}"#, r#"{"predictions":[2]}"#), Ok(()));
    let counted = r#"{"predictions":[1],"count":1}"#;
    assert_eq!(join(counted, counted), Err(MismatchKind::Undeclared));
    assert_eq!(join(r#"{"predictions":[1]}"#, r#"{"predictions":[1,2]}"#), Err(MismatchKind::Count));
    assert_eq!(join(r#"{"predictions":[1]}"#, "<html>"), Err(MismatchKind::NotJson));
}

#[test]
fn a_member_that_the_policy_declares_is_that_of_the_first_response() {
    let declared =
        RouteRules { respond_with_fields: vec![pointer("version")], ..rules("/m:predict", RouteProtocol::KServeV1) };
    let endpoint = endpoint_of(declared, "/m:predict");
    let calls = divide(&endpoint, "/m:predict", r#"{"instances":[[1],[2]]}"#, &items(1)).unwrap();
    let replies = [reply(r#"{"version":"a","predictions":[1]}"#), reply(r#"{"version":"b","predictions":[2]}"#)];
    let joined = join(&endpoint, &calls, &replies).unwrap();
    assert_eq!(&joined.body[..], br#"{"version":"a","predictions":[1,2]}"#);
}
