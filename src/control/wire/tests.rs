//! Tests with handwritten wire messages: of this version, of an older one and of a newer one.

use serde_json::{Value, json};

use super::*;
use crate::frame::FRAME_BYTES_MAX;
use crate::histogram::Histogram;

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn sidecar_message(value: &Value) -> SidecarMessage {
    decode_sidecar_message(&bytes(value)).unwrap().message.unwrap()
}

fn controller_message(value: &Value) -> ControllerMessage {
    decode_controller_message(&bytes(value)).unwrap().message.unwrap()
}

#[test]
fn unknown_fields_of_a_newer_peer_are_counted() {
    let hello = json!({
        "kind": "Hello", "version": "0.9.0", "minor": 1, "features": ["acks", "telepathy"], "pod": {"uid": "u", "zone": "a"},
        "mood": "fine", "colours": {"deep": [1, 2, {"er": null}]}, "epoch": 7,
    });
    let read = decode_sidecar_message(&bytes(&hello)).unwrap();
    let Some(SidecarMessage::Hello(hello)) = read.message else { panic!("{read:?}") };
    assert_eq!((read.unknown_fields, hello.minor, hello.epoch, hello.pod.uid.as_str()), (2, 1, 7, "u"));
    assert!(hello.has_feature(ACKS) && hello.has_feature("telepathy") && !hello.has_feature(EXPERIMENT));

    let config = json!({
        "kind": "Config", "source": "p", "generation": 3, "hash": "h", "policy": {"mode": "Batch"}, "canary": {"weight": 5},
        "settings": {"slotsMax": 4, "cacheMax": "1Gi"}, "experiment": {"arm": "b", "spec": {}, "expiresAfterMs": 5, "seed": 1},
    });
    let read = decode_controller_message(&bytes(&config)).unwrap();
    let Some(ControllerMessage::Config(config)) = read.message else { panic!("{read:?}") };
    assert_eq!((read.unknown_fields, config.settings.slots_max, config.generation), (1, Some(4), 3));
    assert_eq!(config.experiment.map(|experiment| experiment.expires_after_ms), Some(5));

    for (kind, known) in [("Poem", false), ("Ping", true)] {
        let read = decode_controller_message(&bytes(&json!({"kind": kind, "verses": 4}))).unwrap();
        assert_eq!((read.message.is_some(), read.unknown_fields), (known, u32::from(known)), "{kind}");
    }
    let read = decode_sidecar_message(&bytes(&json!({"kind": "Config"}))).unwrap();
    assert_eq!(read.message, None, "not sent in this direction");
}

#[test]
fn absent_fields_of_an_older_peer_have_defaults() {
    let report =
        json!({"kind": "Report", "overMs": 5000, "upstreams": [{"routes": [{"route": "/a", "calls": {"served": 3}}]}]});
    let SidecarMessage::Report(report) = sidecar_message(&report) else { panic!() };
    let route = &report.upstreams[0].routes[0];
    assert_eq!((report.seq, route.calls.sum(), route.latency.is_empty(), route.slo_us), (0, 3, true, None));
    let learned = json!({"slots": 2, "classes": [{"class": "c", "samples": 9}]});
    let report = json!({"kind": "Report", "upstreams": [{"learned": learned}]});
    let SidecarMessage::Report(report) = sidecar_message(&report) else { panic!() };
    let class = &report.upstreams[0].learned.as_ref().unwrap().classes[0];
    assert_eq!((class.samples, &class.limiter, &class.suspended), (9, &None, &None));
    let start = json!({"slots": 2, "curves": [{"class": "c", "points": [[1, 900]]}]});
    let config = json!({"kind": "Config", "policy": {}, "settings": {"start": start}});
    let ControllerMessage::Config(config) = controller_message(&config) else { panic!() };
    assert_eq!(config.settings.start.unwrap().curves[0].limiter, None);
    let hello = json!({"kind": "Hello", "pod": {"uid": "u"}});
    let SidecarMessage::Hello(hello) = sidecar_message(&hello) else { panic!() };
    assert!(!hello.has_feature(ACKS) && hello.config.is_none());
    let config = json!({"kind": "Config", "policy": {}});
    let ControllerMessage::Config(config) = controller_message(&config) else { panic!() };
    assert_eq!((config.settings, config.experiment, config.generation), (TunedSettings::default(), None, 0));
    let ControllerMessage::Ping(ping) = controller_message(&json!({"kind": "Ping"})) else { panic!() };
    assert_eq!(ping.acked, None);
}

