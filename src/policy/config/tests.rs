//! Tests of the table against `tests/data/config/policy.yaml`, the types and the reference page,
//! and of messages to users.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::schema::{SPEC, walk};
use super::*;
use crate::api::v1alpha1::LateHandling;
use crate::protocol::Pointer;
use crate::protocol::generic::{BatchWeight, CostWeights};

pub(super) mod reference_policy;
mod reference;

pub(super) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Compares with a golden file; `UPDATE=1` rewrites it instead.
fn golden(path: &Path, found: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, expected, "{} differs; UPDATE=1 rewrites it", path.display());
}

pub(super) fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let folder = root().join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

pub(super) fn built(text: &str) -> Policy {
    build(Some(&load(text, "test.yaml").unwrap()), &Overrides::default(), &MachineLimits::default()).unwrap()
}

pub(super) fn setting<'a>(policy: &'a Policy, path: &str) -> (&'a str, String) {
    let found = policy.effective().iter().find(|setting| setting.path == path);
    let found = found.unwrap_or_else(|| panic!("{path} is not listed"));
    (&found.value, found.source.to_string())
}

#[test]
fn the_errors_of_invalid_files_match_the_golden_files() {
    let files = yaml_files("tests/data/config/bad");
    assert!(files.len() >= 8, "the bad files are gone");
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let errors = load(&std::fs::read_to_string(&path).unwrap(), name).unwrap_err();
        golden(&path.with_extension("txt"), &errors.render(false));
    }
}

#[test]
fn errors_are_available_as_json() {
    let errors = load("limits:\n  batchItemMax: 64\n", "p.yaml").unwrap_err();
    let json = errors.json();
    let finding = &json[0];
    assert_eq!(
        (&finding["code"], &finding["file"], &finding["line"], &finding["column"]),
        (&"GRP1101".into(), &"p.yaml".into(), &2.into(), &3.into())
    );
    assert_eq!((&finding["value"], &finding["nearest"]), (&"batchItemMax".into(), &"batchItemsMax".into()));
    assert!(finding["allowed"].as_str().unwrap().contains("queueDelayMax"));
}

#[test]
fn all_problems_of_a_file_are_reported_together_in_the_order_of_its_lines() {
    let text = std::fs::read_to_string(root().join("tests/data/config/bad/ranges.yaml")).unwrap();
    let errors = load(&text, "ranges.yaml").unwrap_err();
    let lines: Vec<_> = errors.findings.iter().map(|finding| finding.line().unwrap()).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6, 8]);
    assert!(errors.findings.iter().all(|finding| finding.code == ConfigCode::BadValue && finding.allowed.is_some()));
}

#[test]
fn an_empty_file_is_a_complete_policy() {
    let policy = build(None, &Overrides::default(), &MachineLimits::default()).unwrap();
    assert_eq!((policy.mode, policy.slo, policy.routes.len()), (Mode::Batch, None, 0));
    assert_eq!(policy.limits.batch_items_max, 128);
    assert_eq!(policy.limits.queue_delay_max, Duration::from_millis(20));
    assert_eq!(policy.scheduling.policy, SchedulingPolicy::Adaptive);
    assert_eq!(policy.failure.replay_budget.ppm(), 100_000);
    assert_eq!(policy.proxy.listen, [([0, 0, 0, 0], 15080).into()]);
    assert_eq!(policy.proxy.metrics, Some(([127, 0, 0, 1], 9190).into()));
    assert_eq!(setting(&policy, "limits.slotsMax"), ("absent: no limit", "default".to_owned()));
    assert_eq!(setting(&policy, "scheduling.policy"), ("Adaptive", "default".to_owned()));
    for text in ["", "# nothing\n", "{}", "limits:\nroutes:\n", "---\n", "\u{feff}"] {
        let same = built(text);
        assert_eq!((same.limits, same.proxy), (policy.limits.clone(), policy.proxy.clone()), "{text:?}");
    }
}

