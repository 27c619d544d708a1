//! A policy with reporting pods, over minutes of a simulated clock.

use serde_json::json;

use super::*;
use crate::cluster_state::ObjectMetadata;
use crate::cluster_state::fixtures::{meta, pod as a_pod};
use crate::control::server::PodIdentity;
use crate::control::wire::{AppliedConfig, FEATURES, Hello, OutcomeCounts, SidecarReport, UpstreamReport};
use crate::sidecars::registry::from_wire;
use crate::status::is_single_word;

/// A policy with pods that report periodically.
struct TestCluster {
    policy: Policy,
    pods: Vec<Pod>,
    registry: SidecarRegistry,
    course: PolicyRuntime,
    now: u64,
}

impl TestCluster {
    fn new(spec: serde_json::Value, pods: &[&str]) -> Self {
        let policy = Policy {
            meta: ObjectMetadata { generation: 1, ..meta("a", "emb") },
            annotations: BTreeMap::new(),
            spec: serde_json::from_value(spec).map_err(|error| error.to_string()),
            invalid: None,
            status: BatchPolicyStatus::default(),
        };
        let mut registry = SidecarRegistry::default();
        let pods: Vec<Pod> = pods.iter().map(|name| a_pod("a", name, &[])).collect();
        for pod in &pods {
            registry.on_open(&identity(pod), &hello());
        }
        Self { policy, pods, registry, course: PolicyRuntime::default(), now: 1000 }
    }

    /// Advances by five seconds, runs a round, and checks the reasons of its conditions; then every
    /// pod reports under its pushed configuration.
    fn evaluate(&mut self, requested: Option<&str>, mut micros: impl FnMut(&Pod, &str) -> u64) -> Outputs {
        self.now += 5;
        let spec = self.policy.spec.clone().unwrap();
        let view = Inputs {
            policy: &self.policy,
            spec: &spec,
            requested,
            profile: &|name| {
                if name.starts_with("gone") {
                    return None;
                }
                let scheduling =
                    if name == "by-hand" { json!({"policy": "WorkConserving", "slots": 16}) } else { json!({}) };
                let profile = json!({"limits": {"slotsMax": name.len()}, "scheduling": scheduling});
                Some(serde_json::from_value(profile).unwrap())
            },
            pods: self.pods.iter().map(|pod| (pod, "l4")).collect(),
            default_mode: Mode::Batch,
            tuning_interval: Some(Duration::from_secs(10)),
            now: Tick::from_millis(self.now * 1000),
            wall: UnixSeconds(self.now),
        };
        let outputs = self.course.run_round(&view, &mut self.registry);
        for condition in [&outputs.live.slo, &outputs.live.merging, &outputs.live.healthy].into_iter().flatten() {
            assert!(is_single_word(&condition.reason), "{condition:?}");
        }
        self.now += 1;
        for pod in &self.pods {
            let Some((pushed, _)) = outputs.configs.get(&pod.meta.uid) else { continue };
            let config = pushed.config();
            let profile = config.experiment.as_ref().map_or(&config.profile, |arm| &arm.profile).clone();
            let micros = micros(pod, &profile);
            let calls = OutcomeCounts { served: 300, ..OutcomeCounts::default() };
            let late = if micros > 150_000 { 300 } else { 0 };
            let mut route = RouteReport { calls, items: calls, late, ..RouteReport::default() };
            route.latency.record_n(micros, 300);
            route.slo_latency.record_n(micros, 300);
            let in_force = AppliedConfig {
                source: config.source.clone(),
                generation: config.generation,
                hash: pushed.hash.clone(),
                settings: config.settings.without_start(),
                profile,
                ..AppliedConfig::default()
            };
            let upstreams = vec![UpstreamReport { routes: vec![route], ..UpstreamReport::default() }];
            let report = SidecarReport { over_ms: 5000, config: Some(in_force), upstreams, ..SidecarReport::default() };
            self.registry.on_report(&identity(pod), report, UnixSeconds(self.now));
        }
        outputs
    }
}

