//! Captured ports of a pod: the flag `--capture NAME:PORT[=APPLICATION]@LISTEN`, and the defaults
//! that are different in a pod.
//!
//! The injector routes a port of the application through the proxy and configures it with this
//! flag: the port number of the application, its name if it has one, and the address at which its
//! callers now arrive. Such a process runs in a pod: it is probed from outside, and it ends with
//! the pod. Routing the traffic to the proxy is not part of this module.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value as Json;

use super::code::ConfigCode;
use super::effective::{Setting, SettingSources, put};
use super::env::{Overrides, SettingSource, SourcedValue};
use super::finding::Finding;
use super::tree::Span;
use super::units::{format_duration, parse_duration};
use crate::api::v1alpha1::PortRef;

/// Maximum number of captured ports, as many as a route may name.
const CAPTURES_MAX: usize = 64;
/// Default `terminationGracePeriodSeconds` of Kubernetes.
const GRACE: Duration = Duration::from_secs(30);
/// Part of the grace period reserved for the termination itself. By then the application and the
/// proxy have received their signals.
const GRACE_MARGIN: Duration = Duration::from_secs(5);
/// Minimum time to drain, however short the grace period is.
const LIMIT_MIN: Duration = Duration::from_secs(1);
/// Time for which a terminating pod still receives calls, until every node has removed it from its
/// endpoints.
const DELAY: Duration = Duration::from_secs(5);
/// Address of the metrics listener in a pod, which the kubelet probes.
const METRICS: &str = "[::]:9190";

/// A port of the application. Its callers connect to the proxy instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// Name of the port in the pod.
    pub name: Option<String>,
    /// Number of the port in the pod.
    pub port: u16,
    /// Port on which the application listens. It is `port`, unless the application was moved.
    pub application: u16,
    /// Addresses at which its callers arrive; at least one.
    pub listen: Vec<SocketAddr>,
}

// === impl Capture ===

impl Capture {
    /// Parses `NAME:PORT[=APPLICATION]@LISTEN`. The name may be empty. `APPLICATION` is the port on
    /// which the application listens, if it is another one. `LISTEN` is a port number or the word
    /// `pod`.
    pub(super) fn parse(text: &str, pod_ips: &[IpAddr]) -> Result<Self, &'static str> {
        let (app, listen) = text.split_once('@').ok_or("write NAME:PORT@LISTEN, such as http:8080@15080")?;
        let (name, port) = app.split_once(':').ok_or("write NAME:PORT@LISTEN, such as http:8080@15080")?;
        let number =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten();
        let (port, application) = port.split_once('=').unwrap_or((port, port));
        let existing = |text: &str| number(text).filter(|port| *port > 0);
        let port = existing(port).ok_or("the application's port is a number from 1 to 65535")?;
        let application = existing(application).ok_or("the application's port is a number from 1 to 65535")?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.len() > 15 || !name.bytes().all(plain) {
            return Err("a port's name has at most 15 lower-case letters, digits and dashes");
        }
        let listen = match listen {
            "pod" if pod_ips.is_empty() => return Err("`pod` needs the pod's addresses in GROUPAGE_POD_IPS"),
            "pod" => pod_ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect(),
            other => {
                let listen = number(other).ok_or("LISTEN is a port number, or the word pod")?;
                if listen == application {
                    return Err(
                        "LISTEN is the application's own port, which the application could then not bind: use another port",
                    );
                }
                vec![SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), listen)]
            }
        };
        Ok(Self { name: Some(name.to_owned()).filter(|name| !name.is_empty()), port, application, listen })
    }

    /// Returns `true` if a route for these ports applies to this one.
    #[must_use]
    pub fn is_selected_by(&self, ports: &[PortRef]) -> bool {
        ports.iter().any(|port| match port {
            PortRef::Number(number) => *number == self.port,
            PortRef::Name(name) => Some(name) == self.name.as_ref(),
        })
    }
}

impl fmt::Display for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}:{}", self.port),
            None => write!(f, "{}", self.port),
        }
    }
}

