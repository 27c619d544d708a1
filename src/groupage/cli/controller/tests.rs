//! Tests of the arguments of the controller.

use clap::Parser;

use super::*;
use crate::api::v1alpha1::Mode;
use crate::injector::SidecarDefaults;

#[derive(Debug, Parser)]
struct TestParser {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Args {
    TestParser::try_parse_from(["groupage"].iter().chain(words)).unwrap_or_else(|error| panic!("{error}")).args
}

fn pod() -> ControllerPodInfo {
    ControllerPodInfo { namespace: Some("gs".into()), name: Some("c-1".into()), ip: "fd00::1".parse().ok() }
}

#[test]
fn the_arguments_in_the_manifests_are_parsed() {
    let text = include_str!("../../../../manifests/install.yaml");
    let found = crate::cli::yaml::documents(text).unwrap();
    let deployment = found.iter().find(|document| document.value["kind"] == "Deployment").unwrap();
    let words: Vec<String> =
        serde_json::from_value(deployment.value["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap();
    let (command, words) = words.split_first().unwrap();
    assert_eq!(command, "controller");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let config = args(&words).config(&pod()).unwrap();
    assert_eq!(config.certificate, ServerCertificate::Own { secret: SECRET.into(), webhooks: Some(WEBHOOKS.into()) });
    assert_eq!(config.sidecar, SidecarDefaults { image: config.sidecar.image.clone(), ..SidecarDefaults::default() });
    assert!(!config.inject_by_default && config.native.is_none());
    assert_eq!(config.redirect, RedirectUse::WhenNeeded);
}

#[test]
fn names_and_addresses_follow_from_the_namespace() {
    let config = args(&[]).config(&pod()).unwrap();
    assert_eq!(config.stream_address, "https://groupage-stream.gs.svc:9444");
    assert_eq!(config.replica_stream_address.as_deref(), Some("[fd00::1]:9444"));
    assert!(config.names.contains(&"groupage-webhook.gs.svc".to_owned()) && config.names.len() == 4);
    let own = args(&["--stream-address=https://batching.example:443"]).config(&pod()).unwrap();
    assert!(own.names.contains(&"batching.example".to_owned()));
    let literal = args(&["--stream-address=https://[fd00::1]:9444"]).config(&pod()).unwrap();
    assert!(literal.names.contains(&"fd00::1".to_owned()), "{:?}", literal.names);
    assert_eq!(args(&["--stream-address=off"]).config(&pod()).unwrap().stream_address, "");
    for wrong in ["nonsense here", "https://x:9444/path", "https://x:99999", "http://x"] {
        let refused = args(&[&format!("--stream-address={wrong}")]).config(&pod()).unwrap_err();
        assert!(refused.contains("expected https://HOST:PORT"), "{wrong}: {refused}");
    }
}

#[test]
fn the_namespace_is_required_and_a_single_replica_needs_no_name() {
    let nobody = ControllerPodInfo::default();
    assert!(args(&[]).config(&nobody).unwrap_err().contains("GROUPAGE_NAMESPACE"));
    assert!(args(&["--namespace=x"]).config(&nobody).unwrap_err().contains("GROUPAGE_POD_NAME"));
    assert_eq!(args(&["--namespace=x", "--single"]).config(&nobody).unwrap().lease, None);
}

#[test]
fn words_are_parsed_in_any_case_and_unknown_ones_are_refused() {
    let config = args(&["--certificate=certmanager", "--sidecar-mode=observe", "--sidecar-native=NEVER"])
        .config(&pod())
        .unwrap();
    assert_eq!(config.certificate, ServerCertificate::Files("/tls".into()));
    assert_eq!((config.sidecar.mode, config.native), (Mode::Observe, Some(false)));
    for wrong in ["--sidecar-mode=Fast", "--tuner-interval=0s", "--inject-by-default=perhaps", "--certificate=none"] {
        assert!(TestParser::try_parse_from(["groupage", wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn flag_values_with_which_no_sidecar_could_start_are_refused() {
    for wrong in [
        "--sidecar-log-level=inof",
        "--log-level=inof",
        "--sidecar-pull-policy=Sometimes",
        "--sidecar-cpu-request=0",
        "--sidecar-cpu-request=fast",
        "--sidecar-memory-request=1Mi",
        "--sidecar-memory-limit=128MB",
    ] {
        assert!(TestParser::try_parse_from(["groupage", wrong]).is_err(), "{wrong}");
    }
    let right =
        ["--sidecar-log-level=debug,hyper=warn", "--sidecar-cpu-request=1e-1", "--sidecar-memory-limit=1.34217728e+08"];
    let _taken = args(&right);
}

/// Returns a check of a value against the pattern of the chart's schema at the value's path.
fn patterns() -> impl Fn(&str, &str) -> bool {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../../charts/groupage/values.schema.json")).unwrap();
    move |path, value| {
        let at = path.split('.').fold(&schema, |at, key| &at["properties"][key]);
        let pattern = at["pattern"].as_str().unwrap_or_else(|| panic!("{path} has no pattern"));
        regex::Regex::new(pattern).unwrap().is_match(value)
    }
}

#[test]
fn the_schema_of_the_chart_and_the_controller_accept_the_same_values() {
    let takes = patterns();
    let check = |path: &str, flag: &str, right: &[&str], wrong: &[&str]| {
        for (values, expected) in [(right, true), (wrong, false)] {
            for value in values {
                let parsed = TestParser::try_parse_from(["groupage", &format!("--{flag}={value}")]).is_ok();
                assert_eq!((takes(path, value), parsed), (expected, expected), "{path}: {value}");
            }
        }
    };
    let levels = ["info", "DEBUG", "off", "3", "info,hyper=warn", "groupage_proxy=trace"];
    check("sidecar.logLevel", "sidecar-log-level", &levels, &["inof", "warning", ""]);
    check("controller.logLevel", "log-level", &levels, &["inof", "warning", ""]);
    check("sidecar.cpuRequest", "sidecar-cpu-request", &["50m", "1", "0.5", ".5", "1e-1"], &["fast", "1 m", "1c", ""]);
    for (path, flag) in [("memoryRequest", "sidecar-memory-request"), ("memoryLimit", "sidecar-memory-limit")] {
        let right = ["128Mi", "1Gi", "0.5Gi", "134217728", "128M", "2e8"];
        check(&format!("sidecar.{path}"), flag, &right, &["128MB", "128mi", "Gi", "128 Mi", ""]);
    }
    let right = ["1s", "10s", "3600s", "1m", "60m", "1h", "999s", "1000s", "3599s"];
    check("tuner.interval", "tuner-interval", &right, &["500ms", "0s", "3601s", "61m", "2h", "ten", "0m", ""]);
}
