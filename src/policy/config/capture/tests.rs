use super::super::{MachineLimits, Policy, build};
use super::*;

fn given(captures: &[&str]) -> Overrides {
    let captures = captures.iter().map(|text| (*text).to_owned()).collect();
    Overrides { capture: Some(SourcedValue::flag("--capture", captures)), ..Overrides::default() }
}

fn env(name: &'static str, value: &str) -> Option<SourcedValue<String>> {
    Some(SourcedValue { value: value.to_owned(), source: SettingSource::Env(name) })
}

fn policy(overrides: &Overrides, text: &str) -> Policy {
    build(Some(&super::super::load(text, "p").unwrap()), overrides, &MachineLimits::default()).unwrap()
}

fn setting(policy: &Policy, path: &str) -> String {
    let found = policy.effective().iter().find(|setting| setting.path == path);
    found.map_or_else(|| "not listed".to_owned(), |found| format!("{} ({})", found.value, found.source))
}

#[test]
fn a_port_is_captured_at_a_number_or_at_the_pods_own_addresses() {
    let ips = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    let http = Capture::parse("http:8080@15080", &[]).unwrap();
    assert_eq!((http.name.as_deref(), http.port), (Some("http"), 8080));
    assert_eq!(http.listen, ["[::]:15080".parse().unwrap()]);
    let pod = Capture::parse(":8080@pod", &ips).unwrap();
    assert_eq!(
        (pod.name, pod.listen),
        (None, vec!["10.0.0.7:8080".parse().unwrap(), "[fd00::7]:8080".parse().unwrap()])
    );
    let moved = Capture::parse("http:8080=15080@8080", &[]).unwrap();
    assert_eq!((moved.port, moved.application, moved.listen), (8080, 15080, vec!["[::]:8080".parse().unwrap()]));
    for wrong in [
        "h:80=@1",
        "h:80=90@90",
        "",
        "8080",
        "http:8080",
        "8080@15080",
        "h:0@1",
        "h:+1@2",
        "h:70000@1",
        "h:80@",
        "h:80@x",
        "h:80@80",
        "H:80@1",
        "h:80@pod",
    ] {
        assert!(Capture::parse(wrong, &[]).is_err(), "{wrong}");
    }
}

#[test]
fn all_errors_of_the_flag_are_reported_together() {
    let mut overrides = given(&["a:80@1", "b:80@2", "c:81@1", "nonsense"]);
    overrides.pod_ips = env("GROUPAGE_POD_IPS", "10.0.0.1, x");
    overrides.grace = env("GROUPAGE_GRACE", "soon");
    let errors = build(None, &overrides, &MachineLimits::default()).unwrap_err();
    let messages: Vec<_> = errors.findings.iter().map(|finding| finding.message.as_str()).collect();
    let expected =
        ["GROUPAGE_POD_IPS` cannot be `x", "b:80@2", "c:81@1", "nonsense", "GROUPAGE_GRACE` cannot be `soon"];
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    assert!(messages.iter().zip(expected).all(|(message, expected)| message.contains(expected)), "{messages:?}");
    let many: Vec<String> = (1..=65).map(|port| format!(":{port}@0")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(build(None, &given(&many), &MachineLimits::default()).is_err());
}

#[test]
fn in_a_pod_the_drain_fits_the_grace_period_and_metrics_bind_all_addresses() {
    let mut overrides = given(&["http:8080@15080", ":9000@15081"]);
    let plain = policy(&overrides, "");
    assert_eq!(plain.proxy.captures.len(), 2);
    assert_eq!(setting(&plain, "proxy.capture[0]"), "http:8080 at [::]:15080 (flag --capture)");
    assert_eq!(setting(&plain, "proxy.capture[1]"), "9000 at [::]:15081 (flag --capture)");
    assert_eq!(
        (setting(&plain, "proxy.listen"), setting(&plain, "proxy.upstream")),
        ("not listed".into(), "not listed".into())
    );
    assert_eq!(setting(&plain, "proxy.admin.metrics"), "[::]:9190 (flag --capture)");
    assert_eq!((plain.proxy.drain.delay, plain.proxy.drain.limit), (Duration::from_secs(5), Duration::from_secs(25)));
    for (grace, delay_ms, limit_ms) in
        [("60s", 5000, 55_000), ("10s", 2500, 5000), ("2s", 500, 1000), ("0s", 500, 1000)]
    {
        overrides.grace = env("GROUPAGE_GRACE", grace);
        let drain = policy(&overrides, "").proxy.drain;
        assert_eq!((drain.delay.as_millis(), drain.limit.as_millis()), (delay_ms, limit_ms), "{grace}");
    }
    overrides.grace = env("GROUPAGE_GRACE", "20s");
    let parsed = policy(&overrides, "proxy: {drain: {delay: 1s, limit: 40s}, admin: {metrics: off}}");
    assert_eq!(setting(&parsed, "proxy.drain.limit"), "15s (lowered to the pod's grace period less 5s)");
    assert_eq!((parsed.proxy.drain.delay, parsed.proxy.metrics), (Duration::from_secs(1), None));
    let shorter = policy(&overrides, "proxy: {drain: {limit: 3s}}");
    assert_eq!(setting(&shorter, "proxy.drain.limit"), "3s (file:1)");
}

#[test]
fn a_route_names_ports_by_number_or_name() {
    let http = Capture::parse("http:8080@15080", &[]).unwrap();
    let named = |ports: &str| {
        let text = format!("routes: [{{path: /a, ports: {ports}}}]");
        http.is_selected_by(&policy(&given(&["http:8080@15080"]), &text).routes[0].ports)
    };
    assert!(named("[http]") && named("[8080]") && named("[\"8080\", other]"));
    assert!(!named("[grpc, 8081]") && !named("[]"));
}
