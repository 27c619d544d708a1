//! Merge keys and the content of shared calls.

use http::Version;

use super::generic::{BatchWeight, FlatList, ItemClass};
use super::*;
use crate::batching::Weight;

const PATH: &str = "/v1/embeddings";

fn openai() -> Arc<Endpoint> {
    endpoint(PATH, RouteProtocol::OpenAi)
}

fn embed(headers: &[(&str, &str)]) -> Call {
    read_with(&endpoint_once(), PATH, headers, r#"{"model":"m","input":"abc"}"#)
}

/// Keys of two compilations of the same rules differ, so calls to be compared use the same
/// endpoint.
fn endpoint_once() -> Arc<Endpoint> {
    thread_local! {
        static ONE: Arc<Endpoint> = openai();
    }
    ONE.with(Arc::clone)
}

fn unmergeable(endpoint: &Endpoint, body: &str) -> Option<UnmergeableReason> {
    read(endpoint, PATH, body).unbatched_reason()
}

fn generic(spec: GenericOptions) -> Arc<Endpoint> {
    assert_eq!(spec.clashes(), []);
    endpoint_of(RouteRules { generic: Some(spec), ..rules("/e", RouteProtocol::Generic) }, "/e")
}

fn merged(endpoint: &Endpoint, bodies: &[&str]) -> String {
    let calls: Vec<Call> = bodies.iter().map(|body| read(endpoint, "/e", body)).collect();
    for call in &calls {
        assert!(may_share_batch(&calls[0], call), "{call:?}");
    }
    let members: Vec<&Call> = calls.iter().collect();
    String::from_utf8(endpoint.write_batch(&members, None).body.to_vec()).unwrap()
}

#[test]
fn routes_recognise_by_method_and_raw_path_and_the_first_match_decides() {
    let found = |routes: &Routes, method: &Method, path: &str| {
        routes.recognise(method, path).map(|endpoint| (endpoint.route, endpoint.label))
    };
    let default = routes(Vec::new());
    assert_eq!(found(&default, &Method::POST, "/v1/embeddings"), Some((0, ProtocolLabel::OpenAi)));
    assert_eq!(found(&default, &Method::POST, "/v1/models/m:predict"), Some((0, ProtocolLabel::KServeV1)));
    assert_eq!(found(&default, &Method::POST, "/embed"), Some((0, ProtocolLabel::Tei)));
    assert!(default.recognise(&Method::POST, "/embed").unwrap().needs_info);
    assert_eq!(found(&default, &Method::POST, "/v1/completions"), Some((0, ProtocolLabel::Generation)));
    for path in
        ["/v1/embeddings/", "//v1/embeddings", "/v1/models/m:explain", "/a/../v1/embeddings", "/v1/%65mbeddings"]
    {
        assert_eq!(found(&default, &Method::POST, path), None, "{path}");
    }
    assert_eq!(found(&default, &Method::GET, "/v1/embeddings"), None);

    let written = routes(vec![
        rules("/x/embeddings", RouteProtocol::PassThrough),
        rules("/x/*", RouteProtocol::Vllm),
        rules("/v1/models/m:explain", RouteProtocol::KServeV1),
        rules("/t/*", RouteProtocol::Tei),
    ]);
    assert_eq!(found(&written, &Method::POST, "/x/embeddings"), None);
    assert_eq!(found(&written, &Method::POST, "/x/v1/embeddings"), Some((1, ProtocolLabel::OpenAi)));
    assert_eq!(found(&written, &Method::POST, "/x/v1/completions"), Some((1, ProtocolLabel::OpenAi)));
    let chat = found(&written, &Method::POST, "/x/v1/chat/completions");
    assert_eq!(chat, Some((1, ProtocolLabel::OpenAi)));
    assert_eq!(found(&written, &Method::POST, "/v1/models/m:explain"), Some((2, ProtocolLabel::KServeV1)));
    assert_eq!(found(&written, &Method::POST, "/t/embed"), Some((3, ProtocolLabel::Tei)));
    assert_eq!(found(&written, &Method::POST, "/v1/embeddings"), None);
    assert_eq!(
        routes(vec![rules("/v1/embeddings", RouteProtocol::LlamaCpp)])
            .recognise(&Method::POST, "/v1/embeddings")
            .map(|_| ()),
        None
    );
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    for bad in ["", "v1", "/a*", "/a/*/b", "/a?b", "/a b", "*"] {
        assert!(PathPattern::parse(bad).is_err(), "{bad}");
    }
    assert!(PathPattern::parse("/*").unwrap().matches("/anything"));
    assert!(!PathPattern::parse("/a/*").unwrap().matches("/a"));
}

#[test]
fn identity_and_unknown_headers_separate_and_ignored_ones_do_not() {
    let plain = embed(&[]);
    for header in [
        "authorization",
        "cookie",
        "x-api-key",
        "x-amz-security-token",
        "x-acme-mode",
        "origin",
        "accept-language",
        "x_tenant",
    ] {
        assert!(!may_share_batch(&plain, &embed(&[(header, "1")])), "{header}");
        assert!(may_share_batch(&embed(&[(header, "1")]), &embed(&[(header, "1")])), "{header}");
        assert!(!may_share_batch(&embed(&[(header, "1")]), &embed(&[(header, "2")])), "{header}");
    }
    for header in [
        "user-agent",
        "traceparent",
        "x-b3-traceid",
        "x-request-id",
        "x-forwarded-for",
        "x-stainless-os",
        "x-envoy-attempt-count",
        "grpc-timeout",
        "x-request-timeout-ms",
        "x-groupage-debug",
        "accept-encoding",
        "cache-control",
    ] {
        assert!(may_share_batch(&plain, &embed(&[(header, "1")])), "{header}");
    }
    assert!(may_share_batch(&plain, &embed(&[("connection", "x-hop"), ("x-hop", "1")])));
    assert!(!may_share_batch(&plain, &embed(&[("connection", "authorization"), ("authorization", "1")])));
}

#[test]
fn some_headers_keep_a_call_unbatched() {
    let reason = |headers: &[(&str, &str)]| embed(headers).unbatched_reason();
    for header in ["idempotency-key", "if-none-match", "range", "upgrade", "ce-id", "content-md5"] {
        assert_eq!(reason(&[(header, "1")]), Some(UnmergeableReason::Header), "{header}");
    }
    for header in ["authorization", "cookie", "x-tenant", "x-api-key"] {
        assert_eq!(reason(&[(header, "a"), (header, "a")]), Some(UnmergeableReason::Header), "{header}");
    }
    assert_eq!(reason(&[("expect", "100-continue")]), None);
    assert_eq!(reason(&[("expect", "200-ok")]), Some(UnmergeableReason::Header));
    assert_eq!(reason(&[("host", "a"), ("host", "b")]), Some(UnmergeableReason::Header));
    assert_eq!(reason(&[("content-encoding", "gzip")]), Some(UnmergeableReason::Encoding));
    assert_eq!(reason(&[("transfer-encoding", "gzip, chunked")]), Some(UnmergeableReason::Encoding));
    assert_eq!(reason(&[("transfer-encoding", "chunked")]), None);
    assert_eq!(reason(&[("accept", "text/event-stream")]), Some(UnmergeableReason::Streaming));
    for good in ["application/json; charset=utf-8", "Application/JSON ;Charset=\"UTF-8\"", "application/json;"] {
        assert_eq!(reason(&[("content-type", good)]), None, "{good}");
    }
    for bad in
        ["text/plain", "application/json; charset=utf-16", "application/vnd.api+json", "application/json; v=1", ""]
    {
        assert_eq!(reason(&[("content-type", bad)]), Some(UnmergeableReason::Encoding), "{bad}");
    }
    assert_eq!(
        reason(&[("content-type", "application/json"), ("content-type", "application/json")]),
        Some(UnmergeableReason::Encoding)
    );
}

#[test]
fn accept_falls_into_classes() {
    let plain = embed(&[]);
    assert!(may_share_batch(&plain, &embed(&[("accept", "*/*")])));
    assert!(may_share_batch(&plain, &embed(&[("accept", "application/json")])));
    assert!(!may_share_batch(&plain, &embed(&[("accept", "application/json, */*")])));
    assert!(!may_share_batch(&plain, &embed(&[("accept", "application/msgpack")])));
}

#[test]
fn clients_of_both_http_versions_share_a_batch_if_they_call_one_host() {
    let endpoint = openai();
    let body = Bytes::from_static(br#"{"model":"m","input":"abc"}"#);
    let old = parts(PATH, &[("content-type", "application/json"), ("host", "h:80")]);
    let mut new = parts("http://h:80/v1/embeddings", &[("content-type", "application/json")]);
    new.version = Version::HTTP_2;
    let (old, new_call) =
        (endpoint.parse_call(&old, body.clone(), &secret()), endpoint.parse_call(&new, body.clone(), &secret()));
    assert!(may_share_batch(&old, &new_call));
    assert_eq!(endpoint.write_batch(&[&new_call, &old], None).headers["host"], "h:80");
    new.headers.insert("host", HeaderValue::from_static("other"));
    assert_eq!(endpoint.parse_call(&new, body.clone(), &secret()).unbatched_reason(), Some(UnmergeableReason::Header));

    let mut crumbs = parts(
        "http://h:80/v1/embeddings",
        &[("content-type", "application/json"), ("cookie", "a=1"), ("cookie", "b=2")],
    );
    crumbs.version = Version::HTTP_2;
    let whole = parts(PATH, &[("content-type", "application/json"), ("host", "h:80"), ("cookie", "a=1; b=2")]);
    let (crumbs, whole) =
        (endpoint.parse_call(&crumbs, body.clone(), &secret()), endpoint.parse_call(&whole, body, &secret()));
    assert!(may_share_batch(&crumbs, &whole));
    assert_eq!(endpoint.write_batch(&[&crumbs, &whole], None).headers["cookie"], "a=1; b=2");
}

#[test]
fn bodies_that_servers_read_differently_are_sent_unbatched() {
    let endpoint = openai();
    for body in [
        "",
        "{",
        "[]x",
        "\u{feff}{\"input\":\"a\"}",
        r#"{"input":"a"}{}"#,
        r#"{"input":"a","input":"b"}"#,
        r#"{"input":"a","model":1,"\u006dodel":2}"#,
        r#"{"input":"a","Model":"m"}"#,
        r#"{"input":"a","x":NaN}"#,
        r#"{"input":"a","x":1e400}"#,
        r#"{"input":"a","o":{"k":1,"k":2}}"#,
    ] {
        assert_eq!(unmergeable(&endpoint, body), Some(UnmergeableReason::AmbiguousJson), "{body}");
    }
    let deep = format!(r#"{{"input":"a","x":{}{}}}"#, "[".repeat(64), "]".repeat(64));
    assert_eq!(unmergeable(&endpoint, &deep), Some(UnmergeableReason::AmbiguousJson));
}

#[test]
fn embeddings_are_merged_within_one_form() {
    let endpoint = openai();
    for body in [
        r#"{"input":""}"#,
        r#"{"input":[]}"#,
        r#"{"input":["a",1]}"#,
        r#"{"input":[1.5]}"#,
        r#"{"input":[[1],["a"]]}"#,
        r#"{"input":[[]]}"#,
        r#"{"input":null}"#,
        r#"{"input":{"text":"a"}}"#,
        r#"{"input":[{"role":"user","content":"a"}]}"#,
        r#"{"input":"a","messages":[]}"#,
        r#"{"model":"m"}"#,
        "[]",
        "1",
        r#"{"input":"a","late_chunking":true}"#,
        r#"{"input":"a","encoding_format":"bytes_only"}"#,
        r#"{"input":"a","encoding_format":"byt\u0065s"}"#,
        r#"{"input":"a","request_id":"x"}"#,
        r#"{"input":"a","rid":["x"]}"#,
        r#"{"input":[true]}"#,
        r#"{"input":["a",["b"]]}"#,
    ] {
        assert_eq!(unmergeable(&endpoint, body), Some(UnmergeableReason::ItemForm), "{body}");
    }
    for body in [
        r#"{"input":[""]}"#,
        r#"{"input":"a","late_chunking":false}"#,
        r#"{"input":"a","rid":null}"#,
        r#"{"input":[{"text":"a"}]}"#,
        r#"{"input":[7,8]}"#,
    ] {
        assert_eq!(unmergeable(&endpoint, body), None, "{body}");
    }
    let call = |body: &str| read(&endpoint, PATH, body);
    assert!(may_share_batch(&call(r#"{"input":"a","model":"m"}"#), &call(r#"{ "model" : "m", "input":["b","c"] }"#)));
    assert!(may_share_batch(&call(r#"{"input":[7]}"#), &call(r#"{"input":[[8,9]]}"#)));
    assert!(!may_share_batch(&call(r#"{"input":"a"}"#), &call(r#"{"input":[7]}"#)));
    assert!(!may_share_batch(&call(r#"{"input":[{"text":"a"}]}"#), &call(r#"{"input":[{"image":"a"}]}"#)));
    assert!(!may_share_batch(&call(r#"{"input":"a","dimensions":1}"#), &call(r#"{"input":"a","dimensions":1.0}"#)));
    assert!(!may_share_batch(&call(r#"{"input":"a","user":"u"}"#), &call(r#"{"input":"a"}"#)));
}

#[test]
fn a_stream_is_recognised_by_the_body_too() {
    let endpoint = openai();
    let call = read(&endpoint, PATH, r#"{"input":"a","stream":true}"#);
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::Streaming));
    assert!(call.streaming);
    assert!(!read(&endpoint, PATH, r#"{"input":"a","stream":false}"#).streaming);
}

#[test]
fn calls_of_too_many_items_or_bytes_are_sent_unbatched_and_their_items_are_counted() {
    let few = RouteRules { item_count_max: 2, item_bytes_max: 100, ..rules(PATH, RouteProtocol::OpenAi) };
    let endpoint = endpoint_of(few, PATH);
    let call = read(&endpoint, PATH, r#"{"input":["a","b","c","d"]}"#);
    assert_eq!((call.unbatched_reason(), call.items), (Some(UnmergeableReason::ClientBatchFull), 4));
    let call = read(&endpoint, PATH, &format!(r#"{{"input":"{}"}}"#, "a".repeat(100)));
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::TooLarge));
}

#[test]
fn weights_are_about_tokens_for_text_and_rows_for_tensors() {
    let endpoint = openai();
    let weight = |body: &str| read(&endpoint, PATH, body).weight;
    assert_eq!(weight(r#"{"input":["abcdefgh","a"]}"#), Weight { sum: 3, max: 2 });
    assert_eq!(weight(r#"{"input":[[1,2,3],[4]]}"#), Weight { sum: 4, max: 3 });
    let kserve = super::endpoint("/v1/models/m:predict", RouteProtocol::KServeV1);
    assert_eq!(
        read(&kserve, "/v1/models/m:predict", r#"{"instances":[[1,2],[3,4]]}"#).weight,
        Weight { sum: 2, max: 1 }
    );
    // The same text has the same weight whether it is escaped or in UTF-8.
    assert_eq!(weight(r#"{"input":["\u6c49\u5b57 \ud83d\ude00\n"]}"#), weight(r#"{"input":["汉字 😀."]}"#));
    let bytes = generic(GenericOptions { weight: BatchWeight::Bytes, item_class: ItemClass::None, ..texts() });
    let weight = |body: &str| read(&bytes, "/e", body).weight;
    assert_eq!(weight(r#"{"texts":["\u6c49"]}"#), weight(r#"{"texts":["汉"]}"#));
    assert_eq!(weight(r#"{"texts":[{"a":"\u00e9"}]}"#), weight(r#"{"texts":[{"a":"é"}]}"#));
    let weighed = generic(GenericOptions { weight: BatchWeight::At(pointer("/n")), ..texts() });
    assert_eq!(read(&weighed, "/e", r#"{"texts":[{"n":5},{"n":7}]}"#).weight, Weight { sum: 12, max: 7 });
}

#[test]
fn rows_merge_within_one_class_and_columns_are_sent_unbatched() {
    let kserve = endpoint("/v1/models/m:predict", RouteProtocol::KServeV1);
    let call = |body: &str| read(&kserve, "/v1/models/m:predict", body);
    assert!(may_share_batch(&call(r#"{"instances":[[1,2]]}"#), &call(r#"{"instances":[[3,4],[5,6]]}"#)));
    for (a, b) in [
        ("[[1,2]]", "[[1.5,2]]"),
        ("[[1,2]]", "[[1,2,3]]"),
        ("[1]", "[null]"),
        ("[1]", "[1,2.5]"),
        (r#"[{"a":1}]"#, r#"[{"b":1}]"#),
    ] {
        assert!(
            !may_share_batch(&call(&format!("{{\"instances\":{a}}}")), &call(&format!("{{\"instances\":{b}}}"))),
            "{a} {b}"
        );
    }
    for body in [
        r#"{"inputs":[1]}"#,
        r#"{"instances":[1],"inputs":[1]}"#,
        r#"{"instances":[]}"#,
        r#"{"instances":{"a":[1]}}"#,
        r#"{"instances":1}"#,
    ] {
        assert_eq!(call(body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    assert_eq!(call(r#"{"instances":[NaN]}"#).unbatched_reason(), Some(UnmergeableReason::AmbiguousJson));
    assert_eq!(call(r#"{"instances":[{"a":1,"a":2}]}"#).unbatched_reason(), Some(UnmergeableReason::AmbiguousJson));
    let tf = endpoint("/v1/models/m:predict", RouteProtocol::TfServing);
    assert_eq!(read(&tf, "/v1/models/m:predict", r#"{"instances":[NaN]}"#).unbatched_reason(), None);
}

#[test]
fn the_leaders_raw_body_is_kept_but_for_its_items() {
    let endpoint = openai();
    let a = read(&endpoint, PATH, "{ \"x\" : [1.0, 2],\n\"input\" :\"a\",\"model\":\"m\" }\n");
    let b = read(&endpoint, PATH, r#"{"model":"m","x":[1.0,2],"input":[ "b" , "\u0063" ]}"#);
    let sent = endpoint.write_batch(&[&a, &b], None);
    assert_eq!(sent.body, "{ \"x\" : [1.0, 2],\n\"input\" :[\"a\",\"b\",\"\\u0063\"],\"model\":\"m\" }\n");
}

#[test]
fn fields_that_need_not_be_equal_are_cut_with_one_comma() {
    let over = |fields: &[&str]| {
        let merge_over_fields = fields.iter().map(|field| pointer(field)).collect();
        endpoint_of(
            RouteRules { merge_over_fields, generic: Some(texts()), ..rules("/e", RouteProtocol::Generic) },
            "/e",
        )
    };
    let cut = |fields: &[&str], body: &str| {
        let endpoint = over(fields);
        let call = read(&endpoint, "/e", body);
        assert_eq!(call.unbatched_reason(), None, "{body}");
        String::from_utf8(endpoint.write_batch(&[&call, &call], None).body.to_vec()).unwrap()
    };
    let two = r#""texts":["a","a"]"#;
    assert_eq!(cut(&["/u"], r#"{"u":1,"texts":["a"]}"#), format!("{{{two}}}"));
    assert_eq!(cut(&["/u"], r#"{"texts":["a"],"u":1}"#), format!("{{{two}}}"));
    assert_eq!(cut(&["/u", "/w"], r#"{"u":1, "w":[2], "texts":["a"], "x":3}"#), format!("{{{two}, \"x\":3}}"));
    assert_eq!(cut(&["/u", "/w"], r#"{"texts":["a"], "u":1, "w":2 }"#), format!("{{{two} }}"));
    assert_eq!(cut(&["/u", "/w"], r#"{"u":1,"texts":["a"],"w":2}"#), format!("{{{two}}}"));
    assert_eq!(cut(&["/o/u"], r#"{"o":{"u":1},"texts":["a"]}"#), format!("{{\"o\":{{}},{two}}}"));
    assert_eq!(cut(&["/o/u", "/o"], r#"{"o":{"u":1},"texts":["a"]}"#), format!("{{{two}}}"));
    assert_eq!(cut(&["/none"], r#"{"texts":["a"]}"#), format!("{{{two}}}"));
    for items in ["/texts", "/texts/0/x"] {
        assert_eq!(
            read(&over(&[items]), "/e", r#"{"texts":[{"x":1}]}"#).unbatched_reason(),
            Some(UnmergeableReason::ItemForm)
        );
    }
}

#[test]
fn the_policy_moves_headers_and_fields_in_and_out_of_the_key() {
    let name = |name: &'static str| vec![HeaderName::from_static(name)];
    let own = RouteRules {
        merge_over_headers: [name("x-acme"), name("authorization")].concat(),
        merge_on_headers: name("x-forwarded-for"),
        merge_over_fields: vec![pointer("/meta")],
        merge_on_fields: vec![pointer("/meta/tier")],
        ..rules(PATH, RouteProtocol::OpenAi)
    };
    let endpoint = endpoint_of(own, PATH);
    let call = |headers: &[(&str, &str)], body: &str| read_with(&endpoint, PATH, headers, body);
    let plain = r#"{"input":"a"}"#;
    let (a, b) = (
        call(&[("x-acme", "1"), ("x-forwarded-for", "9")], plain),
        call(&[("x-acme", "2"), ("x-forwarded-for", "9")], plain),
    );
    assert!(may_share_batch(&a, &b));
    let sent = endpoint.write_batch(&[&a, &b], None);
    assert!(!sent.headers.contains_key("x-acme"));
    assert_eq!(sent.headers["x-forwarded-for"], "9");
    assert!(!may_share_batch(&a, &call(&[("x-forwarded-for", "8")], plain)));
    // Identity headers cannot be merged over.
    assert!(!may_share_batch(&call(&[("authorization", "1")], plain), &call(&[("authorization", "2")], plain)));
    let meta = |text: &str| call(&[], &format!(r#"{{"input":"a","meta":{text}}}"#));
    assert!(may_share_batch(&meta(r#"{"id":1,"tier":"x"}"#), &meta(r#"{"tier":"x","id":2}"#)));
    assert!(!may_share_batch(&meta(r#"{"tier":"x"}"#), &meta(r#"{"tier":"y"}"#)));
}

#[test]
fn a_shared_call_has_fresh_ids_and_no_headers_of_single_callers() {
    let traced = |id: &'static str, flags: &str| {
        let parent = format!("00-11111111111111111111111111111111-2222222222222222-{flags}");
        embed(&[
            ("x-request-id", id),
            ("traceparent", &parent),
            ("tracestate", "a=b"),
            ("user-agent", "x"),
            ("accept-encoding", "gzip"),
            ("authorization", "k"),
            ("x-mode", "1"),
            ("x-mode", "2"),
            ("accept", "*/*"),
        ])
    };
    let (a, b) = (traced("ra", "00"), traced("rb", "01"));
    assert!(may_share_batch(&a, &b));
    let sent = endpoint_once().write_batch(&[&a, &b], None);
    let mut names: Vec<_> = sent.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "authorization", "content-type", "host", "traceparent", "x-mode", "x-request-id"]);
    assert_eq!(sent.headers.get_all("x-mode").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(sent.request_id.len(), 32);
    assert!(sent.traceparent.unwrap().ends_with("-01"));
    let plain = embed(&[]);
    assert_eq!(endpoint_once().write_batch(&[&plain, &plain], Some(5)).traceparent, None);
}

#[test]
fn a_deadline_is_forwarded_in_the_format_in_which_it_arrived() {
    let endpoint = endpoint_once();
    let sent = |headers: &[(&str, &str)], ms| {
        let (a, b) = (embed(&[]), embed(headers));
        endpoint.write_batch(&[&a, &b], ms).headers
    };
    assert_eq!(sent(&[("x-request-timeout-ms", "100")], Some(80))["x-request-timeout-ms"], "80");
    assert_eq!(sent(&[("grpc-timeout", "1S")], Some(900))["grpc-timeout"], "900m");
    assert!(!sent(&[("grpc-timeout", "1S")], None).contains_key("grpc-timeout"));
    assert!(!sent(&[], Some(80)).contains_key("x-request-timeout-ms"));
}

#[test]
fn priority_classes_share_a_batch_and_their_header_is_not_forwarded() {
    let named = SharedHeaderRules { priority_header: Some(HeaderName::from_static("x-vllm-priority")), ..common() };
    let own = Routes::new(Vec::new(), rules("/*", RouteProtocol::Auto), named).recognise(&Method::POST, PATH).unwrap();
    let of = |class| read_with(&own, PATH, &[("x-vllm-priority", class)], r#"{"input":"a"}"#);
    let (interactive, bulk) = (of("interactive"), of("bulk"));
    assert!(may_share_batch(&interactive, &bulk));
    assert!(!own.write_batch(&[&interactive, &bulk], None).headers.contains_key("x-vllm-priority"));
    assert_eq!(interactive.head.headers["x-vllm-priority"], "interactive", "an unbatched call is forwarded unchanged");
    assert!(
        !may_share_batch(&embed(&[("x-vllm-priority", "1")]), &embed(&[("x-vllm-priority", "2")])),
        "it was not declared"
    );
}

#[test]
fn tenants_are_digests_of_the_credentials() {
    let tenant = |headers: &[(&str, &str)]| embed(headers).tenant;
    assert!(tenant(&[("x-acme", "1")]).is_anonymous());
    assert_eq!(tenant(&[("authorization", "k")]), tenant(&[("authorization", "k"), ("user-agent", "x")]));
    assert_ne!(tenant(&[("authorization", "k")]), tenant(&[("x-api-key", "k")]));
    let named = SharedHeaderRules { tenant_header: Some(HeaderName::from_static("x-team")), ..common() };
    let own = Routes::new(Vec::new(), rules("/*", RouteProtocol::Auto), named).recognise(&Method::POST, PATH).unwrap();
    let team = |headers: &[(&str, &str)]| read_with(&own, PATH, headers, r#"{"input":"a"}"#);
    assert_eq!(team(&[("x-team", "a"), ("authorization", "k")]).tenant, secret().tenant(b"a"));
    assert_eq!(team(&[("x-team", "a"), ("x-team", "b")]).unbatched_reason(), Some(UnmergeableReason::Header));
    assert!(!may_share_batch(&team(&[("x-team", "a")]), &team(&[("x-team", "b")])));
}

#[test]
fn a_credential_is_not_part_of_the_merge_key() {
    let call = embed(&[("authorization", "Bearer hunter2")]);
    let MergeEligibility::With(key) = &call.merge else { panic!("unbatched") };
    assert!(!key.windows(7).any(|window| window == b"hunter2"));
    assert!(!format!("{call:?}").contains("hunter2"));
}

#[test]
fn cost_classes_know_route_path_model_and_form_but_no_identity() {
    let endpoint = openai();
    let class = |headers: &[(&str, &str)], body: &str| read_with(&endpoint, PATH, headers, body).cost_class;
    let plain = class(&[], r#"{"model":"m","input":"a"}"#);
    assert_eq!(plain, class(&[("authorization", "k")], r#"{"input":["b"],"model":"m","dimensions":3}"#));
    assert_ne!(plain, class(&[], r#"{"model":"n","input":"a"}"#));
    assert_ne!(plain, class(&[], r#"{"model":"m","input":[1]}"#));
}

#[test]
fn a_reload_never_mixes_calls_read_by_different_rules() {
    let (old, new) = (openai(), openai());
    assert!(!may_share_batch(&read(&old, PATH, r#"{"input":"a"}"#), &read(&new, PATH, r#"{"input":"a"}"#)));
}

#[test]
fn a_reload_that_changes_caps_alone_lets_new_calls_join_the_queued_ones() {
    let route = |items_max, protocol| RouteRules { item_count_max: items_max, ..rules("/v1/*", protocol) };
    let table =
        |earlier: Option<&Routes>, rules| Routes::after(earlier, vec![rules], route(8, RouteProtocol::Auto), common());
    let embed = |routes: &Routes| {
        let endpoint = routes.recognise(&Method::POST, PATH).unwrap();
        read(&endpoint, PATH, r#"{"input":"a"}"#)
    };
    let first = table(None, route(8, RouteProtocol::Auto));
    let second = table(Some(&first), route(4, RouteProtocol::Auto));
    assert!(may_share_batch(&embed(&first), &embed(&second)));
    assert_eq!(embed(&first).cost_class, embed(&second).cost_class);
    // The route was parsed differently in between. Although it is written as before again, it
    // counts as a different one.
    let other = table(Some(&second), route(4, RouteProtocol::OpenAi));
    assert!(!may_share_batch(&embed(&second), &embed(&other)));
    let back = table(Some(&other), route(4, RouteProtocol::Auto));
    assert!(!may_share_batch(&embed(&second), &embed(&back)));
    let moved = Routes::after(
        Some(&second),
        vec![rules("/x", RouteProtocol::Auto), route(4, RouteProtocol::Auto)],
        route(8, RouteProtocol::Auto),
        common(),
    );
    assert!(!may_share_batch(&embed(&second), &embed(&moved)));
    assert_eq!(embed(&second).cost_class, embed(&moved).cost_class, "what it costs does not depend on its place");
}

#[test]
fn generic_single_forms_take_the_name_of_the_list() {
    let single =
        SingleItem { items: Some(pointer("/text")), results: Some(pointer("/vector")), ..SingleItem::default() };
    let endpoint = generic(GenericOptions { single, upstream_path: Some("/up".to_owned()), ..texts() });
    assert_eq!(
        merged(&endpoint, &[r#"{"text" : "a", "k":1}"#, r#"{"k":1,"texts":["b","c"]}"#]),
        r#"{"texts" : ["a","b","c"], "k":1}"#
    );
    let call = read(&endpoint, "/e?q=1", r#"{"text":"a"}"#);
    assert_eq!(endpoint.write_batch(&[&call, &call], None).target, "/up?q=1");
    for body in [r#"{"text":"a","texts":["b"]}"#, r#"{"text":null}"#, r#"{"text":""}"#] {
        assert_eq!(read(&endpoint, "/e", body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn generic_scalars_and_rows_are_wrapped_where_declared() {
    let scalar =
        generic(GenericOptions { single: SingleItem { wrap_scalar: true, ..SingleItem::default() }, ..texts() });
    assert_eq!(merged(&scalar, &[r#"{"texts":"a"}"#, r#"{"texts":["b"]}"#]), r#"{"texts":["a","b"]}"#);
    assert_eq!(read(&generic(texts()), "/e", r#"{"texts":"a"}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
    let row = generic(GenericOptions {
        single: SingleItem { item_is: FlatList::ArrayOfNumbers, ..SingleItem::default() },
        ..texts()
    });
    assert_eq!(
        merged(&row, &[r#"{"texts":[1,2.5]}"#, r#"{"texts":[[3,4.5],[5,6.5]]}"#]),
        r#"{"texts":[[1,2.5],[3,4.5],[5,6.5]]}"#
    );
    assert_eq!(read(&row, "/e", r#"{"texts":[1,"a"]}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
    assert_eq!(read(&row, "/e", r#"{"texts":["a"]}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
}

#[test]
fn generic_classes_and_parallel_arrays() {
    let none = generic(GenericOptions { item_class: ItemClass::None, ..texts() });
    assert_eq!(merged(&none, &[r#"{"texts":["a"]}"#, r#"{"texts":[{"x":1}]}"#]), r#"{"texts":["a",{"x":1}]}"#);
    let text = generic(GenericOptions { item_class: ItemClass::Text, ..texts() });
    assert_eq!(read(&text, "/e", r#"{"texts":[1]}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
    let both = generic(GenericOptions { items: vec![pointer("/in/a"), pointer("/in/b")], ..texts() });
    assert_eq!(
        merged(&both, &[r#"{"in":{"a":[1],"b":["x"]}}"#, r#"{"in":{"b":["y"],"a":[2]}}"#]),
        r#"{"in":{"a":[1,2],"b":["x","y"]}}"#
    );
    assert_eq!(
        read(&both, "/e", r#"{"in":{"a":[1],"b":["x","y"]}}"#).unbatched_reason(),
        Some(UnmergeableReason::ItemForm)
    );
    assert_eq!(read(&both, "/e", r#"{"in":{"a":[1]}}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
    assert_eq!(
        read(&both, "/e", r#"{"in":{"a":[1],"b":["x"],"A":1}}"#).unbatched_reason(),
        Some(UnmergeableReason::AmbiguousJson)
    );
    let lenient = generic(GenericOptions { lenient_numbers: true, ..texts() });
    assert_eq!(read(&lenient, "/e", r#"{"texts":[NaN]}"#).unbatched_reason(), None);
}

#[test]
fn exact_shares_of_text_allow_identical_items_only() {
    let cost = CounterSpec { totals: vec![pointer("/t")], weights: CostWeights::Chars, share: CostShare::Exact };
    let endpoint = generic(GenericOptions { cost, ..texts() });
    let call = |body: &str| read(&endpoint, "/e", body);
    assert!(may_share_batch(&call(r#"{"texts":["a"]}"#), &call(r#"{"texts":["a","a"]}"#)));
    assert!(!may_share_batch(&call(r#"{"texts":["a"]}"#), &call(r#"{"texts":["b"]}"#)));
    assert_eq!(call(r#"{"texts":["a","b"]}"#).unbatched_reason(), Some(UnmergeableReason::ItemForm));
}

#[test]
fn map_results_make_their_keys_exclusive() {
    let endpoint = generic(GenericOptions { result_key: Some(pointer("id")), ..texts() });
    let call = read(&endpoint, "/e", r#"{"texts":[{"id":"\u0061"},{"id":"b"}]}"#);
    assert_eq!(call.exclusive, [Box::from(*b"a"), Box::from(*b"b")] as [Box<[u8]>; 2]);
    for body in [r#"{"texts":[{"id":"a"},{"id":"a"}]}"#, r#"{"texts":[{"x":1}]}"#, r#"{"texts":[{"id":1.5}]}"#] {
        assert_eq!(read(&endpoint, "/e", body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}
