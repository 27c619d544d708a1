//! Calls to `/v1/completions`: the forms of prompts that may share a batch, responses with several
//! results per prompt, and the division of the token counters of a batch among its members.

use super::*;

const PATH: &str = "/v1/completions";

/// Merges two calls to a server of this protocol, and splits a response to the batch.
fn exchange(protocol: RouteProtocol, calls: [&str; 2], response: &str) -> (String, Result<Vec<Reply>, MismatchKind>) {
    super::exchange(&endpoint(PATH, protocol), PATH, &calls, response)
}

/// Returns `true` if the token counters of a reply are marked as estimated.
fn is_estimated(reply: &Reply) -> bool {
    reply.headers.contains_key("x-groupage-usage")
}

#[test]
fn prompts_of_one_form_share_a_batch() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let call = |body: &str| read(&endpoint, PATH, body);
    let text = call(r#"{"prompt":"ab"}"#);
    assert!(may_share_batch(&text, &call(r#"{"prompt":["c","d"]}"#)));
    let ids = call(r#"{"prompt":[7,8]}"#);
    assert!(may_share_batch(&ids, &call(r#"{"prompt":[[1],[2,3]]}"#)));
    assert!(!may_share_batch(&text, &ids));
    assert_eq!((ids.items, call(r#"{"prompt":[[1],[2,3]]}"#).items), (1, 2));
    assert!(may_share_batch(
        &call(r#"{"prompt":"a","best_of":2,"n":2}"#),
        &call(r#"{"n":2,"prompt":"b","best_of":2}"#)
    ));
}

#[test]
fn a_call_with_other_parameters_never_shares_a_batch() {
    let endpoint = endpoint(PATH, RouteProtocol::Vllm);
    let plain = read(&endpoint, PATH, r#"{"prompt":"ab"}"#);
    for parameter in [
        r#""n":2"#,
        r#""n":1"#,
        r#""max_tokens":5"#,
        r#""temperature":0"#,
        r#""seed":1"#,
        r#""stop":["x"]"#,
        r#""logprobs":1"#,
        r#""echo":true"#,
        r#""user":"u""#,
        r#""return_token_ids":true"#,
        r#""unknown":1"#,
    ] {
        let other = read(&endpoint, PATH, &format!(r#"{{"prompt":"cd",{parameter}}}"#));
        assert_eq!(other.unbatched_reason(), None, "{parameter}");
        assert!(!may_share_batch(&plain, &other), "{parameter}");
    }
}

#[test]
fn a_seed_is_a_parameter_for_engines_and_prevents_merging_for_other_servers() {
    let reason = |protocol| read(&endpoint(PATH, protocol), PATH, r#"{"prompt":"a","seed":1}"#).unbatched_reason();
    assert_eq!(reason(RouteProtocol::OpenAi), Some(UnmergeableReason::ItemForm));
    for engine in [RouteProtocol::Vllm, RouteProtocol::SgLang, RouteProtocol::Tgi] {
        assert_eq!(reason(engine), None, "{engine:?}");
    }
}

#[test]
fn calls_that_cannot_be_divided_are_sent_unbatched() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    for body in [
        r#"{"prompt":""}"#,
        r#"{"prompt":[]}"#,
        r#"{"prompt":["a",[1]]}"#,
        r#"{"prompt":[true,2]}"#,
        r#"{"prompt":{"text":"a"}}"#,
        r#"{"prompt":"a","prompt_embeds":"AA=="}"#,
        r#"{"prompt":"a","suffix":"b"}"#,
        r#"{"prompt":"a","best_of":2}"#,
        r#"{"prompt":"a","n":2,"best_of":3}"#,
        r#"{"prompt":"a","n":0}"#,
        r#"{"prompt":"a","n":1.0}"#,
        r#"{"prompt":"a","n":129}"#,
        r#"{"prompt":"a","use_beam_search":true}"#,
        r#"{"prompt":"a","kv_transfer_params":{}}"#,
        r#"{"prompt":"a","num_return_sequences":2}"#,
        r#"{"prompt":"a","session_id":"s"}"#,
        r#"{"prompt":"a","rid":"r"}"#,
    ] {
        let call = read(&endpoint, PATH, body);
        assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
    for body in [
        r#"{"prompt":"a","n":null}"#,
        r#"{"prompt":"a","suffix":null,"best_of":null}"#,
        r#"{"prompt":"a","best_of":1}"#,
    ] {
        assert_eq!(read(&endpoint, PATH, body).unbatched_reason(), None, "{body}");
    }
}

#[test]
fn results_of_one_prompt_stay_together_and_are_numbered_from_zero() {
    let calls = [r#"{"prompt":["a","b"],"n":2}"#, r#"{"prompt":"c","n":2}"#];
    let order = [3, 0, 5, 1, 4, 2];
    let choices: Vec<String> = order.iter().map(|index| format!(r#"{{"text":"r{index}","index":{index}}}"#)).collect();
    let (_, replies) = exchange(RouteProtocol::OpenAi, calls, &format!(r#"{{"choices":[{}]}}"#, choices.join(",")));
    let expected = |texts: &[usize]| {
        let choices: Vec<String> =
            texts.iter().enumerate().map(|(index, text)| format!(r#"{{"text":"r{text}","index":{index}}}"#)).collect();
        format!(r#"{{"choices":[{}]}}"#, choices.join(","))
    };
    assert_eq!(bodies(&replies.unwrap()), [expected(&[0, 1, 2, 3]), expected(&[4, 5])]);

    let few = format!(r#"{{"choices":[{}]}}"#, choices[..3].join(","));
    assert_eq!(exchange(RouteProtocol::OpenAi, calls, &few).1.err(), Some(MismatchKind::Count));
    let no_index = r#"{"choices":[{"text":"a"},{"text":"b"}]}"#;
    let single = [r#"{"prompt":"a"}"#, r#"{"prompt":"b"}"#];
    assert_eq!(exchange(RouteProtocol::OpenAi, single, no_index).1.err(), Some(MismatchKind::Index));
}

/// Token counters of a batch: 5 tokens of prompts, and 3 of results.
const USAGE: &str = r#""usage":{"prompt_tokens":5,"total_tokens":8,"completion_tokens":3}"#;

#[test]
fn tokens_are_exact_if_the_server_reports_their_ids() {
    let calls = [r#"{"prompt":"ab", "max_tokens":4 }"#, r#"{"max_tokens":4,"prompt":"cde"}"#];
    let with_ids = format!(
        r#"{{"choices":[{{"index":0,"text":"xxxx","token_ids":[7], "prompt_token_ids":[1,2]}},{{"index":1,"text":"y","token_ids":[7,7], "prompt_token_ids":[3,4,5]}}],{USAGE}}}"#
    );
    let (sent, replies) = exchange(RouteProtocol::Vllm, calls, &with_ids);
    assert_eq!(sent, r#"{"prompt":["ab","cde"], "max_tokens":4 ,"return_token_ids":true}"#);
    let replies = replies.unwrap();
    assert_eq!(
        bodies(&replies),
        [
            r#"{"choices":[{"index":0,"text":"xxxx","token_ids":null, "prompt_token_ids":null}],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}"#,
            r#"{"choices":[{"index":0,"text":"y","token_ids":null, "prompt_token_ids":null}],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}"#,
        ]
    );
    assert!(!replies.iter().any(is_estimated));
    let replies = exchange(RouteProtocol::SgLang, calls, &with_ids).1.unwrap();
    assert!(bodies(&replies)[1].starts_with(r#"{"choices":[{"index":0,"text":"y"}],"usage":{"prompt_tokens":3,"#));

    // If the members request the ids themselves, they receive them.
    let with_request = calls.map(|body| body.replacen('{', r#"{"return_token_ids":true,"#, 1));
    let (sent, replies) = exchange(RouteProtocol::Vllm, [&with_request[0], &with_request[1]], &with_ids);
    assert_eq!(sent.matches("return_token_ids").count(), 1, "{sent}");
    let replies = replies.unwrap();
    assert!(
        bodies(&replies)[0].contains(r#""token_ids":[7], "prompt_token_ids":[1,2]"#),
        "the client requested the ids"
    );
    assert!(!replies.iter().any(is_estimated));
}

#[test]
fn tokens_without_ids_are_estimated_from_the_texts() {
    let calls = [r#"{"prompt":"ab"}"#, r#"{"prompt":"cde"}"#];
    let response = format!(r#"{{"choices":[{{"index":0,"text":"xx"}},{{"index":1,"text":"y"}}],{USAGE}}}"#);
    for protocol in [RouteProtocol::OpenAi, RouteProtocol::Vllm] {
        let (sent, replies) = exchange(protocol, calls, &response);
        assert_eq!(sent.contains("return_token_ids"), protocol == RouteProtocol::Vllm, "{sent}");
        let replies = replies.unwrap();
        assert!(
            bodies(&replies)[0].ends_with(r#""usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}"#)
        );
        assert!(
            bodies(&replies)[1].ends_with(r#""usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}}"#)
        );
        assert!(replies.iter().all(is_estimated));
    }
}

#[test]
fn cached_tokens_of_the_last_prompt_end_merging_without_quarantine() {
    let calls = [r#"{"prompt":"ab"}"#, r#"{"prompt":"cde"}"#];
    let with = |details: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"text":"x"}},{{"index":1,"text":"y"}}],"usage":{{"prompt_tokens":5,"prompt_tokens_details":{details}}}}}"#
        )
    };
    let cached = with(r#"{"cached_tokens":0}"#);
    assert_eq!(exchange(RouteProtocol::Vllm, calls, &cached).1.err(), Some(MismatchKind::Usage));
    assert!(exchange(RouteProtocol::Vllm, calls, &with("null")).1.is_ok());
    assert!(exchange(RouteProtocol::SgLang, calls, &cached).1.is_ok(), "SGLang reports the sum over all prompts");
}

#[test]
fn a_member_that_the_protocol_does_not_define_is_not_shared() {
    let calls = [r#"{"prompt":"ab"}"#, r#"{"prompt":"cde"}"#];
    let with = |member: &str| format!(r#"{{"choices":[{{"index":0,"text":"x"}},{{"index":1,"text":"y"}}],{member}}}"#);
    for member in
        [r#""prompt":"cde""#, r#""kv_transfer_params":{"a":1}"#, r#""system_fingerprint":"f""#, r#""object":"cde""#]
    {
        assert_eq!(
            exchange(RouteProtocol::Vllm, calls, &with(member)).1.err(),
            Some(MismatchKind::Undeclared),
            "{member}"
        );
    }
    for member in [r#""kv_transfer_params":null"#, r#""system_fingerprint":null"#, r#""object":"text_completion""#] {
        assert!(exchange(RouteProtocol::Vllm, calls, &with(member)).1.is_ok(), "{member}");
    }
}