#[test]
fn a_complete_policy_and_its_bare_spec_are_equivalent() {
    let bare = built("mode: Passthrough\nlimits: {slotsMax: 3}\n");
    let whole = built(
        "apiVersion: groupage.dev/v1alpha1\nkind: BatchPolicy\nmetadata: {name: x, anything: [1]}\nspec:\n  mode: Passthrough\n  limits: {slotsMax: 3}\nstatus: {conditions: []}\n",
    );
    assert_eq!((bare.mode, &bare.limits), (whole.mode, &whole.limits));
    assert_eq!(setting(&whole, "limits.slotsMax"), ("3", "file:6".to_owned()));
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
    let loaded =
        load("proxy:\n  upstream: http://file\n  log: {level: warn, access: 5%}\n  listen: [\":1\"]\n", "p").unwrap();
    let env = Overrides::from_variables(|name| match name {
        "GROUPAGE_UPSTREAM" => Some("http://env".to_owned()),
        "GROUPAGE_LOG_LEVEL" => Some("debug".to_owned()),
        _ => None,
    });
    let flags = Overrides {
        upstream: Some(SourcedValue::flag("--upstream", "unix:/run/m.sock".to_owned())),
        metrics: Some(SourcedValue::flag("--metrics", "127.0.0.1:0".to_owned())),
        admin: Some(SourcedValue::flag("--admin", "off".to_owned())),
        ..Overrides::default()
    };
    let policy = build(Some(&loaded), &flags.or(env), &MachineLimits::default()).unwrap();
    assert_eq!(policy.proxy.upstream, Some(UpstreamAddress::Unix("/run/m.sock".into())));
    assert_eq!(policy.proxy.metrics, Some(([127, 0, 0, 1], 0).into()));
    assert_eq!(policy.proxy.admin, None);
    assert_eq!(policy.proxy.log.level, "debug");
    assert_eq!(setting(&policy, "proxy.upstream"), ("unix:/run/m.sock", "flag --upstream".to_owned()));
    assert_eq!(setting(&policy, "proxy.log.level"), ("debug", "env GROUPAGE_LOG_LEVEL".to_owned()));
    assert_eq!(setting(&policy, "proxy.log.access"), ("5%", "file:3".to_owned()));
    assert_eq!(setting(&policy, "proxy.listen"), ("[:1]", "file:4".to_owned()));
    assert_eq!(setting(&policy, "proxy.drain.limit"), ("30s", "default".to_owned()));
}

#[test]
fn a_wrong_flag_is_reported_by_its_name() {
    let flags = Overrides {
        listen: Some(SourcedValue::flag("--listen", vec![":0".to_owned(), "nowhere".to_owned()])),
        upstream: Some(SourcedValue::flag("--upstream", "ftp://model".to_owned())),
        ..Overrides::default()
    };
    let errors = build(None, &flags, &MachineLimits::default()).unwrap_err();
    let findings: Vec<_> = errors.findings.iter().map(|finding| (finding.code, finding.message.as_str())).collect();
    assert_eq!(
        findings,
        [
            (ConfigCode::BadValue, "`--listen[1]` cannot be `nowhere`"),
            (ConfigCode::BadValue, "`--upstream` cannot be `ftp://model`"),
        ]
    );
    assert!(errors.render(false).contains("it must begin with http://, https:// or unix:"));
}

#[test]
fn certificates_are_named_with_their_keys_and_for_an_upstream_that_has_tls() {
    let text = "proxy: {upstream: \"https://m\", tls: {certFile: /c, keyFile: /k}, upstreamTls: {caFile: /a, certFile: /d, keyFile: /l}}";
    let proxy = build(Some(&load(text, "f").unwrap()), &Overrides::default(), &MachineLimits::default()).unwrap().proxy;
    let tls = DownstreamTls { cert_file: "/c".into(), key_file: "/k".into(), client_ca_file: None };
    assert_eq!(proxy.tls, Some(tls));
    let upstream =
        UpstreamTls { ca_file: Some("/a".into()), server_name: None, pair: Some(("/d".into(), "/l".into())) };
    assert_eq!(proxy.upstream_tls, upstream);
    for (text, path) in [
        ("proxy: {tls: {certFile: /c}}", "proxy.tls.keyFile"),
        ("proxy: {tls: {}}", "proxy.tls.certFile"),
        ("proxy: {upstreamTls: {certFile: /c}}", "proxy.upstreamTls.certFile"),
        ("proxy: {upstreamTls: {keyFile: /c}}", "proxy.upstreamTls.keyFile"),
    ] {
        let findings = load(text, "f").unwrap_err().findings;
        assert!(findings.iter().any(|finding| finding.path == path), "{text}: {findings:?}");
    }
    for upstream in ["http://m", "unix:/m"] {
        let text = format!("proxy: {{upstream: \"{upstream}\", upstreamTls: {{caFile: /a}}}}");
        let errors =
            build(Some(&load(&text, "f").unwrap()), &Overrides::default(), &MachineLimits::default()).unwrap_err();
        assert_eq!(
            (errors.findings[0].code, errors.findings[0].path.as_str()),
            (ConfigCode::Excluded, "proxy.upstreamTls")
        );
    }
}

