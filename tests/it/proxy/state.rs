//! State that outlives the process: the learned state, and the last good settings.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::binary::Binary;
use super::scripted_server::{ScriptedServer, instances, reply};
use super::setup::{PREDICT, policy_text, predictions, within_timeout};
use super::support::client::Client;
use super::support::upstream::Request;

fn spec(state: &Path) -> Value {
    json!({"scheduling": {"policy": "Adaptive"}, "proxy": {"state": state}})
}

/// Returns a server that sends its name in the `server` header.
fn server_with_name(name: &'static str) -> impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static {
    move |request| {
        let text = String::from_utf8(reply(200, &predictions(&instances(request)))).unwrap();
        text.replacen("\r\n", &format!("\r\nserver: {name}\r\n"), 1).into_bytes()
    }
}

async fn send_items(binary: &Binary, items: std::ops::Range<u64>) {
    for item in items {
        let mut client = within_timeout(Client::connect(binary.listen)).await.unwrap();
        assert_eq!(within_timeout(client.fetch(&binary.predict(item))).await.status, Some(200));
    }
}

async fn scheduler_state(binary: &Binary) -> Value {
    serde_json::from_slice(&binary.get(binary.admin, "/api/scheduler").await.body).unwrap()
}

async fn end(mut binary: Binary) {
    binary.signal(Signal::TERM);
    assert_eq!(binary.end().await.code(), Some(0));
}

/// Runs a process that serves this many calls and drains. Its state remains in the folder.
async fn run_and_drain(url: &str, state: &Path, calls: u64) {
    let binary = Binary::start(url, &spec(state), &[]).await;
    binary.log.until(|line| line["msg"] == "no learned values are saved").await;
    send_items(&binary, 0..calls).await;
    assert_eq!(scheduler_state(&binary).await["cost_classes"].as_array().unwrap().len(), 1);
    end(binary).await;
}

#[tokio::test]
async fn learned_state_is_saved_on_drain_and_used_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let _auto = hand.into_auto_responder(server_with_name("one/1"));
    run_and_drain(&url, &state, 12).await;
    let text = fs::read_to_string(state.join("learned.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&file["format"], &file["upstream"], &file["server"]), (&json!(1), &json!(url), &json!("one/1")));
    assert_eq!(
        fs::read_dir(&state).unwrap().count(),
        3,
        "the settings and the lock are there too, and nothing half-written"
    );

    let binary = Binary::start(&url, &spec(&state), &[]).await;
    binary.log.until(|line| line["msg"] == "starting with the saved learned values" && line["classes"] == 1).await;
    let before = scheduler_state(&binary).await;
    let class = &before["cost_classes"][0];
    assert!((1..=3).contains(&class["samples"].as_u64().unwrap()), "it has a low weight: {class}");
    assert!(class["points"][0]["us"].as_u64().unwrap() > 0);
    assert_eq!(class["path"], PREDICT, "its origin is known before the first call");
    send_items(&binary, 0..3).await;
    let after = scheduler_state(&binary).await;
    assert_eq!(after["cost_classes"].as_array().unwrap().len(), 1, "later calls are of the same class");
    assert!(after["cost_classes"][0]["samples"].as_u64() > class["samples"].as_u64());
    end(binary).await;
}

#[tokio::test]
async fn locked_state_dir_is_reported_and_unused() {
    let dir = tempfile::tempdir().unwrap();
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let _auto = hand.into_auto_responder(server_with_name("one/1"));
    let first = Binary::start(&url, &spec(dir.path()), &[]).await;
    let second = Binary::start(&url, &spec(dir.path()), &[]).await;
    let reports_other_process =
        |line: &Value| line["msg"].as_str().is_some_and(|text| text.starts_with("another process uses the state"));
    let line = second.log.until(reports_other_process).await;
    let holder: u32 = fs::read_to_string(dir.path().join("lock")).unwrap().parse().unwrap();
    assert_eq!((&line["level"], &line["pid"]), (&json!("ERROR"), &json!(holder)));
    let third = Binary::start(&url, &spec(dir.path()), &[]).await;
    third.log.until(reports_other_process).await;
    send_items(&second, 0..3).await;
    end(second).await;
    assert!(!dir.path().join("learned.json").exists(), "the second one kept nothing");
    send_items(&first, 0..3).await;
    end(first).await;
    assert!(dir.path().join("learned.json").exists());
    // The process that held the lock has ended.
    fs::remove_file(dir.path().join("learned.json")).unwrap();
    send_items(&third, 0..3).await;
    end(third).await;
    assert!(dir.path().join("learned.json").exists(), "the third one has it now");
    let last: u32 = fs::read_to_string(dir.path().join("lock")).unwrap().parse().unwrap();
    assert_ne!(last, holder);
}

#[tokio::test]
async fn state_of_another_server_and_broken_state_are_ignored_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (hand, other) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let (url, foreign) = (hand.url(), other.url());
    let _auto =
        (hand.into_auto_responder(server_with_name("one/1")), other.into_auto_responder(server_with_name("one/1")));
    run_and_drain(&url, dir.path(), 3).await;
    let file = dir.path().join("learned.json");
    let text = fs::read_to_string(&file).unwrap();
    let broken = text.get(..text.len() / 2).unwrap();
    let cases = [
        (&foreign, text.as_str(), "another model server"),
        (&url, broken, "cannot be read"),
        (&url, &text.replacen("\"format\":1", "\"format\":9", 1), "format 9"),
    ];
    for (upstream, content, reason) in cases {
        fs::write(&file, content).unwrap();
        let binary = Binary::start(upstream, &spec(dir.path()), &[]).await;
        let reports_reason = |line: &Value| {
            line["msg"] == "the saved learned values are not used"
                && line["reason"].as_str().is_some_and(|text| text.contains(reason))
        };
        binary.log.until(reports_reason).await;
        assert_eq!(scheduler_state(&binary).await["cost_classes"], json!([]));
        send_items(&binary, 0..1).await;
    }
}

