//! Sidecars on their streams to a whole controller: the configuration that is pushed, and the
//! effects of their reports. TLS, tokens and reviews are real. The sidecar is the client that runs
//! in a pod, inside a process that only records the configuration.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use groupage::clock::Clock;
use groupage::control::client::{
    CaBundles, Client, ControlClientConfig, ControllerAddress, DisconnectReason, SidecarStreamHandler, StreamStatus,
    StreamTimeouts,
};
use groupage::control::wire::{
    self, AppliedConfig, Hello, OutcomeCounts, PodIdentity, RouteReport, SidecarReport, UpstreamReport,
};
use groupage::controller::{ControllerConfig, RunningController, start};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::api::{FakeApiServer, Fault, FaultKind, HANG};
use super::end_to_end::{POLICY, config, get, has_condition, pod, policy, wait_until_ready};

pub(super) const STREAM: &str = "groupage-stream.groupage-system.svc";

/// A sidecar process that records its configuration and reports fixed counts.
struct RecordingSidecar {
    uid: String,
    name: String,
    /// Received configurations, newest last.
    configs: watch::Sender<Vec<wire::SidecarConfig>>,
    lost: watch::Sender<Option<(DisconnectReason, String)>>,
    /// Counts for the next report.
    counts: Mutex<RouteReport>,
}

/// A sidecar with a stream that stays open until the sidecar is dropped.
pub(super) struct ConnectedSidecar {
    process: Arc<RecordingSidecar>,
    task: tokio::task::JoinHandle<()>,
    _token: tempfile::TempDir,
}

// === impl RecordingSidecar ===

impl RecordingSidecar {
    fn in_force(&self) -> Option<AppliedConfig> {
        let configs = self.configs.borrow();
        let config = configs.last()?;
        let arm = config.experiment.as_ref();
        Some(AppliedConfig {
            source: config.source.clone(),
            generation: config.generation,
            profile: arm.map_or(&config.profile, |arm| &arm.profile).clone(),
            hash: config.hash.clone(),
            arm: arm.map(|arm| arm.arm.clone()).unwrap_or_default(),
            settings: config.settings.without_start(),
            pending: 0,
        })
    }
}

impl SidecarStreamHandler for RecordingSidecar {
    fn hello(&self) -> Hello {
        let pod =
            PodIdentity { uid: self.uid.clone(), name: self.name.clone(), namespace: "a".into(), node: String::new() };
        Hello { pod, config: self.in_force(), ..Hello::default() }
    }

    fn take_report(&self) -> BoxFuture<'_, SidecarReport> {
        let routes = vec![self.counts.lock().unwrap().clone()];
        let upstreams = vec![UpstreamReport { port: 8080, ready: true, routes, ..UpstreamReport::default() }];
        std::future::ready(SidecarReport { config: self.in_force(), upstreams, ..SidecarReport::default() }).boxed()
    }

    fn on_config(&self, config: wire::SidecarConfig) -> BoxFuture<'_, ()> {
        self.configs.send_modify(|configs| configs.push(config));
        std::future::ready(()).boxed()
    }

    fn on_bundle(&self, _: String) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn on_status(&self, status: &StreamStatus) {
        if let StreamStatus::Lost { reason, message, .. } = status {
            self.lost.send_replace(Some((*reason, message.clone())));
        }
    }
}

// === impl ConnectedSidecar ===

impl ConnectedSidecar {
    /// Connects the sidecar of a pod, with the token of the pod.
    pub(super) fn of_pod(api: &FakeApiServer, running: &RunningController, name: &str) -> Self {
        Self::new(api, running, name, &api.token("a", name))
    }

