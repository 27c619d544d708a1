//! The end of the drain: whoever still waits for an answer is told so, all at once.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

/// Ends waits once and for good.
#[derive(Debug, Default)]
pub(super) struct Cut {
    done: AtomicBool,
    told: Notify,
}

// === impl Cut ===

impl Cut {
    /// Ends every wait, also those that begin later.
    pub(super) fn now(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// Whether waits are over.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Resolves when waits are over.
    pub(super) async fn over(&self) {
        self.end(std::future::pending::<()>()).await;
    }

    /// What `work` gives, unless it is ended first.
    pub(super) async fn end<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut told = pin!(self.told.notified());
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            // Registered before the look at `done`, so that no end falls between the two.
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
        let cut = Cut::default();
        let waiting = cut.end(std::future::pending::<()>());
        let (waited, ()) = tokio::join!(waiting, async { cut.now() });
        assert_eq!(waited, None);
        assert_eq!(cut.end(std::future::pending::<()>()).await, None);
        assert_eq!(cut.end(std::future::ready(1)).await, Some(1));
    }
}
