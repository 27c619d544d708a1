//! Weights of text: at a default rate first, then by the tokens that the server reports.

use serde_json::{Value, json};

use super::scripted_server::{PendingRequest, ScriptedServer};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{TestProxy, assert_served};
use super::support::client::Outgoing;

/// A text of forty code points: ten tokens at the default rate.
const TEXT: &str = "forty code points, of which none is odd.";

fn embedding(proxy: &TestProxy) -> Outgoing {
    proxy.post("/v1/embeddings", &[], &json!({"model": "m", "input": TEXT}).to_string())
}

/// Answers as a server with a token for each code point. Returns the number of texts.
async fn embed(turn: PendingRequest) -> usize {
    let body: Value = serde_json::from_slice(&turn.request.body).unwrap();
    let texts = body["input"].as_array().map_or(1, Vec::len);
    let result = |index| json!({"object": "embedding", "index": index, "embedding": [0.5]});
    let data: Vec<Value> = (0..texts).map(result).collect();
    let tokens = texts * TEXT.len();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    turn.answer(200, &json!({"object": "list", "data": data, "model": "m", "usage": usage}).to_string()).await;
    texts
}

/// Returns the sizes of the batches of four calls that wait for one slot.
async fn batch_sizes(proxy: &TestProxy, hand: &mut ScriptedServer) -> Vec<usize> {
    let first = proxy.call(embedding(proxy));
    let turn = hand.next_request().await;
    let callers = proxy.queue((0..4).map(|_| embedding(proxy))).await;
    embed(turn).await;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 4 {
        sizes.push(embed(hand.next_request().await).await);
    }
    assert_served(callers.into_iter().chain([first])).await;
    proxy.wait_idle().await;
    sizes
}

#[tokio::test]
async fn a_batch_holds_as_many_tokens_as_the_server_counts() {
    let (proxy, mut hand) = start_with_scripted_server(json!({"limits": {"batchWeightMax": 100}})).await;
    assert_eq!(batch_sizes(&proxy, &mut hand).await, [4], "four times ten tokens at the default rate");
    for _ in 0..3 {
        let caller = proxy.call(embedding(&proxy));
        embed(hand.next_request().await).await;
        assert_eq!(caller.answer().await.status, Some(200));
    }
    assert_eq!(batch_sizes(&proxy, &mut hand).await, [2, 2], "four times forty tokens, as reported");
}

#[tokio::test]
async fn calls_of_different_length_buckets_share_no_batch() {
    let spec = json!({"scheduling": {"lengthBuckets": [8]}});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let short = |text: &str| proxy.post("/v1/embeddings", &[], &json!({"model": "m", "input": text}).to_string());
    let first = proxy.call(embedding(&proxy));
    let turn = hand.next_request().await;
    let callers = proxy.queue([short("a"), embedding(&proxy), short("b"), embedding(&proxy)]).await;
    embed(turn).await;
    let mut inputs = Vec::new();
    for _ in 0..2 {
        let turn = hand.next_request().await;
        inputs.push(serde_json::from_slice::<Value>(&turn.request.body).unwrap()["input"].clone());
        embed(turn).await;
    }
    assert_eq!(inputs, [json!(["a", "b"]), json!([TEXT, TEXT])]);
    assert_served(callers.into_iter().chain([first])).await;
}

#[tokio::test]
async fn a_tokenizer_that_cannot_be_used_refuses_the_settings() {
    let spec = json!({"routes": [{"path": "/v1/embeddings", "tokenizer": "/absent/tokenizer.json"}]});
    let error = TestProxy::start("http://127.0.0.1:9", &spec).err().unwrap().to_string();
    for part in ["`routes[].tokenizer`", "/v1/embeddings", "/absent/tokenizer.json", "No such file"] {
        assert!(error.contains(part), "{error}");
    }
}