    /// Connects the sidecar of a pod, with this token, to this controller.
    fn new(api: &FakeApiServer, running: &RunningController, name: &str, token: &str) -> Self {
        let uid = api.get("pods", "a", name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("token");
        std::fs::write(&path, token).unwrap();
        let bundle = running.handles.certificate.subscribe().borrow().clone().unwrap().bundle;
        let port = running.streams.unwrap().port();
        let dial = ControlClientConfig {
            address: ControllerAddress { host: "127.0.0.1".into(), port },
            server_name: STREAM.into(),
            trust: CaBundles::from_pem(&bundle).unwrap(),
            token: path,
            times: StreamTimeouts { report: Duration::from_millis(300), ..StreamTimeouts::default() },
        };
        let process = Arc::new(RecordingSidecar {
            uid,
            name: name.to_owned(),
            configs: watch::channel(Vec::new()).0,
            lost: watch::channel(None).0,
            counts: Mutex::default(),
        });
        let client = Client::new(dial, Clock::start(), rand::random::<u64>() >> 11);
        let task = tokio::spawn(client.run(process.clone()));
        Self { process, task, _token: dir }
    }

    fn counts(&self, served: u64, micros: u64, slo: Duration) {
        let late = if Duration::from_micros(micros) > slo { served } else { 0 };
        let calls = OutcomeCounts { served, ..OutcomeCounts::default() };
        let mut counts = RouteReport { calls, items: calls, late, ..RouteReport::default() };
        for sketch in [&mut counts.latency, &mut counts.slo_latency] {
            sketch.record_n(micros, served);
        }
        *self.process.counts.lock().unwrap() = counts;
    }

    /// Waits for a configuration that satisfies a condition.
    #[track_caller]
    pub(super) fn wait_for_config(
        &self,
        wanted: impl Fn(&wire::SidecarConfig) -> bool,
    ) -> impl Future<Output = wire::SidecarConfig> {
        let place = std::panic::Location::caller();
        let mut configs = self.process.configs.subscribe();
        async move {
            let found = async {
                configs.wait_for(|configs| configs.last().is_some_and(&wanted)).await.unwrap().last().cloned()
            };
            let found = tokio::time::timeout(HANG, found).await;
            found.unwrap_or_else(|_| panic!("it did not receive the message, at {place}")).unwrap()
        }
    }
}

impl Drop for ConnectedSidecar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn streaming_config() -> ControllerConfig {
    let mut names = config().names;
    names.push(STREAM.into());
    ControllerConfig { names, streams: "127.0.0.1:0".parse().ok(), tuner: Some(Duration::from_secs(1)), ..config() }
}

pub(super) async fn controller(api: &FakeApiServer) -> RunningController {
    let running = start(api.client(), streaming_config(), Clock::start()).unwrap();
    wait_until_ready(&running).await;
    running
}

/// Starts a controller with a policy and an injected pod.
pub(super) async fn start_with_pod() -> (FakeApiServer, RunningController) {
    let api = FakeApiServer::start().await;
    api.put(policy());
    api.put(injected_pod("emb-0"));
    let running = controller(&api).await;
    (api, running)
}

/// Returns a pod with a sidecar.
fn injected_pod(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["labels"]["groupage.dev/injected"] = json!("true");
    pod["metadata"]["annotations"]["groupage.dev/status"] =
        json!(json!({"capture": [{"port": 8080, "bypass": []}]}).to_string());
    pod
}

#[tokio::test]
async fn policy_and_edits_are_pushed_to_sidecar() {
    let (api, running) = start_with_pod().await;
    let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
    let first = sidecar.wait_for_config(|config| config.generation == 1).await;
    assert_eq!((first.name.as_str(), &first.policy["slo"]), ("a/emb", &json!({"latencyP99": "150ms"})));
    let status = api.until_object(POLICY, |policy| has_condition(policy, "Programmed", "True/Programmed")).await;
    assert_eq!(
        (&status["status"]["pods"]["connected"], &status["status"]["pods"]["onCurrent"]),
        (&json!(1), &json!(1))
    );
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    let second = sidecar.wait_for_config(|config| config.generation == 2).await;
    assert_eq!(second.policy["limits"], json!({"slotsMax": 2}));
    assert_ne!(second.profile, first.profile);
    api.remove(POLICY.0, POLICY.1, POLICY.2);
    let last = sidecar.wait_for_config(|config| config.source.is_empty()).await;
    assert_eq!(
        (last.policy, last.profile.as_str()),
        (json!({}), ""),
        "without a policy it has the settings of a pod without one"
    );
    api.assert_nothing_forbidden();
    running.shut_down().await;
}

#[tokio::test]
async fn streams_survive_an_api_server_outage_longer_than_a_lease_and_are_updated_later() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    api.put(injected_pod("emb-0"));
    let running = start(
        api.client(),
        ControllerConfig { replica_stream_address: Some("10.0.0.1:9444".into()), tuner: None, ..streaming_config() },
        Clock::start(),
    )
    .unwrap();
    wait_until_ready(&running).await;
    let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
    sidecar.wait_for_config(|config| config.generation == 1).await;
    let mut leadership = running.handles.leadership.clone();
    let mut rounds = running.handles.rounds.clone();
    let mut until = async |leads: bool| {
        let wait = async {
            while leadership.is_leader() != leads {
                leadership.changed().await;
            }
        };
        tokio::time::timeout(HANG, wait).await.unwrap();
    };
    api.fault(Fault::always(FaultKind::Silence).for_resource("leases"));
    until(false).await;
    // Two rounds of a replica that does not lead: the first may have started before.
    for _ in 0..2 {
        rounds.borrow_and_update();
        tokio::time::timeout(HANG, rounds.changed()).await.unwrap().unwrap();
    }
    api.clear_faults();
    until(true).await;
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    sidecar.wait_for_config(|config| config.generation == 2).await;
    assert_eq!(*sidecar.process.lost.borrow(), None, "the stream is the one that it opened first");
    running.shut_down().await;
}

