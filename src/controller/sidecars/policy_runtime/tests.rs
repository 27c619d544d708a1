//! A policy with reporting pods, over minutes of a simulated clock.

use serde_json::json;

use super::*;
use crate::control::server::PodIdentity;
use crate::control::wire::{AppliedConfig, FEATURES, Hello, OutcomeCounts, SidecarReport, UpstreamReport};
use crate::world::ObjectMetadata;
use crate::world::fixtures::{meta, pod as a_pod};

/// A policy with pods that report periodically.
struct Scene {
    policy: Policy,
    pods: Vec<Pod>,
    book: SidecarRegistry,
    course: PolicyRuntime,
    now: u64,
}

impl Scene {
    fn new(spec: serde_json::Value, pods: &[&str]) -> Self {
        let policy = Policy {
            meta: ObjectMetadata { generation: 1, ..meta("a", "emb") },
            annotations: BTreeMap::new(),
            spec: serde_json::from_value(spec).map_err(|error| error.to_string()),
            invalid: None,
            status: BatchPolicyStatus::default(),
        };
        let mut book = SidecarRegistry::default();
        let pods: Vec<Pod> = pods.iter().map(|name| a_pod("a", name, &[])).collect();
        for pod in &pods {
            book.on_open(&identity(pod), &hello());
        }
        Self { policy, pods, book, course: PolicyRuntime::default(), now: 1000 }
    }

