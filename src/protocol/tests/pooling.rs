//! Classification, scores of pairs and reranking.

use super::*;

fn reason(protocol: RouteProtocol, path: &str, body: &str) -> Option<UnmergeableReason> {
    read(&endpoint(path, protocol), path, body).unbatched_reason()
}

const SCORE: &str = "/score";

fn score() -> Arc<Endpoint> {
    endpoint(SCORE, RouteProtocol::Vllm)
}

#[test]
fn a_query_is_repeated_for_each_of_its_documents() {
    let calls = [
        r#"{"queries":"q", "documents":["a","b"]}"#,
        r#"{"documents":"c","queries":["r"]}"#,
        r#"{"queries":["s","t"],"documents":["d","e"]}"#,
    ];
    let scores: Vec<String> = (0..5).map(|index| format!(r#"{{"index":{index},"score":0.{index}}}"#)).collect();
    let (sent, replies) = exchange(&score(), SCORE, &calls, &format!(r#"{{"data":[{}]}}"#, scores.join(",")));
    assert_eq!(sent, r#"{"queries":["q","q","r","s","t"], "documents":["a","b","c","d","e"]}"#);
    assert_eq!(
        bodies(&replies.unwrap()),
        [
            r#"{"data":[{"index":0,"score":0.0},{"index":1,"score":0.1}]}"#,
            r#"{"data":[{"index":0,"score":0.2}]}"#,
            r#"{"data":[{"index":0,"score":0.3},{"index":1,"score":0.4}]}"#,
        ]
    );
    let call = read(&score(), SCORE, calls[0]);
    assert_eq!((call.items, call.bytes), (2, calls[0].len() + 3));
    let endpoint = endpoint_of(RouteRules { item_bytes_max: 60, ..rules(SCORE, RouteProtocol::Vllm) }, SCORE);
    let reason = |query: &str| {
        let body = format!(r#"{{"queries":"{query}","documents":["a","b","c"]}}"#);
        read(&endpoint, SCORE, &body).unbatched_reason()
    };
    assert_eq!((reason("q"), reason("queries")), (None, Some(UnmergeableReason::TooLarge)));
}

#[test]
fn names_of_pairs_never_share_a_batch_and_are_never_mixed() {
    let endpoint = score();
    let pairs = [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")];
    let calls = pairs.map(|(first, second)| read(&endpoint, SCORE, &format!(r#"{{"{first}":"a","{second}":"b"}}"#)));
    for (place, call) in calls.iter().enumerate() {
        assert_eq!(call.unbatched_reason(), None);
        assert!(calls.iter().skip(place + 1).all(|other| !may_share_batch(call, other)), "{place}");
    }
    for body in [
        r#"{"queries":"a","text_2":"b"}"#,
        r#"{"queries":"a","documents":"b","items":"c"}"#,
        r#"{"queries":"a","documents":"b","text_1":"c"}"#,
        r#"{"queries":["a","b"],"documents":"c"}"#,
        r#"{"queries":["a","b"],"documents":["c","d","e"]}"#,
        r#"{"queries":"a","documents":[]}"#,
        r#"{"queries":"a","documents":[[1,2]]}"#,
        r#"{"queries":"a","documents":{"content":[]}}"#,
        r#"{"queries":"a"}"#,
    ] {
        assert_eq!(read(&endpoint, SCORE, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn a_ranking_is_merged_under_one_query_and_without_a_maximum_of_results() {
    for protocol in [RouteProtocol::Vllm, RouteProtocol::Infinity] {
        let calls = [r#"{"query":"q","documents":["a","b"]}"#, r#"{"query":"q","documents":["c"]}"#];
        let ranked = r#"{"results":[{"index":2,"relevance_score":3},{"index":1,"relevance_score":2},{"index":0,"relevance_score":1}],"usage":{"total_tokens":9}}"#;
        let (sent, replies) = exchange(&endpoint("/rerank", protocol), "/rerank", &calls, ranked);
        assert_eq!(sent, r#"{"query":"q","documents":["a","b","c"]}"#);
        assert_eq!(
            bodies(&replies.unwrap()),
            [
                r#"{"results":[{"index":1,"relevance_score":2},{"index":0,"relevance_score":1}],"usage":{"total_tokens":6}}"#,
                r#"{"results":[{"index":0,"relevance_score":3}],"usage":{"total_tokens":3}}"#,
            ]
        );
        for body in [
            r#"{"query":"q","documents":["a"],"top_n":1}"#,
            r#"{"documents":["a"]}"#,
            r#"{"query":["q"],"documents":["a"]}"#,
        ] {
            assert_eq!(reason(protocol, "/rerank", body), Some(UnmergeableReason::ItemForm), "{body}");
        }
        assert_eq!(reason(protocol, "/rerank", r#"{"query":"q","documents":["a"],"top_n":null}"#), None);
    }
    for protocol in [RouteProtocol::Jina, RouteProtocol::Cohere, RouteProtocol::OpenAi] {
        assert!(routes_of(&[("/*", protocol)]).recognise(&Method::POST, "/v1/rerank").is_none(), "{protocol:?}");
    }
}

#[test]
fn a_ranking_of_sglang_is_a_list_in_which_each_caller_keeps_its_own_documents() {
    let path = "/v1/rerank";
    let endpoint = endpoint(path, RouteProtocol::SgLang);
    let result = |score: &str, document: &str, index: usize| {
        format!(
            r#"{{"score":{score},"document":"{document}","index":{index},"meta_info":{{"id":"{document}0","prompt_tokens":4}}}}"#
        )
    };
    let calls = [r#"{"query":"q","documents":["a","b"]}"#, r#"{"query":"q","documents":["c"]}"#];
    let ranked = [result("0.9", "c", 2), result("0.5", "b", 1), result("0.5", "a", 0)];
    let (sent, replies) = exchange(&endpoint, path, &calls, &format!("[{}]", ranked.join(",")));
    assert_eq!(sent, r#"{"query":"q","documents":["a","b","c"]}"#);
    let own =
        [format!("[{},{}]", result("0.5", "b", 1), result("0.5", "a", 0)), format!("[{}]", result("0.9", "c", 0))];
    assert_eq!(bodies(&replies.unwrap()), own);

    for body in [
        r#"{"query":"q","documents":["a"],"top_n":1}"#,
        r#"{"query":[{"type":"text","text":"q"}],"documents":["a"]}"#,
        r#"{"query":"q","documents":[[{"type":"text","text":"a"}]]}"#,
        r#"{"query":"q","documents":"a"}"#,
    ] {
        assert_eq!(read(&endpoint, path, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    let call = |field: &str| read(&endpoint, path, &format!(r#"{{"query":"q","documents":["a"]{field}}}"#));
    for field in [r#","instruct":"i""#, r#","return_documents":false"#] {
        assert!(!may_share_batch(&call(""), &call(field)), "{field}");
    }
}

#[test]
fn classes_belong_to_their_inputs() {
    let calls = [r#"{"model":"m","input":"abc"}"#, r#"{"model":"m","input":["de"]}"#];
    let response = r#"{"id":"classify-1","object":"list","created":1,"model":"m","data":[{"index":1,"label":"b"},{"index":0,"label":"a"}],"usage":{"prompt_tokens":5}}"#;
    for (protocol, path) in [(RouteProtocol::Vllm, "/classify"), (RouteProtocol::SgLang, "/v1/classify")] {
        let replies = answers(&endpoint(path, protocol), path, &calls, response).unwrap();
        assert!(
            replies[0].contains(r#""data":[{"index":0,"label":"a"}],"usage":{"prompt_tokens":3}"#),
            "{}",
            replies[0]
        );
        assert!(
            replies[1].contains(r#""data":[{"index":0,"label":"b"}],"usage":{"prompt_tokens":2}"#),
            "{}",
            replies[1]
        );
        assert!(replies[0].starts_with(r#"{"id":"classify-"#) && !replies[0].starts_with(r#"{"id":"classify-1""#));
    }
    assert_eq!(reason(RouteProtocol::Vllm, "/classify", r#"{"input":[[1,2],[3]]}"#), None);
    for (protocol, path, body) in [
        (RouteProtocol::SgLang, "/classify", r#"{"input":[[1,2],[3]]}"#),
        (RouteProtocol::Infinity, "/classify", r#"{"input":"a"}"#),
        (RouteProtocol::Vllm, "/classify", r#"{"messages":[{"role":"user","content":"a"}]}"#),
        (RouteProtocol::Vllm, "/pooling", r#"{"data":{"x":1}}"#),
        (RouteProtocol::Vllm, "/pooling", r#"{"input":"a","task":"plugin"}"#),
        (RouteProtocol::Vllm, "/pooling", r#"{"input":"a","encoding_format":"bytes"}"#),
    ] {
        assert_eq!(reason(protocol, path, body), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn scores_of_sglang_belong_to_one_query_and_its_labels() {
    let path = "/v1/score";
    let endpoint = endpoint(path, RouteProtocol::SgLang);
    let calls = [
        r#"{"query":"q","items":["a"],"label_token_ids":[1,2]}"#,
        r#"{"query":"q","items":["b","c"],"label_token_ids":[1,2]}"#,
    ];
    let response = r#"{"scores":[[0.1],[0.2],[0.3]],"model":"m","object":"scoring","usage":null}"#;
    assert_eq!(
        answers(&endpoint, path, &calls, response).unwrap(),
        [
            r#"{"scores":[[0.1]],"model":"m","object":"scoring","usage":null}"#,
            r#"{"scores":[[0.2],[0.3]],"model":"m","object":"scoring","usage":null}"#,
        ]
    );
    let other = read(&endpoint, path, r#"{"query":"q","items":["b"],"label_token_ids":[1]}"#);
    assert!(!may_share_batch(&read(&endpoint, path, calls[0]), &other));
}
