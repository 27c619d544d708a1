//! The end of a body in which nothing moves.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;

/// Ends a stream in which nothing moved for too long.
#[derive(Debug)]
pub(super) struct Idle {
    limit: Duration,
    /// Made at the first wait: most bodies are there at once.
    sleep: Option<Pin<Box<Sleep>>>,
    armed: bool,
    other: Option<Moved>,
}

/// A sign of life that two bodies share: the request's and the answer's.
#[derive(Debug, Clone, Default)]
pub struct Moved(Arc<MoveSigns>);

#[derive(Debug, Default)]
struct MoveSigns {
    moved: AtomicBool,
    /// The request has been taken to its end.
    uploaded: AtomicBool,
}

/// Nothing moved for too long.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("body idle for too long")]
pub struct BodyIdle;

// === impl Moved ===

impl Moved {
    /// Something moved.
    pub fn set(&self) {
        self.0.moved.store(true, Ordering::Relaxed);
    }

    /// Whether something moved since the last look.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.moved.swap(false, Ordering::Relaxed)
    }

    /// Whether the request has been taken to its end: from then on nothing has to move until the
    /// answer begins.
    #[must_use]
    pub fn is_uploaded(&self) -> bool {
        self.0.uploaded.load(Ordering::Relaxed)
    }

    pub(super) fn set_uploaded(&self, uploaded: bool) {
        self.0.uploaded.store(uploaded, Ordering::Relaxed);
    }
}

// === impl Idle ===

impl Idle {
    pub(super) const fn new(limit: Duration, other: Option<Moved>) -> Self {
        Self { limit, sleep: None, armed: false, other }
    }

    /// Something moved: the time begins anew at the next wait.
    pub(super) fn moved(&mut self) {
        self.armed = false;
        if let Some(other) = &self.other {
            other.set();
        }
    }

    /// Ready when nothing moved, here or there, for the whole limit.
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
            if !self.other.as_ref().is_some_and(Moved::take) {
                return Poll::Ready(());
            }
            self.armed = false;
        }
    }
}