#[tokio::test]
async fn a_token_of_another_pod_opens_no_stream() {
    let api = FakeApiServer::start().await;
    for name in ["emb-0", "emb-1"] {
        api.put(injected_pod(name));
    }
    api.put(pod("bare"));
    let running = controller(&api).await;
    let refused = async |name: &str, token: &str| {
        let sidecar = ConnectedSidecar::new(&api, &running, name, token);
        let mut lost = sidecar.process.lost.subscribe();
        let found = tokio::time::timeout(HANG, lost.wait_for(Option::is_some)).await.unwrap().unwrap().clone();
        found.unwrap().0
    };
    // Its UID does not match the pod of its token, so the stream is closed.
    assert_ne!(refused("emb-0", &api.token("a", "emb-1")).await, DisconnectReason::Lifetime);
    assert_eq!(refused("bare", &api.token("a", "bare")).await, DisconnectReason::Forbidden, "it was not injected");
    let (head, rest) =
        api.token("a", "emb-0").split_once('.').map(|(head, rest)| (head.to_owned(), rest.to_owned())).unwrap();
    assert_eq!(refused("emb-0", &format!("{head}x.{rest}")).await, DisconnectReason::Unauthorized, "it is not signed");
    assert_eq!(refused("emb-0", "nonsense").await, DisconnectReason::Unauthorized);
    let metrics = get(&running, "/metrics").await;
    assert!(metrics.contains("groupage_controller_streams 0"), "{metrics}");
    running.shut_down().await;
}

#[tokio::test]
async fn missed_slo_is_reported() {
    let (api, running) = start_with_pod().await;
    let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
    sidecar.wait_for_config(|config| config.generation == 1).await;
    let slo = Duration::from_millis(150);
    sidecar.counts(200, 40_000, slo);
    api.until_object(POLICY, |policy| has_condition(policy, "SLOMet", "True/Met")).await;
    sidecar.counts(200, 200_000, slo);
    let policy = api.until_object(POLICY, |policy| has_condition(policy, "SLOMet", "False/Missed")).await;
    let p99 = policy["status"]["summary"]["latencyP99"].as_str().unwrap();
    assert!(p99.ends_with("ms"), "{policy}");
    running.shut_down().await;
}