#[test]
fn memory_and_file_limits_of_the_machine_bound_connections_and_buffers() {
    let machine = MachineLimits { memory_bytes_max: Some(128 << 20), files_max: Some(1_000), terminal: true };
    let policy = build(None, &Overrides::default(), &machine).unwrap();
    assert_eq!(policy.proxy.process, ProcessLimits { connections_max: 348, buffered_bytes_max: 32 << 20 });
    let (value, source) = setting(&policy, "proxy.process.bufferedBytesMax");
    assert_eq!((value, source.as_str()), ("32Mi", "lowered to 25% of the memory limit"));
    assert_eq!(setting(&policy, "proxy.log.format").0, "Pretty");
    let roomy = MachineLimits { memory_bytes_max: Some(8 << 30), files_max: Some(1 << 20), terminal: false };
    let policy = build(None, &Overrides::default(), &roomy).unwrap();
    assert_eq!(policy.proxy.process, ProcessLimits { connections_max: 10_000, buffered_bytes_max: 64 << 20 });
    assert_eq!(setting(&policy, "proxy.log.format").0, "Json");
    for (files, connections) in [(1_024, 358), (512, 153), (400, 120)] {
        let machine = MachineLimits { files_max: Some(files), ..MachineLimits::default() };
        let policy = build(None, &Overrides::default(), &machine).unwrap();
        assert_eq!(policy.proxy.process.connections_max, connections, "{files}");
        let (_, source) = setting(&policy, "proxy.process.connectionsMax");
        assert_eq!(source, "lowered to the limit on open files: (files − 128) × 2/5");
    }
}

#[test]
fn late_calls_are_served_unless_the_policy_or_the_route_refuses_them() {
    let late = |text: &str| {
        let policy = built(text);
        (policy.late, policy.routes.iter().map(|route| route.late).collect::<Vec<_>>())
    };
    assert_eq!(late("slo: {latencyP99: 1s}\nroutes: [{path: /a}]"), (LateHandling::Serve, vec![LateHandling::Serve]));
    let text =
        "slo: {late: Refuse}\nroutes: [{path: /a}, {path: /b, slo: {late: Serve}}, {path: /c, slo: {latencyP99: 1s}}]";
    assert_eq!(
        late(text),
        (LateHandling::Refuse, vec![LateHandling::Refuse, LateHandling::Serve, LateHandling::Refuse])
    );
    let text = "routes: [{path: /a, slo: {late: Refuse}}]";
    assert_eq!(late(text), (LateHandling::Serve, vec![LateHandling::Refuse]));
}

#[test]
fn a_bare_latency_is_an_error_that_suggests_latency_p99() {
    for (text, meant) in [("slo: 150ms", "150ms"), ("slo: 150", "150ms"), ("routes: [{path: /a, slo: 2s}]", "2s")] {
        let errors = load(text, "p").unwrap_err();
        let help = errors.findings[0].help.clone().unwrap_or_default();
        assert!(help.contains(&format!("slo: {{latencyP99: {meant}}}")), "{text}: {help}");
    }
    assert_eq!(load("slo: fast", "p").unwrap_err().findings[0].help, None);
}

