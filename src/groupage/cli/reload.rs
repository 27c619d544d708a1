//! Settings reload: reads the policy file again on SIGHUP and when it changes.
//!
//! ```text
//! SIGHUP, inotify ─▶ settle ─▶ read, validate ─┬─ valid: SettingsHandle::apply, stored as the last good
//!                                              └─ invalid: logged as by `groupage validate`;
//!                                                 the previous settings stay in force
//! ```
//!
//! Flags and environment variables override the file, as at the start. With a state folder, the
//! last good settings replace an invalid file at the start: a restarted container must not stay
//! down because of an edit that the running process refused. The sidecar of a pod has no file. It
//! begins with the last good settings, else with the snapshot from the pod's admission, else as a
//! plain proxy.

pub(super) mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::Signal;

use self::watch::FileWatch;
use super::compose::{SettingsHandle, SettingsRefusal};
use super::state_dir::{self, StateDir};
use crate::config::{
    self, ConfigErrors, LoadError, LoadedPolicy, MachineLimits, Notice, Origin, Overrides, PodInfo, Policy,
    SettingChange,
};

/// Delay from the first event of a change until the file is read: an editor's rename and cleanup,
/// or a few writes in a row, are one change. Far below the second in which a change should take
/// effect.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum number of log lines of one change; the rest is only counted.
pub(super) const LINES_MAX: usize = 50;

/// Sources of the settings.
#[derive(Debug, Clone)]
pub(super) struct SettingsSources {
    pub(super) path: Option<PathBuf>,
    pub(super) overrides: Overrides,
    pub(super) machine: MachineLimits,
    pub(super) pod: PodInfo,
}

/// Initial settings, and what is to be logged about them once the log is open.
#[derive(Debug)]
pub(super) struct InitialSettings {
    pub(super) read: LoadedSettings,
    /// Errors of the sources that were tried first.
    pub(super) wrong: Vec<LoadError>,
    pub(super) from: From,
}

/// Source of the initial settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// The file, or flags alone.
    Told,
    /// The last good settings, because the file is invalid.
    StandIn,
    /// The last good settings, as usual in a pod.
    Kept,
    /// The snapshot from the pod's admission.
    Snapshot,
    /// None.
    Nowhere,
}

/// Valid settings.
#[derive(Debug)]
pub(super) struct LoadedSettings {
    pub(super) policy: Policy,
    pub(super) notices: Vec<Notice>,
    /// Text of the file, if they come from one.
    pub(super) text: Option<String>,
}

/// Reloads the settings of a running process.
#[derive(Debug)]
pub(super) struct Reloader {
    sources: SettingsSources,
    control: SettingsHandle,
    /// State folder for the last good settings.
    folder: Option<StateDir>,
    /// Text of the file in force since the start, until it is stored.
    good: Option<String>,
    /// Text of the file at its last validation.
    judged: Option<String>,
}

/// Trigger of a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Told,
    Changed,
}

// === impl SettingsSources ===

impl SettingsSources {
    /// Reads the file and builds the policy.
    pub(super) fn read(&self) -> Result<LoadedSettings, LoadError> {
        let text = self.path.as_deref().map(config::read_text).transpose()?;
        self.judge(text)
    }

    /// Determines the initial settings.
    ///
    /// # Errors
    /// If no valid settings exist: the errors of the file.
    pub(super) fn begin(&self) -> Result<InitialSettings, LoadError> {
        let told = |read| InitialSettings { read, wrong: Vec::new(), from: From::Told };
        if self.path.is_some() {
            return match self.read() {
                // A missing file is a wrong path, which the last good settings would only hide.
                Err(error @ LoadError::Wrong(_)) => match self.kept().and_then(|text| self.judge(Some(text)).ok()) {
                    Some(read) => Ok(InitialSettings { read, wrong: vec![error], from: From::StandIn }),
                    None => Err(error),
                },
                read => read.map(told),
            };
        }
        // Without a file, a proxy outside a pod has flags and environment alone.
        if self.overrides.capture.is_none() && self.pod.policy.is_none() {
            return self.read().map(told);
        }
        // A sidecar: the last good settings first, then the snapshot from its admission.
        let mut wrong = Vec::new();
        let found =
            [(self.kept(), From::Kept, Origin::Kept), (self.pod.policy.clone(), From::Snapshot, Origin::Snapshot)];
        for (text, from, origin) in found {
            match text.map(|text| self.of_a_pod(&text, origin)) {
                Some(Ok(read)) => return Ok(InitialSettings { read, wrong, from }),
                Some(Err(error)) => wrong.push(error),
                None => {}
            }
        }
        // Without valid settings everything passes through.
        let LoadedSettings { policy, notices, text } = self.judge(None)?;
        let policy = policy.into_passthrough("no settings");
        Ok(InitialSettings { read: LoadedSettings { policy, notices, text }, wrong, from: From::Nowhere })
    }

