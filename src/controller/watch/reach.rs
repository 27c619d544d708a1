//! The reachability of the API server, as one fact for all that calls it: an outage is one line of
//! the log, and its end ends every wait between tries.
//!
//! One task finds it out by the cheapest request there is; a request of any kind that has no answer is
//! a reason to look, and no more: one list that is too large for its time is no outage.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// The reachability of the API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiReach {
    reached: watch::Sender<bool>,
    doubts: Arc<Notify>,
}

// === impl ApiReach ===

impl ApiReach {
    /// It is taken to be there until a look fails.
    #[must_use]
    pub fn new() -> Self {
        Self { reached: watch::channel(true).0, doubts: Arc::default() }
    }

    /// Records that it answered a look.
    pub fn on_answer(&self) {
        if self.reached.send_if_modified(|reached| !std::mem::replace(reached, true)) {
            tracing::info!("the API server answers again");
        }
    }

    /// Records that it did not.
    pub fn on_failure(&self, error: &dyn fmt::Display) {
        if self.reached.send_if_modified(|reached| std::mem::replace(reached, false)) {
            tracing::warn!(%error, "the API server cannot be reached; what is known stays in force");
        }
    }

    /// Records a request without an answer.
    pub fn doubt(&self) {
        self.doubts.notify_one();
    }

    /// Waits for a request without an answer since the last wait.
    pub async fn doubted(&self) {
        self.doubts.notified().await;
    }

    /// Its value, and each change of it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.reached.subscribe()
    }

    /// Waits until it answers again after it did not.
    pub async fn returned(&self) {
        let mut reached = self.reached.subscribe();
        // The sender is this one, so the channel stays open.
        reached.wait_for(|reached| !*reached).await.ok();
        reached.wait_for(|reached| *reached).await.ok();
    }
}

impl Default for ApiReach {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_return_is_seen_by_all_that_wait_and_only_after_a_loss() {
        let reach = ApiReach::new();
        let mut waiting = std::pin::pin!(reach.returned());
        reach.on_answer();
        reach.doubt();
        assert_eq!(waiting.as_mut().now_or_never(), None, "nothing was lost");
        reach.on_failure(&"refused");
        reach.on_failure(&"refused");
        assert_eq!(waiting.as_mut().now_or_never(), None);
        reach.on_answer();
        assert_eq!(waiting.as_mut().now_or_never(), Some(()));
        reach.doubted().await;
    }
}
