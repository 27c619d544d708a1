//! The crash-loop guard: a process that is killed repeatedly starts in pass-through mode for a
//! while.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::binary::Binary;
use super::scripted_server::ScriptedServer;
use super::setup::{assert_answer, predictions, within_timeout};

/// Returns settings under which a call is held for other calls that never arrive, unless it passes
/// through.
fn spec(state: &Path) -> Value {
    json!({
        "proxy": {"state": state},
        "scheduling": {"policy": "Static", "items": 100, "delay": "1m"},
        "limits": {"queueDelayMax": "1m"},
    })
}

async fn api(binary: &Binary, path: &str) -> Value {
    serde_json::from_slice(&binary.get(binary.admin, path).await.body).unwrap()
}

async fn guard(binary: &Binary) -> f64 {
    let metrics = String::from_utf8(binary.get(binary.metrics, "/metrics").await.body).unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("groupage_crash_guard ")).map(str::to_owned);
    line.unwrap().parse().unwrap()
}

async fn signal_and_wait(mut binary: Binary, by: Signal) {
    binary.signal(by);
    binary.end().await;
}

/// Starts a process, checks that it batches, and kills it.
async fn start_and_kill(url: &str, state: &Path) {
    let binary = Binary::start(url, &spec(state), &[]).await;
    assert_eq!(api(&binary, "/api/config").await["mode"]["value"], "Batch");
    assert_eq!(api(&binary, "/api/scheduler").await["crash_guard"], Value::Null);
    assert!((guard(&binary).await).abs() < 0.5);
    signal_and_wait(binary, Signal::KILL).await;
}

#[tokio::test]
async fn after_three_kills_all_calls_pass_through_and_all_reports_show_it() {
    let dir = tempfile::tempdir().unwrap();
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let _auto = hand.into_auto_responder(super::scripted_server::echo);
    for _ in 0..3 {
        start_and_kill(&url, dir.path()).await;
    }
    let binary = Binary::start(&url, &spec(dir.path()), &[]).await;
    binary
        .log
        .until(|line| {
            line["level"] == "ERROR"
                && line["msg"].as_str().is_some_and(|msg| msg.starts_with("crashed 3 times in 60 s"))
        })
        .await;
    let mut client = binary.client().await;
    assert_answer(&within_timeout(client.fetch(&binary.predict(1))).await, 200, &predictions(&[1]));
    let mode = &api(&binary, "/api/config").await["mode"];
    assert_eq!((&mode["value"], &mode["source"]), (&json!("Passthrough"), &json!("crashed 3 times in 60 s")));
    let crash_guard = &api(&binary, "/api/scheduler").await["crash_guard"];
    assert_eq!((&crash_guard["crashes"], &crash_guard["within_seconds"]), (&json!(3), &json!(60)));
    assert!((500..=600).contains(&crash_guard["ends_in_seconds"].as_u64().unwrap()), "{crash_guard}");
    assert!((guard(&binary).await - 1.0).abs() < 0.5);
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_groupage"))
        .args(["explain", "--admin", &binary.admin.to_string()])
        .output()
        .unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(out.contains("because the process crashed 3 times in 60 s"), "{out}");
    // An end by SIGTERM is no crash, and the next process starts with its configured mode.
    signal_and_wait(binary, Signal::TERM).await;
    assert!(!dir.path().join("run.json").exists());
    start_and_kill(&url, dir.path()).await;
}

#[tokio::test]
async fn settings_written_during_the_crash_guard_apply_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let hand = ScriptedServer::start().await;
    let url = hand.url();
    let binary = Binary::start(&url, &spec(dir.path()), &[]).await;
    let path = dir.path().join("run.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    signal_and_wait(binary, Signal::KILL).await;
    // Three crashes long ago, with eight seconds left. A process starts within one second, on a
    // busy machine within a few.
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    record["aside_until"] = json!(boot.tv_sec * 1000 + boot.tv_nsec / 1_000_000 + 8000);
    fs::write(&path, record.to_string()).unwrap();
    let policy = tempfile::NamedTempFile::new().unwrap();
    let write = |items: u32| {
        let mut spec = spec(dir.path());
        spec["limits"]["batchItemsMax"] = json!(items);
        fs::write(policy.path(), super::setup::policy_text(&spec)).unwrap();
    };
    write(50);
    let binary = Binary::with(&url, Some(policy.path()), &[]).await;
    binary.log.until(|line| line["msg"].as_str().is_some_and(|msg| msg.starts_with("crashed 3 times"))).await;
    write(40);
    binary.signal(Signal::HUP);
    binary.log.until(|line| line["msg"] == "settings applied").await;
    let config = api(&binary, "/api/config").await;
    assert_eq!(
        (&config["mode"]["value"], &config["limits.batchItemsMax"]["value"]),
        (&json!("Passthrough"), &json!("40"))
    );
    binary
        .log
        .until(|line| line["msg"].as_str().is_some_and(|msg| msg.starts_with("no crash since the restart")))
        .await;
    let config = api(&binary, "/api/config").await;
    assert_eq!((&config["mode"]["value"], &config["limits.batchItemsMax"]["value"]), (&json!("Batch"), &json!("40")));
    assert_eq!(api(&binary, "/api/scheduler").await["crash_guard"], Value::Null);
    assert!((guard(&binary).await).abs() < 0.5);
}
