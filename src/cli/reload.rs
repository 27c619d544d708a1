//! Reads the settings again: when the process is told by SIGHUP, and when their file changes.
//!
//! ```text
//! SIGHUP, inotify ─▶ settle ─▶ read, validate ─┬─ right: Control::apply, and kept as the last good ones
//!                                              └─ wrong: said as `groupage validate` says it; those before stay in force
//! ```
//! What flags and environment say stays on top, as at the start. With a folder for state the last good settings also stand in at a start that finds the file
//! wrong: a container that is started again must not stay down over an edit that the running one refused.

mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::Signal;

use self::watch::Watch;
use super::compose::{Control, Refusal};
use super::keep::{self, Folder};
use crate::config::{self, Change, Errors, LoadError, Machine, Notice, Overrides, Policy};

/// From the first sign of a change to the look at it: an editor's rename and its tidying, a few writes in a row are one change. Far below the second in which
/// a change should be in force.
const SETTLE: Duration = Duration::from_millis(50);
/// Lines that one change may write to the log; the rest is counted.
const LINES_MAX: usize = 50;

/// Where settings come from.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    pub(super) path: Option<PathBuf>,
    pub(super) overrides: Overrides,
    pub(super) machine: Machine,
}

/// Settings that were read and found right.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) policy: Policy,
    pub(super) notices: Vec<Notice>,
    /// Of the file, if there is one.
    pub(super) text: Option<String>,
}

/// The settings of a process as they are read again.
#[derive(Debug)]
pub(super) struct Reloads {
    sources: Sources,
    control: Control,
    /// Where the last good ones are kept.
    folder: Option<Folder>,
    /// What is in force since the start.
    good: Option<String>,
    /// What the file said when it was judged last.
    judged: Option<String>,
}

/// Why settings are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Told,
    Changed,
}

// === impl Sources ===

impl Sources {
    /// Reads everything.
    pub(super) fn read(&self) -> Result<Read, LoadError> {
        let text = self.path.as_deref().map(config::read_text).transpose()?;
        self.judge(text)
    }

    /// What flags and environment make of a text.
    fn judge(&self, text: Option<String>) -> Result<Read, LoadError> {
        let name = self.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let loaded = text.as_deref().map(|text| config::load(text, &name)).transpose()?;
        let policy = config::build(loaded.as_ref(), &self.overrides, &self.machine)?;
        Ok(Read { policy, notices: loaded.map(|loaded| loaded.notices).unwrap_or_default(), text })
    }

    /// The settings that were in force last, for a start that finds the file wrong. Where they are kept, only a flag or the environment can say then.
    pub(super) fn last_good(&self) -> Option<Read> {
        let folder = self.overrides.state.as_ref()?;
        let text = keep::settings(Path::new(&folder.value))?;
        self.judge(Some(text)).ok()
    }
}

// === impl Reloads ===

impl Reloads {
    /// `text` is that of the file that is in force.
    pub(super) fn new(sources: Sources, control: Control, folder: Option<Folder>, text: Option<String>) -> Self {
        Self { sources, control, folder, judged: text.clone(), good: text }
    }

    /// The file was wrong at the start, and the last good settings stand in.
    pub(super) fn began_with_last_good(&mut self, error: LoadError) {
        self.judged = self.sources.path.as_deref().and_then(|path| config::read_text(path).ok());
        self.refuse(&Refusal::Load(error));
        tracing::warn!("the last good settings stand in");
    }

    /// Watches and listens for as long as the process runs.
    pub(super) async fn run(mut self, mut told: Signal) {
        let good = self.good.take();
        self.keep_settings(good).await;
        let mut watch = self.sources.path.as_deref().and_then(|path| {
            Watch::new(path)
                .inspect_err(|error| tracing::warn!(%error, "the file cannot be watched: SIGHUP reads it again"))
                .ok()
        });
        if watch.is_some() {
            // It may have changed between the start's look and the watch.
            self.again(Sign::Changed).await;
        }
        loop {
            let sign = tokio::select! {
                _ = told.recv() => Sign::Told,
                seen = changed(watch.as_mut()) => match seen {
                    Ok(()) => Sign::Changed,
                    Err(error) => {
                        tracing::warn!(%error, "the file cannot be watched any more: SIGHUP reads it again");
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
                // Before the file is read: what happens from here on is told.
                if let Err(error) = watch.follow() {
                    tracing::warn!(%error, "the file's folder cannot be watched: SIGHUP reads it again");
                }
            }
            self.again(sign).await;
        }
    }

    async fn again(&mut self, sign: Sign) {
        let Some(path) = self.sources.path.clone() else {
            tracing::warn!("told to read the settings again, but there is no file: it was started without --config");
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
            // It was touched, and says what it said.
            Ok(Ok(None)) => {}
            Ok(Ok(Some((text, _)))) if text.trim().is_empty() => {
                self.judged = Some(text);
                self.refuse(&Refusal::Because("the file is empty, as one that is being written".to_owned()));
            }
            Ok(Ok(Some((text, read)))) => {
                self.judged = Some(text);
                match read {
                    Ok(read) => self.apply(read).await,
                    Err(error) => self.refuse(&Refusal::Load(error)),
                }
            }
            Ok(Err(error)) => {
                self.judged = None;
                self.refuse(&Refusal::Load(error));
            }
            Err(_) => tracing::error!("reading the settings panicked"),
        }
    }

    async fn apply(&self, read: Read) {
        let Read { policy, notices, text } = read;
        match self.control.apply(policy).await {
            Ok(applied) => {
                for notice in notices {
                    tracing::info!(path = notice.path, line = notice.line, "{}", notice.message);
                }
                for change in applied.changes.iter().take(LINES_MAX) {
                    tell(change, "setting changed");
                }
                for change in applied.pending.iter().take(LINES_MAX) {
                    tell(change, "setting waits for the next start");
                }
                let (changes, pending) = (applied.changes.len(), applied.pending.len());
                tracing::info!(changes, pending, "settings applied");
                self.keep_settings(text).await;
            }
            Err(why) => self.refuse(&Refusal::Because(why)),
        }
    }

    fn refuse(&self, refusal: &Refusal) {
        match refusal {
            Refusal::Load(LoadError::Wrong(errors)) => told(errors),
            Refusal::Load(error @ LoadError::Unreadable { .. }) => tracing::error!(%error, "settings refused"),
            Refusal::Because(why) => tracing::error!(why, "settings refused"),
        }
        self.control.refused(refusal);
    }

    /// Keeps the settings in force for a start that finds the file wrong.
    async fn keep_settings(&self, text: Option<String>) {
        let (Some(folder), Some(text)) = (self.folder.clone(), text) else { return };
        let kept = tokio::task::spawn_blocking(move || folder.keep_settings(text)).await;
        if let Ok(Err(error)) = kept {
            tracing::warn!(%error, "the settings cannot be kept");
        }
    }
}

/// Never without a file to watch.
async fn changed(watch: Option<&mut Watch>) -> std::io::Result<()> {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

fn tell(change: &Change, what: &str) {
    let (from, to) = (change.from.as_deref().unwrap_or("none"), change.to.as_deref().unwrap_or("none"));
    tracing::info!(path = change.path, from, to, "{what}");
}

/// Every finding with its place, in the words of `groupage validate`.
fn told(errors: &Errors) {
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
        tracing::error!(findings = errors.findings.len(), "settings refused: and more");
    }
}
