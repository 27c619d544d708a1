//! The sidecar's end of the control stream: applies and stores the controller's settings, and
//! reports metrics.
//!
//! ```text
//! Config ─▶ judge (as a file) ─┬─ valid: SettingsHandle::apply, stored as last good, ConfigApplied
//!                              └─ invalid: ConfigRefused; the previous settings stay in force
//! ```
//!
//! It runs on the thread of the admin ports. The connection itself is elsewhere
//! (`control::client`).

mod validate;
mod kept;
mod report;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::AbortHandle;

use self::kept::StoredStreamState;
use self::report::ReportedPort;
use self::validate::{ValidatedConfig, judge};
use super::compose::{AppliedSettings, RunningApp, SettingsHandle, SettingsRefusal};
use super::reload::{From, InitialSettings, LINES_MAX, LoadedSettings, SettingsSources, tell, told};
use super::state_dir::StateDir;
use super::state_dir::crash_guard::{CRASH_COUNT, CRASH_WINDOW};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::{CaBundle, ControllerEndpoint, LoadError, Origin};
use crate::control::client::{
    CaBundles, Client, ControlClientConfig, ControllerAddress, DisconnectReason, EventSender, StreamHandler,
    StreamStatus, StreamTimeouts,
};
use crate::control::wire::{
    AppliedConfig, ExperimentArm, Hello, PodIdentity, SidecarConfig, SidecarEvent, SidecarReport,
};

/// Maximum lifetime of an experiment arm after its last `SidecarConfig`. A longer one would be an
/// experiment that no controller supervises.
const ARM_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of keys that an Event lists.
const KEYS_MAX: usize = 8;

/// State at the start: the controller's address and its last good settings.
#[derive(Debug)]
pub(super) struct StreamState {
    controller: Option<ControllerEndpoint>,
    kept: StoredStreamState,
    wrong: Option<String>,
}

/// The control stream together with the proxy that it configures.
struct ControlLink {
    /// Reference to itself, for delayed tasks.
    own: Weak<Self>,
    control: SettingsHandle,
    sources: SettingsSources,
    folder: Option<StateDir>,
    ports: Vec<ReportedPort>,
    clock: Clock,
    stream: EventSender,
    /// Serializes changes.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    /// The last configuration that was applied.
    config: Option<SidecarConfig>,
    in_force: Option<AppliedConfig>,
    /// Task that ends the current experiment arm.
    arm_ends: Option<AbortHandle>,
    /// Instant of the last report.
    reported: Option<Tick>,
    /// Reasons of a lost stream that have been logged already.
    said: HashSet<DisconnectReason>,
}

// === impl StreamState ===

impl StreamState {
    /// Reads the environment and the state folder.
    pub(super) fn read(sources: &SettingsSources) -> Self {
        let none = |wrong| Self { controller: None, kept: StoredStreamState::default(), wrong };
        match ControllerEndpoint::from_environment() {
            Ok(Some(_)) if sources.pod.uid.is_none() => none(Some(
                "GROUPAGE_CONTROLLER is set without GROUPAGE_POD_UID: set it to the pod's metadata.uid".to_owned(),
            )),
            Ok(Some(controller)) => {
                Self { controller: Some(controller), kept: StoredStreamState::read(sources), wrong: None }
            }
            Ok(None) => none(None),
            Err(wrong) => none(Some(wrong)),
        }
    }

    /// Returns the last good settings if they come from the controller and are valid. They override
    /// everything but flags and environment.
    pub(super) fn began(&self) -> Option<InitialSettings> {
        let (_, judged) = self.kept.settings.as_ref()?;
        let read = LoadedSettings { policy: judged.policy.clone(), notices: Vec::new(), text: None };
        Some(InitialSettings { read, wrong: Vec::new(), from: From::Kept })
    }

