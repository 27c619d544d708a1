//! The response to each client, and the responses that are rejected as a whole.

use proptest::prelude::*;

use super::generic::{FlatList, OnMismatch, ResultOrder, ResultWrap};
use super::*;

const PATH: &str = "/v1/embeddings";

fn generic(spec: GenericOptions) -> Arc<Endpoint> {
    assert_eq!(spec.clashes(), []);
    let respond_with_fields = vec![pointer("/n"), pointer("/id")];
    endpoint_of(RouteRules { generic: Some(spec), respond_with_fields, ..rules("/e", RouteProtocol::Generic) }, "/e")
}

fn embeddings(answer: &str) -> Result<Vec<String>, MismatchKind> {
    answers(&endpoint(PATH, RouteProtocol::OpenAi), PATH, &[r#"{"input":"abc"}"#, r#"{"input":["de","f"]}"#], answer)
}

fn data(indexes: &[&str]) -> String {
    let elements: Vec<_> =
        indexes.iter().enumerate().map(|(place, index)| format!(r#"{{"e":[{place}],"index":{index}}}"#)).collect();
    format!(r#"{{"data":[{}]}}"#, elements.join(","))
}

#[test]
fn indexes_bring_results_to_their_items_and_are_counted_from_zero() {
    let split = embeddings(&data(&["2", "0", "1"])).unwrap();
    assert_eq!(split, [r#"{"data":[{"e":[1],"index":0}]}"#, r#"{"data":[{"e":[2],"index":0},{"e":[0],"index":1}]}"#]);
    let split = embeddings(r#"{"data":[{"e":0},{"e":1},{"e":2}]}"#).unwrap();
    assert_eq!(split[1], r#"{"data":[{"e":1},{"e":2}]}"#);
}

#[test]
fn usage_of_a_server_that_counts_the_first_item_alone_is_not_shared() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let calls = [r#"{"input":"abc"}"#, r#"{"input":"de"}"#].map(|body| read(&endpoint, PATH, body));
    let members: Vec<&Call> = calls.iter().collect();
    let sent = endpoint.write_batch(&members, None);
    let body = Bytes::from(format!(r#"{},"usage":{{"prompt_tokens":3}}}}"#, data(&["0", "1"]).trim_end_matches('}')));
    let split = |server: &str| {
        let headers = headers_of(&[("server", server)]);
        split_sent(&endpoint, &members, &sent, StatusCode::OK, &headers, &body).map(|_| ()).map_err(|error| error.what)
    };
    assert_eq!(split("llama.cpp"), Err(MismatchKind::Usage));
    assert!(!ResponseMismatch::from(MismatchKind::Usage).is_quarantining(), "it ends merging as a refusal");
    assert_eq!(split("uvicorn"), Ok(()));
}

#[test]
fn an_answer_that_does_not_fit_its_items_is_a_mismatch() {
    for (indexes, what) in [
        (&["0", "1"][..], MismatchKind::Count),
        (&["0", "1", "2", "3"], MismatchKind::Count),
        (&["0", "1", "1"], MismatchKind::Index),
        (&["0", "1", "7"], MismatchKind::Index),
        (&["0", "1", "-1"], MismatchKind::Index),
        (&["0", "1", "2.0"], MismatchKind::Index),
        (&["0", "1", "\"2\""], MismatchKind::Index),
        (&["0", "1", "99999999999999999999999"], MismatchKind::Index),
    ] {
        assert_eq!(embeddings(&data(indexes)), Err(what), "{indexes:?}");
    }
    for (answer, what) in [
        (r#"{"error":"x"}"#, MismatchKind::Shape),
        (r#"{"data":{"a":1}}"#, MismatchKind::Shape),
        (r#"{"data":[1,2,3]}"#, MismatchKind::Shape),
        (r#"{"data":[],"data":[]}"#, MismatchKind::Shape),
        (r#"{"data":[]}"#, MismatchKind::Count),
        (r#"{"data":[{"e":0},{"e":1,"index":1},{"e":2,"index":2}]}"#, MismatchKind::Index),
        (r#"{"data":[{"index":0},{"index":1},{"index":2}],"texts":["abc","de","f"]}"#, MismatchKind::Undeclared),
        (r#"{"data":[{},{},{}],"usage":{"total_tokens":-1}}"#, MismatchKind::Shape),
        (r#"{"data":[{},{},{}],"usage":{"cost":0.25}}"#, MismatchKind::Undeclared),
        ("<html>", MismatchKind::NotJson),
        (r#"{"data":[{},{},{}]}{}"#, MismatchKind::NotJson),
        (r#"{"data":[{},{},{"#, MismatchKind::NotJson),
        ("", MismatchKind::Empty),
        (" ", MismatchKind::NotJson),
    ] {
        assert_eq!(embeddings(answer), Err(what), "{answer}");
    }
}

#[test]
fn only_wrong_counts_indexes_and_shapes_quarantine() {
    let quarantines = |what: MismatchKind| ResponseMismatch::from(what).is_quarantining();
    assert!([MismatchKind::Count, MismatchKind::Index, MismatchKind::Shape].into_iter().all(quarantines));
    let others = [MismatchKind::NotJson, MismatchKind::Compressed, MismatchKind::Empty, MismatchKind::Status];
    assert!(!others.into_iter().any(quarantines));
}

#[test]
fn coded_and_partial_answers_are_not_touched() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let call = read(&endpoint, PATH, r#"{"input":"a"}"#);
    let sent = endpoint.write_batch(&[&call, &call], None);
    let body = Bytes::from_static(br#"{"data":[{},{}]}"#);
    let split = |status: StatusCode, headers: &[(&str, &str)]| {
        split_sent(&endpoint, &[&call, &call], &sent, status, &headers_of(headers), &body)
            .map(|_| ())
            .map_err(|mismatch| mismatch.what)
    };
    assert_eq!(split(StatusCode::OK, &[("content-encoding", "gzip")]), Err(MismatchKind::Compressed));
    assert_eq!(split(StatusCode::OK, &[("content-encoding", "identity")]), Ok(()));
    assert_eq!(split(StatusCode::NO_CONTENT, &[]), Err(MismatchKind::Status));
    assert_eq!(split(StatusCode::PARTIAL_CONTENT, &[]), Err(MismatchKind::Status));
    assert_eq!(split(StatusCode::CREATED, &[]), Ok(()));
}

#[test]
fn all_other_bytes_stay_as_they_are() {
    let answer = "\n{ \"data\" : [ {\"index\": 0 , \"e\":1.10}\n , {\"e\":NaN,\"index\":1 } , {\"index\":2} ] , \"object\":\"list\" }\r\n";
    let split = embeddings(answer).unwrap();
    assert_eq!(split[0], "\n{ \"data\" : [ {\"index\": 0 , \"e\":1.10} ] , \"object\":\"list\" }\r\n");
    assert_eq!(split[1], "\n{ \"data\" : [ {\"e\":NaN,\"index\":0 }\n , {\"index\":1} ] , \"object\":\"list\" }\r\n");
}

#[test]
fn bytes_that_are_no_utf8_pass_through_strings_of_an_answer() {
    let endpoint = endpoint("/v1/models/m:predict", RouteProtocol::KServeV1);
    let call = read(&endpoint, "/v1/models/m:predict", r#"{"instances":[1]}"#);
    let sent = endpoint.write_batch(&[&call, &call], None);
    let body = Bytes::from_static(b"{\"predictions\":[\"\xff\",\"b\"]}");
    let replies = split_sent(&endpoint, &[&call, &call], &sent, StatusCode::OK, &HeaderMap::new(), &body).unwrap();
    assert_eq!(replies[0].body, &b"{\"predictions\":[\"\xff\"]}"[..]);
}

#[test]
fn ids_in_split_answers_are_specific_to_each_caller() {
    let check = |protocol: RouteProtocol, id: &str, own: Option<&str>, expected: &str| {
        let endpoint = endpoint(PATH, protocol);
        let headers: Vec<(&str, &str)> = own.iter().map(|own| ("x-request-id", *own)).collect();
        let call = read_with(&endpoint, PATH, &headers, r#"{"input":"a"}"#);
        let sent = endpoint.write_batch(&[&call, &call], None);
        let answer = format!(r#"{{"id":"{}","data":[{{}},{{}}]}}"#, id.replace("SENT", &sent.request_id));
        let body = Bytes::from(answer.clone());
        let replies = split_sent(&endpoint, &[&call, &call], &sent, StatusCode::OK, &HeaderMap::new(), &body).unwrap();
        for body in bodies(&replies) {
            assert!(agrees(&format!(r#"{{"id":"{expected}","data":[{{}}]}}"#), body), "{body}");
            assert!(!body.contains(&sent.request_id));
            assert_ne!(body, answer.replace("{},{}", "{}"));
        }
        assert!(own.is_some() || replies[0].body != replies[1].body);
    };
    check(RouteProtocol::OpenAi, "embd-0f0f0f0f0f0f0f0f", Some("ra"), "{{uid:embd-}}");
    check(RouteProtocol::Vllm, "embd-0f0f0f0f0f0f0f0f", Some("ra"), "embd-ra");
    check(RouteProtocol::Vllm, "embd-SENT", None, "{{uid:embd-}}");
    check(RouteProtocol::OpenAi, "embd-SENT", Some("r\"\\"), r#"embd-r\"\\"#);
    check(RouteProtocol::OpenAi, "40a2721b-eca9-4104-9d5a-6ccab1118aa2", None, "{{uid:}}");
    let split = embeddings(r#"{"id":null,"data":[{},{},{}]}"#).unwrap();
    assert_eq!(split[0], r#"{"id":null,"data":[{}]}"#);
}

#[test]
fn usage_is_exact_where_it_is_known_and_marked_where_it_is_not() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let check = |a: &str, b: &str, total: u32, parts: [u32; 2], estimated: bool| {
        let (a, b) = (
            read(&endpoint, PATH, &format!("{{\"input\":{a}}}")),
            read(&endpoint, PATH, &format!("{{\"input\":{b}}}")),
        );
        let replies = split(
            &endpoint,
            &[&a, &b],
            &format!(r#"{{"data":[{{}},{{}}],"usage":{{"prompt_tokens":{total}, "total_tokens":{total}}}}}"#),
        )
        .unwrap();
        for (reply, part) in replies.iter().zip(parts) {
            let expected = format!(r#"{{"data":[{{}}],"usage":{{"prompt_tokens":{part}, "total_tokens":{part}}}}}"#);
            assert_eq!(reply.body, expected);
            assert_eq!(reply.headers.get("x-groupage-usage").is_some(), estimated);
        }
    };
    check(r#""abc""#, r#""de""#, 9, [5, 4], true);
    check(r#""abc""#, r#"["abc"]"#, 8, [4, 4], false);
    check(r#""abc""#, r#"["abc"]"#, 9, [5, 4], true);
    check("[7,8,9]", "[5,6]", 5, [3, 2], false);
    check("[7,8,9]", "[5,6]", 9, [5, 4], true);
    check(r#""abc""#, r#""de""#, 0, [0, 0], false);
}

#[test]
fn members_see_the_allowed_headers_only_and_their_own_id() {
    let own = RouteRules {
        respond_with_headers: vec![HeaderName::from_static("x-model-version")],
        ..rules(PATH, RouteProtocol::OpenAi)
    };
    let endpoint = endpoint_of(own, PATH);
    let (a, b) = (
        read_with(&endpoint, PATH, &[("x-request-id", "ra")], r#"{"input":"a"}"#),
        read(&endpoint, PATH, r#"{"input":"b"}"#),
    );
    let sent = endpoint.write_batch(&[&a, &b], None);
    let headers = header_map(&serde_json::json!({
        "content-type": "application/json", "server": "uvicorn", "date": "now", "set-cookie": "s=1", "content-length": "9", "x-model-version": "3",
        "x-request-id": sent.request_id, "openai-processing-ms": "4", "connection": "x-ratelimit-hop, close", "x-ratelimit-hop": "1", "x-total-time": "5",
        "authorization": "k", "vary": "*", "x-compute-characters": "2", "access-control-allow-origin": "*", "retry-after": "1",
    }));
    let body = Bytes::from_static(br#"{"data":[{},{}]}"#);
    let replies = split_sent(&endpoint, &[&a, &b], &sent, StatusCode::OK, &headers, &body).unwrap();
    let mut names: Vec<_> = replies[0].headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "access-control-allow-origin",
            "content-type",
            "openai-processing-ms",
            "retry-after",
            "x-compute-characters",
            "x-model-version",
            "x-request-id",
            "x-total-time"
        ]
    );
    assert_eq!(replies[0].headers["x-request-id"], "ra");
    assert_eq!(replies[0].headers["x-compute-characters"], "1");
    assert_ne!(replies[1].headers["x-request-id"], sent.request_id.as_str());
}

#[test]
fn scalar_callers_get_scalars_where_declared() {
    let single = SingleItem {
        items: Some(pointer("/text")),
        results: Some(pointer("/vector")),
        wrap_scalar: true,
        item_is: FlatList::Element,
    };
    let bare = generic(GenericOptions { single: single.clone(), ..texts() });
    let calls = [r#"{"text":"a"}"#, r#"{"texts":["b"]}"#, r#"{"texts":"c"}"#];
    let answer = r#"{"n":1,"vectors": [[1], [2], [3]]}"#;
    assert_eq!(
        answers(&bare, "/e", &calls, answer).unwrap(),
        [r#"{"n":1,"vector": [1]}"#, r#"{"n":1,"vectors": [[2]]}"#, r#"{"n":1,"vector": [3]}"#]
    );
    let list = generic(GenericOptions {
        single: SingleItem { results: None, ..single },
        result_wrap: ResultWrap::List,
        ..texts()
    });
    assert_eq!(
        answers(&list, "/e", &calls, answer).unwrap(),
        [r#"{"n":1,"vectors": [[1]]}"#, r#"{"n":1,"vectors": [[2]]}"#, r#"{"n":1,"vectors": [[3]]}"#]
    );
}

#[test]
fn a_failed_item_is_its_owners_failure_and_stays_in_a_client_batch() {
    let per_item_error = Some(PerItemError { field: pointer("/error"), status: 422 });
    let endpoint = generic(GenericOptions { per_item_error, ..texts() });
    let calls = [r#"{"texts":["a"]}"#, r#"{"texts":["b"]}"#, r#"{"texts":["c","d"]}"#];
    let calls: Vec<Call> = calls.iter().map(|body| read(&endpoint, "/e", body)).collect();
    let members: Vec<&Call> = calls.iter().collect();
    let replies =
        split(&endpoint, &members, r#"{"vectors":[{"error":null,"v":1},{"error":"no"},{"error":"c"},{"v":2}]}"#)
            .unwrap();
    assert_eq!(replies.iter().map(|reply| reply.status.as_u16()).collect::<Vec<_>>(), [200, 422, 200]);
    assert_eq!(
        bodies(&replies),
        [r#"{"vectors":[{"error":null,"v":1}]}"#, r#"{"error":"no"}"#, r#"{"vectors":[{"error":"c"},{"v":2}]}"#]
    );
}

#[test]
fn sorted_results_keep_their_order_within_a_caller() {
    let endpoint = generic(GenericOptions {
        select: ResultOrder::Sorted,
        index: Some(pointer("/i")),
        ..GenericOptions::new(vec![pointer("/docs")], vec![pointer("")])
    });
    let calls = [r#"{"q":"x","docs":["a","b"]}"#, r#"{"docs":["c","d"],"q":"x"}"#];
    let answer = r#"[{"i":3,"s":9}, {"i":1,"s":8}, {"i":0,"s":7}, {"i":2,"s":6}]"#;
    assert_eq!(
        answers(&endpoint, "/e", &calls, answer).unwrap(),
        [r#"[{"i":1,"s":8}, {"i":0,"s":7}]"#, r#"[{"i":1,"s":9}, {"i":0,"s":6}]"#]
    );
    assert_eq!(answers(&endpoint, "/e", &calls, r#"[{"s":9},{"s":8},{"s":7},{"s":6}]"#), Err(MismatchKind::Index));
}

#[test]
fn a_map_of_results_is_cut_by_its_keys() {
    let endpoint = generic(GenericOptions {
        result_key: Some(pointer("id")),
        ..GenericOptions::new(vec![pointer("/rows")], vec![pointer("/scores")])
    });
    let calls = [r#"{"rows":[{"id":"a"},{"id":"b"}]}"#, r#"{"rows":[{"id":"7"}]}"#];
    let split = answers(&endpoint, "/e", &calls, r#"{"scores": { "b": 1.0, "7":2, "\u0061":3 },"n":0}"#).unwrap();
    assert_eq!(split, [r#"{"scores": { "b": 1.0, "\u0061":3 },"n":0}"#, r#"{"scores": { "7":2 },"n":0}"#]);
    assert_eq!(answers(&endpoint, "/e", &calls, r#"{"scores":{"b":1,"c":2,"a":3}}"#), Err(MismatchKind::Index));
    assert_eq!(answers(&endpoint, "/e", &calls, r#"{"scores":{"b":1,"b":2,"a":3}}"#), Err(MismatchKind::Index));
    assert_eq!(answers(&endpoint, "/e", &calls, r#"{"scores":{"b":1,"a":3}}"#), Err(MismatchKind::Count));
}

#[test]
fn declared_ids_and_counters_are_specific_to_each_caller() {
    let cost = |share, weights| CounterSpec { totals: vec![pointer("/m/t"), pointer("/none")], weights, share };
    let calls = [r#"{"texts":["abc"]}"#, r#"{"texts":["de"]}"#];
    let answer = r#"{"id":1234567890,"vectors":[{"n":2},{"n":7}],"m":{"t":9}}"#;
    let shared = generic(GenericOptions {
        id: vec![pointer("/id")],
        cost: cost(CostShare::Proportional, CostWeights::Chars),
        ..texts()
    });
    let split = answers(&shared, "/e", &calls, answer).unwrap();
    assert!(
        split[0].ends_with(r#","vectors":[{"n":2}],"m":{"t":5}}"#) && !split[0].contains("1234567890"),
        "{split:?}"
    );
    let server = generic(GenericOptions { cost: cost(CostShare::Exact, CostWeights::At(pointer("/n"))), ..texts() });
    let split = answers(&server, "/e", &calls, answer).unwrap();
    assert!(split[0].ends_with(r#""m":{"t":2}}"#) && split[1].ends_with(r#""m":{"t":7}}"#), "{split:?}");
    assert_eq!(answers(&server, "/e", &calls, &answer.replace('9', "8")), Err(MismatchKind::Shape));
    let dropped = generic(GenericOptions { cost: cost(CostShare::Drop, CostWeights::Bytes), ..texts() });
    let split = answers(&dropped, "/e", &calls, answer).unwrap();
    assert!(split[0].ends_with(r#""vectors":[{"n":2}],"m":{}}"#), "{split:?}");
}

#[test]
fn a_route_may_fail_instead_of_isolating() {
    assert!(generic(texts()).on_mismatch_isolates);
    assert!(!generic(GenericOptions { on_mismatch: OnMismatch::Fail, ..texts() }).on_mismatch_isolates);
    assert!(!generic(texts()).idempotent);
    assert!(endpoint(PATH, RouteProtocol::OpenAi).idempotent);
}

proptest! {
    /// No input of a client or upstream makes the adapters panic. The worst outcome is a call sent
    /// unbatched or a response that is rejected.
    #[test]
    fn split_never_panics_on_arbitrary_bytes(body in prop::collection::vec(any::<u8>(), 0..80), answer in prop::collection::vec(any::<u8>(), 0..80)) {
        let both = generic(GenericOptions { result_key: Some(pointer("id")), ..texts() });
        for (endpoint, target) in [(endpoint(PATH, RouteProtocol::Vllm), PATH), (endpoint("/embed", RouteProtocol::Tei), "/embed"), (both, "/e")] {
            let head = parts(target, &[("content-type", "application/json"), ("host", "h")]);
            let _call = endpoint.parse_call(&head, Bytes::from(body.clone()), &secret());
            let good = read(&endpoint, target, r#"{"input":"a","inputs":"a","texts":[{"id":"a"}]}"#);
            let sent = endpoint.write_batch(&[&good, &good], None);
            let answer = Bytes::from(answer.clone());
            let _replies = split_sent(&endpoint, &[&good, &good], &sent, StatusCode::OK, &HeaderMap::new(), &answer);
            let _limit = endpoint.detect_too_large(StatusCode::UNPROCESSABLE_ENTITY, &answer);
            let _info = LimitsSource::Info.parse(&answer);
        }
    }

    /// JSON that is truncated, or has one byte changed, is never forwarded as if it were complete.
    #[test]
    fn a_damaged_answer_is_split_soundly_or_not_at_all(at in 0_usize..70, byte in any::<u8>()) {
        let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
        let call = read(&endpoint, PATH, r#"{"input":"a"}"#);
        let sent = endpoint.write_batch(&[&call, &call], None);
        let whole = br#"{"data":[{"e":[1],"index":0},{"e":[2],"index":1}],"usage":{"total_tokens":4}}"#;
        let cut = Bytes::copy_from_slice(&whole[..at]);
        prop_assert!(split_sent(&endpoint, &[&call, &call], &sent, StatusCode::OK, &HeaderMap::new(), &cut).is_err());
        let mut changed = whole.to_vec();
        changed[at] = byte;
        if let Ok(replies) = split_sent(&endpoint, &[&call, &call], &sent, StatusCode::OK, &HeaderMap::new(), &Bytes::from(changed)) {
            for reply in replies {
                prop_assert_eq!(json::validate(&reply.body, json::JsonRules::ANSWER), Ok(()));
            }
        }
    }
}
