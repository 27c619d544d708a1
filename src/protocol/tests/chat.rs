//! The batch form of chat: which calls share it, and the response that each caller gets.

use proptest::prelude::*;

use super::adapters::{list_of, unknown, value};
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

/// Returns a conversation that would change if it were parsed and printed, or that contains the
/// delimiters of a list.
fn conversation(number: usize) -> String {
    match number % 4 {
        0 => format!(r#"[{{"role":"user","content":"t{number}"}}]"#),
        1 => format!(r#"[ {{"content" : "\u00e4]}}\"{number}" ,"role":"user"}} ]"#),
        2 => format!(
            "[{{\"role\":\"system\",\"content\":\"汉\\ud800\"}},\n{{\"content\":[{{\"type\":\"text\",\"text\":\"{number}\"}}]}}]"
        ),
        _ => format!(r#"[{{"role":"user","content":null,"n":{number}.50e0}}]"#),
    }
}

proptest! {
    /// Splitting the response to the batch form yields the bytes that each call would have received
    /// alone. A response to one call has no token ids.
    #[test]
    fn splitting_undoes_merging_for_conversations(
        results in prop::collection::vec((1..1000_usize, value(), 0..4_usize), 2..6),
        turn in 0..6_usize,
        blank in "[ \n]{0,2}",
        unknown in unknown(),
    ) {
        let endpoint = vllm();
        let field = format!("\"\\u0078x\"{blank}:{unknown}");
        let calls: Vec<Call> = results.iter().map(|(number, ..)| {
            read(&endpoint, PATH, &format!("{{{field},\"messages\"{blank}:{}}}", conversation(*number)))
        }).collect();
        for call in &calls {
            prop_assert_eq!(call.unbatched_reason(), None, "{:?}", call.body);
            prop_assert!(call.merge == calls[0].merge, "{:?} {:?}", call.body, calls[0].body);
        }
        let members: Vec<&Call> = calls.iter().collect();
        let sent = endpoint.write_batch(&members, None);
        let conversations: Vec<String> = results.iter().map(|(number, ..)| conversation(*number)).collect();
        let batch = format!("{{{field},\"messages\":{},\"return_token_ids\":true}}", list_of(&conversations, ""));
        prop_assert_eq!(one_spelling(&sent.body), one_spelling(batch.as_bytes()));

        let choice = |index: usize, content: &str, ids: &str| {
            format!(r#"{{"index" :{index},"message":{{"role":"assistant","content":{content}}},"token_ids":{ids} }}"#)
        };
        let response = |choices: &[String]| {
            let choices = list_of(choices, &blank);
            format!(r#"{{"object":"chat.completion" ,"choices":{choices},"prompt_token_ids":null}}"#)
        };
        let mut choices: Vec<String> = results.iter().enumerate().map(|(index, (_, content, tokens))| {
            choice(index, content, &format!("{:?}", vec![7; *tokens]))
        }).collect();
        // The order of the choices is that of their indexes.
        choices.rotate_left(turn % results.len());
        let replies = split(&endpoint, &members, &response(&choices)).unwrap();
        for ((_, content, _), body) in results.iter().zip(bodies(&replies)) {
            prop_assert_eq!(body, response(&[choice(0, content, "null")]));
        }
    }
}