    /// Advances by five seconds and runs a round; then every pod reports under its pushed
    /// configuration.
    fn look(&mut self, wanted: Option<&str>, mut micros: impl FnMut(&Pod, &str) -> u64) -> Outputs {
        self.now += 5;
        let spec = self.policy.spec.clone().unwrap();
        let view = Inputs {
            policy: &self.policy,
            spec: &spec,
            wanted,
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
        let seen = self.course.run_round(&view, &mut self.book);
        self.now += 1;
        for pod in &self.pods {
            let Some((told, _)) = seen.told.get(&pod.meta.uid) else { continue };
            let config = told.config();
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
                hash: told.hash.clone(),
                settings: config.settings.without_start(),
                profile,
                ..AppliedConfig::default()
            };
            let upstreams = vec![UpstreamReport { routes: vec![route], ..UpstreamReport::default() }];
            let report = SidecarReport { over_ms: 5000, config: Some(in_force), upstreams, ..SidecarReport::default() };
            self.book.on_report(&identity(pod), report, UnixSeconds(self.now));
        }
        seen
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
    let mut scene = Scene::new(slo(), &["p", "q"]);
    assert!(scene.look(None, |_, _| 1).told.is_empty(), "what is wanted is not there");
    let seen = scene.look(Some("emb-1"), |_, _| 40_000);
    assert_eq!(seen.told.len(), 2);
    assert_eq!(seen.live.current.as_deref(), Some("emb-1"));
    let seen = scene.look(None, |_, _| 40_000);
    assert!(
        seen.told.values().all(|(told, _)| told.config().profile == "emb-1"),
        "it has gone: what is in force stays"
    );
    assert_eq!(scene.look(Some("emb-1"), |_, _| 40_000).live.used, ["emb-1"]);
}

#[test]
fn the_first_settings_of_a_pod_are_within_the_bounds_of_the_policy() {
    let mut spec = slo();
    spec["tuning"] = json!({"bounds": {"slotsMax": {"max": 4}, "batchWeightMax": {"max": 2000}}});
    let mut scene = Scene::new(spec.clone(), &["p"]);
    let mut told = |wanted| from_wire(&scene.look(Some(wanted), |_, _| 40_000).told["uid-p"].0.config().settings);
    // The profile sets `slotsMax` to the length of its name.
    let bounded = TunedSettings { slots_max: Some(4), batch_weight_max: Some(2000), ..TunedSettings::default() };
    assert_eq!([told("emb-one"), told("emb-one"), told("emb-one")], [bounded; 3]);
    spec["tuning"]["mode"] = json!("Manual");
    let mut scene = Scene::new(spec, &["p"]);
    let seen = scene.look(Some("emb-one"), |_, _| 40_000);
    assert_eq!(from_wire(&seen.told["uid-p"].0.config().settings), TunedSettings::default(), "nothing is tuned");
}

#[test]
fn a_missed_slo_changes_the_settings_of_every_pod_and_the_status_has_the_reason() {
    let mut scene = Scene::new(slo(), &["p"]);
    let mut told = TunedSettings::default();
    for _ in 0..30 {
        let seen = scene.look(Some("emb-1"), |_, _| 180_000);
        if let Some(tuning) = seen.live.pod_tunings.first().filter(|tuning| tuning.deadline_shift.is_some()) {
            assert_eq!((tuning.pod.as_str(), tuning.reason.is_some(), tuning.since.is_some()), ("p", true, true));
            let said = seen.live.slo.unwrap();
            assert!(said.message.contains("tuner:"), "{said:?}");
            told = from_wire(&seen.told["uid-p"].0.config().settings);
            break;
        }
    }
    assert!(told.shift_permille > 0, "{told:?}");
    // A successor continues with the settings of the sidecar.
    scene.course = PolicyRuntime::resume("uid-emb", &BatchPolicyStatus::default());
    let seen = scene.look(Some("emb-1"), |_, _| 180_000);
    let kept = from_wire(&seen.told["uid-p"].0.config().settings);
    assert_eq!(kept.shift_permille, told.shift_permille);
}

#[test]
fn a_manual_slot_limit_is_lowered_from_its_own_value() {
    let mut spec = slo();
    spec["tuning"] = json!({"bounds": {"deadlineShift": {"max": "0%"}}});
    let mut scene = Scene::new(spec, &["p"]);
    let mut told = || scene.look(Some("by-hand"), |_, _| 180_000).live.pod_tunings.first()?.slots_max;
    assert_eq!((0..30).find_map(|_| told()), Some(6), "one of the seven that its limits allow");
}

#[test]
fn a_slower_canary_is_rolled_back_and_stays_so_under_another_controller() {
    let mut spec = slo();
    spec["rollout"] = json!({"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "30s"}]}});
    let mut scene = Scene::new(spec, &["p", "q", "r", "s"]);
    let slow = |_: &Pod, profile: &str| if profile == "emb-2" { 120_000 } else { 40_000 };
    for _ in 0..4 {
        scene.look(Some("emb-1"), slow);
    }
    let mut arms = 0;
    let mut last = Outputs::default();
    for _ in 0..60 {
        last = scene.look(Some("emb-2"), slow);
        arms = arms.max(last.told.values().filter(|(told, _)| told.needs_renewal).count());
        if last.live.healthy.as_ref().is_some_and(|said| said.holds == ConditionStatus::False) {
            break;
        }
    }
    assert!((1..=3).contains(&arms), "about half of the pods, by their UIDs: {arms}");
    assert_eq!(last.live.current.as_deref(), Some("emb-1"));
    let phase = last.live.rollout.clone().and_then(|rollout| rollout.phase);
    assert_eq!(phase, Some(OpenEnum::Known(crate::api::v1alpha1::RolloutPhase::RolledBack)));
    assert!(last.live.verdicts.contains_key("emb-2"));
    let status = BatchPolicyStatus {
        current_profile: last.live.current.clone(),
        candidate_profile: last.live.candidate.clone(),
        rollout: last.live.rollout,
        ..BatchPolicyStatus::default()
    };
    scene.course = PolicyRuntime::resume("uid-emb", &status);
    let seen = scene.look(Some("emb-2"), slow);
    assert!(seen.told.values().all(|(told, _)| told.config().profile == "emb-1" && !told.needs_renewal));
}

/// Runs a canary on two of four pods: `emb-1` is in force, and `tried` is the candidate.
fn canary(tried: &str) -> (Scene, Outputs) {
    let mut spec = slo();
    spec["rollout"] = json!({"strategy": "Canary", "canary": {"steps": [{"percent": 50, "hold": "1h"}]}});
    let mut scene = Scene::new(spec, &["p", "q", "r", "s"]);
    for _ in 0..4 {
        scene.look(Some("emb-1"), |_, _| 40_000);
    }
    let mut seen = Outputs::default();
    for _ in 0..12 {
        seen = scene.look(Some(tried), |_, _| 40_000);
    }
    (scene, seen)
}

#[test]
fn while_another_profile_is_tried_each_pod_is_tuned_within_the_limits_of_its_own() {
    // The profile sets `slotsMax` to the length of its name.
    let (_, seen) = canary("e-2");
    assert!(
        seen.told.values().any(|(told, _)| told.needs_renewal)
            && seen.told.values().any(|(told, _)| !told.needs_renewal)
    );
    for (told, _) in seen.told.values() {
        assert_eq!(
            from_wire(&told.config().settings),
            TunedSettings::default(),
            "nothing to bound: 5 and 3 are the limits"
        );
    }
}

#[test]
fn a_canary_ends_when_its_profile_is_deleted() {
    let (mut scene, _) = canary("emb-2");
    let seen = scene.look(None, |_, _| 40_000);
    assert!(seen.told.values().all(|(told, _)| told.config().profile == "emb-1" && !told.needs_renewal));
    assert_eq!((seen.live.current.as_deref(), seen.live.candidate), (Some("emb-1"), None));
    // The profile exists again and is rolled out like any change.
    let seen = scene.look(Some("emb-2"), |_, _| 40_000);
    assert!(seen.told.values().any(|(told, _)| told.needs_renewal));
}

#[test]
fn an_experiment_waits_for_a_missing_arm_and_reports_it() {
    let arms = |second: &str| {
        let arms = json!([{"profileRef": {"name": "emb-1"}}, {"profileRef": {"name": second}}]);
        let mut spec = slo();
        spec["rollout"] = json!({"strategy": "Experiment", "experiment": {"arms": arms}});
        spec
    };
    let mut scene = Scene::new(arms("gone-2"), &["p", "q", "r", "s"]);
    let seen = scene.look(Some("emb-1"), |_, _| 40_000);
    let said = seen.live.healthy.unwrap();
    assert_eq!((said.holds, said.reason.as_str()), (ConditionStatus::False, "ProfileNotFound"));
    assert!(said.message.contains("BatchProfile gone-2, one of its arms, does not exist"), "{}", said.message);
    assert!(seen.told.values().all(|(told, _)| !told.needs_renewal), "all pods run the profile of the policy");
    scene.policy.spec = Ok(serde_json::from_value(arms("emb-2")).unwrap());
    scene.look(Some("emb-1"), |_, _| 40_000);
    let seen = scene.look(Some("emb-1"), |_, _| 40_000);
    assert_eq!(seen.live.healthy.unwrap().reason, "Progressing");
    assert!(seen.told.values().any(|(told, _)| told.needs_renewal));
}

#[test]
fn a_sidecar_without_support_for_arms_gets_its_arm_as_the_profile_of_the_policy() {
    let (mut scene, _) = canary("emb-2");
    for pod in &scene.pods {
        scene.book.on_open(&identity(pod), &Hello::default());
    }
    let seen = scene.look(Some("emb-2"), |_, _| 40_000);
    let of = |profile: &str| seen.told.values().filter(|(told, _)| told.config().profile == profile).count();
    assert_eq!(of("emb-1") + of("emb-2"), 4);
    assert!(of("emb-2") > 0 && seen.told.values().all(|(told, _)| !told.needs_renewal));
}

#[test]
fn a_new_pod_gets_shared_settings_and_a_refusing_one_blocks_no_other() {
    let mut spec = slo();
    spec["tuning"] = json!({"granularity": "Workload"});
    let mut scene = Scene::new(spec, &["p", "q"]);
    let slow = |_: &Pod, _: &str| 180_000;
    let shift = |seen: &Outputs, uid: &str| from_wire(&seen.told[uid].0.config().settings).shift_permille;
    let mut last = Outputs::default();
    for _ in 0..40 {
        last = scene.look(Some("emb-1"), slow);
        if shift(&last, "uid-p") > 0 {
            break;
        }
        // Simulates `give` and the response of the sidecar.
        let hash = last.told["uid-q"].0.hash.clone();
        scene.book.get_mut("uid-q").unwrap().last_pushed = Some((hash.clone(), Tick::default()));
        scene.book.on_rejected(&identity(&scene.pods[1]), &hash, "it cannot");
    }
    assert!(shift(&last, "uid-p") > 0, "p is tuned, whatever q says: {:?}", last.live.pod_tunings);
    let new = a_pod("a", "r", &[]);
    scene.book.on_open(&identity(&new), &hello());
    scene.pods.push(new);
    let seen = scene.look(Some("emb-1"), slow);
    assert_eq!(shift(&seen, "uid-r"), shift(&seen, "uid-p"));
}
