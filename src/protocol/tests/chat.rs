//! The batch form of chat: which calls share it, and the response that each caller gets.

use super::*;

const PATH: &str = "/v1/chat/completions";

fn chat(content: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#)
}

fn vllm() -> Arc<Endpoint> {
    endpoint(PATH, RouteProtocol::Vllm)
}

#[test]
fn conversations_are_one_call_to_the_batch_form() {
    let endpoint = vllm();
    let calls = [chat("a"), chat("bb")].map(|body| read(&endpoint, PATH, &body));
    let members: Vec<&Call> = calls.iter().collect();
    let sent = endpoint.write_batch(&members, None);
    assert_eq!(sent.target, "/v1/chat/completions/batch");
    assert_eq!(
        std::str::from_utf8(&sent.body).unwrap(),
        r#"{"model":"m","messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"bb"}]],"return_token_ids":true}"#
    );
    let behind = read(&endpoint_of(rules("/*", RouteProtocol::Vllm), "/ns/v1/chat/completions"), PATH, &chat("a"));
    assert_eq!((behind.items, behind.unbatched_reason()), (1, None));
}

#[test]
fn each_caller_gets_its_choice_its_own_id_and_exact_completion_tokens() {
    let endpoint = vllm();
    let calls = [chat("a"), chat("b"), chat("c")].map(|body| read(&endpoint, PATH, &body));
    let members: Vec<&Call> = calls.iter().collect();
    let choice = |index: usize, tokens: &str| {
        format!(r#"{{"index":{index},"message":{{"role":"assistant","content":"{index}"}},"token_ids":[{tokens}]}}"#)
    };
    let answer = |choices: &[String]| {
        let choices = choices.join(", ");
        format!(
            r#"{{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","choices":[{choices}],"usage":{{"prompt_tokens":9,"completion_tokens":6,"total_tokens":15}},"prompt_token_ids":null}}"#
        )
    };
    // The order of the choices is that of their indexes.
    let choices = [choice(1, "5,6"), choice(0, "4"), choice(2, "7,8,9")];
    let replies = split(&endpoint, &members, &answer(&choices)).unwrap();
    for (place, (reply, tokens)) in replies.iter().zip([1, 2, 3]).enumerate() {
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(body["choices"][0]["message"]["content"], place.to_string());
        assert_eq!((&body["choices"][0]["index"], body["choices"].as_array().unwrap().len()), (&Value::from(0), 1));
        assert_eq!(body["choices"][0]["token_ids"], Value::Null);
        assert_eq!(body["usage"]["prompt_tokens"], 3);
        assert_eq!(
            (&body["usage"]["completion_tokens"], &body["usage"]["total_tokens"]),
            (&tokens.into(), &(3 + tokens).into())
        );
        assert!(body["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-") && id != "chatcmpl-0123456789abcdef"));
        // The tokens of each prompt are estimated.
        assert_eq!(reply.headers["x-groupage-usage"], "estimated");
    }
    let two = split(&endpoint, &members, &answer(&choices[..2])).unwrap_err();
    assert_eq!(two.what, MismatchKind::Count);
}

#[test]
fn calls_that_the_batch_form_does_not_take_are_sent_unbatched() {
    let endpoint = vllm();
    let with =
        |field: &str| read(&endpoint, PATH, &chat("a").replacen('{', &format!("{{{field},"), 1)).unbatched_reason();
    for field in [
        r#""tools":[]"#,
        r#""functions":[]"#,
        r#""n":2"#,
        r#""use_beam_search":true"#,
        r#""request_id":"r""#,
        r#""prompt_logprobs":1"#,
        r#""return_token_ids":true"#,
        r#""logprobs":true,"top_logprobs":2"#,
    ] {
        assert_eq!(with(field), Some(UnmergeableReason::ItemForm), "{field}");
    }
    assert_eq!(with(r#""stream":true"#), Some(UnmergeableReason::Streaming));
    for field in
        [r#""n":1"#, r#""n":null"#, r#""stream":false"#, r#""tools":null"#, r#""logprobs":false"#, r#""temperature":0"#]
    {
        assert_eq!(with(field), None, "{field}");
    }
    for messages in [r#""hi""#, "[]", r#"["hi"]"#, r#"[[{"role":"user","content":"a"}]]"#] {
        let body = format!(r#"{{"messages":{messages}}}"#);
        assert_eq!(read(&endpoint, PATH, &body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn the_weight_of_a_conversation_grows_with_its_text() {
    let endpoint = vllm();
    let weight = |content: &str| read(&endpoint, PATH, &chat(content)).weight.sum;
    assert!(weight(&"word ".repeat(400)) > weight("word") + 400);
}