#[test]
fn malformed_messages_are_rejected() {
    for wrong in [
        &b"GET / HTTP/1.1"[..],
        b"{}",
        b"[]",
        b"{\"kind\":3}",
        b"{\"kind\":\"Hello\",\"minor\":-1}",
        b"{\"kind\":\"Report\",\"upstreams\":{}}",
        b"{\"kind\":\"Report\",\"upstreams\":[{\"routes\":[{\"latency\":{\"counts\":[[9999,1]]}}]}]}",
        b"{\"kind\":\"Event\",\"message\":\"\xff\"}",
        b"{\"kind\":\"Event\"} {}",
    ] {
        assert!(decode_sidecar_message(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
    }
    let deep = "[".repeat(100_000);
    assert!(decode_sidecar_message(format!("{{\"kind\":\"Hello\",\"x\":{deep}").as_bytes()).is_err());
}

/// Returns a message of each kind with a value in every field, so that an accidental rename of a
/// field fails the test.
#[test]
fn every_message_reads_back_as_it_was_written() {
    let mut sketch = Histogram::default();
    sketch.record_n(150_000, 3);
    let settings = TunedSettings {
        shift_permille: 120,
        slots_max: Some(3),
        batch_weight_max: Some(4096),
        tenant_weights: [("a".to_owned(), 2)].into(),
        start: Some(StartValues {
            slots: 2,
            lead_us: 30,
            mean_us: 4000,
            explore_permille: 500,
            curves: vec![PushedCurve {
                class: "x".into(),
                points: vec![(1, 900)],
                tail_permille: 1200,
                weight_milli: 1000,
                limiter: Some(LimiterState {
                    limit: 0,
                    open: "no_gain".into(),
                    item_permille: Some(970),
                    base_us: 900,
                }),
            }],
        }),
    };
    let in_force = AppliedConfig {
        source: "s".into(),
        generation: 9,
        profile: "p-1".into(),
        hash: "h".into(),
        arm: "b".into(),
        settings: settings.without_start(),
        pending: 1,
    };
    let route = RouteReport {
        route: "/v1/embeddings".into(),
        slo_us: Some(150_000),
        latency: sketch.clone(),
        slo_latency: sketch.clone(),
        passed_latency: sketch.clone(),
        queue_delay: sketch.clone(),
        execution: sketch.clone(),
        batch_items: sketch,
        calls: OutcomeCounts { served: 3, passed: 1, ..OutcomeCounts::default() },
        items: OutcomeCounts { served: 6, rejected: 1, expired: 2, cancelled: 3, failed: 4, passed: 5 },
        server_errors: 3,
        late: 1,
        lost: 2,
        executions: 2,
        carried: 5,
        failed: 1,
    };
    let learned = LearnedReport {
        slots: 2,
        lead_us: 10,
        mean_us: 4000,
        changes: 1,
        concurrency: LimiterSummary { open: true, learning: true, trying: true },
        weight_ceiling: Some(512),
        items_ceiling: Some(64),
        classes: vec![ClassCostReport {
            class: "x".into(),
            calls: "/a of m".into(),
            item_ns: 200,
            points: vec![(1, 900, 3)],
            limiter: Some(LimiterState { limit: 2, base_us: 900, ..LimiterState::default() }),
            suspended: Some(MergingSuspension { answer: "status".into(), status: Some(422) }),
            ..ClassCostReport::default()
        }],
        infeasible: vec![InfeasibleSlo { route: "/a".into(), slo_us: 1, lone_us: 2 }],
    };
    let upstream = UpstreamReport {
        port: 8080,
        server: "tei".into(),
        model: "bge".into(),
        ready: true,
        queue_items: 3,
        in_flight: 1,
        isolation_executions: 2,
        shift_permille: 130,
        learned: Some(learned),
        predicted: Some(Box::new(PredictedReport {
            counts: RouteReport { route: String::new(), ..route.clone() },
            measured_items: 3,
        })),
        routes: vec![route],
    };
    let hello = Hello {
        version: "0.1.0".into(),
        minor: MINOR,
        features: FEATURES.map(str::to_owned).to_vec(),
        pod: PodIdentity { uid: "u".into(), name: "n".into(), namespace: "ns".into(), node: "node".into() },
        ports: vec![CapturedPort { port: 8080, name: "http".into() }],
        epoch: u64::MAX,
        config: Some(in_force.clone()),
        unknown: UnknownFields(0),
    };
    let report = SidecarReport {
        epoch: 5,
        seq: 6,
        over_ms: 5000,
        config: Some(in_force),
        upstreams: vec![upstream],
        unknown: UnknownFields(0),
    };
    assert_eq!((hello.clone().bounded(), report.clone().bounded()), (hello.clone(), report.clone()));
    let event = SidecarEvent {
        epoch: 5,
        seq: 1,
        reason: "ConfigRefused".into(),
        message: "m".into(),
        warning: true,
        hash: "h".into(),
        dropped: 2,
        unknown: UnknownFields(0),
    };
    assert_eq!(event.clone().bounded(), event);
    for message in
        [SidecarMessage::Hello(Box::new(hello)), SidecarMessage::Report(Box::new(report)), SidecarMessage::Event(event)]
    {
        let frame = encode_frame(&message).unwrap();
        assert_eq!(
            decode_sidecar_message(&frame[4..]).unwrap(),
            DecodedMessage { message: Some(message), unknown_fields: 0 }
        );
    }
    let config = SidecarConfig {
        source: "s".into(),
        name: "prod/embedder".into(),
        generation: 9,
        profile: "p".into(),
        hash: "h".into(),
        policy: json!({"limits": {"batchItemsMax": 4}}),
        settings,
        experiment: Some(ExperimentArm {
            arm: "b".into(),
            profile: "p-1".into(),
            spec: json!({"limits": {}}),
            expires_after_ms: 60_000,
        }),
        unknown: UnknownFields(0),
    };
    let acked = Some(Acknowledgement { epoch: 1, report: 2, event: 3 });
    for message in [
        ControllerMessage::Config(Box::new(config)),
        ControllerMessage::Bundle(CaBundle { ca: "-----BEGIN".into(), unknown: UnknownFields(0) }),
        ControllerMessage::Goaway(Goaway {
            address: Some("10.0.0.1:9444".into()),
            reason: "leader".into(),
            unknown: UnknownFields(0),
        }),
        ControllerMessage::Ping(Ping { acked, unknown: UnknownFields(0) }),
    ] {
        let frame = encode_frame(&message).unwrap();
        assert_eq!(
            decode_controller_message(&frame[4..]).unwrap(),
            DecodedMessage { message: Some(message), unknown_fields: 0 }
        );
    }
}

#[test]
fn the_fields_of_a_pod_are_truncated() {
    let long = "é".repeat(2000);
    let hello = Hello {
        version: long.clone(),
        features: vec![long.clone(); 100],
        ports: vec![CapturedPort { port: 1, name: long.clone() }; 99],
        ..Hello::default()
    };
    let hello = hello.bounded();
    assert_eq!(
        (hello.version.len(), hello.features.len(), hello.ports.len(), hello.ports[0].name.len()),
        (256, 64, 64, 256)
    );
    let event = SidecarEvent { reason: format!("Bad\n\"{long}Word"), message: long.clone(), ..SidecarEvent::default() }
        .bounded();
    assert_eq!((event.reason.as_str(), event.message.len()), ("BadWord", 1024));
    let class = ClassCostReport {
        points: vec![(1, 1, 1); 1000],
        calls: long.clone(),
        limiter: Some(LimiterState { open: long.clone(), ..LimiterState::default() }),
        suspended: Some(MergingSuspension { answer: long.clone(), status: None }),
        ..ClassCostReport::default()
    };
    let learned = LearnedReport {
        classes: vec![class; 100],
        infeasible: vec![InfeasibleSlo::default(); 100],
        ..LearnedReport::default()
    };
    let upstream = UpstreamReport {
        routes: vec![RouteReport { route: long, ..RouteReport::default() }; 99],
        learned: Some(learned),
        ..UpstreamReport::default()
    };
    let report = SidecarReport { upstreams: vec![upstream; 99], ..SidecarReport::default() }.bounded();
    assert_eq!(
        (report.upstreams.len(), report.upstreams[0].routes.len(), report.upstreams[0].routes[0].route.len()),
        (64, 25, 256)
    );
    let classes = |at: usize| {
        report.upstreams[at].learned.as_ref().map(|learned| (learned.classes.len(), learned.infeasible.len()))
    };
    assert_eq!((classes(0), classes(1)), (Some((16, 24)), Some((0, 24))));
    let class = &report.upstreams[0].learned.as_ref().unwrap().classes[0];
    let (limiter, suspended) = (class.limiter.as_ref().unwrap(), class.suspended.as_ref().unwrap());
    assert_eq!((class.points.len(), class.calls.len()), (64, 256));
    assert_eq!((limiter.open.len(), suspended.answer.len()), (256, 256));
}

#[test]
fn a_folded_report_with_any_counts_fits_into_a_frame() {
    let mut full = Histogram::default();
    (0..36).for_each(|octave| {
        (0..16).for_each(|part| full.record_n((1 << octave) + ((part << octave) >> 4), u64::from(u32::MAX)));
    });
    let [latency, slo_latency, passed_latency, queue_delay, execution, batch_items] =
        std::array::from_fn(|_| full.clone());
    let route = RouteReport {
        route: "r".repeat(256),
        latency,
        slo_latency,
        passed_latency,
        queue_delay,
        execution,
        batch_items,
        executions: 1,
        ..RouteReport::default()
    };
    let class = ClassCostReport {
        class: "c".repeat(1024),
        points: vec![(u32::MAX, u64::MAX, 16); 64],
        ..ClassCostReport::default()
    };
    let learned = |classes: usize| LearnedReport { classes: vec![class.clone(); classes], ..LearnedReport::default() };
    let upstream = |classes| UpstreamReport {
        routes: vec![route.clone(); 25],
        learned: Some(learned(classes)),
        ..UpstreamReport::default()
    };
    let report = SidecarReport {
        upstreams: (0..64).map(|at| upstream(if at == 0 { 16 } else { 0 })).collect(),
        ..SidecarReport::default()
    }
    .bounded();
    assert!(matches!(encode_frame(&SidecarMessage::Report(Box::new(report.clone()))), Err(EncodeError::Frame(_))));
    let folded = report.into_folded();
    let frame = encode_frame(&SidecarMessage::Report(Box::new(folded.clone()))).unwrap();
    assert!(frame.len() <= FRAME_BYTES_MAX + 4, "{}", frame.len());
    let route = &folded.upstreams[0].routes[0];
    assert_eq!((route.route.as_str(), route.executions, route.latency.count()), ("other", 25, 25 * full.count()));
    let executions: u64 = folded.upstreams.iter().flat_map(|port| &port.routes).map(|route| route.executions).sum();
    assert_eq!((folded.upstreams.len(), executions), (64, 64 * 25), "no port's counts are lost");
}
