//! Explanations of decisions: the response header of a call, the admin port, and
//! `groupage explain`.

use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::binary::Binary;
use super::scripted_server::{ScriptedServer, echo};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{PREDICT, TestProxy, assert_failure, assert_served, instances, predictions, within_timeout};
use super::support::client::{Answer, Client, Outgoing};
use super::support::wire::{Headers, values};

const DEBUG: (&str, &str) = ("x-groupage-debug", "1");

/// Returns settings with one slot and without holds, so that every event is caused by the test.
fn work_conserving_spec() -> Value {
    json!({"scheduling": {"policy": "WorkConserving"}})
}

fn debug_call(proxy: &TestProxy, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[DEBUG], &instances(&[item]))
}

/// Returns the value that the proxy adds to `Server-Timing`.
#[track_caller]
fn timing(answer: &Answer) -> String {
    let lines = values(&answer.headers, "server-timing");
    String::from_utf8(lines.last().expect("the caller requested it").to_vec()).unwrap()
}

/// Returns the milliseconds of one metric in it.
#[track_caller]
fn millis(timing: &str, name: &str) -> f64 {
    let rest = timing.split(", ").find_map(|part| part.strip_prefix(&format!("{name};dur=")));
    rest.unwrap_or_else(|| panic!("no {name} in {timing}")).parse().unwrap()
}

pub(super) async fn scheduler(proxy: &TestProxy) -> Value {
    let port = proxy.running.admin.local.unwrap();
    let mut client = within_timeout(Client::connect(port)).await.unwrap();
    let answer =
        within_timeout(client.fetch(&Outgoing::new("GET", "/api/scheduler", port, &Headers::new(), None))).await;
    assert_eq!(answer.status, Some(200));
    serde_json::from_slice(&answer.body).unwrap()
}

#[tokio::test]
async fn debug_header_reports_batch_cause_wait_prediction() {
    let (proxy, mut hand) = start_with_scripted_server(work_conserving_spec()).await;
    // Calls with and without the debug header still share a batch.
    let (callers, turn) =
        proxy.form_batch(&mut hand, vec![debug_call(&proxy, 1), proxy.predict(2), debug_call(&proxy, 3)]).await;
    assert_eq!(turn.instances(), [1, 2, 3]);
    assert!(values(&turn.request.headers, "x-groupage-debug").is_empty());
    turn.echo().await;
    let mut shown = Vec::new();
    for (item, caller) in (1..).zip(callers) {
        let answer = caller.answer().await;
        assert_eq!((answer.status, answer.body), (Some(200), predictions(&[item]).into_bytes()));
        if item == 2 {
            assert!(values(&answer.headers, "server-timing").is_empty(), "the caller did not request it");
        } else {
            shown.push(String::from_utf8(values(&answer.headers, "server-timing")[0].to_vec()).unwrap());
        }
    }
    for timing in &shown {
        assert!(
            timing.contains("groupage;desc=\"way=merged batch=")
                && timing.contains(" items=3 ")
                && timing.contains("cause=idle predicted="),
            "{timing}"
        );
        assert!(timing.ends_with("ms\""), "{timing}");
        assert!(millis(timing, "queue") > 0.0 && millis(timing, "upstream") > 0.0, "{timing}");
    }
}