#[test]
fn a_name_from_elsewhere_is_reported_with_the_key_or_word_that_it_means() {
    let first = |text: &str| load(text, "p").unwrap_err().findings.remove(0);
    for (text, meant) in [
        ("slo: {latency: 150ms}", "latencyP99"),
        ("priority: {header: x-p, classes: [{name: a, slo: 100ms}]}", "latencyP99"),
        ("routes: [{path: /a, protocol: KFServing}]", "KServeV1"),
        ("routes: [{path: /a, protocol: TFServin}]", "TFServing"),
        ("routes: [{path: /v2/models/m/infer, protocol: KServeV2}]", "OpenInferenceV2"),
    ] {
        assert_eq!(first(text).nearest.as_deref(), Some(meant), "{text}");
    }
}

#[test]
fn an_inherited_value_of_a_route_is_listed_with_its_origin() {
    let policy = built(
        "slo: {latencyP99: 100ms}\nlimits: {slotsMax: 3}\nroutes:\n- path: /a\n  slo: {late: Refuse}\n  limits: {batchItemsMax: 4}\n- path: /b\n  slo: {latencyP99: 1s}\n",
    );
    let origin = |line: usize| format!("file:{line}");
    assert_eq!(setting(&policy, "routes[0].slo.latencyP99"), ("100ms", origin(1)));
    assert_eq!(setting(&policy, "routes[0].slo.late"), ("Refuse", origin(5)));
    assert_eq!(setting(&policy, "routes[0].limits.slotsMax"), ("3", origin(2)));
    assert_eq!(setting(&policy, "routes[0].limits.batchWeightMax"), ("absent: no limit", "default".to_owned()));
    assert_eq!(setting(&policy, "routes[1].slo.latencyP99"), ("1s", origin(8)));
    assert_eq!(setting(&policy, "routes[1].slo.late").1, "default");
    let policy = built("slo: {late: Refuse}\nroutes: [{path: /b, slo: {latencyP99: 1s}}]\n");
    assert_eq!(setting(&policy, "routes[0].slo.late"), ("Refuse", origin(1)));
}

#[test]
fn a_route_inherits_unset_values_and_its_limits_override_the_policy() {
    let policy = built(
        "slo: {latencyP99: 1s}\nlimits: {batchItemsMax: 8}\nroutes:\n- path: /a\n- path: /b/*\n  method: PUT\n  protocol: Generic\n  slo: {latencyP99: 50ms}\n  limits: {batchItemsMax: 4}\n  generic:\n    items: [/x, /t]\n    results: \"\"\n    weight: /n\n    perItemError: {field: /error}\n    tooLarge: [400, {status: 422, bodyContains: too long}]\n",
    );
    let [a, b] = policy.routes.as_slice() else { panic!("two routes") };
    assert_eq!((a.path.as_str(), a.method.as_str(), a.slo), ("/a", "POST", Some(Duration::from_secs(1))));
    assert_eq!(policy.limits.overridden(&a.limits).batch_items_max, 8);
    assert_eq!(policy.limits.overridden(&b.limits).batch_items_max, 4);
    assert_eq!((b.slo, b.timeout, policy.limits.slots_max), (Some(Duration::from_millis(50)), None, None));
    let generic = b.generic.as_ref().unwrap();
    assert_eq!(generic.items.iter().map(Pointer::to_string).collect::<Vec<_>>(), ["/x", "/t"]);
    assert_eq!(generic.results.iter().map(Pointer::to_string).collect::<Vec<_>>(), [""]);
    assert_eq!(generic.weight, BatchWeight::At(Pointer::parse("/n").unwrap()));
    assert_eq!(generic.cost.weights, CostWeights::Bytes);
    assert_eq!(generic.per_item_error.as_ref().map(|error| error.status), Some(422));
    assert_eq!(generic.too_large.len(), 2);
    assert_eq!(setting(&policy, "routes[1].limits.batchItemsMax"), ("4", "file:9".to_owned()));
    assert_eq!(setting(&policy, "routes[1].generic.onMismatch"), ("Isolate", "default".to_owned()));
    assert_eq!(setting(&policy, "routes[0].generic").0, "absent: none");
    assert_eq!(setting(&policy, "routes[0].mode").0, "absent: the policy's");
}

