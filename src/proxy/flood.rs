//! Floods: HTTP/2 connections whose client exceeded a limit on control frames or header lines.
//!
//! No more is read from such a connection, and its client is sent GOAWAY
//! ([`super::frame_monitor`]). It is closed once the calls that were received are answered. Its
//! cause is counted, and logged at a limited rate.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::batching::Tick;
use crate::telemetry::Metrics;
use crate::telemetry::names::FloodReason;

/// Maximum time in which the calls of a flooded connection are answered. Acknowledgements of PINGs
/// are not read meanwhile, so hyper would close the connection after
/// `proxy.client.http2.pingTimeout` in any case, which is 10 s by default.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Time from the last response to the close. The kernel discards what the client has not received
/// when a connection is closed on which bytes are unread.
const LINGER: Duration = Duration::from_secs(1);
/// Minimum interval between two log lines. A client that is cut off connects again at once, and a
/// defect of a client library affects all of its connections.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A limit that the client of a connection exceeded.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloodEvent {
    pub(super) reason: FloodReason,
    /// Instant at which the limit was exceeded, since when nothing is read.
    since: Tick,
}

/// Counts floods, and logs them at a limited rate.
#[derive(Debug, Default)]
pub(super) struct FloodLog(Mutex<LineWindow>);

/// The connections since the last log line.
#[derive(Debug, Default)]
struct LineWindow {
    /// Instant of the last line.
    logged_at: Option<Tick>,
    /// Number of connections since that line.
    count: u64,
}

// === impl FloodEvent ===

impl FloodEvent {
    pub(super) const fn new(reason: FloodReason, since: Tick) -> Self {
        Self { reason, since }
    }

    /// Returns the instant at which the connection is closed: [`LINGER`] after the last response,
    /// and [`ANSWER_TIME_MAX`] after the flood at the latest. `owes_response` is `true` if a call
    /// waits for its response. `moved_at` is the instant at which bytes moved last, which after the
    /// flood are written ones.
    pub(super) fn close_at(self, owes_response: bool, moved_at: Tick) -> Tick {
        let latest = self.since.after(ANSWER_TIME_MAX);
        if owes_response { latest } else { latest.min(self.since.max(moved_at).after(LINGER)) }
    }
}

// === impl FloodLog ===

impl FloodLog {
    /// Records a connection that is closed because of a flood.
    pub(super) fn on_flood(&self, now: Tick, peer: IpAddr, reason: FloodReason, metrics: &Metrics) {
        metrics.record_flooded_connection(reason);
        let connections = self.0.lock().unwrap_or_else(PoisonError::into_inner).count(now);
        if let Some(connections) = connections {
            tracing::warn!(
                %peer,
                reason = reason.as_str(),
                connections,
                "closing an HTTP/2 connection: its client exceeded a limit on control frames or header lines"
            );
        }
    }
}

// === impl LineWindow ===

impl LineWindow {
    /// Counts a connection. Returns the number of connections since the last line if a line is due.
    fn count(&mut self, now: Tick) -> Option<u64> {
        self.count += 1;
        if self.logged_at.is_some_and(|at| now.since(at) < LINE_INTERVAL) {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooded_connection_is_closed_after_its_responses_and_within_a_bound() {
        let second = Tick::from_millis(1000);
        let flood = FloodEvent::new(FloodReason::ControlFrames, second);
        let close_at = |owes_response, moved_at| flood.close_at(owes_response, Tick::from_millis(moved_at));
        assert_eq!(close_at(false, 500), second.after(LINGER), "no call is in progress");
        assert_eq!(close_at(true, 500), second.after(ANSWER_TIME_MAX));
        assert_eq!(close_at(false, 3000), Tick::from_millis(3000).after(LINGER), "the last response was written");
        assert_eq!(close_at(false, 10_900), second.after(ANSWER_TIME_MAX));
    }

    #[test]
    fn floods_are_logged_once_per_interval_with_their_number() {
        let mut window = LineWindow::default();
        let lines: Vec<_> = (0..100).filter_map(|number| window.count(Tick::from_millis(300 * number))).collect();
        // At 0 s, 10.2 s and 20.4 s.
        assert_eq!(lines, [1, 34, 34]);
    }
}
