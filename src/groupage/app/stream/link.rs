//! The link between the control stream and the proxy that it configures. It applies each
//! configuration that the controller pushes, stores it, and ends an experiment arm that is not
//! renewed. The arm of an experiment is a profile that replaces the policy's own limits and
//! scheduling for a limited time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::super::compose::{SettingsHandle, SettingsRefusal};
use super::super::settings_log::{log_changes, log_findings};
use super::super::sources::SettingsSources;
use super::super::state_dir::StateDir;
use super::report::ReportedPort;
use super::stored_settings;
use super::validate::{ValidatedConfig, judge};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::{LoadError, Origin};
use crate::control::client::{DisconnectReason, EventSender};
use crate::control::wire::{AppliedConfig, ExperimentArm, SidecarConfig, SidecarEvent};

/// Maximum lifetime of an experiment arm after its last `SidecarConfig`. A longer one would be an
/// experiment that no controller supervises.
const ARM_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of keys that an Event lists.
const KEYS_MAX: usize = 8;

/// The link between the control stream and the proxy.
pub(super) struct ControlLink {
    /// Reference to itself, for delayed tasks.
    own: Weak<Self>,
    pub(super) control: SettingsHandle,
    pub(super) sources: SettingsSources,
    folder: Option<StateDir>,
    pub(super) ports: Vec<ReportedPort>,
    pub(super) clock: Clock,
    pub(super) stream: EventSender,
    /// Locked during a change, so that changes are applied one after the other.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<LinkState>,
}

/// State of the link that changes.
#[derive(Default)]
pub(super) struct LinkState {
    /// The last configuration that was applied.
    config: Option<SidecarConfig>,
    /// Description of it for reports.
    in_force: Option<AppliedConfig>,
    /// Task that ends the current experiment arm.
    arm_end: Option<AbortHandle>,
    /// Instant of the last report.
    pub(super) reported: Option<Tick>,
    /// Reasons of lost streams that were logged, so that each is logged once.
    pub(super) logged: HashSet<DisconnectReason>,
}

// === impl ControlLink ===