#[tokio::test]
async fn learned_state_is_discarded_at_the_first_answer_of_another_server_version() {
    let dir = tempfile::tempdir().unwrap();
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let (sender, name) = tokio::sync::watch::channel("one/1");
    let _auto = hand.into_auto_responder(move |request| server_with_name(*name.borrow())(request));
    run_and_drain(&url, dir.path(), 6).await;
    sender.send("one/2").unwrap();
    let binary = Binary::start(&url, &spec(dir.path()), &[]).await;
    binary.log.until(|line| line["msg"] == "starting with the saved learned values").await;
    send_items(&binary, 0..1).await;
    let line = binary.log.until(|line| line["before"] == "one/1").await;
    assert_eq!(line["now"], "one/2");
    within_timeout(async { while scheduler_state(&binary).await["cost_classes"] != json!([]) {} }).await;
}

#[tokio::test]
async fn learned_state_is_discarded_once_another_revision_of_the_model_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let (sender, revision) = tokio::sync::watch::channel("a1");
    let _auto = hand.into_auto_responder(move |request| match request.target.as_str() {
        "/info" => {
            let info = json!({"model_id": "bge", "model_sha": *revision.borrow(), "max_client_batch_size": 32});
            reply(200, &info.to_string())
        }
        "/embed" => reply(200, "[[0.5]]"),
        _ => server_with_name("one/1")(request),
    });
    let embed = async |binary: &Binary| {
        let mut client = within_timeout(Client::connect(binary.listen)).await.unwrap();
        let call = binary.post("/embed", r#"{"inputs": "x"}"#);
        assert_eq!(within_timeout(client.fetch(&call)).await.status, Some(200));
    };
    let first = Binary::start(&url, &spec(dir.path()), &[]).await;
    send_items(&first, 0..6).await;
    // The limits are looked up beside the calls.
    let limit = r#"groupage_limit{limit="batch_items_max",source="published"} 32"#;
    let is_known = async || {
        embed(&first).await;
        String::from_utf8(first.get(first.metrics, "/metrics").await.body).unwrap().contains(limit)
    };
    within_timeout(async { while !is_known().await {} }).await;
    end(first).await;
    let file: Value = serde_json::from_slice(&fs::read(dir.path().join("learned.json")).unwrap()).unwrap();
    assert_eq!((&file["server"], &file["model"]), (&json!("one/1"), &json!("bge a1")));
    for (revision, forgotten) in [("a1", false), ("b2", true)] {
        sender.send(revision).unwrap();
        let binary = Binary::start(&url, &spec(dir.path()), &[]).await;
        binary.log.until(|line| line["msg"] == "starting with the saved learned values").await;
        embed(&binary).await;
        if forgotten {
            let line = binary.log.until(|line| line["before"] == "bge a1").await;
            assert_eq!(line["now"], "bge b2");
        }
        let known = || async {
            scheduler_state(&binary).await["cost_classes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|class| class["path"] == PREDICT)
        };
        if forgotten {
            within_timeout(async { while known().await {} }).await;
        } else {
            assert!(known().await);
        }
        drop(binary);
    }
}

#[tokio::test]
async fn the_last_good_settings_are_used_if_the_file_is_invalid_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (path, state) = (dir.path().join("policy.yaml"), dir.path().join("state"));
    let good = policy_text(&json!({"limits": {"batchItemsMax": 16}}));
    fs::write(&path, &good).unwrap();
    let hand = ScriptedServer::start().await;
    let args = ["--state", state.to_str().unwrap()];
    let binary = Binary::with(&hand.url(), Some(&path), &args).await;
    within_timeout(async { while fs::read_to_string(state.join("settings.yaml")).ok().as_ref() != Some(&good) {} })
        .await;
    end(binary).await;
    fs::write(&path, "limits: {batchItemsMax: 0}").unwrap();
    let binary = Binary::with(&hand.url(), Some(&path), &args).await;
    let line = binary.log.until(|line| line["code"] == "GRP1102").await;
    assert_eq!((&line["path"], &line["line"]), (&json!("limits.batchItemsMax"), &json!(1)));
    binary.log.until(|line| line["msg"] == "the last good settings are used instead").await;
    let config: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/config").await.body).unwrap();
    assert_eq!(config["limits.batchItemsMax"]["value"], "16");
    assert_eq!(fs::read_to_string(state.join("settings.yaml")).unwrap(), good, "the wrong file is not kept");
    // Once the file is corrected, it is in force at once.
    fs::write(&path, policy_text(&json!({"limits": {"batchItemsMax": 8}}))).unwrap();
    binary.log.until(|line| line["msg"] == "settings applied").await;
    end(binary).await;
}

#[test]
fn without_a_folder_a_wrong_file_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    fs::write(&path, "limits: {batchItemsMax: 0}").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.args(["proxy", "--upstream", "http://127.0.0.1:1", "--config"]).arg(&path).env_remove("GROUPAGE_STATE");
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), Some(78));
    assert!(String::from_utf8(ended.stderr).unwrap().contains("GRP1102"));
}
