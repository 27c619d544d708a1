//! The deadlines of a call: the earliest of its headers, the SLO and the timeout. Also the name of
//! the configuration key or header that ended a call.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::RouteSettings;
use crate::batching::{Deadline, DeadlineSource, LateTreatment, Tick};
use crate::error::FailureKind;
use crate::protocol::headers::{GRPC_TIMEOUT, parse_timeout};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallDeadlines {
    /// The earliest deadline.
    pub(super) first: Option<Deadline>,
    /// The deadline that applies if `first` is an SLO that does not expire the call, because it
    /// cannot be met at all or late calls are served.
    pub(super) fallback: Option<Deadline>,
    /// The deadline set by the caller itself, which also bounds the time in flight.
    pub(super) caller: Option<Tick>,
    /// Its header: an index into the configured names, or the number of names for `grpc-timeout`.
    header: usize,
}

/// Determines the deadlines of a call that arrived at `arrived`, given its SLO (already reduced by
/// the shift) and timeout, if any.
pub(super) fn resolve_deadlines(
    arrived: Tick,
    headers: &HeaderMap,
    names: &[HeaderName],
    (slo, timeout): (Option<Duration>, Option<Duration>),
) -> CallDeadlines {
    let caller = parse_timeout(headers, names).map(|(left, header)| (arrived.after(left), header));
    let (caller, header) = (caller.map(|(at, _)| at), caller.map_or(0, |(_, header)| header));
    let own = caller.map(|at| Deadline { at, source: DeadlineSource::Caller });
    let timeout = timeout.map(|timeout| Deadline { at: arrived.after(timeout), source: DeadlineSource::Timeout });
    // On a tie the timeout takes precedence, because it bounds the deadlines that callers may
    // request.
    let hard = timeout.into_iter().chain(own).min_by_key(|deadline| deadline.at);
    let slo = slo.map(|slo| Deadline { at: arrived.after(slo), source: DeadlineSource::Slo });
    match slo.filter(|slo| hard.is_none_or(|hard| slo.at < hard.at)) {
        Some(slo) => CallDeadlines { first: Some(slo), fallback: hard, caller, header },
        None => CallDeadlines { first: hard, fallback: None, caller, header },
    }
}

/// Returns the instant from which on a call is refused, given its deadlines and the treatment of
/// calls beyond their SLO.
pub(super) fn expiry(deadlines: [Option<Deadline>; 2], late: LateTreatment) -> Option<Tick> {
    let refuses = |deadline: &Deadline| deadline.source != DeadlineSource::Slo || late == LateTreatment::Refuse;
    deadlines.into_iter().flatten().filter(refuses).map(|deadline| deadline.at).min()
}

// === impl CallDeadlines ===

impl CallDeadlines {
    /// Returns the configuration key or the header that ended a call with this failure, or `None`
    /// if the failure has no such key. `sent` is the instant of dispatch.
    pub(super) fn limit_name(
        &self,
        kind: FailureKind,
        (now, sent): (Tick, Option<Tick>),
        route: &RouteSettings,
        names: &[HeaderName],
    ) -> Option<String> {
        match kind {
            FailureKind::LatePredicted | FailureKind::Deadline => {
                let passed = |deadline: &Deadline| deadline.at <= now;
                let useless = self
                    .first
                    .filter(|first| first.source != DeadlineSource::Slo || route.late == LateTreatment::Refuse);
                let source = self.fallback.filter(passed).or(useless).or(self.fallback)?.source;
                Some(match source {
                    DeadlineSource::Slo => "slo.latencyP99 with late: Refuse".to_owned(),
                    DeadlineSource::Timeout => route.timeout_key(),
                    DeadlineSource::Caller => names.get(self.header).unwrap_or(&GRPC_TIMEOUT).to_string(),
                })
            }
            FailureKind::UpstreamTimeout => {
                let waited = sent.map_or(Duration::ZERO, |sent| now.since(sent));
                let by_timeout = route.timeout.is_some_and(|timeout| waited >= timeout);
                Some(if by_timeout { route.timeout_key() } else { "proxy.connection.bodyIdleTimeout".to_owned() })
            }
            _ => None,
        }
    }
}

// === impl RouteSettings ===

