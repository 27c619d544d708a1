//! `groupage check --local URL`: a pair of calls alone and together, and the limits of the server.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::scripted_server::{AutoResponder, ScriptedServer, reply};
use super::setup::{PREDICT, within_timeout};
use super::support::upstream::Request;

/// Runs the check with these samples.
async fn check(url: &str, samples: &[&str]) -> (Option<i32>, String) {
    check_as("table", url, samples).await
}

/// Runs the check with these samples, and an output format.
async fn check_as(format: &str, url: &str, samples: &[&str]) -> (Option<i32>, String) {
    check_route(&[PREDICT, "--protocol", "KServeV1", "--output", format], url, samples).await
}

/// Runs the check with these samples, for the route and the flags of `route`.
async fn check_route(route: &[&str], url: &str, samples: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.args(["check", "--local", url, "--route"]).args(route);
    for (index, text) in samples.iter().enumerate() {
        let file = folder.path().join(format!("{index}.json"));
        std::fs::write(&file, text).unwrap();
        command.arg("--sample").arg(file);
    }
    command.stdin(Stdio::null());
    let output: Output = within_timeout(tokio::task::spawn_blocking(move || {
        let output = command.output().unwrap();
        drop(folder);
        output
    }))
    .await
    .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text)
}

/// Starts a server that predicts by `predict` from all items of a call and one of them.
async fn server(items_max: usize, predict: fn(&[f64], f64) -> f64) -> (String, AutoResponder) {
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let auto = hand.into_auto_responder(move |request: &Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let items: Vec<f64> = body["instances"].as_array().unwrap().iter().map(|i| i[0].as_f64().unwrap()).collect();
        if items.len() > items_max {
            let error = format!("batch-size must be <= {items_max}");
            return reply(400, &json!({ "error": error }).to_string());
        }
        let predictions: Vec<[f64; 1]> = items.iter().map(|item| [predict(&items, *item)]).collect();
        reply(200, &json!({ "predictions": predictions }).to_string())
    });
    (url, auto)
}

const PAIR: [&str; 2] = [r#"{"instances":[[1.5]]}"#, r#"{"instances":[[2.5]]}"#];

#[tokio::test]
async fn a_server_that_computes_each_item_by_itself_passes() {
    let (url, _auto) = server(usize::MAX, |_, item| item / 3.0).await;
    let (code, text) = check(&url, &PAIR).await;
    assert_eq!(code, Some(0), "{text}");
    for number in [1, 2] {
        assert!(
            text.contains(&format!("√ call {number}: the answer in the batch equals the answer alone, byte for byte")),
            "{text}"
        );
    }
    assert!(text.contains("√ the server accepts a call with 128 items"), "{text}");
    assert!(text.ends_with("status: √\n"), "{text}");
    let (code, text) = check(&url, &[]).await;
    assert_eq!(code, Some(0), "a sample is built in: {text}");
}

#[tokio::test]
async fn rounding_and_limits_are_reported() {
    let (url, _auto) = server(16, |items, item| item + if items.len() > 1 { 1e-6 } else { 0.0 }).await;
    let (code, text) = check(&url, &PAIR).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains(
            "call 2: numbers of the answer in the batch differ from those of the answer alone by at most 4.0e-7"
        ),
        "{text}"
    );
    assert!(text.contains("refuses a call with 128 items (400) and names a limit of 16"), "{text}");
}

#[tokio::test]
async fn an_item_that_depends_on_its_neighbours_is_an_error_with_its_place() {
    let (url, _auto) = server(usize::MAX, |items, _| items.iter().sum()).await;
    let (code, text) = check(&url, &PAIR).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("× call 1: the answer in the batch differs from the answer alone at `/predictions/0/0` by"),
        "{text}"
    );
    assert!(text.ends_with("status: ×\n"), "{text}");
}

#[tokio::test]
async fn the_findings_are_written_as_json() {
    let (url, _auto) = server(16, |items, _| items.iter().sum()).await;
    let (code, text) = check_as("json", &url, &PAIR).await;
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(all[0]["route"], PREDICT, "{text}");
    assert_eq!(all[0]["comparisons"][0]["answers"], "different", "{text}");
    assert_eq!(all[0]["comparisons"][0]["at"], "/predictions/0/0", "{text}");
    assert!(all[0]["limits"][0].as_str().unwrap().contains("a limit of 16"), "{text}");
}

