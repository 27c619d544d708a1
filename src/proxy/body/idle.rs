//! The idle timeout of bodies.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

/// An idle timer that ends a body in which nothing moved for too long.
#[derive(Debug)]
pub(super) struct IdleTimer {
    limit: Duration,
    /// Created at the first wait, because most bodies are available at once.
    sleep: Option<Pin<Box<Sleep>>>,
    armed: bool,
    other: Option<ActivityFlag>,
}

/// An activity flag that two bodies share: that of the request and that of the response.
#[derive(Debug, Clone, Default)]
pub struct ActivityFlag(Arc<ActivityState>);

#[derive(Debug, Default)]
struct ActivityState {
    moved: AtomicBool,
    /// The request body was taken to its end.
    uploaded: AtomicBool,
}

/// The error for an exceeded idle timeout.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("body idle for too long")]
pub struct BodyIdleError;

// === impl ActivityFlag ===

impl ActivityFlag {
    /// Records activity.
    pub fn set(&self) {
        self.0.moved.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if there was activity since the previous call.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.moved.swap(false, Ordering::Relaxed)
    }

    /// Returns `true` if the request body was taken to its end. From then on no activity is
    /// required until the response begins.
    #[must_use]
    pub fn is_uploaded(&self) -> bool {
        self.0.uploaded.load(Ordering::Relaxed)
    }

    pub(super) fn set_uploaded(&self, uploaded: bool) {
        self.0.uploaded.store(uploaded, Ordering::Relaxed);
    }
}

// === impl IdleTimer ===

impl IdleTimer {
    pub(super) const fn new(limit: Duration, other: Option<ActivityFlag>) -> Self {
        Self { limit, sleep: None, armed: false, other }
    }

    /// Records activity: the timeout starts anew at the next wait.
    pub(super) fn on_activity(&mut self) {
        self.armed = false;
        if let Some(other) = &self.other {
            other.set();
        }
    }

    /// Resolves if there was no activity, in either body, for the whole timeout.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let limit = self.limit;
            let armed = std::mem::replace(&mut self.armed, true);
            let sleep = match &mut self.sleep {
                Some(sleep) if armed => sleep,
                Some(sleep) => {
                    sleep.as_mut().reset(tokio::time::sleep(limit).deadline());
                    sleep
                }
                none => none.insert(Box::pin(tokio::time::sleep(limit))),
            };
            ready!(sleep.as_mut().poll(cx));
            if !self.other.as_ref().is_some_and(ActivityFlag::take) {
                return Poll::Ready(());
            }
            self.armed = false;
        }
    }
}
