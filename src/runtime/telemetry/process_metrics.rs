//! Metrics of the process: memory, limits in force, configuration, states, and the control stream.

use super::names::{Metric, ReloadResult};
use super::registry::Metrics;
use super::series::to_f64;

// === impl Metrics ===

impl Metrics {
    /// Sets the number of buffered bytes, and the total number of evictions.
    pub fn set_buffered(&self, bytes: usize, evicted: u64) {
        self.shared.process.buffered_bytes.set(to_f64(bytes as u64));
        self.shared.process.buffers_evicted.absolute(evicted);
    }

    /// Sets a limit of the policy, which applies to every port.
    pub fn set_limit(&self, limit: &'static str, source: &'static str, value: f64) {
        self.shared.recorder.gauge(Metric::Limit, &[limit.into(), source.into()]).set(value);
    }

    /// Sets the limit of a previous source to NaN. A series cannot be removed from the registry, so
    /// NaN marks it as obsolete.
    pub fn clear_policy_limit(&self, limit: &'static str, source: &'static str) {
        self.set_limit(limit, source, f64::NAN);
    }

    /// Sets a limit of this port, learned or published; NaN once the limit has another source.
    pub fn set_port_limit(&self, limit: &'static str, source: &'static str, value: f64) {
        self.gauges.set_limit(&self.shared.recorder, limit, source, value);
    }

    /// Records a configuration reload. `pending` is the number of changed settings that take effect
    /// at the next start.
    pub fn record_reload(&self, result: ReloadResult, pending: usize) {
        let series = &self.shared.process;
        series.config_reloads[result as usize].increment(1);
        series.config_current.set(f64::from(u8::from(result == ReloadResult::Applied)));
        series.config_pending.set(to_f64(pending as u64));
    }

    /// Sets the state of the crash guard.
    pub fn set_crash_guard(&self, on: bool) {
        self.shared.process.crash_guard.set(f64::from(u8::from(on)));
    }

    /// Sets the drain state, which may end when the application has restarted.
    pub fn set_draining(&self, draining: bool) {
        self.shared.process.draining.set(f64::from(u8::from(draining)));
    }

    /// Sets the state of the control stream. Without a controller the series does not exist.
    pub fn set_controller_open(&self, open: bool) {
        self.shared.recorder.gauge(Metric::ControllerConnected, &[]).set(f64::from(u8::from(open)));
    }

    /// Records a control stream that ended or could not be opened.
    pub fn record_controller_end(&self, reason: &'static str) {
        self.shared.recorder.counter(Metric::ControllerEnds, &[reason.into()]).increment(1);
    }

    /// Records messages and fields of the controller that were ignored because this version does
    /// not know them.
    pub fn record_controller_unknown(&self, kinds: u64, fields: u64) {
        for (what, count) in [("message", kinds), ("field", fields)] {
            self.shared.recorder.counter(Metric::ControllerUnknown, &[what.into()]).increment(count);
        }
    }
}
