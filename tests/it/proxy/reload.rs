//! Changes of settings while calls wait and batches are in flight.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::binary::Binary;
use super::scripted_server::{ScriptedServer, echo};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TestProxy, assert_answer, assert_predictions, assert_served, header, instances, policy_text, predictions,
};
use super::support::client::Outgoing;
use super::support::wire::Headers;

/// Returns settings with one slot, so that the other calls wait.
fn spec(limits: &Value) -> Value {
    json!({"scheduling": {"policy": "WorkConserving", "slots": 1}, "limits": limits})
}

#[tokio::test]
async fn an_edited_limit_applies_to_the_next_batches_and_not_to_those_in_flight() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&json!({"batchItemsMax": 4}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=40).map(|item| proxy.predict(item))).await;
    turn.echo().await;
    assert_answer(&first.answer().await, 200, &predictions(&[0]));
    let mut sizes = Vec::new();
    for next in [16, 2, 2, 64] {
        let turn = hand.next_request().await;
        // The limit changes while this batch is in flight.
        proxy.apply(&spec(&json!({"batchItemsMax": next}))).await;
        sizes.push(turn.instances().len());
        turn.echo().await;
    }
    let turn = hand.next_request().await;
    sizes.push(turn.instances().len());
    turn.echo().await;
    assert_eq!(sizes, [4, 16, 2, 2, 16]);
    assert_predictions(1.., callers).await;
    proxy.wait_idle().await;
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 41);
    assert_eq!(proxy.metric(r#"groupage_config_reloads_total{result="applied"}"#), 4);
    assert_eq!(hand.pending_requests(), 0, "nothing was sent twice");
}

#[tokio::test]
async fn smaller_queue_rejects_new_and_keeps_queued_calls() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&json!({}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=5).map(|item| proxy.predict(item))).await;
    proxy.apply(&spec(&json!({"queueItemsMax": 3}))).await;
    let refused = proxy.fetch(&proxy.predict(9)).await;
    super::setup::assert_failure(&refused, 503, "GRP3101", "queue_full");
    turn.echo().await;
    hand.next_request().await.echo().await;
    assert_predictions(0.., std::iter::once(first).chain(callers)).await;
}

#[tokio::test]
async fn more_slots_are_used_at_once_and_fewer_as_they_come_back() {
    let of = |slots: u32| json!({"scheduling": {"policy": "WorkConserving", "slots": slots}, "limits": {"batchItemsMax": 1}});
    let (proxy, mut hand) = start_with_scripted_server(of(1)).await;
    let (first, one) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=3).map(|item| proxy.predict(item))).await;
    proxy.apply(&of(3)).await;
    let (two, three) = (hand.next_request().await, hand.next_request().await);
    proxy.apply(&of(1)).await;
    two.echo().await;
    one.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    proxy.wait_queued(1).await;
    assert_eq!(hand.pending_requests(), 0, "one is still in flight, and one is all there may be");
    three.echo().await;
    hand.next_request().await.echo().await;
    assert_served(callers).await;
}

#[tokio::test]
async fn removed_route_drains_and_new_calls_pass() {
    let other = "/v1/models/other:predict";
    let route = |path: &str, max: u32| json!({"path": path, "protocol": "KServeV1", "limits": {"batchItemsMax": max}});
    let with = |routes: Value| {
        let mut spec = spec(&json!({}));
        spec["routes"] = routes;
        spec
    };
    let (proxy, mut hand) = start_with_scripted_server(with(json!([route(PREDICT, 2), route(other, 3)]))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let gone = proxy.queue((1..=4).map(|item| proxy.predict(item))).await;
    // The other route moves to its place.
    let applied = proxy.apply(&with(json!([route(other, 3)]))).await;
    assert!(applied.changes.iter().any(|change| change.path == "routes[1].path" && change.to.is_none()));
    let moved = proxy.queue((5..=7).map(|item| proxy.post(other, &[], &instances(&[item])))).await;
    let passes = proxy.call(proxy.predict(8));
    let passed = hand.next_request().await;
    assert_eq!(passed.instances(), [8], "it waits for no slot");
    passed.echo().await;
    assert_answer(&passes.answer().await, 200, &predictions(&[8]));
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    for items in [&[1, 2][..], &[3, 4], &[5, 6, 7]] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), items);
        turn.echo().await;
    }
    assert_predictions(1.., gone.into_iter().chain(moved)).await;
}

#[tokio::test]
async fn calls_merge_across_reload_unless_key_changes() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&json!({"batchItemsMax": 8}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let mut callers = proxy.queue([proxy.predict(1)]).await;
    proxy.apply(&spec(&json!({"batchItemsMax": 9}))).await;
    callers.extend(proxy.queue([proxy.predict(2)]).await);
    let mut named = spec(&json!({}));
    named["tenants"] = json!({"header": "x-acme"});
    proxy.apply(&named).await;
    callers.extend(proxy.queue([proxy.predict(3)]).await);
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    for items in [&[1, 2][..], &[3]] {
        let turn = hand.next_request().await;
        assert_eq!(turn.instances(), items);
        turn.echo().await;
    }
    assert_served(callers).await;
}

