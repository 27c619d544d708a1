//! SGLang's `/generate`: which calls share a list, and the response that each caller gets.

use super::*;

const PATH: &str = "/generate";

fn sglang() -> Arc<Endpoint> {
    endpoint(PATH, RouteProtocol::SgLang)
}

fn result(text: &str) -> String {
    format!(
        r#"{{"text": "{text}", "meta_info": {{"id": "{text}{text}", "prompt_tokens": 5, "completion_tokens": 2}}}}"#
    )
}

#[test]
fn prompts_are_one_list_and_each_caller_gets_its_result_as_if_unbatched() {
    let params = r#""sampling_params":{"max_new_tokens":2}"#;
    let calls = [
        format!(r#"{{"text":"a",{params}}}"#),
        format!(r#"{{"text":["b"],{params}}}"#),
        format!(r#"{{"text":["c","d"],{params}}}"#),
    ];
    let [a, b, c, d] = ["A", "B", "C", "D"].map(result);
    let (sent, replies) =
        exchange(&sglang(), PATH, &calls.each_ref().map(String::as_str), &format!("[{a},{b},{c},{d}]"));
    assert_eq!(sent, format!(r#"{{"text":["a","b","c","d"],{params}}}"#));
    assert_eq!(bodies(&replies.unwrap()), [a, format!("[{b}]"), format!("[{c},{d}]")]);
}

#[test]
fn a_list_of_token_ids_is_one_prompt() {
    let [a, b] = ["A", "B"].map(result);
    let calls = [r#"{"input_ids":[1,2]}"#, r#"{"input_ids":[[3]]}"#];
    let (sent, replies) = exchange(&sglang(), PATH, &calls, &format!("[{a},{b}]"));
    assert_eq!(sent, r#"{"input_ids":[[1,2],[3]]}"#);
    assert_eq!(bodies(&replies.unwrap()), [a, format!("[{b}]")]);
}

#[test]
fn calls_with_state_lists_of_parameters_or_several_results_are_sent_unbatched() {
    let endpoint = sglang();
    let reason = |field: &str| read(&endpoint, PATH, &format!(r#"{{"text":"a",{field}}}"#)).unbatched_reason();
    for field in [
        r#""rid":"r""#,
        r#""session_params":{"id":"s"}"#,
        r#""image_data":"x""#,
        r#""sampling_params":[{"max_new_tokens":1}]"#,
        r#""sampling_params":{"n":2}"#,
        r#""return_logprob":[true]"#,
        r#""input_ids":[1]"#,
    ] {
        assert_eq!(reason(field), Some(UnmergeableReason::ItemForm), "{field}");
    }
    assert_eq!(reason(r#""stream":true"#), Some(UnmergeableReason::Streaming));
    for field in [r#""stream":false"#, r#""rid":null"#, r#""return_logprob":true"#, r#""lora_path":"l""#] {
        assert_eq!(reason(field), None, "{field}");
    }
    let key = |params: &str| read(&endpoint, PATH, &format!(r#"{{"text":"a","sampling_params":{params}}}"#)).merge;
    assert_ne!(key(r#"{"max_new_tokens":1}"#), key(r#"{"max_new_tokens":2}"#));
}

#[test]
fn text_is_merged_on_a_route_that_names_sglang_unless_it_declines() {
    let label = |rules: RouteRules| endpoint_of(rules, PATH).label;
    assert_eq!(label(rules("/*", RouteProtocol::SgLang)), ProtocolLabel::SgLang);
    assert_eq!(label(rules("/*", RouteProtocol::Auto)), ProtocolLabel::Generation);
    let never = RouteRules { merge: MergeRule::Never, ..rules("/*", RouteProtocol::SgLang) };
    assert_eq!(label(never), ProtocolLabel::Generation);
}
