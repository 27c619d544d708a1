//! Captured ports of a pod: each has a queue of its own, and capturing breaks no protocol.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::binary::Binary;
use super::http2_endpoints::{H2Client, H2ScriptedServer, empty, full, with_trailers};
use super::scripted_server::{ReservedPort, ScriptedServer, echo};
use super::setup::{
    PREDICT, TestProxy, assert_answer, assert_failure, instances, merge_json, predictions, wait_while, within_timeout,
};
use super::support::client::{Client, Outgoing};
use super::support::command::remove_settings;
use super::support::wire::Headers;

/// Returns settings with one slot, so that the members of a batch can be predicted.
fn one_slot(over: &Value) -> Value {
    let mut spec = json!({"scheduling": {"policy": "WorkConserving", "slots": 1}, "proxy": {"drain": {"delay": "0s"}}});
    merge_json(&mut spec, over);
    spec
}

fn capture_arg(name: &str, app: SocketAddr) -> String {
    format!("{name}:{}@0", app.port())
}

/// Returns the address of a captured port, as reached from this machine.
fn captured_address(listen: SocketAddr) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port()))
}

async fn fetch(to: SocketAddr, item: u64) -> super::support::client::Answer {
    let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
    let call = Outgoing::new("POST", PREDICT, to, &json, Some(instances(&[item]).as_bytes()));
    let mut client = within_timeout(Client::connect(to)).await.unwrap();
    within_timeout(client.fetch(&call)).await
}

fn call(to: SocketAddr, item: u64) -> tokio::task::JoinHandle<super::support::client::Answer> {
    tokio::spawn(fetch(to, item))
}

