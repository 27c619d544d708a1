//! The guard of a call or an upload: its connection is busy until it is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ConnectionActivity;

/// A guard that keeps its connection busy.
#[derive(Debug)]
pub(in super::super) struct ActiveCall {
    activity: Arc<ConnectionActivity>,
    /// Response bytes are available of which nothing has been taken.
    untaken: bool,
    upload: bool,
    /// The response has begun.
    answer: bool,
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Creates the guard of a call or an upload, which the connection counts already.
    pub(super) const fn new(activity: Arc<ConnectionActivity>, upload: bool) -> Self {
        Self { activity, untaken: false, upload, answer: false }
    }

    pub(in super::super) fn on_response_start(&mut self) {
        self.answer = true;
        self.activity.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that response bytes are available of which nothing has been taken.
    pub(in super::super) fn on_bytes_available(&mut self) {
        self.untaken = true;
        if self.activity.untaken.fetch_add(1, Ordering::Relaxed) == 0 {
            self.activity.taken_at.store(self.activity.clock.now().0, Ordering::Relaxed);
            self.activity.connection.wake();
        }
    }

    /// Records that response bytes were taken.
    pub(in super::super) fn on_bytes_taken(&mut self) {
        if std::mem::take(&mut self.untaken) {
            self.activity.untaken.fetch_sub(1, Ordering::Relaxed);
            self.activity.taken_at.store(self.activity.clock.now().0, Ordering::Relaxed);
        }
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.on_bytes_taken();
        if self.answer {
            self.activity.answers.fetch_sub(1, Ordering::Relaxed);
        }
        if self.upload {
            self.activity.uploads.fetch_sub(1, Ordering::Relaxed);
        }
        if self.activity.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.activity.idle_since.store(self.activity.clock.now().0, Ordering::Relaxed);
        }
        // The connection may have been waiting for this call only.
        if self.activity.is_flooded() {
            self.activity.connection.wake();
        }
    }
}