fn identity(pod: &Pod) -> Arc<PodIdentity> {
    let key = pod.meta.key.clone();
    Arc::new(PodIdentity { uid: pod.meta.uid.clone(), name: key.name, namespace: key.namespace })
}

/// Returns the `Hello` of a sidecar of this version.
fn hello() -> Hello {
    Hello { features: FEATURES.map(str::to_owned).to_vec(), ..Hello::default() }
}

fn slo() -> serde_json::Value {
    json!({"slo": {"latencyP99": "150ms"}})
}

#[test]
fn every_pod_gets_the_profile_in_force_and_none_while_it_is_missing() {
    let mut cluster = TestCluster::new(slo(), &["p", "q"]);
    assert!(cluster.evaluate(None, |_, _| 1).configs.is_empty(), "what is wanted is not there");
    let outputs = cluster.evaluate(Some("emb-1"), |_, _| 40_000);
    assert_eq!(outputs.configs.len(), 2);
    assert_eq!(outputs.live.current.as_deref(), Some("emb-1"));
    let outputs = cluster.evaluate(None, |_, _| 40_000);
    assert!(
        outputs.configs.values().all(|(pushed, _)| pushed.config().profile == "emb-1"),
        "it has gone: what is in force stays"
    );
    assert_eq!(cluster.evaluate(Some("emb-1"), |_, _| 40_000).live.used, ["emb-1"]);
}

#[test]
fn the_first_settings_of_a_pod_are_within_the_bounds_of_the_policy() {
    let mut spec = slo();
    spec["tuning"] = json!({"bounds": {"slotsMax": {"max": 4}, "batchWeightMax": {"max": 2000}}});
    let mut cluster = TestCluster::new(spec.clone(), &["p"]);
    let mut pushed =
        |requested| from_wire(&cluster.evaluate(Some(requested), |_, _| 40_000).configs["uid-p"].0.config().settings);
    // The profile sets `slotsMax` to the length of its name.
    let bounded = TunedSettings { slots_max: Some(4), batch_weight_max: Some(2000), ..TunedSettings::default() };
    assert_eq!([pushed("emb-one"), pushed("emb-one"), pushed("emb-one")], [bounded; 3]);
    spec["tuning"]["mode"] = json!("Manual");
    let mut cluster = TestCluster::new(spec, &["p"]);
    let outputs = cluster.evaluate(Some("emb-one"), |_, _| 40_000);
    assert_eq!(from_wire(&outputs.configs["uid-p"].0.config().settings), TunedSettings::default(), "nothing is tuned");
}

#[test]
fn a_missed_slo_changes_the_settings_of_every_pod_and_the_status_has_the_reason() {
    let mut cluster = TestCluster::new(slo(), &["p"]);
    let mut settings = TunedSettings::default();
    for _ in 0..30 {
        let outputs = cluster.evaluate(Some("emb-1"), |_, _| 180_000);
        if let Some(tuning) = outputs.live.pod_tunings.first().filter(|tuning| tuning.deadline_shift.is_some()) {
            assert_eq!((tuning.pod.as_str(), tuning.reason.is_some(), tuning.since.is_some()), ("p", true, true));
            let state = outputs.live.slo.unwrap();
            assert!(state.message.contains("tuner:"), "{state:?}");
            settings = from_wire(&outputs.configs["uid-p"].0.config().settings);
            break;
        }
    }
    assert!(settings.shift_permille > 0, "{settings:?}");
    // A successor continues with the settings of the sidecar.
    cluster.course = PolicyRuntime::resume("uid-emb", &BatchPolicyStatus::default());
    let outputs = cluster.evaluate(Some("emb-1"), |_, _| 180_000);
    let unchanged = from_wire(&outputs.configs["uid-p"].0.config().settings);
    assert_eq!(unchanged.shift_permille, settings.shift_permille);
}

