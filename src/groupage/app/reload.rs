//! Settings reload: reads the policy file again on SIGHUP and when it changes.
//!
//! ```text
//! SIGHUP, inotify ─▶ settle ─▶ read, validate ─┬─ valid: SettingsHandle::apply, stored as
//!                                              │  the last good policy
//!                                              └─ invalid: logged as by `groupage validate`;
//!                                                 the previous settings stay in force
//! ```
//!
//! Flags and environment variables override the file, as at the start (`sources`). While the
//! settings come from the controller, the file's are not used.

use std::time::Duration;

use tokio::signal::unix::Signal;

use super::compose::{SettingsHandle, SettingsRefusal};
use super::file_watch::FileWatch;
use super::settings_log::{log_changes, log_notices, log_refusal};
use super::sources::{LoadedSettings, SettingsSources};
use super::state_dir::StateDir;
use crate::config::{self, LoadError};

/// Delay from the first event of a change until the file is read: an editor's rename and cleanup,
/// or a few writes in a row, are one change. Far below the second in which a change should take
/// effect.
const SETTLE: Duration = Duration::from_millis(50);

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
enum ReloadTrigger {
    Signal,
    Change,
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
    pub(super) async fn run(mut self, mut hangup: Signal) {
        let good = self.good.take();
        self.keep_settings(good).await;
        let mut watch = self.sources.path.as_deref().and_then(|path| {
            FileWatch::new(path)
                .inspect_err(|error| tracing::warn!(%error, "the file cannot be watched: send SIGHUP to reload it"))
                .ok()
        });
        if watch.is_some() {
            // The file may have changed between its first read and the watch.
            self.reload(ReloadTrigger::Change).await;
        }
        loop {
            let trigger = tokio::select! {
                _ = hangup.recv() => ReloadTrigger::Signal,
                change = changed(watch.as_mut()) => match change {
                    Ok(()) => ReloadTrigger::Change,
                    Err(error) => {
                        tracing::warn!(%error, "the file cannot be watched any more: send SIGHUP to reload it");
                        watch = None;
                        continue;
                    }
                },
            };
            if trigger == ReloadTrigger::Change {
                tokio::time::sleep(SETTLE).await;
            }
            if let Some(watch) = &mut watch {
                watch.settle();
                // Renew the watch before the file is read, so that no later change is missed.
                if let Err(error) = watch.follow() {
                    tracing::warn!(%error, "the file's folder cannot be watched: send SIGHUP to reload it");
                }
            }
            self.reload(trigger).await;
        }
    }

    async fn reload(&mut self, trigger: ReloadTrigger) {
        let Some(path) = self.sources.path.clone() else {
            tracing::warn!("SIGHUP received, but no file is configured: the process was started without --config");
            return;
        };
        let sources = self.sources.clone();
        let judged = if trigger == ReloadTrigger::Change { self.judged.clone() } else { None };
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
            Ok(Ok(Some((text, _)))) if self.control.is_controlled() => {
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
                log_notices(&notices);
                log_changes(&applied);
                let (changes, pending) = (applied.changes.len(), applied.pending.len());
                tracing::info!(changes, pending, "settings applied");
                self.keep_settings(text).await;
            }
            Err(reason) => self.refuse(&SettingsRefusal::Because(reason)),
        }
    }

    fn refuse(&self, refusal: &SettingsRefusal) {
        log_refusal(refusal);
        self.control.record_refusal(refusal);
    }

    /// Stores the settings in force, for a start that finds the file invalid.
    async fn keep_settings(&self, text: Option<String>) {
        let (Some(folder), Some(text)) = (self.folder.clone(), text) else { return };
        let stored = tokio::task::spawn_blocking(move || folder.store_settings(text)).await;
        if let Ok(Err(error)) = stored {
            tracing::warn!(%error, "the settings cannot be saved");
        }
    }
}

/// Resolves when the file changes; never without a watch.
async fn changed(watch: Option<&mut FileWatch>) -> std::io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