/// Parses every captured port, or returns all problems of the flag and its variables.
pub(super) fn parse_captures(overrides: &Overrides) -> Result<Vec<Capture>, Vec<Finding>> {
    let Some(SourcedValue { value: texts, .. }) = &overrides.capture else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    let mut bad = |at: &str, value: &str, advice: &str| {
        let finding = Finding::new(ConfigCode::BadValue, at, Span::default(), &format!("`{at}` cannot be `{value}`"));
        findings.push(finding.value(value).help(advice));
    };
    let ips = overrides.pod_ips.as_ref().map_or("", |given| given.value.as_str());
    let ips = ips.split(',').map(str::trim).filter(|ip| !ip.is_empty());
    let (mut pod_ips, mut ports, mut listens) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for text in ips {
        match text.parse::<IpAddr>() {
            Ok(ip) => pod_ips.push(ip),
            Err(_) => bad("GROUPAGE_POD_IPS", text, "write addresses, separated by commas"),
        }
    }
    let mut captures = Vec::new();
    for text in texts.iter().take(CAPTURES_MAX) {
        match Capture::parse(text, &pod_ips) {
            Ok(capture) if !ports.insert(capture.port) => bad("--capture", text, "this port is already captured"),
            Ok(capture) => {
                // Port 0 is a different port each time.
                let taken = capture.listen.iter().any(|listen| listen.port() > 0 && !listens.insert(*listen));
                if taken {
                    bad("--capture", text, "another captured port already uses this address");
                }
                captures.push(capture);
            }
            Err(advice) => bad("--capture", text, advice),
        }
    }
    if texts.len() > CAPTURES_MAX {
        bad("--capture", &texts.len().to_string(), "capture at most 64 ports");
    }
    if findings.is_empty() { Ok(captures) } else { Err(findings) }
}

/// Applies the defaults of a pod to values that are not set: probes connect from outside, callers
/// are sent to other endpoints before the process ends, and it ends before the pod's grace period
/// does. A longer drain limit is lowered. `flag` is the flag of the injector that they come from.
pub(super) fn apply_pod_defaults(
    json: &mut Json,
    sources: &mut SettingSources,
    grace: Option<&SourcedValue<String>>,
    flag: &'static str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let grace = match grace.map(|given| (given, parse_duration(&given.value))) {
        None => GRACE,
        Some((_, Some(grace))) => grace,
        Some((given, None)) => {
            let message = format!("`GROUPAGE_GRACE` cannot be `{}`", given.value);
            let finding = Finding::new(ConfigCode::BadValue, "GROUPAGE_GRACE", Span::default(), &message);
            findings.push(finding.value(&given.value).help("write the pod's grace period as a duration, such as 30s"));
            GRACE
        }
    };
    // The drain limit is at most the grace period less the margin, also if it was set explicitly.
    let most = grace.saturating_sub(GRACE_MARGIN).max(LIMIT_MIN);
    let duration = |json: &Json, path: &str| text(json, path).as_str().and_then(parse_duration);
    if !sources.contains_key("proxy.admin.metrics") {
        put(json, sources, "proxy.admin.metrics", METRICS, SettingSource::Flag(flag));
    }
    let lowered = duration(json, "proxy.drain.limit").is_none_or(|limit| limit > most);
    match sources.contains_key("proxy.drain.limit") {
        true if lowered => {
            put(
                json,
                sources,
                "proxy.drain.limit",
                format_duration(most),
                SettingSource::LoweredBy("the pod's grace period less 5s"),
            );
        }
        true => {}
        false => put(json, sources, "proxy.drain.limit", format_duration(most), SettingSource::Env("GROUPAGE_GRACE")),
    }
    if !sources.contains_key("proxy.drain.delay") {
        let limit = duration(json, "proxy.drain.limit").unwrap_or(most);
        // With a short grace period, some of it must remain for the calls that arrived last.
        put(json, sources, "proxy.drain.delay", format_duration(DELAY.min(limit / 2)), SettingSource::Flag(flag));
    }
    findings
}

fn text<'a>(json: &'a Json, path: &str) -> &'a Json {
    path.split('.').fold(json, |at, name| &at[name])
}

/// Replaces the listen address and the upstream in the settings by the captured ports.
pub(super) fn replace_listen_settings(captures: &[Capture], settings: &mut Vec<Setting>) {
    let Some(at) = settings.iter().position(|setting| setting.path == "proxy.listen") else { return };
    let rows = captures.iter().enumerate().map(|(index, capture)| {
        let listen: Vec<String> = capture.listen.iter().map(ToString::to_string).collect();
        Setting {
            path: format!("proxy.capture[{index}]"),
            value: format!("{capture} at {}", listen.join(", ")),
            source: SettingSource::Flag("--capture"),
        }
    });
    settings.splice(at..=at, rows);
    settings.retain(|setting| setting.path != "proxy.upstream");
}

#[cfg(test)]
mod tests;