#[tokio::test]
async fn the_kill_switch_works_while_calls_wait() {
    let (proxy, mut hand) = start_with_scripted_server(spec(&json!({}))).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue([proxy.predict(1), proxy.predict(2)]).await;
    let mut off = spec(&json!({}));
    off["mode"] = json!("Passthrough");
    proxy.apply(&off).await;
    let passes = proxy.call(proxy.predict(3));
    hand.next_request().await.echo().await;
    assert_answer(&passes.answer().await, 200, &predictions(&[3]));
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="policy_off"}"#), 1);
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    assert_eq!(hand.next_request().await.instances(), [1, 2], "they were accepted");
    drop(callers);
    proxy.apply(&spec(&json!({}))).await;
    let caller = proxy.queue([proxy.predict(4)]).await;
    drop(caller);
}

#[tokio::test]
async fn the_isolation_threshold_can_be_reloaded() {
    let with = |above: u32| {
        let mut spec = spec(&json!({}));
        spec["failure"] = json!({"isolateAbove": above});
        spec
    };
    let (proxy, mut hand) = start_with_scripted_server(with(16)).await;
    proxy.apply(&with(1)).await;
    let (callers, turn) = proxy.form_batch(&mut hand, (1..=4).map(|item| proxy.predict(item)).collect()).await;
    turn.answer(500, "{}").await;
    assert_eq!(hand.next_request().await.instances().len(), 2, "in halves, no more one by one");
    drop(callers);
}