#[tokio::test]
async fn a_profile_under_which_calls_are_late_is_taken_back() {
    let api = FakeApiServer::start().await;
    let mut wanted = policy();
    wanted["spec"]["rollout"] = json!({
        "strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "1s"}]},
        "analysis": {"interval": "1s"}
    });
    api.put(wanted);
    for name in ["emb-0", "emb-1"] {
        api.put(injected_pod(name));
    }
    let running = controller(&api).await;
    let sidecars = ["emb-0", "emb-1"].map(|name| ConnectedSidecar::of_pod(&api, &running, name));
    for sidecar in &sidecars {
        sidecar.wait_for_config(|config| config.generation == 1).await;
        sidecar.counts(200, 40_000, Duration::from_millis(150));
    }
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 1}}}));
    for sidecar in &sidecars {
        sidecar.wait_for_config(|config| config.generation == 2).await;
    }
    // The pod in the canary has an experiment arm, and its calls are slow under it.
    let tried = sidecars.iter().find(|sidecar| sidecar.process.configs.borrow().last().unwrap().experiment.is_some());
    let tried = tried.expect("one of two pods belongs to the canary");
    tried.counts(200, 400_000, Duration::from_millis(150));
    let policy = api.until_object(POLICY, |policy| has_condition(policy, "RolloutHealthy", "False/RolledBack")).await;
    assert_eq!(policy["status"]["rollout"]["phase"], "RolledBack");
    let back = tried.wait_for_config(|config| config.experiment.is_none()).await;
    assert_eq!(policy["status"]["currentProfile"], json!(back.profile));
    assert!(back.policy.get("limits").is_none(), "{back:?}");
    running.shut_down().await;
}

#[tokio::test]
async fn a_rollback_by_hand_reaches_every_sidecar_and_holds_until_it_is_ended() {
    let (api, running) = start_with_pod().await;
    let sidecar = ConnectedSidecar::of_pod(&api, &running, "emb-0");
    let first = sidecar.wait_for_config(|config| config.generation == 1).await;
    api.merge(POLICY.0, POLICY.1, POLICY.2, &json!({"spec": {"limits": {"slotsMax": 2}}}));
    let second = sidecar.wait_for_config(|config| config.profile != first.profile).await;
    api.until_object(POLICY, |policy| policy["status"]["rollout"]["previousProfile"] == json!(first.profile)).await;
    api.disable_authorization();
    let output = groupage(&api, &["rollback", "bpol/emb"]).await;
    assert!(output.contains(&format!("{} is in force", first.profile)), "{output}");
    assert!(sidecar.wait_for_config(|config| config.profile == first.profile).await.policy.get("limits").is_none());
    let event = api.until(|api| api.all("events").into_iter().find(|event| event["reason"] == "RolledBack")).await;
    assert_eq!(event["regarding"]["kind"], "BatchPolicy");
    let policy =
        api.until_object(POLICY, |policy| has_condition(policy, "RolloutHealthy", "True/ManualRollback")).await;
    assert_eq!(policy["spec"]["limits"]["slotsMax"], 2, "what is in git stays");
    let output = groupage(&api, &["rollback", "bpol/emb", "--end"]).await;
    assert!(output.contains("its own settings apply again"), "{output}");
    assert_eq!(
        sidecar.wait_for_config(|config| config.profile == second.profile).await.policy["limits"]["slotsMax"],
        2
    );
    running.shut_down().await;
}

/// Runs the command against this API server.
async fn groupage(api: &FakeApiServer, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let server = api.config().cluster_url.to_string();
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "a"}}],
    });
    std::fs::write(&file, text.to_string()).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_groupage"));
    // The command waits no longer than its timeout.
    command.args(args).args(["--timeout", "20s"]).arg("--kubeconfig").arg(&file);
    let out = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let output = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{output}{}", String::from_utf8_lossy(&out.stderr));
    output
}