impl RouteSettings {
    fn timeout_key(&self) -> String {
        self.index.map_or_else(|| "timeout".to_owned(), |index| format!("routes[{index}].timeout"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::RouteMode;
    use super::*;
    use crate::batching::{DivisionLimits, ScopeId};

    const NAMES: [HeaderName; 2] =
        [HeaderName::from_static("x-request-timeout-ms"), HeaderName::from_static("x-envoy-expected-rq-timeout-ms")];

    fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn read(headers: &[(&'static str, &str)], slo_ms: Option<u64>) -> CallDeadlines {
        let own = (slo_ms.map(Duration::from_millis), Some(Duration::from_secs(30)));
        resolve_deadlines(Tick::from_millis(1000), &map(headers), &NAMES, own)
    }

    fn route(late: LateTreatment, timeout: Option<Duration>) -> RouteSettings {
        let name = "/a".to_owned();
        let (scope, mode) = (ScopeId(0), RouteMode::Batch);
        RouteSettings {
            name,
            index: Some(2),
            scope,
            slo: None,
            late,
            timeout,
            mode,
            item_bytes_max: 1,
            division: DivisionLimits::default(),
            durations: None,
        }
    }

    #[test]
    fn the_earliest_of_headers_slo_and_timeout_counts() {
        let plain = read(&[], None);
        assert_eq!(plain.first, Some(Deadline { at: Tick::from_millis(31_000), source: DeadlineSource::Timeout }));
        let slo = read(&[("x-request-timeout-ms", "200")], Some(150));
        assert_eq!(slo.first, Some(Deadline { at: Tick::from_millis(1150), source: DeadlineSource::Slo }));
        assert_eq!(slo.fallback.unwrap().at, Tick::from_millis(1200));
        assert_eq!(slo.caller, Some(Tick::from_millis(1200)));
        let two = read(&[("x-request-timeout-ms", "200"), ("x-envoy-expected-rq-timeout-ms", "90")], Some(150));
        assert_eq!(two.first, Some(Deadline { at: Tick::from_millis(1090), source: DeadlineSource::Caller }));
    }

    #[test]
    fn without_header_slo_and_timeout_there_is_no_deadline() {
        let none = resolve_deadlines(Tick::from_millis(1000), &map(&[]), &NAMES, (None, None));
        assert_eq!((none.first, none.fallback, none.caller), (None, None, None));
        let slo = resolve_deadlines(Tick::from_millis(1000), &map(&[]), &NAMES, (Some(Duration::from_millis(5)), None));
        assert_eq!((slo.first.unwrap().source, slo.fallback), (DeadlineSource::Slo, None));
    }

    #[test]
    fn a_longer_deadline_than_the_timeout_is_clamped_to_it() {
        assert_eq!(read(&[("x-request-timeout-ms", "90000")], None).first.unwrap().at, Tick::from_millis(31_000));
    }

    #[test]
    fn the_earliest_repeated_header_applies_and_invalid_ones_are_ignored() {
        let name = "x-request-timeout-ms";
        assert_eq!(read(&[(name, "300"), (name, "soon"), (name, "200")], None).caller, Some(Tick::from_millis(1200)));
        assert_eq!(read(&[(name, "soon")], None).caller, None);
    }

    #[test]
    fn a_call_that_ended_in_the_queue_names_the_key_or_header_that_ended_it() {
        let (refuse, serve) = (route(LateTreatment::Refuse, None), route(LateTreatment::Serve, None));
        let at = |ms| (Tick::from_millis(ms), None);
        let both = read(&[("x-envoy-expected-rq-timeout-ms", "200")], Some(150));
        let name =
            |times: &CallDeadlines, ms, route| times.limit_name(FailureKind::Deadline, at(ms), route, &NAMES).unwrap();
        assert_eq!(name(&both, 1150, &refuse), "slo.latencyP99 with late: Refuse");
        assert_eq!(name(&both, 1200, &refuse), "x-envoy-expected-rq-timeout-ms", "the SLO was waived");
        assert_eq!(name(&both, 1199, &serve), "x-envoy-expected-rq-timeout-ms", "an SLO ends no call here");
        assert_eq!(name(&read(&[("grpc-timeout", "1S")], None), 2000, &serve), "grpc-timeout");
        assert_eq!(name(&read(&[], None), 31_000, &serve), "routes[2].timeout");
        assert_eq!(both.limit_name(FailureKind::QueueFull, at(1200), &refuse, &NAMES), None);
    }

    #[test]
    fn a_silent_upstream_names_the_timeout_or_the_longest_silence() {
        let limited = route(LateTreatment::Serve, Some(Duration::from_secs(1)));
        let sent = Some(Tick::from_millis(1000));
        let name = |route, now| {
            let kind = FailureKind::UpstreamTimeout;
            read(&[], None).limit_name(kind, (Tick::from_millis(now), sent), route, &NAMES).unwrap()
        };
        assert_eq!(name(&limited, 2000), "routes[2].timeout");
        assert_eq!(name(&limited, 1900), "proxy.connection.bodyIdleTimeout");
        assert_eq!(name(&route(LateTreatment::Serve, None), 400_000), "proxy.connection.bodyIdleTimeout");
    }

    #[test]
    fn an_slo_refuses_a_call_only_where_late_calls_are_refused() {
        let expiry = |deadlines: &CallDeadlines, late| expiry([deadlines.first, deadlines.fallback], late);
        let slo = read(&[("x-request-timeout-ms", "500")], Some(100));
        assert_eq!(expiry(&slo, LateTreatment::Refuse), Some(Tick::from_millis(1100)));
        assert_eq!(expiry(&slo, LateTreatment::Serve), Some(Tick::from_millis(1500)));
        assert_eq!(expiry(&read(&[], None), LateTreatment::Serve), Some(Tick::from_millis(31_000)), "the timeout");
        let none = resolve_deadlines(Tick::from_millis(1000), &map(&[]), &NAMES, (None, None));
        assert_eq!(expiry(&none, LateTreatment::Refuse), None);
    }
}
