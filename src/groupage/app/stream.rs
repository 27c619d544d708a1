//! The sidecar's end of the control stream: applies and stores the controller's settings, and
//! reports metrics.
//!
//! ```text
//! SidecarConfig ─▶ validate ─┬─ valid: SettingsHandle::apply, stored, event ConfigApplied
//!                            └─ invalid: event ConfigRefused; the previous settings stay in force
//! ```
//!
//! It runs on the thread of the admin ports. The connection itself is elsewhere
//! (`control::client`).

mod handler;
mod stored_settings;
mod link;
mod report;
mod start_values;
mod validate;

use std::time::Duration;

use self::link::ControlLink;
use self::stored_settings::StoredStreamState;
use super::compose::{ModelServer, RunningApp};
use super::sources::{InitialSettings, LoadedSettings, SettingsOrigin, SettingsSources};
use super::state_dir::crash_guard::{CRASH_COUNT, CRASH_WINDOW};
use crate::config::{CaBundle, ControllerEndpoint};
use crate::control::client::{CaBundles, Client, ControlClientConfig, ControllerAddress, EventSender, StreamTimeouts};
use crate::control::wire::SidecarEvent;

/// State of the stream at the start of the process.
#[derive(Debug)]
pub(super) struct StreamState {
    /// Address of the controller; `None` if none is configured.
    controller: Option<ControllerEndpoint>,
    /// The last valid settings of the controller, from the state folder.
    stored: StoredStreamState,
    /// Error because of which a configured controller is not used.
    wrong: Option<String>,
}

// === impl StreamState ===

impl StreamState {
    /// Reads the environment and the state folder.
    pub(super) fn read(sources: &SettingsSources) -> Self {
        let none = |wrong| Self { controller: None, stored: StoredStreamState::default(), wrong };
        match ControllerEndpoint::from_environment() {
            Ok(Some(_)) if sources.pod.uid.is_none() => none(Some(
                "GROUPAGE_CONTROLLER is set without GROUPAGE_POD_UID: set it to the pod's metadata.uid".to_owned(),
            )),
            Ok(Some(controller)) => {
                Self { controller: Some(controller), stored: StoredStreamState::read(sources), wrong: None }
            }
            Ok(None) => none(None),
            Err(wrong) => none(Some(wrong)),
        }
    }

    /// Returns the stored settings of the controller, if there are valid ones. They override
    /// everything but flags and environment.
    pub(super) fn began(&self) -> Option<InitialSettings> {
        let (_, judged) = self.stored.settings.as_ref()?;
        let read = LoadedSettings { policy: judged.policy.clone(), notices: Vec::new(), text: None };
        Some(InitialSettings { read, wrong: Vec::new(), from: SettingsOrigin::Kept })
    }

    /// Logs the state and opens the stream, if a controller is configured. Without one, no task is
    /// spawned.
    pub(super) fn connect(self, running: &RunningApp, sources: SettingsSources) {
        let Self { controller, stored, wrong } = self;
        if let Some(reason) = wrong {
            tracing::error!(reason, "the controller is not used: the current settings stay in force");
        }
        let Some(controller) = controller else { return };
        if let Some(reason) = &stored.ignored {
            tracing::warn!(reason, "the controller's last good settings are not used");
        }
        let control = running.control();
        let clock = control.clock();
        // 53 bits, which every JSON reader represents exactly.
        let client =
            Client::new(client_config(controller, stored.bundle.as_deref()), clock, rand::random::<u64>() >> 11);
        let link = ControlLink::new(control.clone(), sources, running.state_folder(), client.handle());
        if let Some((config, judged)) = stored.settings {
            control.mark_controlled();
            link.record_in_force(config, &judged, None);
        }
        if let Some(message) = crash_guard_message(control.passthrough_until().map(|until| until.since(clock.now()))) {
            link.stream.send_event(SidecarEvent {
                reason: "CrashGuard".to_owned(),
                message,
                warning: true,
                ..SidecarEvent::default()
            });
        }
        for port in control.ports() {
            running.beside(report_device(port.upstream.clone(), link.stream.clone()));
        }
        running.beside(client.run(link));
    }
}

/// Reports the device on which a model is executed, once it is loaded: a pod without a GPU runs on
/// the CPU, which is visible in its latency only.
async fn report_device(server: ModelServer, stream: EventSender) {
    let Some((message, warning)) = server.engine_device().await else { return };
    stream.send_event(SidecarEvent { reason: "EngineDevice".to_owned(), message, warning, ..SidecarEvent::default() });
}

/// Returns the message of the crash guard's Event while everything passes through.
fn crash_guard_message(left: Option<Duration>) -> Option<String> {
    let minutes = left?.as_secs().div_ceil(60);
    Some(format!(
        "the sidecar crashed {CRASH_COUNT} times in {} s: all calls pass through unchanged for {minutes} min, then batching is tried again; see kubectl logs --previous -c groupage for the cause",
        CRASH_WINDOW.as_secs()
    ))
}

fn client_config(controller: ControllerEndpoint, received: Option<&str>) -> ControlClientConfig {
    let ControllerEndpoint { host, port, ca, token } = controller;
    let mut trust = match ca {
        Some(CaBundle::Pem(pem)) => CaBundles::from_pem(&pem).unwrap_or_else(|error| {
            tracing::error!(%error, "GROUPAGE_CA is refused");
            CaBundles::default()
        }),
        Some(CaBundle::File(path)) => CaBundles::from_file(&path),
        None => CaBundles::default(),
    };
    if let Some(Err(error)) = received.map(|pem| trust.set_received(pem)) {
        tracing::warn!(%error, "the saved CA bundle is not used");
    }
    ControlClientConfig {
        server_name: host.clone(),
        address: ControllerAddress { host, port },
        trust,
        token,
        times: StreamTimeouts::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crash_message_contains_the_count_and_the_remaining_time() {
        assert_eq!(crash_guard_message(None), None);
        let message = crash_guard_message(Some(Duration::from_millis(599_990))).unwrap();
        assert!(
            message.starts_with("the sidecar crashed 3 times in 60 s: all calls pass through unchanged for 10 min"),
            "{message}"
        );
        // The message fits the controller's limit for events.
        assert_eq!(SidecarEvent { message: message.clone(), ..SidecarEvent::default() }.bounded().message, message);
    }
}
