//! `groupage validate --against URL`: one call alone and one with its items twice for each declared
//! route and each form of its items, and a report on their answers.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::scripted_server::{AutoResponder, ScriptedServer, reply};
use super::setup::within_timeout;
use super::support::upstream::Request;

const PATH: &str = "/g";

fn policy(generic: &Value) -> Value {
    let mut declared = json!({"items": "/texts", "results": "/vectors"});
    if let (Some(declared), Some(more)) = (declared.as_object_mut(), generic.as_object()) {
        declared.extend(more.clone());
    }
    json!({"routes": [{"path": PATH, "protocol": "Generic", "generic": declared}]})
}

async fn validate(policy: &Value, url: &str, sample: Option<&str>, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.args(["validate", "-f", &file("policy.yaml", &policy.to_string()), "--against", url]).args(more);
    if let Some(sample) = sample {
        command.args(["--sample", &file("sample.json", sample)]);
    }
    command.stdin(Stdio::null());
    within_timeout(tokio::task::spawn_blocking(move || {
        let output = command.output().unwrap();
        drop(folder);
        output
    }))
    .await
    .unwrap()
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Starts a server that answers a list of texts with `many` and one text with `one`.
async fn server(one: &'static str, many: fn(usize) -> (u16, String)) -> (String, AutoResponder) {
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let auto = hand.into_auto_responder(move |request: &Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        match &body["texts"] {
            Value::Array(texts) if texts.len() > 1 => {
                let (status, text) = many(texts.len());
                reply(status, &text)
            }
            _ => reply(200, one),
        }
    });
    (url, auto)
}

fn vectors(count: usize) -> (u16, String) {
    (200, json!({"vectors": vec![[1, 2]; count]}).to_string())
}

#[tokio::test]
async fn a_valid_route_is_reported_with_the_requests_that_were_sent() {
    let (url, auto) = server(r#"{"vectors":[[3,4]]}"#, vectors).await;
    let output = validate(&policy(&json!({})), &url, None, &[]).await;
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains(
            "√ /g (/g): one item and two items get answers of the same shape; sent 31 bytes: status 200 alone, 200 with its items twice"
        ),
        "{text}"
    );
    let json = validate(&policy(&json!({})), &url, None, &["-o", "json"]).await;
    let found: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&found["against"][0]["verdict"], &found["files"][0]["ok"]), (&json!("fits"), &json!(true)));
    drop(auto);
}

#[tokio::test]
async fn a_route_whose_batches_fail_is_reported_before_any_caller_meets_it() {
    let (url, _auto) = server(r#"{"vectors":[[3,4]]}"#, |_| (400, "one item a call".to_owned())).await;
    let output = validate(&policy(&json!({})), &url, None, &[]).await;
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(79), "{text}");
    assert!(
        text.contains("× /g (/g): the server answers a call with two items with 400")
            && text.contains("mode: Passthrough"),
        "{text}"
    );
    let (url, _auto) = server(r#"{"vectors":[[3,4]]}"#, |_| vectors(1)).await;
    let output = validate(&policy(&json!({})), &url, None, &[]).await;
    assert!(output_text(&output).contains("cannot be split (`count`)"), "{}", output_text(&output));
}

#[tokio::test]
async fn a_server_that_requires_a_credential_is_tested_with_one() {
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let _auto = hand.into_auto_responder(|request: &Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let keyed =
            |(name, value): &(String, Vec<u8>)| name.eq_ignore_ascii_case("authorization") && value == b"Bearer k";
        if !request.headers.iter().any(keyed) {
            return reply(401, "unauthorized");
        }
        reply(200, &vectors(body["texts"].as_array().unwrap().len()).1)
    });
    let without = validate(&policy(&json!({})), &url, None, &[]).await;
    assert_eq!(without.status.code(), Some(66), "{}", output_text(&without));
    assert!(output_text(&without).contains("× nothing was tested"), "{}", output_text(&without));
    assert!(output_text(&without).contains("alone with 401: give a credential, --header"), "{}", output_text(&without));
    let with = validate(&policy(&json!({})), &url, None, &["-H", "Authorization: Bearer k"]).await;
    assert!(
        output_text(&with).contains("√ /g (/g): one item and two items get answers of the same shape"),
        "{}",
        output_text(&with)
    );
    let wrong = validate(&policy(&json!({})), &url, None, &["--header", "Authorization"]).await;
    assert!(output_text(&wrong).contains("must be NAME: VALUE"), "{}", output_text(&wrong));
}

#[tokio::test]
async fn an_overload_of_the_second_call_is_no_finding_and_no_success() {
    let (url, _auto) = server(r#"{"vectors":[[3,4]]}"#, |_| (503, "busy".to_owned())).await;
    let output = validate(&policy(&json!({})), &url, None, &[]).await;
    assert_eq!(output.status.code(), Some(66), "{}", output_text(&output));
    assert!(output_text(&output).contains("with 503, as an overloaded server does"), "{}", output_text(&output));
}

#[tokio::test]
async fn an_answer_of_another_shape_than_the_unbatched_one_is_reported() {
    let wrapped = policy(&json!({"single": {"wrapScalar": true}, "resultWrap": "None"}));
    let (url, _auto) = server(r#"{"vectors":[[3,4]]}"#, vectors).await;
    let output = validate(&wrapped, &url, Some(r#"{"texts": "a"}"#), &[]).await;
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(79), "{text}");
    assert!(
        text.contains("of a different shape: `/vectors/0` is a list when sent alone and a number when merged"),
        "{text}"
    );
    // Without a sample, and with one in the other form, the same is found.
    for sample in [None, Some(r#"{"texts": ["a"]}"#)] {
        let output = validate(&wrapped, &url, sample, &[]).await;
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(79), "{text}");
        assert!(text.contains("√ /g (/g, a list of items): ") && text.contains("× /g (/g, a bare item): "), "{text}");
    }
    let right = policy(&json!({"single": {"wrapScalar": true}, "resultWrap": "List"}));
    let output = validate(&right, &url, Some(r#"{"texts": "a"}"#), &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
}

#[tokio::test]
async fn routes_that_cannot_be_tested_are_no_finding_and_no_success_and_the_reason_is_named() {
    let (url, _auto) = server("{}", vectors).await;
    let routes = json!({"routes": [{"path": "/v2/models/m/infer"}, {"path": "/v1/models/*"}]});
    let output = validate(&routes, &url, Some("{}"), &[]).await;
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(66), "{text}");
    assert!(text.contains("calls like the sample are never merged") && text.contains("--sample PATH=FILE"), "{text}");
    let none = validate(&json!({"mode": "Batch"}), &url, None, &["-o", "json"]).await;
    assert_eq!(none.status.code(), Some(66), "{}", output_text(&none));
    assert_eq!(serde_json::from_slice::<Value>(&none.stdout).unwrap()["tested"], 0);
    let nobody = super::scripted_server::ReservedPort::reserve();
    let output = validate(&policy(&json!({})), &nobody.url(), None, &[]).await;
    assert_eq!(output.status.code(), Some(66), "{}", output_text(&output));
    assert!(output_text(&output).contains("cannot connect"), "{}", output_text(&output));
}