    /// Logs the state and opens the stream, if a controller is configured. Without one, no task
    /// runs and nothing is woken.
    pub(super) fn connect(self, running: &RunningApp, sources: SettingsSources) {
        let Self { controller, kept, wrong } = self;
        if let Some(why) = wrong {
            tracing::error!(why, "the controller is not used: the current settings stay in force");
        }
        let Some(controller) = controller else { return };
        if let Some(why) = &kept.ignored {
            tracing::warn!(why, "the controller's last good settings are not used");
        }
        let control = running.control();
        let clock = control.clock();
        // 53 bits, which every JSON reader represents exactly.
        let client = Client::new(client_config(controller, kept.bundle.as_deref()), clock, rand::random::<u64>() >> 11);
        let link = Arc::new_cyclic(|own| ControlLink {
            own: own.clone(),
            sources,
            folder: running.state_folder(),
            ports: control.ports().iter().cloned().map(ReportedPort::new).collect(),
            control: control.clone(),
            clock,
            stream: client.handle(),
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        });
        if let Some((config, judged)) = kept.settings {
            control.is_told_from_now_on();
            link.is_in_force(config, &judged, None);
        }
        if let Some(message) = crash_guard_message(control.aside().map(|aside| aside.until.since(clock.now()))) {
            link.stream.event(SidecarEvent {
                reason: "CrashGuard".to_owned(),
                message,
                warning: true,
                ..SidecarEvent::default()
            });
        }
        running.beside(client.run(link));
    }
}

/// Returns the message of the crash guard's Event while everything passes through.
fn crash_guard_message(left: Option<Duration>) -> Option<String> {
    let minutes = left?.as_secs().div_ceil(60);
    Some(format!(
        "the sidecar crashed {CRASH_COUNT} times in {} s: all calls pass through unchanged for {minutes} min, then batching is tried again; see kubectl logs --previous -c groupage for the cause",
        CRASH_WINDOW.as_secs()
    ))
}

