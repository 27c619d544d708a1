//! Metrics of connections with clients, of TLS handshakes, and of certificates.

use super::names::{FloodReason, HandshakeResult, Metric, RelayReason, ReloadResult};
use super::registry::Metrics;
use super::series::to_f64;

// === impl Metrics ===

impl Metrics {
    /// Sets the number of open connections.
    pub fn set_open_connections(&self, open: usize) {
        self.shared.connections.open.set(to_f64(open as u64));
        if open == 0 {
            self.shared.release_samples();
        }
    }

    /// Records a connection that could not be accepted, or was closed for lack of room.
    pub fn record_shed_connection(&self) {
        self.shared.connections.shed.increment(1);
    }

    /// Records a connection that is ended because its client exceeded a limit.
    pub fn record_flooded_connection(&self, reason: FloodReason) {
        self.shared.connections.flooded[reason as usize].increment(1);
    }

    /// Records a connection of a captured port that was relayed as bytes.
    pub fn record_relay(&self, reason: RelayReason) {
        self.shared.recorder.counter(Metric::ConnectionsRelayed, &[reason.as_str().into()]).increment(1);
    }

    /// Records a failed TLS handshake with a client.
    pub fn record_failed_handshake(&self, result: HandshakeResult) {
        self.shared.recorder.counter(Metric::TlsHandshakesFailed, &[result.as_str().into()]).increment(1);
    }

    /// Records a certificate reload. `side` is the peer that the certificate is presented to.
    pub fn record_certificate_reload(&self, side: &'static str, result: ReloadResult) {
        self.shared.recorder.counter(Metric::TlsReloads, &[side.into(), result.as_str().into()]).increment(1);
    }

    /// Sets the expiry of the certificate in use, in seconds since the Unix epoch.
    pub fn set_certificate_expiry(&self, side: &'static str, at: u64) {
        self.shared.recorder.gauge(Metric::TlsExpiry, &[side.into()]).set(to_f64(at));
    }
}
