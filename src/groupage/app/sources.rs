//! The initial settings of a process, and the sources that they are read from.
//!
//! Flags and environment variables override the file. With a state folder, the last good settings
//! replace an invalid file at the start: a restarted container must not stay down because of an
//! edit that the running process refused. The sidecar of a pod has no file. It begins with the last
//! good settings, else with the snapshot from the pod's admission, else as a plain proxy.

use std::path::{Path, PathBuf};

use super::settings_log::log_load_error;
use super::state_dir;
use crate::config::{self, LoadError, LoadedPolicy, MachineLimits, Notice, Origin, Overrides, PodInfo, Policy};

/// Sources of the settings.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingsSources {
    pub(crate) path: Option<PathBuf>,
    pub(crate) overrides: Overrides,
    pub(crate) machine: MachineLimits,
    pub(crate) pod: PodInfo,
}

/// Initial settings, and what is to be logged about them once the log is open.
#[derive(Debug)]
pub(crate) struct InitialSettings {
    pub(crate) read: LoadedSettings,
    /// Errors of the sources that were tried first.
    pub(crate) wrong: Vec<LoadError>,
    pub(crate) from: SettingsOrigin,
}

/// Source of the initial settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingsOrigin {
    /// The file, or flags alone.
    Configured,
    /// The last good settings, because the file is invalid.
    StandIn,
    /// The last good settings, as usual in a pod.
    Kept,
    /// The snapshot from the pod's admission.
    Snapshot,
    /// None.
    Missing,
}

/// Valid settings.
#[derive(Debug)]
pub(crate) struct LoadedSettings {
    pub(crate) policy: Policy,
    pub(crate) notices: Vec<Notice>,
    /// Text of the file, if they come from one.
    pub(crate) text: Option<String>,
}

// === impl SettingsSources ===

impl SettingsSources {
    /// Reads the file and builds the policy.
    fn read(&self) -> Result<LoadedSettings, LoadError> {
        let text = self.path.as_deref().map(config::read_text).transpose()?;
        self.judge(text)
    }

    /// Determines the initial settings.
    ///
    /// # Errors
    /// If no valid settings exist: the errors of the file.
    pub(crate) fn begin(&self) -> Result<InitialSettings, LoadError> {
        let configured = |read| InitialSettings { read, wrong: Vec::new(), from: SettingsOrigin::Configured };
        if self.path.is_some() {
            return match self.read() {
                // A missing file is a wrong path, which the last good settings would only hide.
                Err(error @ LoadError::Invalid(_)) => {
                    match self.stored_text().and_then(|text| self.judge(Some(text)).ok()) {
                        Some(read) => Ok(InitialSettings { read, wrong: vec![error], from: SettingsOrigin::StandIn }),
                        None => Err(error),
                    }
                }
                read => read.map(configured),
            };
        }
        // Without a file, a proxy outside a pod has flags and environment alone.
        if self.overrides.capture.is_none() && self.pod.policy.is_none() {
            return self.read().map(configured);
        }
        // A sidecar: the last good settings first, then the snapshot from its admission.
        let mut wrong = Vec::new();
        let found = [
            (self.stored_text(), SettingsOrigin::Kept, Origin::State),
            (self.pod.policy.clone(), SettingsOrigin::Snapshot, Origin::Snapshot),
        ];
        for (text, from, origin) in found {
            match text.map(|text| self.build_pod_settings(&text, origin)) {
                Some(Ok(read)) => return Ok(InitialSettings { read, wrong, from }),
                Some(Err(error)) => wrong.push(error),
                None => {}
            }
        }
        // Without valid settings everything passes through.
        let LoadedSettings { policy, notices, text } = self.judge(None)?;
        let policy = policy.into_passthrough("no settings");
        Ok(InitialSettings { read: LoadedSettings { policy, notices, text }, wrong, from: SettingsOrigin::Missing })
    }

    /// Builds the policy from a text, flags and environment.
    pub(super) fn judge(&self, text: Option<String>) -> Result<LoadedSettings, LoadError> {
        let name = self.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let loaded = text.as_deref().map(|text| config::load(text, &name)).transpose()?;
        self.build(loaded, text)
    }

    /// Builds the policy from settings of a pod, which come from no file.
    fn build_pod_settings(&self, text: &str, origin: Origin) -> Result<LoadedSettings, LoadError> {
        let name = match origin {
            Origin::Snapshot => "GROUPAGE_POLICY",
            Origin::File | Origin::State => "the last good settings",
            Origin::Controller => "the controller's settings",
        };
        self.build(Some(config::load(text, name)?.into_pod_settings(origin)), None)
    }

    fn build(&self, loaded: Option<LoadedPolicy>, text: Option<String>) -> Result<LoadedSettings, LoadError> {
        let policy = config::build(loaded.as_ref(), &self.overrides, &self.machine)?;
        let captured = !policy.proxy.captures.is_empty();
        Ok(LoadedSettings { policy, notices: loaded.map(|loaded| loaded.notices(captured)).unwrap_or_default(), text })
    }

    /// Reads the last good settings. At the start only a flag or the environment can name their
    /// folder.
    fn stored_text(&self) -> Option<String> {
        state_dir::read_settings(Path::new(&self.overrides.state.as_ref()?.value))
    }
}

// === impl InitialSettings ===

impl InitialSettings {
    /// Logs the source of the settings, unless it is simply the file.
    pub(super) fn log(&self) {
        if self.from != SettingsOrigin::StandIn {
            self.wrong.iter().for_each(log_load_error);
        }
        match self.from {
            SettingsOrigin::Configured | SettingsOrigin::StandIn => {}
            SettingsOrigin::Kept => tracing::info!("starting with the settings that were in force last"),
            SettingsOrigin::Snapshot => tracing::info!("starting with the settings from injection"),
            SettingsOrigin::Missing => tracing::error!(
                "no settings: all calls pass through unchanged until settings arrive; inject the pod again, or give a policy with --config"
            ),
        }
    }
}