#[tokio::test]
async fn samples_that_never_share_a_batch_are_not_sent() {
    let (url, _auto) = server(usize::MAX, |_, item| item).await;
    let (code, text) = check(&url, &[PAIR[0], r#"{"instances":["a"]}"#]).await;
    assert_eq!(code, Some(66), "{text}");
    assert!(text.contains("never share a batch"), "{text}");
}

/// Starts a server that completes the prompt at a place of a list of prompts by `complete`. `info` is
/// its document `/info`; it has no other documents.
async fn completion_server(info: &'static str, complete: fn(&[&str], usize) -> String) -> (String, AutoResponder) {
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let auto = hand.into_auto_responder(move |request: &Request| {
        if request.method == "GET" {
            let has_info = request.target == "/info" && !info.is_empty();
            return if has_info { reply(200, info) } else { reply(404, "{}") };
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let prompts: Vec<&str> = match &body["prompt"] {
            Value::Array(prompts) => prompts.iter().map(|prompt| prompt.as_str().unwrap()).collect(),
            prompt => vec![prompt.as_str().unwrap()],
        };
        let choices: Vec<Value> = (0..prompts.len())
            .map(|place| json!({"index": place, "text": complete(&prompts, place), "finish_reason": "length"}))
            .collect();
        reply(200, &json!({"id": "c", "object": "text_completion", "model": "m", "choices": choices}).to_string())
    });
    (url, auto)
}

const PROMPTS: [&str; 2] =
    [r#"{"model":"m","prompt":"abc","temperature":0}"#, r#"{"model":"m","prompt":"abcde","temperature":0}"#];
const COMPLETIONS: [&str; 3] = ["/v1/completions", "--protocol", "OpenAI"];

#[tokio::test]
async fn completions_of_swapped_callers_are_an_error() {
    let (url, _auto) = completion_server("", |prompts, place| format!("T{}", prompts[place].len())).await;
    let (code, text) = check_route(&COMPLETIONS, &url, &PROMPTS).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("√ call 2: the answer in the batch equals the answer alone"), "{text}");
    let (url, _auto) =
        completion_server("", |prompts, place| format!("T{}", prompts[prompts.len() - 1 - place].len())).await;
    let (code, text) = check_route(&COMPLETIONS, &url, &PROMPTS).await;
    assert_eq!(code, Some(1), "{text}");
    for number in [1, 2] {
        let finding =
            format!("× call {number}: the answer in the batch differs from the answer alone at `/choices/0/text`");
        assert!(text.contains(&finding), "{text}");
    }
    assert!(text.ends_with("status: ×\n"), "{text}");
}

#[tokio::test]
async fn texts_that_differ_from_one_time_to_the_next_are_not_compared() {
    fn complete(_: &[&str], _: usize) -> String {
        static ANSWERS: AtomicUsize = AtomicUsize::new(0);
        format!("T{}", ANSWERS.fetch_add(1, Ordering::Relaxed))
    }
    let (url, _auto) = completion_server("", complete).await;
    let (code, text) = check_route(&COMPLETIONS, &url, &PROMPTS).await;
    assert_eq!(code, Some(0), "{text}");
    for number in [1, 2] {
        let notice = format!("‼ call {number}: two answers to the call alone differ at `/choices/0/text`");
        assert!(text.contains(&notice), "{text}");
    }
    let (_, text) = check_route(&[&COMPLETIONS[..], &["--output", "json"]].concat(), &url, &PROMPTS).await;
    let all: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all[0]["comparisons"][0]["answers"], "varying", "{text}");
}

#[tokio::test]
async fn completions_without_a_named_protocol_are_merged_unless_the_server_batches_text_by_itself() {
    let complete = |prompts: &[&str], place: usize| format!("T{}", prompts[place].len());
    let (url, _auto) = completion_server("", complete).await;
    let (code, text) = check_route(&COMPLETIONS[..1], &url, &PROMPTS).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("√ /v1/completions") && text.ends_with("status: √\n"), "{text}");
    let engine = r#"{"max_client_batch_size":4,"max_total_tokens":4096}"#;
    let (url, _auto) = completion_server(engine, complete).await;
    let (code, text) = check_route(&COMPLETIONS[..1], &url, &PROMPTS).await;
    assert_eq!(code, Some(66), "{text}");
    assert!(text.contains("batches text by itself") && text.contains("name the protocol of the route"), "{text}");
}

#[tokio::test]
async fn a_call_with_tensors_is_generated_and_outputs_of_different_types_are_compared_in_pairs() {
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let _auto = hand.into_auto_responder(|request: &Request| {
        match request.target.as_str() {
            "/v2/models/m" => {
                let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]);
                return reply(200, &json!({"name": "m", "inputs": inputs}).to_string());
            }
            "/v2/models/m/infer" => {}
            _ => return reply(404, "{}"),
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let rows = usize::try_from(body["inputs"][0]["shape"][0].as_u64().unwrap()).unwrap();
        let outputs = json!([
            {"name": "y", "datatype": "FP32", "shape": [rows, 1], "data": vec![0.5; rows]},
            {"name": "l", "datatype": "BYTES", "shape": [rows, 1], "data": vec!["a"; rows]},
        ]);
        reply(200, &json!({"model_name": "m", "outputs": outputs}).to_string())
    });
    let (code, text) = check_route(&["/v2/models/m/infer", "--protocol", "OpenInferenceV2"], &url, &[]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("√ call 1: ") && text.ends_with("status: √\n"), "{text}");
}

#[tokio::test]
async fn a_path_without_an_adapter_is_named_before_a_sample_is_and_a_hint_has_the_syntax_of_the_command() {
    let (url, _auto) = server(usize::MAX, |_, item| item).await;
    let (code, text) = check_route(&["/nope"], &url, &[]).await;
    assert_eq!(code, Some(66), "{text}");
    assert!(text.contains("no adapter supports this path") && !text.contains("--sample"), "{text}");
    let (code, text) = check_route(&["/generate", "--protocol", "SGLang"], &url, &[]).await;
    assert_eq!(code, Some(66), "{text}");
    assert!(text.contains("give one with --sample FILE\n"), "{text}");
    let (code, text) = check_route(&["/v1/models/*", "--protocol", "KServeV1"], &url, &[]).await;
    assert_eq!(code, Some(66), "{text}");
    assert!(text.contains("matches many paths: name one of them") && !text.contains("--sample"), "{text}");
}

#[test]
fn missing_route_is_a_usage_error_and_an_invalid_url_has_one_marker() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_groupage")).arg("check").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run(&["--local", "http://127.0.0.1:1"]);
    assert!(code == Some(2) && text.contains("requires --route PATH or --policy FILE"), "{code:?} {text}");
    let (code, text) = run(&["--local", "ftp://x", "--route", PREDICT]);
    assert_eq!(code, Some(66), "{text}");
    assert!(text.starts_with("error[GRP1102]"), "{text}");
}