fn client_config(controller: ControllerEndpoint, came: Option<&str>) -> ControlClientConfig {
    let ControllerEndpoint { host, port, ca, token } = controller;
    let mut trust = match ca {
        Some(CaBundle::Pem(pem)) => CaBundles::given(&pem).unwrap_or_else(|error| {
            tracing::error!(%error, "GROUPAGE_CA is refused");
            CaBundles::default()
        }),
        Some(CaBundle::File(path)) => CaBundles::file(&path),
        None => CaBundles::default(),
    };
    if let Some(Err(error)) = came.map(|pem| trust.renew(pem)) {
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

// === impl ControlLink ===

impl ControlLink {
    /// Applies a configuration, unless it is in force already.
    async fn take(&self, config: SidecarConfig) {
        let _turn = self.turn.lock().await;
        let before = self.state().config.clone();
        // Refuse an older generation from the same source.
        let older = before
            .as_ref()
            .is_some_and(|before| before.source == config.source && config.generation < before.generation);
        if older {
            let now = before.map(|before| before.generation).unwrap_or_default();
            let why =
                format!("generation {} of {} is older than {now}, which is in force", config.generation, config.name);
            return self.refuse(&config, &SettingsRefusal::Because(why));
        }
        let arm = config.experiment.clone().filter(|arm| arm.expires_after_ms > 0);
        self.begin(&config).await;
        // An unchanged configuration is applied again if its arm is not in force, since the arm may
        // have ended meanwhile.
        let on = self
            .state()
            .in_force
            .as_ref()
            .is_some_and(|now| now.arm == arm.as_ref().map(|arm| arm.arm.as_str()).unwrap_or_default());
        if !(before.as_ref() == Some(&config) && on) {
            match self.apply(&config, arm.as_ref()).await {
                Ok(changed) => {
                    self.keep(&config).await;
                    if changed {
                        self.applied(&config);
                    }
                }
                Err(refusal) => return self.refuse(&config, &refusal),
            }
        }
        // Every configuration renews the lifetime of its arm, also an unchanged one.
        self.ends(arm.as_ref());
    }

    /// Validates and applies a configuration. Returns `true` if a setting changed.
    async fn apply(&self, config: &SidecarConfig, arm: Option<&ExperimentArm>) -> Result<bool, SettingsRefusal> {
        let judged = judge(config, arm, Origin::Controller, &self.sources).map_err(SettingsRefusal::Load)?;
        let AppliedSettings { changes, pending } =
            self.control.apply(judged.policy.clone()).await.map_err(SettingsRefusal::Because)?;
        self.control.is_told_from_now_on();
        for change in changes.iter().take(LINES_MAX) {
            tell(change, "setting changed");
        }
        for change in pending.iter().take(LINES_MAX) {
            tell(change, "setting takes effect at the next start");
        }
        let (generation, policy, arm_name) = (config.generation, &config.name, arm.map(|arm| arm.arm.as_str()));
        tracing::info!(
            changes = changes.len(),
            pending = pending.len(),
            generation,
            policy,
            arm = arm_name,
            "the controller's settings are in force"
        );
        if !judged.left_out.is_empty() {
            let keys = judged.left_out.iter().take(KEYS_MAX).cloned().collect::<Vec<_>>().join(", ");
            tracing::warn!(keys, "the controller's settings contain keys that this version does not support");
            let message = format!(
                "this version does not support these keys and ignores them: {keys}; calls of routes that contain them pass through"
            );
            self.say(config, "ConfigPartlyUnknown", true, message);
        }
        self.is_in_force(config.clone(), &judged, arm);
        Ok(!changes.is_empty())
    }

    fn is_in_force(&self, config: SidecarConfig, judged: &ValidatedConfig, arm: Option<&ExperimentArm>) {
        let mut state = self.state();
        state.in_force = Some(AppliedConfig {
            source: config.source.clone(),
            generation: config.generation,
            profile: arm.map_or(&config.profile, |arm| &arm.profile).clone(),
            hash: config.hash.clone(),
            arm: arm.map(|arm| arm.arm.clone()).unwrap_or_default(),
            settings: judged.settings.clone(),
            pending: 0,
        });
        state.config = Some(config);
    }

    /// Schedules the end of an experiment arm, in case that the controller does not renew it.
    fn ends(&self, arm: Option<&ExperimentArm>) {
        let ends = arm.map(|arm| {
            let own = self.own.clone();
            let after = Duration::from_millis(arm.expires_after_ms).min(ARM_MAX);
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                if let Some(link) = own.upgrade() {
                    link.end_arm().await;
                }
            })
            .abort_handle()
        });
        let before = std::mem::replace(&mut self.state().arm_ends, ends);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Ends an experiment arm that was not renewed: the policy's own settings apply.
    async fn end_arm(&self) {
        let _turn = self.turn.lock().await;
        let config = {
            let mut state = self.state();
            state.arm_ends = None;
            let on = state.in_force.as_ref().is_some_and(|now| !now.arm.is_empty());
            state.config.clone().filter(|_| on)
        };
        let Some(config) = config else { return };
        match self.apply(&config, None).await {
            Ok(_) => {
                let message =
                    "the controller did not renew the experiment: the policy's own settings are in force again"
                        .to_owned();
                self.say(&config, "ExperimentEnded", false, message);
            }
            Err(refusal) => self.refuse(&config, &refusal),
        }
    }

    /// Seeds the schedulers with what other pods learned, if the configuration contains it.
    async fn begin(&self, config: &SidecarConfig) {
        let Some(start) = &config.settings.start else { return };
        for port in &self.ports {
            port.begin(start).await;
        }
        tracing::info!(
            slots = start.slots,
            classes = start.curves.len(),
            "starting with values that other pods learned"
        );
    }

    fn applied(&self, config: &SidecarConfig) {
        let pending = self.control.pending();
        let mut message = format!("generation {} of {} is in force", config.generation, config.name);
        if pending > 0 {
            let settings = if pending == 1 { "setting takes" } else { "settings take" };
            message.push_str(&format!("; {pending} {settings} effect at the next start"));
        }
        self.say(config, "ConfigApplied", false, message);
    }

    fn refuse(&self, config: &SidecarConfig, refusal: &SettingsRefusal) {
        let why = match refusal {
            SettingsRefusal::Load(LoadError::Wrong(errors)) => {
                told(errors);
                errors.findings.first().map_or_else(|| errors.to_string(), |finding| finding.message.clone())
            }
            SettingsRefusal::Load(error @ LoadError::Unreadable { .. }) => error.to_string(),
            SettingsRefusal::Because(why) => why.clone(),
        };
        tracing::error!(
            policy = config.name,
            generation = config.generation,
            why,
            "the controller's settings are refused"
        );
        self.control.refused(refusal);
        self.say(config, "ConfigRefused", true, format!("generation {} of {}: {why}", config.generation, config.name));
    }

    fn say(&self, config: &SidecarConfig, reason: &str, warning: bool, message: String) {
        let (reason, hash) = (reason.to_owned(), config.hash.clone());
        self.stream.event(SidecarEvent { reason, message, warning, hash, ..SidecarEvent::default() });
    }

    async fn keep(&self, config: &SidecarConfig) {
        let config = config.clone();
        self.write(move |folder| kept::keep_settings(folder, &config)).await;
    }

    async fn write(&self, write: impl FnOnce(&StateDir) -> std::io::Result<()> + Send + 'static) {
        let Some(folder) = self.folder.clone() else { return };
        let written = tokio::task::spawn_blocking(move || write(&folder)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the configuration from the controller cannot be saved");
        }
    }

    fn in_force(&self) -> Option<AppliedConfig> {
        let pending = u32::try_from(self.control.pending()).unwrap_or(u32::MAX);
        self.state().in_force.clone().map(|now| AppliedConfig { pending, ..now })
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamHandler for ControlLink {
    fn hello(&self) -> Hello {
        let pod = &self.sources.pod;
        let said = |name: &Option<String>| name.clone().unwrap_or_default();
        Hello {
            pod: PodIdentity {
                uid: said(&pod.uid),
                name: said(&pod.name),
                namespace: said(&pod.namespace),
                node: said(&pod.node),
            },
            ports: self.ports.iter().filter_map(ReportedPort::captured).collect(),
            config: self.in_force(),
            ..Hello::default()
        }
    }

    fn report(&self) -> BoxFuture<'_, SidecarReport> {
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

    fn config(&self, config: SidecarConfig) -> BoxFuture<'_, ()> {
        self.take(config).boxed()
    }

    fn bundle(&self, pem: String) -> BoxFuture<'_, ()> {
        self.write(move |folder| kept::keep_bundle(folder, &pem)).boxed()
    }

    fn status(&self, status: &StreamStatus) {
        match status {
            StreamStatus::Open { address, protocol } => {
                self.state().said.clear();
                self.control.metrics().set_controller_open(true);
                tracing::info!(address, protocol, "the control stream is open");
            }
            StreamStatus::Lost { reason, message, again } => {
                self.control.metrics().set_controller_open(false);
                self.control.metrics().record_controller_end(reason.as_str());
                let routine = matches!(reason, DisconnectReason::Lifetime | DisconnectReason::Goaway);
                // Log each reason once until the stream is open again: an outage of a day would
                // fill the log.
                if self.state().said.insert(*reason) && !routine {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_of_crashes_and_until_when_everything_passes_through() {
        assert_eq!(crash_guard_message(None), None);
        let told = crash_guard_message(Some(Duration::from_millis(599_990))).unwrap();
        assert!(
            told.starts_with("the sidecar crashed 3 times in 60 s: all calls pass through unchanged for 10 min"),
            "{told}"
        );
        // The message fits the controller's limit for events.
        assert_eq!(SidecarEvent { message: told.clone(), ..SidecarEvent::default() }.bounded().message, told);
    }
}
