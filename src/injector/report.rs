//! Report of an injection: facts and warnings for the owner of the pod.

use super::InjectionReport;
use super::effective::InjectionSettings;
use super::names::is_assigned_name;
use super::planned::{PlannedPort, PortCapture};
use crate::api::v1alpha1::DurationText;
use crate::config::parse_duration;

/// Seconds during which calls are accepted after termination has begun (`drain.delay` in a pod),
/// and seconds reserved before the pod is killed.
const DRAIN_DELAY: f64 = 5.0;
const DRAIN_RESERVE: f64 = 5.0;

/// Reports the capture of each port, and a termination grace period that is too short to drain.
pub(super) fn describe(
    report: &mut InjectionReport,
    planned: &[PlannedPort],
    overrides: &InjectionSettings,
    grace: u64,
) {
    if let Some(policy) = &overrides.policy {
        report.facts.push(format!("policy {}", policy.name));
    }
    report.captured = planned.iter().all(|planned| planned.bypass.is_empty() && planned.uncaptured.is_none());
    for planned in planned {
        let PlannedPort { port, mode, listen, bypass, uncaptured, .. } = planned;
        let names = planned.all_names().join(" and ");
        let name = if names.is_empty() { "unnamed".to_owned() } else { format!("named {names}") };
        let how = match mode {
            PortCapture::Named => format!("captured by name, through {listen}"),
            PortCapture::Loopback => "captured on the pod's addresses, the application is on loopback".to_owned(),
            PortCapture::Moved => format!("captured at its number, the application is at {}", planned.application),
            PortCapture::Redirect => format!("captured by a redirect to {listen}"),
            PortCapture::None => format!("not captured; the sidecar listens on {listen}"),
        };
        report.facts.push(format!("port {} ({name}) of container {}: {how}", port.number, port.container));
        report.warnings.extend(bypass.iter().cloned());
        let what = match port.name.as_deref() {
            None if bypass.is_empty() => "name it as its Service does, or set",
            // The warning about the Service already has the remedy.
            None => "or set",
            Some(name) if is_assigned_name(name) => "restore its original name, or set",
            Some(_) => "set",
        };
        report.warnings.extend(uncaptured.iter().map(|cause| {
            format!("{cause}: not captured; {what} groupage.dev/app-listen (calls to port {listen} pass through the sidecar)")
        }));
    }
    report.warnings.extend(short_grace_warning(overrides, grace));
}

/// Returns a warning if the pod may be killed before it is drained. A policy without a drain limit,
/// latency target or timeout yields no warning.
fn short_grace_warning(overrides: &InjectionSettings, grace: u64) -> Option<String> {
    let seconds =
        |time: Option<&DurationText>| time.and_then(|text| parse_duration(&text.0)).map(|time| time.as_secs_f64());
    let spec = overrides.policy.as_ref().map(|policy| &policy.spec);
    let drain = spec.and_then(|spec| spec.proxy.as_ref()?.drain.as_ref());
    let limit = overrides
        .drain_timeout
        .map(|limit| limit.as_secs_f64())
        .or_else(|| seconds(drain.and_then(|drain| drain.limit.as_ref())));
    let routes = || spec.into_iter().flat_map(|spec| spec.routes.iter().flatten());
    let slos =
        spec.and_then(|spec| spec.slo.as_ref()).into_iter().chain(routes().filter_map(|route| route.slo.as_ref()));
    let longest = slos
        .filter_map(|slo| seconds(slo.latency_p99.as_ref()))
        .chain(routes().filter_map(|route| seconds(route.timeout.as_ref())))
        .fold(0.0, f64::max);
    let needed = match limit {
        Some(limit) => limit + DRAIN_RESERVE,
        None if longest > 0.0 => {
            let delay = seconds(drain.and_then(|drain| drain.delay.as_ref())).unwrap_or(DRAIN_DELAY);
            delay + longest + DRAIN_RESERVE
        }
        None => return None,
    };
    #[expect(clippy::cast_precision_loss, reason = "a pod's grace period is far below 2^53 seconds")]
    let has = grace as f64;
    (needed > has).then(|| {
        format!("terminationGracePeriodSeconds is {grace}, but draining may take {:.0} s: raise it", needed.ceil())
    })
}