/// Starts a server that does not speak HTTP. It sends the greeting, and then returns its input in
/// upper case.
async fn start_uppercase_server(greeting: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(greeting.as_bytes()).await.unwrap();
                let mut chunk = [0; 512];
                while let Ok(read @ 1..) = stream.read(&mut chunk).await {
                    if stream.write_all(&chunk[..read].to_ascii_uppercase()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn read_exactly(stream: &mut TcpStream, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    within_timeout(stream.read_exact(&mut found)).await.unwrap();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn ports_have_separate_batches_and_slots_and_a_common_registry() {
    let (mut one, mut two) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let captures = [capture_arg("a", one.address), capture_arg("", two.address)];
    let proxy = TestProxy::start_captured(&captures, "", &one_slot(&json!({})));
    let [a, b] = [0, 1].map(|port| captured_address(proxy.running.listen[port]));
    let first = call(a, 0);
    let held = one.next_request().await;
    // The other port has a slot of its own.
    let other = call(b, 1);
    let turn = two.next_request().await;
    let waiting = [call(a, 2), call(a, 3), call(b, 4), call(b, 5)];
    proxy.wait_queued(4).await;
    for number in [one.address.port(), two.address.port()] {
        assert_eq!(proxy.metric(&format!("groupage_queue_items{{port=\"{number}\"}}")), 2);
        assert_eq!(proxy.metric(&format!("groupage_slots_in_use{{port=\"{number}\"}}")), 1);
    }
    turn.echo().await;
    held.echo().await;
    for (hand, items) in [(&mut one, [2, 3]), (&mut two, [4, 5])] {
        let turn = hand.next_request().await;
        let mut shared = turn.instances();
        shared.sort_unstable();
        assert_eq!(shared, items);
        turn.echo().await;
    }
    assert_answer(&within_timeout(first).await.unwrap(), 200, &predictions(&[0]));
    assert_answer(&within_timeout(other).await.unwrap(), 200, &predictions(&[1]));
    for (item, caller) in (2..).zip(waiting) {
        assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[item]));
    }
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 6, "counts add up");
}

#[tokio::test]
async fn a_route_holds_for_the_ports_that_it_names_and_a_port_without_one_carries_bytes() {
    let (mut http, shouts) = (ScriptedServer::start().await, start_uppercase_server("").await);
    let mut other = ScriptedServer::start().await;
    let captures = [capture_arg("http", http.address), capture_arg("", other.address), capture_arg("raw", shouts)];
    let routes = |ports: Value| one_slot(&json!({"routes": [{"path": "/v1/models/*", "ports": ports}]}));
    let proxy = TestProxy::start_captured(&captures, "", &routes(json!(["http", other.address.port()])));
    let [a, b, c] = [0, 1, 2].map(|port| captured_address(proxy.running.listen[port]));
    for (hand, to) in [(&mut http, a), (&mut other, b)] {
        let caller = call(to, 7);
        hand.next_request().await.echo().await;
        assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[7]));
    }
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 2);
    // This holds even for data that looks like HTTP, because no route applies to this port.
    let mut raw = TcpStream::connect(c).await.unwrap();
    raw.write_all(b"get / http/1.1\r\n\r\n").await.unwrap();
    read_exactly(&mut raw, b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(proxy.metric(r#"groupage_connections_relayed_total{reason="no_route"}"#), 1);
    // Settings change at run time: the port of the first route no longer belongs to it.
    proxy.apply(&routes(json!(["raw"]))).await;
    let caller = call(a, 8);
    let turn = http.next_request().await;
    turn.echo().await;
    assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[8]));
    assert_eq!(proxy.metric(r#"groupage_items_total{outcome="served"}"#), 2, "its calls are carried as bytes");
    raw.write_all(b"still there").await.unwrap();
    read_exactly(&mut raw, b"STILL THERE").await;
}

#[tokio::test]
async fn the_connect_probe_reports_captured_ports_and_refuses_others() {
    // Bound, so that no other process gets its number, but not listening yet.
    let loading = TcpSocket::new_v4().unwrap();
    loading.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let app = loading.local_addr().unwrap();
    let other = ScriptedServer::start().await;
    let proxy = TestProxy::start_captured(&[capture_arg("http", app)], "", &one_slot(&json!({})));
    let metrics = captured_address(proxy.running.admin.metrics.unwrap());
    let probe = |port: String| async move {
        let call = Outgoing::new("GET", &format!("/connect/{port}"), metrics, &Vec::new(), None);
        let mut client = within_timeout(Client::connect(metrics)).await.unwrap();
        within_timeout(client.fetch(&call)).await.status
    };
    assert_eq!(probe(app.port().to_string()).await, Some(503), "it loads");
    let _listening = loading.listen(16).unwrap();
    assert_eq!(probe(app.port().to_string()).await, Some(200));
    for port in [other.address.port().to_string(), "0".to_owned(), "70000".to_owned(), "http".to_owned()] {
        assert_eq!(probe(port.clone()).await, Some(404), "{port}");
    }
}

#[tokio::test]
async fn non_http_is_relayed() {
    let (quiet, greets) = (start_uppercase_server("").await, start_uppercase_server("220 ready\r\n").await);
    let proxy =
        TestProxy::start_captured(&[capture_arg("q", quiet), capture_arg("g", greets)], "", &one_slot(&json!({})));
    let [q, g] = [0, 1].map(|port| captured_address(proxy.running.listen[port]));
    let relayed = |why: &str| proxy.metric(&format!("groupage_connections_relayed_total{{reason=\"{why}\"}}"));
    let mut tls = TcpStream::connect(q).await.unwrap();
    tls.write_all(b"\x16\x03\x01hello").await.unwrap();
    read_exactly(&mut tls, b"\x16\x03\x01HELLO").await;
    assert_eq!(relayed("not_http"), 1);
    // The end of one direction is forwarded, and the other direction stays open.
    tls.write_all(b"bye").await.unwrap();
    tls.shutdown().await.unwrap();
    let mut rest = Vec::new();
    within_timeout(tls.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"BYE");
    let mut mail = TcpStream::connect(g).await.unwrap();
    read_exactly(&mut mail, b"220 ready\r\n").await;
    mail.write_all(b"ehlo h\r\n").await.unwrap();
    read_exactly(&mut mail, b"EHLO H\r\n").await;
    assert_eq!(relayed("server_first"), 1);
    // The first word may be a method, and then the client waits for a response.
    let mut word = TcpStream::connect(q).await.unwrap();
    word.write_all(b"hello").await.unwrap();
    read_exactly(&mut word, b"HELLO").await;
    assert_eq!(relayed("not_http"), 2);
}

#[tokio::test]
async fn a_client_that_connects_ahead_is_merged_and_one_without_a_server_gets_an_error() {
    let port = ReservedPort::reserve();
    let mut hand = port.listen();
    let spec = one_slot(&json!({}));
    let proxy = TestProxy::start_captured(&[capture_arg("", hand.address)], "", &spec);
    let address = captured_address(proxy.address);
    let mut early = within_timeout(Client::connect(address)).await.unwrap();
    // The application accepts the connection that probes for a server that speaks first.
    wait_while(|| hand.open_connections() == 0).await;
    let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
    let request = Outgoing::new("POST", PREDICT, address, &json, Some(instances(&[1]).as_bytes()));
    let served = async { hand.next_request().await.echo().await };
    let (answer, ()) = within_timeout(async { tokio::join!(early.fetch(&request), served) }).await;
    assert_answer(&answer, 200, &predictions(&[1]));
    assert_eq!(proxy.metric(r#"groupage_calls_total{policy="local",protocol="kserve_v1",outcome="served"}"#), 1);
    drop(hand);
    assert_failure(&fetch(address, 2).await, 503, "GRP3301", "upstream_refused");
    // If the data is not HTTP, closing the connection is the only possible response.
    let mut raw = TcpStream::connect(address).await.unwrap();
    raw.write_all(b"\0\0").await.unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    within_timeout(raw.read_to_end(&mut rest)).await.ok();
    assert_eq!(rest, b"");
}

#[tokio::test]
async fn http_2_reaches_a_server_that_speaks_nothing_else_from_the_first_call_on() {
    let mut hand = H2ScriptedServer::start().await;
    let spec = one_slot(&json!({"proxy": {"connection": {"http2": "Auto"}}}));
    let proxy = TestProxy::start_captured(&[capture_arg("grpc", hand.address)], "", &spec);
    let client = H2Client::connect(captured_address(proxy.address)).await;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let request = http::Request::post("http://model.example/inference.GRPCInferenceService/ModelInfer");
    let pending = client.fetch(request.header("content-type", "application/grpc").body(full("\0\0\0\0\0")).unwrap());
    let turn = hand.turn().await;
    assert_eq!((turn.head.version, turn.whole.body.as_ref()), (http::Version::HTTP_2, &b"\0\0\0\0\0"[..]));
    turn.answer(http::Response::new(with_trailers("\0\0\0\0\0", trailers)));
    let (head, whole) = within_timeout(pending).await.unwrap();
    assert_eq!((head.status.as_u16(), whole.trailers.unwrap()["grpc-status"].as_bytes()), (200, &b"0"[..]));
    let pending = client.fetch(http::Request::get("http://model.example/").body(empty()).unwrap());
    let turn = hand.turn().await;
    assert_eq!(turn.head.version, http::Version::HTTP_2);
    turn.ok("{}");
    assert_eq!(within_timeout(pending).await.unwrap().0.status, 200);
}

#[tokio::test]
async fn an_application_on_loopback_is_served_on_its_port_at_the_pod_addresses() {
    let mut hand = ScriptedServer::start().await;
    let capture = format!("http:{}@pod", hand.address.port());
    let proxy = TestProxy::start_captured(&[capture], "127.0.0.2,127.0.0.3", &one_slot(&json!({})));
    let listen: Vec<String> = proxy.running.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.2", "127.0.0.3"].map(|ip| format!("{ip}:{}", hand.address.port())));
    for to in proxy.running.listen.clone() {
        let caller = call(to, 3);
        hand.next_request().await.echo().await;
        assert_answer(&within_timeout(caller).await.unwrap(), 200, &predictions(&[3]));
    }
}

#[tokio::test]
async fn one_server_makes_a_process_ready_and_named_ports_all_have_to_have_theirs() {
    let (port, unused) = (ReservedPort::reserve(), ReservedPort::reserve());
    let numbers = [&port, &unused].map(|port| port.url().rsplit(':').next().unwrap().parse::<u16>().unwrap());
    let hand = port.listen();
    let captures = numbers.map(|number| format!(":{number}@0"));
    let proxy = TestProxy::start_captured(&captures, "", &one_slot(&json!({})));
    let metrics = proxy.running.admin.metrics.unwrap();
    let ready = async |status: u16| {
        let pending = async {
            let mut client = Client::connect(metrics).await.unwrap();
            client.fetch(&Outgoing::new("GET", "/readyz", metrics, &Headers::new(), None)).await.status
        };
        within_timeout(pending).await == Some(status)
    };
    within_timeout(async { while !ready(200).await {} }).await;
    let named = |ports: &[u16]| one_slot(&json!({"routes": [{"path": "/v1/models/*", "ports": ports}]}));
    proxy.apply(&named(&numbers)).await;
    assert!(ready(503).await, "the second one has no server");
    let second = unused.listen();
    within_timeout(async { while !ready(200).await {} }).await;
    drop((hand, second));
}

fn config_of(env: &[(&str, &str)], args: &[&str]) -> Vec<Value> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_groupage"));
    remove_settings(&mut command);
    let out = command.args(["config", "-o", "json"]).args(args).envs(env.iter().copied()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn setting(settings: &[Value], path: &str) -> (String, String) {
    let found = settings.iter().find(|setting| setting["path"] == path).unwrap_or_else(|| panic!("no {path}"));
    [&found["value"], &found["source"]].map(|word| word.as_str().unwrap().to_owned()).into()
}

#[test]
fn the_snapshot_of_the_admission_is_in_effect_and_shown_as_such() {
    let snapshot = json!({
        "limits": {"batchItemsMax": 16},
        "routes": [{"path": "/v1/embeddings", "ports": ["http"]}],
        "selector": {"matchLabels": {"app": "x"}},
        "proxy": {"listen": [":1"], "log": {"level": "trace"}, "client": {"headTimeout": "3s"}},
    });
    let env = [("GROUPAGE_POLICY", snapshot.to_string()), ("GROUPAGE_GRACE", "60s".to_owned())];
    let env = [(env[0].0, env[0].1.as_str()), (env[1].0, env[1].1.as_str())];
    let settings = config_of(&env, &["--capture", "http:8080@15080", "--log-level", "warn"]);
    let shown = |path| setting(&settings, path);
    let of = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(shown("limits.batchItemsMax"), of("16", "snapshot"));
    assert_eq!(shown("routes[0].ports"), of("[http]", "snapshot"));
    assert_eq!(shown("proxy.client.headTimeout"), of("3s", "snapshot"));
    assert_eq!(shown("proxy.log.level"), of("warn", "flag --log-level"));
    assert_eq!(shown("proxy.capture[0]"), of("http:8080 at [::]:15080", "flag --capture"));
    assert_eq!(shown("proxy.admin.metrics"), of("[::]:9190", "flag --capture"));
    assert_eq!(shown("proxy.drain.limit"), of("55s", "env GROUPAGE_GRACE"));
    assert!(!settings.iter().any(|setting| setting["path"] == "proxy.listen"));
    // Without a pod, the snapshot is a policy like any other.
    let settings = config_of(&env[..1], &["--upstream", "http://m"]);
    assert_eq!(setting(&settings, "limits.batchItemsMax"), of("16", "snapshot"));
    // Without any settings, the proxy of a pod only passes through.
    let settings = config_of(&[], &["--capture", ":8080@15080"]);
    assert_eq!(setting(&settings, "mode"), of("Passthrough", "no settings"));
}

#[test]
fn a_sidecar_that_executes_a_model_has_the_defaults_of_a_pod() {
    let snapshot = json!({"engine": {"model": "/models/other", "itemTokensMax": 64}}).to_string();
    let env = [("GROUPAGE_POLICY", snapshot.as_str()), ("GROUPAGE_GRACE", "60s")];
    let flags = ["--engine=/models/m", "--engine-device=cpu", "--listen=[::]:8080"];
    let settings = config_of(&env, &flags);
    let shown = |path| setting(&settings, path);
    let of = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(shown("engine.model"), of("/models/m", "flag --engine"));
    assert_eq!(shown("engine.device"), of("Cpu", "flag --engine-device"));
    assert_eq!(shown("engine.itemTokensMax"), of("64", "snapshot"));
    assert_eq!(shown("limits.slotsMax"), of("1", "flag --engine"));
    assert_eq!(shown("proxy.listen"), of("[[::]:8080]", "flag --listen"));
    assert_eq!(shown("proxy.admin.metrics"), of("[::]:9190", "flag --engine"));
    assert_eq!(shown("proxy.drain.limit"), of("55s", "env GROUPAGE_GRACE"));
    assert_eq!(shown("proxy.drain.delay"), of("5s", "flag --engine"));
    // Outside a pod, the process has the defaults of any other.
    let settings = config_of(&[], &flags);
    assert_eq!(setting(&settings, "proxy.drain.delay"), of("0s", "default"));
}

/// Ends the process in good order. Three kills within a minute would count as crashes.
async fn terminate(mut binary: Binary) {
    binary.signal(rustix::process::Signal::TERM);
    assert!(binary.end().await.success());
}

#[tokio::test]
async fn a_sidecar_starts_with_the_last_good_settings_or_the_snapshot_or_passes_through() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let hand = ScriptedServer::start().await;
    let captures = [capture_arg("http", hand.address)];
    let _auto = hand.into_auto_responder(echo);
    let mode = async |binary: &Binary| {
        let config: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/config").await.body).unwrap();
        ["value", "source"].map(|word| config["mode"][word].as_str().unwrap().to_owned())
    };
    let wait_for_log = async |binary: &Binary, text: &str| {
        binary.log.until(|line| line["msg"].as_str().is_some_and(|msg| msg.starts_with(text))).await
    };
    let nothing = Binary::in_a_pod(&captures, &[], &["--state", state]).await;
    assert_eq!(wait_for_log(&nothing, "no settings").await["level"], "ERROR");
    assert_eq!(mode(&nothing).await, ["Passthrough", "no settings"]);
    assert_answer(&fetch(captured_address(nothing.listen), 1).await, 200, &predictions(&[1]));
    terminate(nothing).await;
    let snapshot = [("GROUPAGE_POLICY", "{\"limits\": {\"batchItemsMax\": 3}}")];
    let admitted = Binary::in_a_pod(&captures, &snapshot, &["--state", state]).await;
    wait_for_log(&admitted, "starting with the settings from injection").await;
    assert_eq!(mode(&admitted).await, ["Batch", "default"]);
    terminate(admitted).await;
    fs::write(dir.path().join("settings.yaml"), "{\"mode\": \"Passthrough\"}").unwrap();
    let kept = Binary::in_a_pod(&captures, &snapshot, &["--state", state]).await;
    wait_for_log(&kept, "starting with the settings that were in force last").await;
    assert_eq!(mode(&kept).await, ["Passthrough", "last good"]);
    terminate(kept).await;
    // Settings that cannot be used are reported, and the next source applies.
    fs::write(dir.path().join("settings.yaml"), "{\"mode\": \"Whatever\"}").unwrap();
    let wrong = Binary::in_a_pod(&captures, &snapshot, &["--state", state]).await;
    wrong.log.until(|line| line["code"] == "GRP1102" && line["path"] == "mode").await;
    assert_eq!(mode(&wrong).await, ["Batch", "default"]);
}

#[tokio::test]
async fn learned_state_is_kept_for_each_port() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let (one, two) = (ScriptedServer::start().await, ScriptedServer::start().await);
    let captures = [capture_arg("a", one.address), capture_arg("b", two.address)];
    let numbers = [one.address.port(), two.address.port()];
    let _auto = (one.into_auto_responder(echo), two.into_auto_responder(echo));
    let snapshot = [("GROUPAGE_POLICY", "{\"proxy\": {\"drain\": {\"delay\": \"0s\"}}}")];
    let mut binary = Binary::in_a_pod(&captures, &snapshot, &["--state", state]).await;
    let first = binary.log.lines().remove(0);
    let listen = [0, 1].map(|port| captured_address(first["listen"][port].as_str().unwrap().parse().unwrap()));
    for (to, calls) in listen.into_iter().zip([2, 4]) {
        for item in 0..calls {
            assert_eq!(fetch(to, item).await.status, Some(200));
        }
    }
    let learned: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/scheduler").await.body).unwrap();
    let of = |port: usize, key: &str| learned["ports"][port][key].clone();
    assert_eq!((of(0, "port"), of(0, "name"), of(1, "port")), (json!(numbers[0]), json!("a"), json!(numbers[1])));
    let calls = |port: usize| learned["ports"][port]["cost_classes"][0]["recent"]["calls"].clone();
    assert_eq!((calls(0), calls(1)), (json!(2), json!(4)));
    binary.signal(rustix::process::Signal::TERM);
    assert_eq!(binary.end().await.code(), Some(0));
    for number in numbers {
        let text = fs::read_to_string(dir.path().join(format!("learned-{number}.json"))).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(file["upstream"], json!(format!("http://localhost:{number}")));
    }
    let again = Binary::in_a_pod(&captures, &snapshot, &["--state", state]).await;
    let is_restored = |line: &Value| line["msg"] == "starting with the saved learned values";
    within_timeout(async { while again.log.lines().iter().filter(|line| is_restored(line)).count() < 2 {} }).await;
}
