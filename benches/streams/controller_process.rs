//! The controller process, its API server and the sidecars.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use groupage::clock::Clock;
use groupage::control::client::{
    CaBundles, Client, ControlClientConfig, ControllerAddress, SidecarStreamHandler, StreamStatus, StreamTimeouts,
};
use groupage::control::wire::{
    AppliedConfig, Hello, OutcomeCounts, PodIdentity, RouteReport, SidecarConfig, SidecarReport, UpstreamReport,
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::api::FakeApiServer;

/// Maximum time of a step, also on a busy machine.
const HANG: Duration = Duration::from_secs(120);
/// Streams opened per second. It is below the controller's rate of token reviews, so that no stream
/// is rejected and opened again.
const OPENED_A_SECOND: u64 = 45;

/// The controller, its API server and the sidecars.
pub(crate) struct ControllerProcess {
    api: FakeApiServer,
    child: Child,
    dial: ControllerAddress,
    bundle: String,
    shared: Arc<Shared>,
    streams: usize,
    generation: u64,
    clock: Clock,
    tasks: tokio::task::JoinSet<()>,
    _dir: tempfile::TempDir,
    tokens: std::path::PathBuf,
}

/// Progress of a configuration push to all sidecars.
struct Shared {
    generation: AtomicU64,
    received: AtomicUsize,
    all: Notify,
}

struct Process {
    uid: String,
    name: String,
    received: std::sync::Mutex<Option<SidecarConfig>>,
    shared: Arc<Shared>,
    streams: usize,
}

// === impl ControllerProcess ===

impl ControllerProcess {
    /// Starts a controller with `streams` pods in its cluster and no stream.
    #[expect(clippy::disallowed_methods, reason = "the binary to measure is configurable")]
    pub(crate) async fn start(streams: usize) -> Self {
        let api = FakeApiServer::start().await;
        api.put(policy());
        for index in 0..streams {
            api.put(pod(index));
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let server = api.config().cluster_url.to_string();
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "groupage-system"}}],
        });
        std::fs::write(&file, text.to_string()).unwrap();
        let binary = std::env::var("GROUPAGE_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_groupage").to_owned());
        let mut command = Command::new(binary);
        command.args(["controller", "--namespace", "groupage-system", "--single"]);
        for listen in ["--webhook-listen", "--metrics-listen", "--stream-listen"] {
            command.args([listen, "127.0.0.1:0"]);
        }
        command.arg("--kubeconfig").arg(&file).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (send, found) = tokio::sync::oneshot::channel();
        // Reads to the end, so that the controller never blocks on the pipe. The output of a controller
        // that exits before it reports where it listens is sent instead.
        std::thread::spawn(move || {
            let (mut send, mut output) = (Some(send), String::new());
            for line in lines.map_while(Result::ok) {
                let address = serde_json::from_str::<Value>(&line).ok().and_then(|line| streams_of(&line));
                if let Some(address) = address
                    && let Some(send) = send.take()
                {
                    send.send(Ok(address)).ok();
                }
                if send.is_some() {
                    output += &line;
                    output.push('\n');
                }
            }
            if let Some(send) = send {
                send.send(Err(output)).ok();
            }
        });
        let found = tokio::time::timeout(HANG, found).await.unwrap().unwrap();
        let address = found.unwrap_or_else(|output| panic!("the controller exited at its start:\n{output}"));
        let secret = api.until_object(("secrets", "groupage-system", "groupage-tls"), |secret| {
            secret["data"]["ca.crt"].is_string()
        });
        let data: BTreeMap<String, ByteString> = serde_json::from_value(secret.await["data"].take()).unwrap();
        let bundle = String::from_utf8(data["ca.crt"].0.clone()).unwrap();
        let shared =
            Arc::new(Shared { generation: AtomicU64::new(1), received: AtomicUsize::new(0), all: Notify::new() });
        Self {
            api,
            child,
            dial: ControllerAddress { host: "127.0.0.1".into(), port: address },
            bundle,
            shared,
            streams,
            generation: 1,
            clock: Clock::start(),
            tasks: tokio::task::JoinSet::new(),
            tokens: dir.path().to_path_buf(),
            _dir: dir,
        }
    }

    /// Opens all streams and waits until all sidecars have received their policy.
    pub(crate) async fn open(&mut self) -> Duration {
        let began = self.clock.now();
        let mut pace = tokio::time::interval(Duration::from_nanos(1_000_000_000 / OPENED_A_SECOND));
        for index in 0..self.streams {
            pace.tick().await;
            let name = name(index);
            let token = self.tokens.join(&name);
            std::fs::write(&token, self.api.token("a", &name)).unwrap();
            let uid = self.api.get("pods", "a", &name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
            let dial = ControlClientConfig {
                address: self.dial.clone(),
                server_name: "groupage-stream.groupage-system.svc".into(),
                trust: CaBundles::from_pem(&self.bundle).unwrap(),
                token,
                times: StreamTimeouts::default(),
            };
            let (shared, streams) = (self.shared.clone(), self.streams);
            let process = Process { uid, name, received: std::sync::Mutex::default(), shared, streams };
            let client = Client::new(dial, Clock::start(), index as u64 + 1);
            self.tasks.spawn(client.run(Arc::new(process)));
        }
        self.all().await;
        self.clock.now().since(began)
    }

    /// Edits the policy and returns the time until the last sidecar has received it.
    pub(crate) async fn edit(&mut self) -> Duration {
        self.generation += 1;
        self.shared.received.store(0, Ordering::SeqCst);
        self.shared.generation.store(self.generation, Ordering::SeqCst);
        let began = self.clock.now();
        let slots = 1 + self.generation % 7;
        self.api.merge("batchpolicies", "a", "emb", &json!({"spec": {"limits": {"slotsMax": slots}}}));
        self.all().await;
        self.clock.now().since(began)
    }

    async fn all(&self) {
        let wait = async {
            loop {
                let woken = self.shared.all.notified();
                if self.shared.received.load(Ordering::SeqCst) >= self.streams {
                    return;
                }
                woken.await;
            }
        };
        let received = || self.shared.received.load(Ordering::SeqCst);
        assert!(tokio::time::timeout(HANG, wait).await.is_ok(), "{} of {} received it", received(), self.streams);
    }

    /// Returns the resident memory of the controller.
    pub(crate) fn memory_mib(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    /// Returns the total CPU time of the controller.
    pub(crate) fn processor(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The process name may contain any character. Fields 14 and 15 are hundredths of a second
        // in user and system mode.
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === impl Process ===

impl Process {
    fn in_force(&self) -> Option<AppliedConfig> {
        let received = self.received.lock().unwrap();
        let config = received.as_ref()?;
        Some(AppliedConfig {
            source: config.source.clone(),
            generation: config.generation,
            profile: config.profile.clone(),
            hash: config.hash.clone(),
            settings: config.settings.without_start(),
            ..AppliedConfig::default()
        })
    }
}

impl SidecarStreamHandler for Process {
    fn hello(&self) -> Hello {
        let pod =
            PodIdentity { uid: self.uid.clone(), name: self.name.clone(), namespace: "a".into(), node: String::new() };
        Hello { pod, config: self.in_force(), ..Hello::default() }
    }

    /// Returns the report of a pod with traffic on one route, which fills some tens of buckets.
    fn take_report(&self) -> BoxFuture<'_, SidecarReport> {
        let calls = OutcomeCounts { served: 100, ..OutcomeCounts::default() };
        let mut route = RouteReport { route: "default".into(), calls, items: calls, ..RouteReport::default() };
        for at in 0..100_u64 {
            let micros = 20_000 + at * 300;
            for sketch in [&mut route.latency, &mut route.slo_latency, &mut route.execution] {
                sketch.add(micros);
            }
            route.queue_delay.add(micros / 10);
            route.batch_items.add(1 + at % 8);
        }
        let upstreams =
            vec![UpstreamReport { port: 8080, ready: true, routes: vec![route], ..UpstreamReport::default() }];
        std::future::ready(SidecarReport { config: self.in_force(), upstreams, ..SidecarReport::default() }).boxed()
    }

    fn on_config(&self, config: SidecarConfig) -> BoxFuture<'_, ()> {
        let before = self.received.lock().unwrap().replace(config.clone());
        let wanted = self.shared.generation.load(Ordering::SeqCst);
        let new = before.is_none_or(|before| before.generation < config.generation);
        if new && config.generation == wanted && self.shared.received.fetch_add(1, Ordering::SeqCst) + 1 >= self.streams
        {
            self.shared.all.notify_waiters();
        }
        std::future::ready(()).boxed()
    }

    fn on_bundle(&self, _: String) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn on_status(&self, _: &StreamStatus) {}
}

/// Returns the port for streams if this line of the controller's log contains it.
fn streams_of(line: &Value) -> Option<u16> {
    let fields = line.get("fields").unwrap_or(line);
    fields.get("streams")?.as_str()?.rsplit_once(':')?.1.parse().ok()
}

fn name(index: usize) -> String {
    format!("emb-{index}")
}

fn policy() -> Value {
    json!({"apiVersion": "groupage.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": "emb", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "slo": {"latencyP99": "150ms"}}})
}

fn pod(index: usize) -> Value {
    let status = json!({"capture": [{"port": 8080, "bypass": []}]}).to_string();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(index), "namespace": "a", "labels": {"app": "x", "groupage.dev/injected": "true"},
            "annotations": {"groupage.dev/inject": "enabled", "groupage.dev/status": status},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "emb", "uid": "u", "controller": true}]},
        "spec": {"containers": [{"name": "server", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}