#[test]
fn the_kill_switch_overrides_the_routes() {
    let policy = built("mode: Passthrough\nroutes: [{path: /a, mode: Batch}]\n");
    assert_eq!(policy.routes.first().map(|route| route.mode), Some(Mode::Passthrough));
    assert_eq!(setting(&policy, "routes[0].mode"), ("Passthrough", "file:1".to_owned()));
    let policy = built("routes: [{path: /a, mode: Passthrough}, {path: /b}]\n");
    assert_eq!(policy.routes.iter().map(|route| route.mode).collect::<Vec<_>>(), [Mode::Passthrough, Mode::Batch]);
}

#[test]
fn keys_for_a_cluster_and_routes_that_never_match_are_noticed() {
    let loaded = load(
        "selector: {matchLabels: {app: x}}\ninjection: {cpuRequest: 10m}\nscheduling: {slots: 32}\nroutes: [{path: /v1/embeddings}, {path: /v1/embeddings}, {path: /v2/models/m/ready}]\nlimits: {slotsMax: 16}\n",
        "p",
    )
    .unwrap();
    let noticed: Vec<_> = loaded.notices.iter().map(|notice| (notice.path.as_str(), notice.line)).collect();
    assert_eq!(
        noticed,
        [("selector", 1), ("injection", 2), ("scheduling.slots", 3), ("routes[1].path", 4), ("routes[2].path", 4)]
    );
    let errors = load("injection: {cpuReqest: 10m}\ntargetRefs: [{kind: Pod, name: x}]\n", "p").unwrap_err();
    assert_eq!(
        errors.findings.iter().map(|f| f.code).collect::<Vec<_>>(),
        [ConfigCode::UnknownKey, ConfigCode::BadValue]
    );
}

#[test]
fn a_relative_model_of_a_policy_for_pods_is_noticed() {
    let paths = |text: &str| -> Vec<String> {
        load(text, "p").unwrap().notices.into_iter().map(|notice| notice.path).collect()
    };
    let (pods, relative) = ("selector: {matchLabels: {app: x}}\n", "engine: {model: m}\n");
    assert!(paths(&format!("{pods}{relative}")).contains(&"engine.model".to_owned()));
    assert!(!paths(&format!("{pods}engine: {{model: /m}}\n")).contains(&"engine.model".to_owned()));
    assert!(paths(relative).is_empty(), "a file of one process has a working directory");
}

#[test]
fn aliases_are_expanded_and_an_alias_bomb_is_rejected() {
    let policy = built("routes:\n- {path: /a, timeout: &t 7s}\n- {path: /b, timeout: *t}\n");
    assert!(policy.routes.iter().all(|route| route.timeout == Some(Duration::from_secs(7))));
    let mut bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..12 {
        let names = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{names}]\n"));
    }
    let errors = load(&bomb, "bomb").unwrap_err();
    assert_eq!(errors.findings.len(), 1, "refused as a whole");
}

#[test]
fn size_depth_and_number_of_documents_are_bounded() {
    let one = |text: &str| {
        let errors = load(text, "p").unwrap_err();
        assert_eq!(errors.findings.len(), 1);
        errors.findings.first().map(|finding| finding.message.clone()).unwrap()
    };
    assert!(one(&"#".repeat((1 << 20) + 1)).contains("the limit is 1048576"));
    assert_eq!(one("mode: Batch\n---\nmode: Batch\n"), "a file can contain only one YAML document");
    one(&format!("mode: {}{}", "[".repeat(100_000), "]".repeat(100_000)));
    one(&format!("mode: {}", "{a: ".repeat(2_000)));
    assert!(load(&format!("# {}\nmode: Batch\n", "x".repeat(100_000)), "p").is_ok());
}

#[test]
fn a_long_line_and_a_long_list_of_errors_stay_short() {
    let text = format!("{{{}}}", (0..1_000).map(|i| format!("zz{i}: 1")).collect::<Vec<_>>().join(", "));
    let errors = load(&text, "p.yaml").unwrap_err();
    assert_eq!(errors.findings.len(), 1_000);
    let rendered = errors.render(false);
    assert!(rendered.ends_with("and 950 more\n") && rendered.len() < 64_000, "{} bytes", rendered.len());
    assert!(rendered.starts_with("error[GRP1101]: `zz0` is not a key of a policy\n--> p.yaml:1:2\n"), "{rendered}");
}