    /// Builds the policy from a text, flags and environment.
    fn judge(&self, text: Option<String>) -> Result<LoadedSettings, LoadError> {
        let name = self.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let loaded = text.as_deref().map(|text| config::load(text, &name)).transpose()?;
        self.build(loaded, text)
    }

    /// Builds the policy from settings of a pod, which come from no file.
    pub(super) fn of_a_pod(&self, text: &str, origin: Origin) -> Result<LoadedSettings, LoadError> {
        let name = match origin {
            Origin::Snapshot => "GROUPAGE_POLICY",
            Origin::File | Origin::Kept => "the last good settings",
            Origin::Controller => "the controller's settings",
        };
        self.build(Some(config::load(text, name)?.of_a_pod(origin)), None)
    }

    fn build(&self, loaded: Option<LoadedPolicy>, text: Option<String>) -> Result<LoadedSettings, LoadError> {
        let policy = config::build(loaded.as_ref(), &self.overrides, &self.machine)?;
        let captured = !policy.proxy.captures.is_empty();
        Ok(LoadedSettings { policy, notices: loaded.map(|loaded| loaded.notices(captured)).unwrap_or_default(), text })
    }

    /// Reads the last good settings. At the start only a flag or the environment can name their
    /// folder.
    fn kept(&self) -> Option<String> {
        state_dir::settings(Path::new(&self.overrides.state.as_ref()?.value))
    }
}

// === impl InitialSettings ===

impl InitialSettings {
    /// Logs the source of the settings, unless it is simply the file.
    pub(super) fn log(&self) {
        if self.from != From::StandIn {
            self.wrong.iter().for_each(log_load_error);
        }
        match self.from {
            From::Told | From::StandIn => {}
            From::Kept => tracing::info!("starting with the settings that were in force last"),
            From::Snapshot => tracing::info!("starting with the settings from injection"),
            From::Nowhere => tracing::error!(
                "no settings: all calls pass through unchanged until settings arrive; inject the pod again, or give a policy with --config"
            ),
        }
    }
}

// === impl Reloader ===

impl Reloader {
    /// Creates the reloader. `text` is that of the file in force.
    pub(super) fn new(
        sources: SettingsSources,
        control: SettingsHandle,
        folder: Option<StateDir>,
        text: Option<String>,
    ) -> Self {
        Self { sources, control, folder, judged: text.clone(), good: text }
    }

    /// Reports that the file was invalid at the start and that the last good settings are in force.
    pub(super) fn began_with_last_good(&mut self, error: LoadError) {
        self.judged = self.sources.path.as_deref().and_then(|path| config::read_text(path).ok());
        self.refuse(&SettingsRefusal::Load(error));
        tracing::warn!("the last good settings are used instead");
    }

    /// Reloads on signals and file changes, as long as the process runs.
    pub(super) async fn run(mut self, mut told: Signal) {
        let good = self.good.take();
        self.keep_settings(good).await;
        let mut watch = self.sources.path.as_deref().and_then(|path| {
            FileWatch::new(path)
                .inspect_err(|error| tracing::warn!(%error, "the file cannot be watched: send SIGHUP to reload it"))
                .ok()
        });
        if watch.is_some() {
            // The file may have changed between its first read and the watch.
            self.again(Sign::Changed).await;
        }
        loop {
            let sign = tokio::select! {
                _ = told.recv() => Sign::Told,
                seen = changed(watch.as_mut()) => match seen {
                    Ok(()) => Sign::Changed,
                    Err(error) => {
                        tracing::warn!(%error, "the file cannot be watched any more: send SIGHUP to reload it");
                        watch = None;
                        continue;
                    }
                },
            };
            if sign == Sign::Changed {
                tokio::time::sleep(SETTLE).await;
            }
            if let Some(watch) = &mut watch {
                watch.settle();
                // Renew the watch before the file is read, so that no later change is missed.
                if let Err(error) = watch.follow() {
                    tracing::warn!(%error, "the file's folder cannot be watched: send SIGHUP to reload it");
                }
            }
            self.again(sign).await;
        }
    }

