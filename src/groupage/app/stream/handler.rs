//! The callbacks of the control stream: introduces the sidecar, reports for it, and passes on what
//! the controller pushes.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::link::ControlLink;
use super::report::ReportedPort;
use super::stored_settings;
use crate::control::client::{DisconnectReason, SidecarStreamHandler, StreamStatus};
use crate::control::wire::{Hello, PodIdentity, SidecarConfig, SidecarReport};

impl SidecarStreamHandler for ControlLink {
    fn hello(&self) -> Hello {
        let pod = &self.sources.pod;
        let text = |name: &Option<String>| name.clone().unwrap_or_default();
        Hello {
            pod: PodIdentity {
                uid: text(&pod.uid),
                name: text(&pod.name),
                namespace: text(&pod.namespace),
                node: text(&pod.node),
            },
            ports: self.ports.iter().filter_map(ReportedPort::captured).collect(),
            config: self.in_force(),
            ..Hello::default()
        }
    }

    fn take_report(&self) -> BoxFuture<'_, SidecarReport> {
        async {
            let now = self.clock.now();
            let since = self.state().reported.replace(now).unwrap_or_default();
            let mut upstreams = Vec::with_capacity(self.ports.len());
            for port in &self.ports {
                upstreams.push(port.report().await);
            }
            let over_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            SidecarReport { over_ms, config: self.in_force(), upstreams, ..SidecarReport::default() }
        }
        .boxed()
    }

    fn on_config(&self, config: SidecarConfig) -> BoxFuture<'_, ()> {
        self.apply_config(config).boxed()
    }

    fn on_bundle(&self, pem: String) -> BoxFuture<'_, ()> {
        self.write(move |folder| stored_settings::keep_bundle(folder, &pem)).boxed()
    }

    fn on_status(&self, status: &StreamStatus) {
        match status {
            StreamStatus::Open { address, protocol } => {
                self.state().logged.clear();
                self.control.metrics().set_controller_open(true);
                tracing::info!(address, protocol, "the control stream is open");
            }
            StreamStatus::Lost { reason, message, retry_in: again } => {
                self.control.metrics().set_controller_open(false);
                self.control.metrics().record_controller_end(reason.as_str());
                let routine = matches!(reason, DisconnectReason::Lifetime | DisconnectReason::Goaway);
                // Log each reason once until the stream is open again: an outage of a day would
                // fill the log.
                if self.state().logged.insert(*reason) && !routine {
                    tracing::warn!(reason = reason.as_str(), ?again, "no control stream: {message}");
                } else {
                    tracing::debug!(reason = reason.as_str(), ?again, "no control stream: {message}");
                }
            }
            StreamStatus::Unknown { kinds, fields } => {
                self.control.metrics().record_controller_unknown((*kinds).into(), (*fields).into());
            }
        }
    }
}