#[tokio::test]
async fn calls_that_are_unbatched_passed_or_refused_get_the_reason() {
    let mut spec = work_conserving_spec();
    spec["limits"] = json!({"queueItemsMax": 1});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let strange = proxy.post(PREDICT, &[DEBUG, ("if-match", "x")], &instances(&[1]));
    let caller = proxy.call(strange);
    let turn = hand.next_request().await;
    assert!(values(&turn.request.headers, "x-groupage-debug").is_empty(), "the request addressed this proxy");
    // The server's own value is kept, before the proxy's.
    turn.send_raw(b"HTTP/1.1 200 OK\r\nserver-timing: model;dur=3\r\ncontent-length: 2\r\n\r\n{}").await;
    let answer = caller.answer().await;
    assert_eq!(values(&answer.headers, "server-timing").len(), 2);
    assert_eq!(values(&answer.headers, "server-timing")[0], b"model;dur=3");
    let shown = timing(&answer);
    assert!(shown.contains("groupage;desc=\"way=forwarded batch="), "{shown}");
    assert!(shown.ends_with(" items=1 cause=idle reason=header\""), "{shown}");

    let caller = proxy.call(proxy.request("GET", "/x", &[DEBUG], None));
    let turn = hand.next_request().await;
    assert!(values(&turn.request.headers, "x-groupage-debug").is_empty());
    turn.answer(404, "{}").await;
    let shown = timing(&caller.answer().await);
    assert!(
        shown.starts_with("upstream;dur=") && shown.ends_with("desc=\"way=forwarded reason=not_recognised\""),
        "{shown}"
    );

    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let queued = proxy.queue([proxy.predict(1)]).await;
    let refused = proxy.fetch(&debug_call(&proxy, 2)).await;
    assert_failure(&refused, 503, "GRP3101", "queue_full");
    assert_eq!(timing(&refused), "groupage;desc=\"reason=queue_full\"");
    turn.echo().await;
    hand.next_request().await.echo().await;
    assert_served(queued.into_iter().chain([first])).await;
    assert_eq!(proxy.metric(r#"groupage_items_rejected_total{reason="queue_full"}"#), 1);
}

#[tokio::test]
async fn calls_that_end_early_are_counted_by_reason_and_against_the_slo() {
    let mut spec = work_conserving_spec();
    spec["slo"] = json!({"latencyP99": "50ms", "late": "Refuse"});
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let late = proxy.fetch(&debug_call(&proxy, 1)).await;
    assert_failure(&late, 504, "GRP3201", "deadline");
    let shown = timing(&late);
    assert!(millis(&shown, "queue") >= 45.0 && shown.ends_with("desc=\"reason=deadline\""), "{shown}");
    turn.echo().await;
    assert_eq!(first.answer().await.status, Some(200));
    proxy.wait_idle().await;
    assert_eq!(proxy.metric(r#"groupage_items_expired_total{reason="deadline"}"#), 1);
    assert_eq!(proxy.metric(r#"groupage_slo_calls_total{result="missed"}"#), 2);
    assert_eq!(proxy.metric(r#"groupage_slo_calls_total{result="met"}"#), 0);
    let shown = scheduler(&proxy).await;
    assert_eq!(shown["items_expired"]["deadline"], 1);
    assert_eq!(shown["cost_classes"][0]["recent"]["slo_us"], 50_000, "as the policy has it");
}

#[tokio::test]
async fn the_scheduler_api_shows_dispatches_and_the_header_that_separates_calls() {
    let (proxy, mut hand) = start_with_scripted_server(work_conserving_spec()).await;
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let user = |n: u64| proxy.post(PREDICT, &[("x-user", &format!("secret-{n}"))], &instances(&[n]));
    let queued = proxy.queue([user(1), user(2), user(3)]).await;
    turn.echo().await;
    for _ in 0..3 {
        hand.next_request().await.echo().await;
    }
    assert_served(queued.into_iter().chain([first])).await;
    proxy.wait_idle().await;
    let shown = scheduler(&proxy).await;
    assert_eq!(
        (&shown["policy"], &shown["slots_max"], &shown["dispatches"]["idle"]),
        (&json!("WorkConserving"), &json!(1), &json!(4))
    );
    let class = &shown["cost_classes"][0];
    assert_eq!((&class["path"], &class["quarantined"]), (&json!(PREDICT), &json!(false)));
    let recent = &class["recent"];
    assert_eq!((&recent["batches"], &recent["items"], &recent["apart"]), (&json!(4), &json!(4), &json!(2)));
    let point = &class["operating_point"];
    assert_eq!((&point["last_items"], &point["best_items"].is_u64()), (&json!(1), &true));
    assert!(point["lone_us"].as_u64().unwrap() > 0);
    // The first call has no such header. Its absence counts as a value.
    let expected =
        json!({"keys": 4, "differs": [{"what": "header", "name": "x-user", "values": 4, "keys_without": 1}]});
    assert_eq!(class["apart"], expected);
    assert!(!shown.to_string().contains("secret"), "{shown}");
    assert_eq!(proxy.metric("groupage_slots_learned"), 0, "under a policy that does not learn");
}

async fn explain(args: &[&str], input: Option<std::fs::File>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
    command.arg("explain").args(args).stdin(input.map_or_else(Stdio::null, Stdio::from));
    within_timeout(tokio::task::spawn_blocking(move || command.output().unwrap())).await.unwrap()
}

#[track_caller]
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn explain_names_the_header_live_and_reports_the_facts_of_a_log() {
    let mut hand = ScriptedServer::start().await;
    let mut binary = Binary::start(&hand.url(), &work_conserving_spec(), &["--log-access", "100%"]).await;
    let admin = binary.admin.to_string();
    let nothing = printed(&explain(&["--admin", &admin], None).await);
    assert!(nothing.contains("no call has arrived yet"), "{nothing}");
    let call = |n: u64| {
        let own: Headers = [("content-type", "application/json".to_owned()), ("x-user", format!("secret-{n}"))]
            .map(|(name, value)| (name.to_owned(), value.into_bytes()))
            .to_vec();
        let request = Outgoing::new("POST", PREDICT, binary.listen, &own, Some(instances(&[n]).as_bytes()));
        let listen = binary.listen;
        tokio::spawn(async move { Client::connect(listen).await.unwrap().fetch(&request).await })
    };
    let mut callers = vec![call(0)];
    let turn = hand.next_request().await;
    for n in 1..8 {
        callers.push(call(n));
        binary.until_queued(n).await;
    }
    turn.echo().await;
    let _auto = hand.into_auto_responder(echo);
    for caller in callers {
        assert_eq!(within_timeout(caller).await.unwrap().status, Some(200));
    }
    let live = printed(&explain(&["--admin", &admin], None).await);
    let expected = "header `x-user` differs (8 values): add `x-user` to the route's mergeOver.headers if it does not change answers";
    assert!(live.contains(PREDICT) && live.contains(expected), "{live}");
    let found: Value =
        serde_json::from_str(&printed(&explain(&["--admin", &admin, "-o", "json"], None).await)).unwrap();
    let apart =
        found["sentences"].as_array().unwrap().iter().find(|sentence| sentence["what"] == "kept_apart").unwrap();
    assert_eq!(
        apart["numbers"]["differs"][0],
        json!({"what": "header", "name": "x-user", "values": 8, "keys_without": 1})
    );
    assert!(!live.contains("secret") && !found.to_string().contains("secret"));

    binary.signal(Signal::TERM);
    binary.end().await;
    let log = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(log.path(), binary.access.text()).unwrap();
    let path = log.path().to_str().unwrap().to_owned();
    let shown = printed(&explain(&["--access-log", &path], None).await);
    assert!(shown.starts_with(&format!("8 calls in {path}")), "{shown}");
    assert!(
        shown.contains("default (kserve_v1)") && shown.contains("calls of 8 merge keys are queued at the same time"),
        "{shown}"
    );
    assert!(shown.contains(expected) && !binary.access.text().contains("secret"), "{shown}");
    let piped = printed(&explain(&["--access-log", "-"], Some(std::fs::File::open(&path).unwrap())).await);
    assert_eq!(piped.lines().skip(1).collect::<Vec<_>>(), shown.lines().skip(1).collect::<Vec<_>>());
}

#[tokio::test]
async fn explain_describes_a_code_and_lists_all_codes() {
    let shown = printed(&explain(&["grp3304"], None).await);
    assert!(shown.starts_with("GRP3304 (`mismatch`, 502): upstream response cannot be split\n"), "{shown}");
    assert!(shown.contains("\n  what to do: "), "{shown}");
    let found: Value = serde_json::from_str(&printed(&explain(&["GRP1101", "-o", "json"], None).await)).unwrap();
    assert_eq!((&found["code"], &found["status"]), (&json!("GRP1101"), &Value::Null));
    let unknown = explain(&["GRP9999"], None).await;
    assert_eq!(unknown.status.code(), Some(2));
    let error_text = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        error_text.contains("\"GRP9999\" is neither a code nor KIND/NAME") && error_text.contains("GRP3401"),
        "{error_text}"
    );
}

#[tokio::test]
async fn explain_reports_unreachable_admin_port() {
    let port = super::scripted_server::ReservedPort::reserve();
    let address = port.url().trim_start_matches("http://").to_owned();
    let output = explain(&["--admin", &address], None).await;
    assert_eq!(output.status.code(), Some(66));
    let error_text = String::from_utf8(output.stderr).unwrap();
    assert!(
        error_text.contains(&format!("cannot query {address}")) && error_text.contains("--admin ADDR"),
        "{error_text}"
    );
    let output = explain(&["--access-log", "/nowhere/access.log"], None).await;
    assert_eq!(output.status.code(), Some(66));
}
