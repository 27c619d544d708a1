//! Weights of text in tokens: at default rates, at rates learned from responses, and counted.

use super::*;
use crate::batching::Weight;
use crate::tokens::{TokenCalibration, TokenCounter, TokenSample};

const PATH: &str = "/v1/embeddings";

/// Counts the words of a text, and one more.
#[derive(Debug)]
struct WordCounter;

impl TokenCounter for WordCounter {
    fn count(&self, text: &str) -> Option<u64> {
        u64::try_from(text.split_whitespace().count() + 1).ok()
    }
}

fn embedding(text: &str) -> String {
    serde_json::json!({"model": "m", "input": text}).to_string()
}

/// Observes the response to calls of a server that has one token for two code points.
fn observe(endpoint: &Endpoint, calls: &[&Call], texts: &[&str], headers: &HeaderMap, known: &TokenCalibration) {
    let tokens: usize = texts.iter().map(|text| text.chars().count() / 2).sum();
    let usage = serde_json::json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let body = serde_json::json!({"object": "list", "data": [], "model": "m", "usage": usage}).to_string().into();
    endpoint.observe_tokens(calls, BatchResponse { status: StatusCode::OK, headers, body: &body }, known);
}

#[test]
fn text_is_weighed_at_the_rates_of_its_model() {
    let (endpoint, known, plain) =
        (endpoint(PATH, RouteProtocol::OpenAi), TokenCalibration::default(), HeaderMap::new());
    let texts: Vec<String> = (20..40).map(|words| "some words ".repeat(words)).collect();
    for text in &texts {
        let call = read(&endpoint, PATH, &embedding(text));
        assert_eq!(call.weight.sum, u64::try_from(text.len().div_ceil(4)).unwrap(), "at the default rate");
        observe(&endpoint, &[&call], &[text], &plain, &known);
    }
    let call =
        read(&endpoint, PATH, r#"{"model":"m","input":["1234567890","some longer text of forty code points .."]}"#);
    let Weight { sum, max } = known.weigh(&call).expect("the rates are known");
    assert!((24..=26).contains(&sum) && (19..=21).contains(&max), "{sum} {max}");
    let other = read(&endpoint, PATH, r#"{"model":"other","input":"text"}"#);
    assert_eq!(known.weigh(&other), None, "nothing is known of another model");
    let ids = read(&endpoint, PATH, r#"{"model":"m","input":[[1,2,3],[4]]}"#);
    assert_eq!(known.weigh(&ids), Some(Weight { sum: 4, max: 3 }), "token ids are exact");
}

#[test]
fn escaped_text_has_the_weight_of_the_same_text_in_utf8() {
    let (endpoint, known, plain) =
        (endpoint(PATH, RouteProtocol::OpenAi), TokenCalibration::default(), HeaderMap::new());
    for count in 10..30 {
        let text = "汉字 と かな".repeat(count);
        let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let calls = [embedding(&text), format!(r#"{{"model":"m","input":"{escaped}"}}"#)];
        let calls = calls.map(|body| read(&endpoint, PATH, &body));
        assert_eq!(calls[0].weight, calls[1].weight);
        assert_eq!(known.weigh(&calls[0]), known.weigh(&calls[1]));
        observe(&endpoint, &[&calls[count % 2]], &[&text], &plain, &known);
    }
    let call = read(&endpoint, PATH, &embedding(&"汉字 と かな".repeat(100)));
    assert!((340..=360).contains(&known.weigh(&call).unwrap().sum), "{:?}", known.weigh(&call));
}

#[test]
fn totals_of_batches_are_learned_from_unless_the_server_counts_one_item() {
    let endpoint = endpoint(PATH, RouteProtocol::OpenAi);
    let (texts, text) = (["short text", "another text that is longer"], "a text of twenty-one ");
    let calls = texts.map(|text| read(&endpoint, PATH, &embedding(text)));
    let members: Vec<&Call> = calls.iter().collect();
    let call = read(&endpoint, PATH, &embedding(&text.repeat(10)));
    for (server, learns) in [("uvicorn", true), ("llama.cpp", false)] {
        let known = TokenCalibration::default();
        let headers = headers_of(&[("server", server)]);
        (0..8).for_each(|_| observe(&endpoint, &members, &texts, &headers, &known));
        assert_eq!(known.weigh(&call).is_some_and(|weight| (85..=115).contains(&weight.sum)), learns, "{server}");
    }
}

#[test]
fn prompts_are_weighed_at_learned_rates_beside_the_requested_tokens() {
    const CHAT: &str = "/v1/chat/completions";
    let known = TokenCalibration::default();
    let body = |text: &str, more: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":50{more}}}"#)
    };
    let chat = endpoint_at(CHAT);
    for count in 10..20 {
        let call = read(&chat, CHAT, &body(&"words ".repeat(count), ""));
        known.record(&TokenSample::of_call(&call).unwrap(), u64::try_from(count * 3 + 8).unwrap());
    }
    let call = read(&chat, CHAT, &body(&"words ".repeat(100), ""));
    assert_eq!(call.weight.sum, 151 + 50, "at the default rate");
    let weight = known.weigh(&call).unwrap();
    assert!((335..=385).contains(&weight.sum), "{weight:?}");
    for more in [r#","tools":[{"type":"function"}]"#, r#","previous_response_id":"a""#] {
        assert!(TokenSample::of_call(&read(&chat, CHAT, &body("a", more))).is_none(), "{more}");
    }
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a/b"}}]}]}"#;
    assert!(TokenSample::of_call(&read(&chat, CHAT, image)).is_none());
    let anthropic = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
    assert!(TokenSample::of_call(&read(&endpoint_at("/v1/messages"), "/v1/messages", anthropic)).is_none());
}

fn endpoint_at(path: &str) -> Arc<Endpoint> {
    routes_of(&[("/*", RouteProtocol::Auto)]).recognise(&Method::POST, path).unwrap()
}

#[test]
fn a_tokenizer_counts_instead() {
    let own = RouteRules { tokenizer: Some(Arc::new(WordCounter)), ..rules(PATH, RouteProtocol::OpenAi) };
    let (endpoint, known, plain) = (endpoint_of(own, PATH), TokenCalibration::default(), HeaderMap::new());
    for _ in 0..8 {
        let call = read(&endpoint, PATH, r#"{"model":"m","input":["two words","and\u0020now four\twords"]}"#);
        assert_eq!(call.weight, Weight { sum: 8, max: 5 });
        observe(&endpoint, &[&call], &["x"], &plain, &known);
        assert_eq!(known.weigh(&call), None, "nothing is estimated");
    }
}