#[tokio::test]
async fn startup_only_settings_are_reported_pending() {
    let (proxy, _hand) = start_with_scripted_server(json!({})).await;
    let local = proxy.running.admin.local.unwrap();
    let wanted =
        json!({"limits": {"batchItemsMax": 7}, "proxy": {"log": {"access": "5%"}, "process": {"connectionsMax": 3}}});
    let applied = proxy.apply(&wanted).await;
    let paths: Vec<_> = applied.pending.iter().map(|change| change.path.as_str()).collect();
    assert_eq!(paths, ["proxy.process.connectionsMax", "proxy.log.access"]);
    let config: Value = get(&proxy, local, "/api/config").await;
    assert_eq!(config["limits.batchItemsMax"]["value"], "7");
    assert_eq!(config["limits.batchItemsMax"]["source"], "file:1");
    assert_eq!(
        (&config["proxy.log.access"]["value"], &config["proxy.log.access"]["pending"]),
        (&json!("0%"), &json!("5%"))
    );
    assert!(config["proxy.log.level"].get("pending").is_none());
    let reload: Value = get(&proxy, local, "/api/reload").await;
    assert_eq!(
        (&reload["applied"], &reload["refused"], &reload["last"]["result"]),
        (&json!(1), &json!(0), &json!("applied"))
    );
    assert_eq!(reload["pending"][0], json!({"path": "proxy.process.connectionsMax", "from": "10000", "to": "3"}));
    assert_eq!(reload["last"]["changes"][0]["path"], "limits.batchItemsMax");
    assert_eq!(proxy.metric("groupage_config_pending_settings"), 2);
    assert_eq!(proxy.metric(r#"groupage_limit{limit="batch_items_max",source="policy"}"#), 7);
    assert!(proxy.running.metrics.render().contains(r#"groupage_limit{limit="batch_items_max",source="default"} NaN"#));
    // Once reverted, the setting is no longer pending.
    proxy.apply(&json!({})).await;
    assert_eq!(proxy.metric("groupage_config_pending_settings"), 0);
}

async fn get(proxy: &TestProxy, port: std::net::SocketAddr, path: &str) -> Value {
    let request = Outgoing::new("GET", path, port, &Headers::new(), None);
    let mut client = super::support::client::Client::connect(port).await.unwrap();
    let answer = super::setup::within_timeout(client.fetch(&request)).await;
    assert_eq!(answer.status, Some(200), "{path} of {}", proxy.address);
    serde_json::from_slice(&answer.body).unwrap()
}

// ---- the real binary, and the file system ----

fn limits(items_max: u32) -> String {
    policy_text(&spec(&json!({"batchItemsMax": items_max})))
}

async fn in_force(binary: &Binary) -> String {
    let config: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/config").await.body).unwrap();
    config["limits.batchItemsMax"]["value"].as_str().unwrap().to_owned()
}

async fn metric(binary: &Binary, series: &str) -> String {
    let text = String::from_utf8(binary.get(binary.metrics, "/metrics").await.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_default().to_owned()
}

/// Waits until the log reports that this value is in force.
async fn until_changed(binary: &Binary, to: u32) {
    let to = to.to_string();
    binary.log.until(|line| line["msg"] == "setting changed" && line["to"] == to.as_str()).await;
    binary.log.until(|line| line["msg"] == "settings applied").await;
    assert_eq!(in_force(binary).await, to);
}

/// Replaces a file as an editor does.
fn replace(path: &Path, text: &str) {
    let new_file = path.with_extension("swp");
    fs::write(&new_file, text).unwrap();
    fs::rename(&new_file, path).unwrap();
}

#[tokio::test]
async fn a_changed_file_is_applied_and_an_invalid_one_is_refused_with_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    fs::write(&path, limits(4)).unwrap();
    let hand = ScriptedServer::start().await;
    let binary = Binary::with(&hand.url(), Some(&path), &[]).await;
    assert_eq!(in_force(&binary).await, "4");
    fs::write(&path, limits(16)).unwrap();
    until_changed(&binary, 16).await;
    let wrong = "mode: Batch\nlimits:\n  batchItemsMax: 0\n  slotMax: 3\n";
    replace(&path, wrong);
    let line = binary.log.until(|line| line["code"] == "GRP1102").await;
    let words = ["msg", "path", "line", "value", "allowed"].map(|key| line[key].clone());
    let expected = ["settings refused: `limits.batchItemsMax` cannot be `0`", "limits.batchItemsMax"];
    assert_eq!(
        words,
        [json!(expected[0]), json!(expected[1]), json!(3), json!("0"), json!("a whole number from 1 to 65536")]
    );
    let line = binary.log.until(|line| line["code"] == "GRP1101").await;
    assert_eq!((&line["line"], &line["nearest"]), (&json!(4), &json!("slotsMax")));
    assert_eq!(in_force(&binary).await, "16", "what was in force stays");
    let reload: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/reload").await.body).unwrap();
    assert_eq!((&reload["last"]["result"], &reload["last"]["why"][0]["line"]), (&json!("refused"), &json!(3)));
    assert_eq!(metric(&binary, r#"groupage_config_reloads_total{result="refused"}"#).await, "1");
    assert_eq!(metric(&binary, "groupage_config_current").await, "0");
    replace(&path, &limits(2));
    until_changed(&binary, 2).await;
    assert_eq!(metric(&binary, "groupage_config_current").await, "1");
    fs::write(&path, "").unwrap();
    binary.log.until(|line| line["reason"] == "the file is empty, possibly because it is being written").await;
    assert_eq!(in_force(&binary).await, "2");
    fs::remove_file(&path).unwrap();
    replace(&path, &limits(5));
    until_changed(&binary, 5).await;
}

#[tokio::test]
async fn a_configmap_that_is_swapped_is_in_force_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let publish = |version: &str, items_max| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("policy.yaml"), limits(items_max)).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    publish("..2026_11_20", 4);
    symlink("..data/policy.yaml", at("policy.yaml")).unwrap();
    let hand = ScriptedServer::start().await;
    let binary = Binary::with(&hand.url(), Some(&at("policy.yaml")), &[]).await;
    for (version, gone, items_max) in [("..2026_11_21", "..2026_11_20", 16), ("..2026_11_22", "..2026_11_21", 2)] {
        publish(version, items_max);
        fs::remove_dir_all(at(gone)).unwrap();
        until_changed(&binary, items_max).await;
    }
}

#[tokio::test]
async fn sighup_reloads_file_below_flags() {
    let hand = ScriptedServer::start().await;
    let mut auto = hand.into_auto_responder(echo);
    let spec = json!({"proxy": {"log": {"level": "warn"}}});
    let url = "http://127.0.0.1:1";
    let binary = Binary::start(url, &spec, &["--log-level", "info"]).await;
    binary.signal(Signal::HUP);
    let line = binary.log.until(|line| line["msg"] == "settings applied").await;
    assert_eq!((&line["changes"], &line["pending"]), (&json!(0), &json!(0)), "the flag is still info");
    assert!(auto.seen().is_empty());
}

#[tokio::test]
async fn without_a_file_sighup_is_logged_and_the_process_continues() {
    let hand = ScriptedServer::start().await;
    let any = "127.0.0.1:0";
    let args = ["--listen", any, "--metrics", any, "--admin", any];
    let mut binary = Binary::with(&hand.url(), None, &args).await;
    binary.signal(Signal::HUP);
    binary.log.until(|line| line["msg"].as_str().is_some_and(|text| text.contains("without --config"))).await;
    assert_eq!(header(&binary.get(binary.metrics, "/livez").await.headers, "content-length"), "3");
    binary.signal(Signal::TERM);
    assert_eq!(binary.end().await.code(), Some(0));
}