impl ControlLink {
    /// Links the stream with the proxy that `control` configures.
    pub(super) fn new(
        control: SettingsHandle,
        sources: SettingsSources,
        folder: Option<StateDir>,
        stream: EventSender,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: own.clone(),
            sources,
            folder,
            ports: control.ports().iter().cloned().map(ReportedPort::new).collect(),
            clock: control.clock(),
            control,
            stream,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Applies a configuration, unless it is in force already.
    pub(super) async fn apply_config(&self, config: SidecarConfig) {
        let _turn = self.turn.lock().await;
        let before = self.state().config.clone();
        // Refuse an older generation from the same source.
        let older = before
            .as_ref()
            .is_some_and(|before| before.source == config.source && config.generation < before.generation);
        if older {
            let current = before.map(|before| before.generation).unwrap_or_default();
            let reason = format!(
                "generation {} of {} is older than {current}, which is in force",
                config.generation, config.name
            );
            return self.refuse(&config, &SettingsRefusal::Because(reason));
        }
        let arm = config.experiment.clone().filter(|arm| arm.expires_after_ms > 0);
        self.seed_schedulers(&config).await;
        // An unchanged configuration is applied again if its arm is not in force: the arm may have
        // ended since, because the controller did not renew it in time.
        let is_arm_in_force = self
            .state()
            .in_force
            .as_ref()
            .is_some_and(|now| now.arm == arm.as_ref().map(|arm| arm.arm.as_str()).unwrap_or_default());
        if !(before.as_ref() == Some(&config) && is_arm_in_force) {
            match self.apply(&config, arm.as_ref()).await {
                Ok(changed) => {
                    self.store(&config).await;
                    if changed {
                        self.report_applied(&config);
                    }
                }
                Err(refusal) => return self.refuse(&config, &refusal),
            }
        }
        // Every configuration renews the lifetime of its arm, also an unchanged one.
        self.schedule_arm_end(arm.as_ref());
    }

    /// Validates and applies a configuration. Returns `true` if a setting changed.
    async fn apply(&self, config: &SidecarConfig, arm: Option<&ExperimentArm>) -> Result<bool, SettingsRefusal> {
        let validated = judge(config, arm, Origin::Controller, &self.sources).map_err(SettingsRefusal::Load)?;
        let applied = self.control.apply(validated.policy.clone()).await.map_err(SettingsRefusal::Because)?;
        self.control.mark_controlled();
        log_changes(&applied);
        let (generation, policy, arm_name) = (config.generation, &config.name, arm.map(|arm| arm.arm.as_str()));
        tracing::info!(
            changes = applied.changes.len(),
            pending = applied.pending.len(),
            generation,
            policy,
            arm = arm_name,
            "the controller's settings are in force"
        );
        if !validated.left_out.is_empty() {
            let keys = validated.left_out.iter().take(KEYS_MAX).cloned().collect::<Vec<_>>().join(", ");
            tracing::warn!(keys, "the controller's settings contain keys that this version does not support");
            let message = format!(
                "this version does not support these keys and ignores them: {keys}; calls of routes that contain them pass through"
            );
            self.send_event(config, "ConfigPartlyUnknown", true, message);
        }
        self.record_in_force(config.clone(), &validated, arm);
        Ok(!applied.changes.is_empty())
    }

    /// Records the configuration in force, for reports.
    pub(super) fn record_in_force(
        &self,
        config: SidecarConfig,
        validated: &ValidatedConfig,
        arm: Option<&ExperimentArm>,
    ) {
        let mut state = self.state();
        state.in_force = Some(AppliedConfig {
            source: config.source.clone(),
            generation: config.generation,
            profile: arm.map_or(&config.profile, |arm| &arm.profile).clone(),
            hash: config.hash.clone(),
            arm: arm.map(|arm| arm.arm.clone()).unwrap_or_default(),
            settings: validated.settings.clone(),
            pending: 0,
        });
        state.config = Some(config);
    }

    /// Schedules the end of an experiment arm, in case that the controller does not renew it.
    fn schedule_arm_end(&self, arm: Option<&ExperimentArm>) {
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
        let before = std::mem::replace(&mut self.state().arm_end, ends);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Ends an experiment arm that was not renewed: the policy's own settings apply.
    async fn end_arm(&self) {
        let _turn = self.turn.lock().await;
        let config = {
            let mut state = self.state();
            state.arm_end = None;
            let is_arm_in_force = state.in_force.as_ref().is_some_and(|now| !now.arm.is_empty());
            state.config.clone().filter(|_| is_arm_in_force)
        };
        let Some(config) = config else { return };
        match self.apply(&config, None).await {
            Ok(_) => {
                let message =
                    "the controller did not renew the experiment: the policy's own settings are in force again"
                        .to_owned();
                self.send_event(&config, "ExperimentEnded", false, message);
            }
            Err(refusal) => self.refuse(&config, &refusal),
        }
    }

    /// Seeds the schedulers with the state that other pods learned, if the configuration contains
    /// it.
    async fn seed_schedulers(&self, config: &SidecarConfig) {
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

    fn report_applied(&self, config: &SidecarConfig) {
        let pending = self.control.pending();
        let mut message = format!("generation {} of {} is in force", config.generation, config.name);
        if pending > 0 {
            let settings = if pending == 1 { "setting takes" } else { "settings take" };
            message.push_str(&format!("; {pending} {settings} effect at the next start"));
        }
        self.send_event(config, "ConfigApplied", false, message);
    }

    fn refuse(&self, config: &SidecarConfig, refusal: &SettingsRefusal) {
        let reason = match refusal {
            SettingsRefusal::Load(LoadError::Invalid(errors)) => {
                log_findings(errors);
                errors.findings.first().map_or_else(|| errors.to_string(), |finding| finding.message.clone())
            }
            SettingsRefusal::Load(error @ LoadError::Unreadable { .. }) => error.to_string(),
            SettingsRefusal::Because(reason) => reason.clone(),
        };
        tracing::error!(
            policy = config.name,
            generation = config.generation,
            reason,
            "the controller's settings are refused"
        );
        self.control.record_refusal(refusal);
        self.send_event(
            config,
            "ConfigRefused",
            true,
            format!("generation {} of {}: {reason}", config.generation, config.name),
        );
    }

    fn send_event(&self, config: &SidecarConfig, reason: &str, warning: bool, message: String) {
        let (reason, hash) = (reason.to_owned(), config.hash.clone());
        self.stream.send_event(SidecarEvent { reason, message, warning, hash, ..SidecarEvent::default() });
    }

    async fn store(&self, config: &SidecarConfig) {
        let config = config.clone();
        self.write(move |folder| stored_settings::keep_settings(folder, &config)).await;
    }

    pub(super) async fn write(&self, write: impl FnOnce(&StateDir) -> std::io::Result<()> + Send + 'static) {
        let Some(folder) = self.folder.clone() else { return };
        let written = tokio::task::spawn_blocking(move || write(&folder)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "the configuration from the controller cannot be saved");
        }
    }

    /// Returns the configuration in force, as reports describe it.
    pub(super) fn in_force(&self) -> Option<AppliedConfig> {
        let pending = u32::try_from(self.control.pending()).unwrap_or(u32::MAX);
        self.state().in_force.clone().map(|now| AppliedConfig { pending, ..now })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
