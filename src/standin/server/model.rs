//! The pretended model: slots, a bounded first-come queue before them, and t(n) in a slot: a + b·n, or another shape.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::standin::time::Timer;

/// What a call of n items holds its slot for, a being the base and b the time of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// a + b·n.
    #[default]
    Line,
    /// a + b·(the next power of two): compiled shapes.
    NextPow2,
    /// a + b·n, and this for each item past so many: what thrashes.
    Knee {
        /// Items up to which b holds.
        items: u32,
        /// Of an item past them.
        beyond: Duration,
    },
}

/// Slots, queue and cost of a pretended model.
#[derive(Debug)]
pub(crate) struct Model {
    base: Duration,
    per_item: Duration,
    shape: Shape,
    queue_max: usize,
    slots: Semaphore,
    waiting: AtomicUsize,
    /// Timers that no slot is using.
    timers: Mutex<Vec<Timer>>,
}

/// Why a call was not run.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// As many calls wait as may.
    QueueFull,
    /// There is no timer to be had.
    NoTimer,
}

/// Counts a call among the waiting ones until dropped.
struct Waiting<'a>(&'a AtomicUsize);

// === impl Model ===

impl Model {
    pub(crate) fn new(base: Duration, per_item: Duration, slots: usize, queue_max: usize) -> Self {
        Self {
            base,
            per_item,
            shape: Shape::Line,
            queue_max,
            slots: Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS)),
            waiting: AtomicUsize::new(0),
            timers: Mutex::new(Vec::new()),
        }
    }

    /// The same, of another shape.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// How long a call of `items` items holds its slot.
    pub(crate) fn cost(&self, items: usize) -> Duration {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        match self.shape {
            Shape::Line => self.base + self.per_item * items,
            Shape::NextPow2 => self.base + self.per_item * items.checked_next_power_of_two().unwrap_or(u32::MAX),
            Shape::Knee { items: knee, beyond } => {
                self.base + self.per_item * items.min(knee) + beyond * items.saturating_sub(knee)
            }
        }
    }

    /// Waits for a slot and holds it for the cost of `items`. A dropped future gives slot or place back at once.
    pub(crate) async fn run(&self, items: usize) -> Result<(), NotRun> {
        let _slot = self.slot().await?;
        self.sleep(self.cost(items)).await
    }

    /// Computes for so long, on no slot.
    pub(crate) async fn sleep(&self, span: Duration) -> Result<(), NotRun> {
        let free = self.timers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut timer = match free {
            Some(timer) => timer,
            None => Timer::new().map_err(|_| NotRun::NoTimer)?,
        };
        timer.sleep(span).await.map_err(|_| NotRun::NoTimer)?;
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).push(timer);
        Ok(())
    }

    async fn slot(&self) -> Result<SemaphorePermit<'_>, NotRun> {
        // The semaphore is fair: while calls wait none is free, so nobody overtakes here.
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(slot);
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(NotRun::QueueFull);
        }
        let _waiting = Waiting(&self.waiting);
        self.slots.acquire().await.map_err(|_closed| NotRun::QueueFull)
    }
}

// === impl Waiting ===

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