#[test]
fn a_manual_slot_limit_is_lowered_from_its_own_value() {
    let mut spec = slo();
    spec["tuning"] = json!({"bounds": {"deadlineShift": {"max": "0%"}}});
    let mut cluster = TestCluster::new(spec, &["p"]);
    let mut slots_max = || cluster.evaluate(Some("by-hand"), |_, _| 180_000).live.pod_tunings.first()?.slots_max;
    assert_eq!((0..30).find_map(|_| slots_max()), Some(6), "one of the seven that its limits allow");
}

#[test]
fn a_slower_canary_is_rolled_back_and_stays_so_under_another_controller() {
    let mut spec = slo();
    spec["rollout"] = json!({"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "30s"}]}});
    let mut cluster = TestCluster::new(spec, &["p", "q", "r", "s"]);
    let slow = |_: &Pod, profile: &str| if profile == "emb-2" { 120_000 } else { 40_000 };
    for _ in 0..4 {
        cluster.evaluate(Some("emb-1"), slow);
    }
    let mut arms = 0;
    let mut last = Outputs::default();
    for _ in 0..60 {
        last = cluster.evaluate(Some("emb-2"), slow);
        arms = arms.max(last.configs.values().filter(|(pushed, _)| pushed.needs_renewal).count());
        if last.live.healthy.as_ref().is_some_and(|state| state.holds == ConditionStatus::False) {
            break;
        }
    }
    assert!((1..=3).contains(&arms), "about half of the pods, by their UIDs: {arms}");
    assert_eq!(last.live.current.as_deref(), Some("emb-1"));
    let phase = last.live.rollout.clone().and_then(|rollout| rollout.phase);
    assert_eq!(phase, Some(OpenEnum::Known(RolloutPhase::RolledBack)));
    assert!(last.live.verdicts.contains_key("emb-2"));
    let status = BatchPolicyStatus {
        current_profile: last.live.current.clone(),
        candidate_profile: last.live.candidate.clone(),
        rollout: last.live.rollout,
        ..BatchPolicyStatus::default()
    };
    cluster.course = PolicyRuntime::resume("uid-emb", &status);
    let outputs = cluster.evaluate(Some("emb-2"), slow);
    assert!(outputs.configs.values().all(|(pushed, _)| pushed.config().profile == "emb-1" && !pushed.needs_renewal));
}

/// Runs [`canary_of`] a policy with nothing but an SLO.
fn canary(tried: &str) -> (TestCluster, Outputs) {
    canary_of(slo(), tried)
}

/// Runs a canary on two of four pods: `emb-1` is in force, and `tried` is the candidate.
fn canary_of(mut spec: serde_json::Value, tried: &str) -> (TestCluster, Outputs) {
    spec["rollout"] = json!({"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "1h"}]}});
    let mut cluster = TestCluster::new(spec, &["p", "q", "r", "s"]);
    for _ in 0..4 {
        cluster.evaluate(Some("emb-1"), |_, _| 40_000);
    }
    let mut outputs = Outputs::default();
    for _ in 0..12 {
        outputs = cluster.evaluate(Some(tried), |_, _| 40_000);
    }
    (cluster, outputs)
}

#[test]
fn while_another_profile_is_tried_each_pod_is_tuned_within_the_limits_of_its_own() {
    let mut spec = slo();
    spec["tuning"] = json!({"bounds": {"slotsMax": {"max": 4}}});
    let (_, outputs) = canary_of(spec, "e-2");
    let slots_max = |is_arm: bool| {
        let pods = outputs.configs.values().filter(move |(pushed, _)| pushed.needs_renewal == is_arm);
        pods.map(|(pushed, _)| from_wire(&pushed.config().settings).slots_max).collect::<BTreeSet<_>>()
    };
    // The profile sets `slotsMax` to the length of its name: 5 for `emb-1`, and 3 for `e-2`.
    assert_eq!(slots_max(false), BTreeSet::from([Some(4)]), "the bound is below the limit of the profile in force");
    assert_eq!(slots_max(true), BTreeSet::from([Some(3)]), "the limit of the candidate is below the bound");
}

#[test]
fn a_canary_ends_when_its_profile_is_deleted() {
    let (mut cluster, _) = canary("emb-2");
    let outputs = cluster.evaluate(None, |_, _| 40_000);
    assert!(outputs.configs.values().all(|(pushed, _)| pushed.config().profile == "emb-1" && !pushed.needs_renewal));
    assert_eq!((outputs.live.current.as_deref(), outputs.live.candidate), (Some("emb-1"), None));
    // The profile exists again and is rolled out like any change.
    let outputs = cluster.evaluate(Some("emb-2"), |_, _| 40_000);
    assert!(outputs.configs.values().any(|(pushed, _)| pushed.needs_renewal));
}

#[test]
fn an_experiment_waits_for_a_missing_arm_and_reports_it() {
    let arms = |second: &str| {
        let arms = json!([{"profileRef": {"name": "emb-1"}}, {"profileRef": {"name": second}}]);
        let mut spec = slo();
        spec["rollout"] = json!({"strategy": "Experiment", "experiment": {"arms": arms}});
        spec
    };
    let mut cluster = TestCluster::new(arms("gone-2"), &["p", "q", "r", "s"]);
    let outputs = cluster.evaluate(Some("emb-1"), |_, _| 40_000);
    let state = outputs.live.healthy.unwrap();
    assert_eq!((state.holds, state.reason.as_str()), (ConditionStatus::False, "ProfileNotFound"));
    assert!(state.message.contains("BatchProfile gone-2, one of its arms, does not exist"), "{}", state.message);
    assert!(
        outputs.configs.values().all(|(pushed, _)| !pushed.needs_renewal),
        "all pods run the profile of the policy"
    );
    cluster.policy.spec = Ok(serde_json::from_value(arms("emb-2")).unwrap());
    cluster.evaluate(Some("emb-1"), |_, _| 40_000);
    let outputs = cluster.evaluate(Some("emb-1"), |_, _| 40_000);
    assert_eq!(outputs.live.healthy.unwrap().reason, "Progressing");
    assert!(outputs.configs.values().any(|(pushed, _)| pushed.needs_renewal));
}

#[test]
fn a_sidecar_without_support_for_arms_gets_its_arm_as_the_profile_of_the_policy() {
    let (mut cluster, _) = canary("emb-2");
    for pod in &cluster.pods {
        cluster.registry.on_open(&identity(pod), &Hello::default());
    }
    let outputs = cluster.evaluate(Some("emb-2"), |_, _| 40_000);
    let of = |profile: &str| outputs.configs.values().filter(|(pushed, _)| pushed.config().profile == profile).count();
    assert_eq!(of("emb-1") + of("emb-2"), 4);
    assert!(of("emb-2") > 0 && outputs.configs.values().all(|(pushed, _)| !pushed.needs_renewal));
}

#[test]
fn a_new_pod_gets_shared_settings_and_a_refusing_one_blocks_no_other() {
    let mut spec = slo();
    spec["tuning"] = json!({"granularity": "Workload"});
    let mut cluster = TestCluster::new(spec, &["p", "q"]);
    let slow = |_: &Pod, _: &str| 180_000;
    let shift = |outputs: &Outputs, uid: &str| from_wire(&outputs.configs[uid].0.config().settings).shift_permille;
    let mut last = Outputs::default();
    for _ in 0..40 {
        last = cluster.evaluate(Some("emb-1"), slow);
        if shift(&last, "uid-p") > 0 {
            break;
        }
        // Simulates `give` and the response of the sidecar.
        let hash = last.configs["uid-q"].0.hash.clone();
        cluster.registry.get_mut("uid-q").unwrap().last_pushed = Some((hash.clone(), Tick::default()));
        cluster.registry.on_rejected(&identity(&cluster.pods[1]), &hash, "it cannot");
    }
    assert!(shift(&last, "uid-p") > 0, "p is tuned independently of q: {:?}", last.live.pod_tunings);
    let new = a_pod("a", "r", &[]);
    cluster.registry.on_open(&identity(&new), &hello());
    cluster.pods.push(new);
    let outputs = cluster.evaluate(Some("emb-1"), slow);
    assert_eq!(shift(&outputs, "uid-r"), shift(&outputs, "uid-p"));
}