    async fn again(&mut self, sign: Sign) {
        let Some(path) = self.sources.path.clone() else {
            tracing::warn!("SIGHUP received, but no file is configured: the process was started without --config");
            return;
        };
        let sources = self.sources.clone();
        let judged = if sign == Sign::Changed { self.judged.clone() } else { None };
        let read = tokio::task::spawn_blocking(move || {
            let text = config::read_text(&path)?;
            if judged.as_ref() == Some(&text) {
                return Ok(None);
            }
            Ok(Some((text.clone(), sources.judge(Some(text)))))
        });
        match read.await {
            // The file was touched, and its content is unchanged.
            Ok(Ok(None)) => {}
            Ok(Ok(Some((text, _)))) if self.control.is_told() => {
                self.judged = Some(text);
                tracing::warn!("the settings of the file are not used: the controller's settings are in force");
            }
            Ok(Ok(Some((text, _)))) if text.trim().is_empty() => {
                self.judged = Some(text);
                self.refuse(&SettingsRefusal::Because(
                    "the file is empty, possibly because it is being written".to_owned(),
                ));
            }
            Ok(Ok(Some((text, read)))) => {
                self.judged = Some(text);
                match read {
                    Ok(read) => self.apply(read).await,
                    Err(error) => self.refuse(&SettingsRefusal::Load(error)),
                }
            }
            Ok(Err(error)) => {
                self.judged = None;
                self.refuse(&SettingsRefusal::Load(error));
            }
            Err(_) => tracing::error!("reading the settings panicked"),
        }
    }

    async fn apply(&self, read: LoadedSettings) {
        let LoadedSettings { policy, notices, text } = read;
        match self.control.apply(policy).await {
            Ok(applied) => {
                for notice in notices {
                    tracing::info!(path = notice.path, line = notice.line, "{}", notice.message);
                }
                for change in applied.changes.iter().take(LINES_MAX) {
                    tell(change, "setting changed");
                }
                for change in applied.pending.iter().take(LINES_MAX) {
                    tell(change, "setting takes effect at the next start");
                }
                let (changes, pending) = (applied.changes.len(), applied.pending.len());
                tracing::info!(changes, pending, "settings applied");
                self.keep_settings(text).await;
            }
            Err(why) => self.refuse(&SettingsRefusal::Because(why)),
        }
    }

    fn refuse(&self, refusal: &SettingsRefusal) {
        log_refused(refusal);
        self.control.refused(refusal);
    }

    /// Stores the settings in force, for a start that finds the file invalid.
    async fn keep_settings(&self, text: Option<String>) {
        let (Some(folder), Some(text)) = (self.folder.clone(), text) else { return };
        let kept = tokio::task::spawn_blocking(move || folder.keep_settings(text)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "the settings cannot be saved");
        }
    }
}

fn log_refused(refusal: &SettingsRefusal) {
    match refusal {
        SettingsRefusal::Load(error) => log_load_error(error),
        SettingsRefusal::Because(why) => tracing::error!(why, "settings refused"),
    }
}

fn log_load_error(error: &LoadError) {
    match error {
        LoadError::Wrong(errors) => told(errors),
        LoadError::Unreadable { .. } => tracing::error!(%error, "settings refused"),
    }
}

/// Resolves when the file changes; never without a watch.
async fn changed(watch: Option<&mut FileWatch>) -> std::io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

pub(super) fn tell(change: &SettingChange, what: &str) {
    let (from, to) = (change.from.as_deref().unwrap_or("none"), change.to.as_deref().unwrap_or("none"));
    tracing::info!(path = change.path, from, to, "{what}");
}

/// Logs every finding with its place, in the wording of `groupage validate`.
pub(super) fn told(errors: &ConfigErrors) {
    for finding in errors.findings.iter().take(LINES_MAX) {
        tracing::error!(
            code = finding.code.as_str(),
            path = finding.path,
            line = finding.line(),
            value = finding.value,
            allowed = finding.allowed,
            nearest = finding.nearest,
            "settings refused: {}",
            finding.message
        );
    }
    if errors.findings.len() > LINES_MAX {
        tracing::error!(findings = errors.findings.len(), "settings refused: more findings are not listed");
    }
}