#[test]
fn validate_reports_every_file_and_exits_with_the_worst_code() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let good = write("good.yaml", "mode: Batch\nrollout: {historyLimit: 3}\n");
    let bad = write("bad.yaml", "mode: batch\n");
    let missing = folder.path().join("missing.yaml");
    let verdict = validate(&[&good], false, false);
    assert_eq!(verdict.exit, 0);
    assert!(verdict.output.starts_with(&format!("√ {}: ", good.display())), "{}", verdict.output);
    assert!(verdict.output.contains(": 2 settings, defaults for the rest\n"), "{}", verdict.output);
    assert!(verdict.output.contains("only in a cluster"), "{}", verdict.output);
    let single = write("single.yaml", "mode: Batch\n");
    let verdict = validate(&[&single], false, false);
    assert!(verdict.output.contains(": 1 setting, defaults for the rest\n"), "{}", verdict.output);
    assert_eq!(validate(&[&good, &bad], false, false).exit, EXIT_FINDINGS);
    let unreadable = validate(&[&missing, &bad], false, false);
    assert_eq!(unreadable.exit, EXIT_NO_INPUT);
    let message = format!("× cannot read {}: ", missing.display());
    assert!(unreadable.output.starts_with(&message), "{}", unreadable.output);
    let json: serde_json::Value = serde_json::from_str(&validate(&[&good, &bad], true, false).output).unwrap();
    assert_eq!((&json["files"][0]["ok"], &json["files"][1]["ok"]), (&true.into(), &false.into()));
    assert_eq!(json["files"][1]["findings"][0]["nearest"], "Batch");
    let binary = folder.path().join("binary.yaml");
    std::fs::write(&binary, b"mode: Batch\n\xff\n").unwrap();
    let LoadError::Invalid(errors) = read(&binary).unwrap_err() else { panic!("readable, but no text") };
    assert_eq!(errors.findings.first().and_then(Finding::line), Some(2));
}

#[test]
fn the_examples_are_valid_and_not_empty() {
    let mut files = yaml_files("examples/policies");
    assert!(files.len() >= 3);
    for server in std::fs::read_dir(root().join("examples/servers")).unwrap() {
        let folder = server.unwrap().path();
        files.extend(folder.is_dir().then(|| folder.join("policy.yaml")));
    }
    assert!(files.len() >= 3 + 8);
    for path in files {
        let loaded = read(&path).unwrap_or_else(|error| panic!("{}", error.render(false)));
        assert!(!loaded.lines.is_empty() && loaded.notices.is_empty(), "{}", path.display());
    }
}

/// Generates text that resembles a policy: known keys with unusual values, badly indented.
fn nearly_a_policy() -> impl Strategy<Value = String> {
    let mut names = Vec::new();
    walk(SPEC, "", &mut |_, key| names.push(key.name));
    let value = prop_oneof![
        Just("0"),
        Just("[]"),
        Just("{"),
        Just("*a"),
        Just("&a x"),
        Just("1h"),
        Just("\"é"),
        Just("|"),
        Just("- 1"),
        Just("null"),
        Just("!!int x"),
        Just("off"),
        Just("[{path: /x, protocol: Generic}]"),
        Just("<<"),
        Just("1e999"),
        Just("9Gi"),
    ];
    let line = (0..6_usize, prop::sample::select(names), value)
        .prop_map(|(indent, name, value)| format!("{:indent$}{name}: {value}\n", ""));
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn no_text_makes_the_loader_panic(text in prop_oneof!["\\PC*", "(?s).{0,200}", nearly_a_policy()]) {
        match load(&text, "any.yaml") {
            Ok(loaded) => { prop_assert!(build(Some(&loaded), &Overrides::default(), &MachineLimits::default()).is_ok()); }
            Err(errors) => {
                prop_assert!(!errors.findings.is_empty());
                prop_assert!(!errors.render(true).is_empty());
                prop_assert!(errors.json().is_array());
            }
        }
    }
}
