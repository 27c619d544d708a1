//! Reachability of the API server, as one fact shared by all its users: an outage is logged once,
//! and its end ends every wait between attempts.
//!
//! One task determines it with the cheapest request available. An unanswered request of any kind
//! only triggers a check: a single list that exceeds its timeout is no outage.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Reachability of the API server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiReach {
    reached: watch::Sender<bool>,
    check_requests: Arc<Notify>,
}

// === impl ApiReach ===

impl Default for ApiReach {
    /// Creates the state. The API server counts as reachable until a check fails.
    fn default() -> Self {
        Self { reached: watch::channel(true).0, check_requests: Arc::default() }
    }
}

impl ApiReach {
    /// Records a successful check.
    pub fn on_answer(&self) {
        if self.reached.send_if_modified(|reached| !std::mem::replace(reached, true)) {
            tracing::info!("the API server is reachable again");
        }
    }

    /// Records a failed check.
    pub fn on_failure(&self, error: &dyn fmt::Display) {
        if self.reached.send_if_modified(|reached| std::mem::replace(reached, false)) {
            tracing::warn!(%error, "the API server is unreachable; the last known state stays in force");
        }
    }

    /// Requests a check after an unanswered request.
    pub fn request_check(&self) {
        self.check_requests.notify_one();
    }

    /// Waits for a request for a check.
    pub async fn wait_for_check_request(&self) {
        self.check_requests.notified().await;
    }

    /// Returns a receiver of the current state and its changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.reached.subscribe()
    }

    /// Waits until the API server is reachable again after an outage.
    pub async fn wait_for_return(&self) {
        let mut reached = self.reached.subscribe();
        // The sender is part of `self`, so the channel stays open.
        reached.wait_for(|reached| !*reached).await.ok();
        reached.wait_for(|reached| *reached).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_waiter_is_woken_by_an_answer_only_after_a_failure() {
        let reach = ApiReach::default();
        let mut waiting = std::pin::pin!(reach.wait_for_return());
        reach.on_answer();
        reach.request_check();
        assert_eq!(waiting.as_mut().now_or_never(), None, "nothing was lost");
        reach.on_failure(&"refused");
        reach.on_failure(&"refused");
        assert_eq!(waiting.as_mut().now_or_never(), None);
        reach.on_answer();
        assert_eq!(waiting.as_mut().now_or_never(), Some(()));
        reach.wait_for_check_request().await;
    }
}
