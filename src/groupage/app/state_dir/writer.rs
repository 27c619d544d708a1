//! The writer of the learned state: one file of the state folder, written in the background.
//!
//! It waits until something is learned, writes some time later, and waits again. It also discards
//! the learned state if the model server turns out to be another one than before.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::{LearnedFileOutcome, StateDir, learned, replace};
use crate::scheduler::{LearnedState, SchedulerHandle};
use crate::upstream::ServerIdentity;

/// Maximum interval between two writes while something is learned.
const WRITE_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// First interval; it doubles with each write up to [`WRITE_INTERVAL_MAX`]. Most is learned early,
/// and should not be lost if the process is killed soon after.
const WRITE_INTERVAL_MIN: Duration = Duration::from_secs(2);

/// Writes the learned state in the background.
#[derive(Debug)]
pub(in crate::app) struct StateWriter {
    writer: Arc<StateWriterInner>,
    /// The tasks that write and that detect another server; aborted on drop.
    tasks: [AbortHandle; 2],
}

/// State that both tasks of the writer share.
#[derive(Debug)]
struct StateWriterInner {
    folder: StateDir,
    scheduler: SchedulerHandle,
    identity: watch::Receiver<ServerIdentity>,
    /// Contents of the file as last written.
    written: Mutex<Vec<u8>>,
    /// Identity of the model server from an earlier process. It applies until the server reports
    /// more.
    before: Mutex<ServerIdentity>,
}

// === impl StateWriter ===

impl StateWriter {
    /// Logs the state of the folder, and starts the tasks of the writer. `found`: outcome of
    /// reading the file; `learned`: signal that something was learned. Must be called inside a
    /// tokio runtime.
    pub(in crate::app) fn start(
        folder: StateDir,
        found: LearnedFileOutcome,
        learned: Arc<Notify>,
        scheduler: SchedulerHandle,
        identity: watch::Receiver<ServerIdentity>,
    ) -> Self {
        folder.held().lock.log(&folder.path);
        found.log(&folder.path);
        let before =
            if let LearnedFileOutcome::Used { identity, .. } = found { identity } else { ServerIdentity::default() };
        let before = Mutex::new(before);
        let writer = Arc::new(StateWriterInner { folder, scheduler, identity, written: Mutex::default(), before });
        let writing = tokio::spawn(write_loop(writer.clone(), learned));
        let detection = tokio::spawn(writer.clone().detect_other_server());
        Self { writer, tasks: [writing.abort_handle(), detection.abort_handle()] }
    }

    /// Writes the current state.
    pub(in crate::app) async fn save(&self) {
        self.writer.clone().save().await;
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Writes some time after something was learned, and then waits until more is learned, so that an
/// idle process writes nothing.
async fn write_loop(writer: Arc<StateWriterInner>, learned: Arc<Notify>) {
    let mut wait = WRITE_INTERVAL_MIN;
    loop {
        learned.notified().await;
        tokio::time::sleep(wait).await;
        writer.clone().save().await;
        wait = WRITE_INTERVAL_MAX.min(wait * 2);
    }
}

// === impl StateWriterInner ===

impl StateWriterInner {
    /// Writes the current state of the scheduler, unless the scheduler has ended.
    async fn save(self: Arc<Self>) {
        let Some(state) = self.scheduler.snapshot().await else { return };
        // Writing and flushing may block on the disk.
        let written = tokio::task::spawn_blocking(move || self.write(&state)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the learned values cannot be saved"),
            Err(_) => tracing::error!("saving the learned values panicked"),
        }
    }

    /// Waits until the server has reported at least the identity that it had before. A different
    /// identity means another server; the state learned about the previous one is discarded.
    async fn detect_other_server(self: Arc<Self>) {
        let before = self.before().clone();
        let is_known = |now: &ServerIdentity| now.differs_from(&before).is_some() || now.is_superset_of(&before);
        let mut identity = self.identity.clone();
        let Ok(now) = identity.wait_for(is_known).await.map(|now| now.clone()) else { return };
        if let Some((now, before)) = now.differs_from(&before) {
            tracing::info!(now, before, "the model server has changed: the learned values are discarded");
            *self.before() = ServerIdentity::default();
            self.scheduler.reset().await;
        }
    }

    /// Writes the file if its contents would change and the process may write to the folder.
    fn write(&self, state: &LearnedState) -> io::Result<()> {
        if !self.folder.may_write() {
            return Ok(());
        }
        let identity = self.identity.borrow().clone().with_missing_from(&self.before());
        let bytes = learned::write(state, &self.folder.upstream, identity, self.folder.bytes_max)?;
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == bytes {
            return Ok(());
        }
        replace(&self.folder.path, &self.folder.learned, &bytes)?;
        *written = bytes;
        Ok(())
    }

    fn before(&self) -> MutexGuard<'_, ServerIdentity> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
