//! When a call's answer becomes useless: the earliest of its headers, the SLO and the timeout.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::batching::{Deadline, DeadlineSource, Tick};
use crate::protocol::headers::time_left;

/// The deadlines of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// The earliest one.
    pub(super) first: Deadline,
    /// What holds once the first is an SLO that cannot be met at all.
    pub(super) later: Option<Deadline>,
    /// The one that the caller itself set: it also ends the wait in flight.
    pub(super) caller: Option<Tick>,
}

/// Reads the deadlines of a call that arrived at `arrived` and is to be answered within this SLO, if it has one, less its shift, and within this timeout.
pub(super) fn deadlines(
    arrived: Tick,
    headers: &HeaderMap,
    names: &[HeaderName],
    (slo, timeout): (Option<Duration>, Duration),
) -> Deadlines {
    let caller = time_left(headers, names).map(|left| arrived.after(left));
    let timeout = Deadline { at: arrived.after(timeout), source: DeadlineSource::Timeout };
    let hard = match caller {
        Some(at) if at < timeout.at => Deadline { at, source: DeadlineSource::Caller },
        _ => timeout,
    };
    match slo.map(|slo| arrived.after(slo)) {
        Some(at) if at < hard.at => {
            Deadlines { first: Deadline { at, source: DeadlineSource::Slo }, later: Some(hard), caller }
        }
        _ => Deadlines { first: hard, later: None, caller },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&'static str, &str)], slo_ms: Option<u64>) -> Deadlines {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let own = (slo_ms.map(Duration::from_millis), Duration::from_secs(30));
        let names = [
            HeaderName::from_static("x-request-timeout-ms"),
            HeaderName::from_static("x-envoy-expected-rq-timeout-ms"),
        ];
        deadlines(Tick::from_millis(1000), &map, &names, own)
    }

    #[test]
    fn the_earliest_of_headers_slo_and_timeout_counts() {
        let plain = read(&[], None);
        assert_eq!(plain.first, Deadline { at: Tick::from_millis(31_000), source: DeadlineSource::Timeout });
        let slo = read(&[("x-request-timeout-ms", "200")], Some(150));
        assert_eq!(slo.first, Deadline { at: Tick::from_millis(1150), source: DeadlineSource::Slo });
        assert_eq!(slo.later.unwrap().at, Tick::from_millis(1200));
        assert_eq!(slo.caller, Some(Tick::from_millis(1200)));
        let two = read(&[("x-request-timeout-ms", "200"), ("x-envoy-expected-rq-timeout-ms", "90")], Some(150));
        assert_eq!(two.first, Deadline { at: Tick::from_millis(1090), source: DeadlineSource::Caller });
    }

    #[test]
    fn a_longer_deadline_than_the_timeout_is_clamped_to_it() {
        assert_eq!(read(&[("x-request-timeout-ms", "90000")], None).first.at, Tick::from_millis(31_000));
    }

    #[test]
    fn of_a_repeated_header_the_earliest_counts_and_nonsense_does_not() {
        let name = "x-request-timeout-ms";
        assert_eq!(read(&[(name, "300"), (name, "soon"), (name, "200")], None).caller, Some(Tick::from_millis(1200)));
        assert_eq!(read(&[(name, "soon")], None).caller, None);
    }
}
