//! The cancellation token of the drain: ends all waiting calls at once when the drain limit is
//! reached.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

/// A cancellation token that is triggered once and never reset.
#[derive(Debug, Default)]
pub(super) struct CancellationToken {
    done: AtomicBool,
    told: Notify,
}

// === impl CancellationToken ===

impl CancellationToken {
    /// Cancels all waits, including later ones.
    pub(super) fn now(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// Returns `true` if the token is cancelled.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Resolves when the token is cancelled.
    pub(super) async fn over(&self) {
        self.end(std::future::pending::<()>()).await;
    }

    /// Runs `work` to completion, or returns `None` if the token is cancelled first.
    pub(super) async fn end<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut told = pin!(self.told.notified());
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            // Registered before `done` is read, so that a cancellation between the two is not
            // missed.
            let told = told.as_mut().poll(cx).is_ready();
            if told || self.done.load(Ordering::SeqCst) { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_end_at_once_and_work_that_is_done_does_not() {
        let cut = CancellationToken::default();
        let waiting = cut.end(std::future::pending::<()>());
        let (waited, ()) = tokio::join!(waiting, async { cut.now() });
        assert_eq!(waited, None);
        assert_eq!(cut.end(std::future::pending::<()>()).await, None);
        assert_eq!(cut.end(std::future::ready(1)).await, Some(1));
    }
}
