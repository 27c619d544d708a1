//! The pretended model: slots, a bounded first-come queue before them, and t(n) in a slot: a + b·n, or another shape. Curve and slots can be changed while it runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    curve: Mutex<Curve>,
    queue_max: usize,
    slots: Semaphore,
    count: Mutex<Count>,
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

/// t(n).
#[derive(Debug, Clone, Copy)]
struct Curve {
    base: Duration,
    per_item: Duration,
    shape: Shape,
}

/// How many slots there are to be.
#[derive(Debug)]
struct Count {
    slots: usize,
    /// Slots that were taken away while in use: they go when they are given back.
    owed: usize,
}

/// A slot in use, until dropped.
struct Slot<'a> {
    model: &'a Model,
    permit: Option<SemaphorePermit<'a>>,
}

/// Counts a call among the waiting ones until dropped.
struct Waiting<'a>(&'a AtomicUsize);

// === impl Model ===

impl Model {
    pub(crate) fn new(base: Duration, per_item: Duration, slots: usize, queue_max: usize) -> Self {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            curve: Mutex::new(Curve { base, per_item, shape: Shape::Line }),
            queue_max,
            slots: Semaphore::new(slots),
            count: Mutex::new(Count { slots, owed: 0 }),
            waiting: AtomicUsize::new(0),
            timers: Mutex::new(Vec::new()),
        }
    }

    /// The same, of another shape.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        self.curve().shape = shape;
        self
    }

    /// How long a call of `items` items holds its slot, which may have a base of its own.
    pub(crate) fn cost(&self, items: usize, base: Option<Duration>) -> Duration {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let Curve { base: usual, per_item, shape } = *self.curve();
        let base = base.unwrap_or(usual);
        match shape {
            Shape::Line => base + per_item * items,
            Shape::NextPow2 => base + per_item * items.checked_next_power_of_two().unwrap_or(u32::MAX),
            Shape::Knee { items: knee, beyond } => {
                base + per_item * items.min(knee) + beyond * items.saturating_sub(knee)
            }
        }
    }

    /// Another curve of the same shape, for what starts from now on.
    pub(crate) fn set_curve(&self, base: Duration, per_item: Duration) {
        let mut curve = self.curve();
        (curve.base, curve.per_item) = (base, per_item);
    }

    fn curve(&self) -> MutexGuard<'_, Curve> {
        self.curve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another number of slots. What is being computed goes on.
    pub(crate) fn set_slots(&self, slots: usize) {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        let mut count = self.count();
        if slots < count.slots {
            let fewer = count.slots - slots;
            count.owed += fewer - self.slots.forget_permits(fewer);
        } else {
            let more = slots - count.slots;
            let kept = more.min(count.owed);
            count.owed -= kept;
            self.slots.add_permits(more - kept);
        }
        count.slots = slots;
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot and holds it for the cost of `items`. A dropped future gives slot or place back at once.
    pub(crate) async fn run(&self, items: usize) -> Result<(), NotRun> {
        self.run_as(items, None).await
    }

    /// The same for a call with a base of its own.
    pub(crate) async fn run_as(&self, items: usize, base: Option<Duration>) -> Result<(), NotRun> {
        let _slot = self.slot().await?;
        self.sleep(self.cost(items, base)).await
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

    #[cfg(test)]
    pub(super) fn slots_free(&self) -> usize {
        self.slots.available_permits()
    }

    async fn slot(&self) -> Result<Slot<'_>, NotRun> {
        // The semaphore is fair: while calls wait none is free, so nobody overtakes here.
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(Slot { model: self, permit: Some(permit) });
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(NotRun::QueueFull);
        }
        let _waiting = Waiting(&self.waiting);
        let permit = self.slots.acquire().await.map_err(|_closed| NotRun::QueueFull)?;
        Ok(Slot { model: self, permit: Some(permit) })
    }
}

// === impl Slot ===

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut count = self.model.count();
        let Some(permit) = self.permit.take() else { return };
        if count.owed > 0 {
            count.owed -= 1;
            permit.forget();
        }
    }
}

// === impl Waiting ===

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
