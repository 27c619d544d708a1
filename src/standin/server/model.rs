//! The simulated model: slots behind a bounded FIFO queue, and the time t(n) for which a call holds
//! its slot, a + b·n or another shape. The curve and the slots can be changed at run time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::standin::time::Timer;

/// Shape of the cost curve: the time for which a call of n items holds its slot, where a is the
/// fixed cost and b the cost of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// a + b·n.
    #[default]
    Line,
    /// a + b·(next power of two of n), as with compiled shapes.
    NextPow2,
    /// a + b·n up to a number of items, and a higher cost for each further item, as with a model
    /// that thrashes.
    Knee {
        /// Maximum number of items that cost b each.
        items: u32,
        /// Cost of each item above that number.
        beyond: Duration,
    },
}

/// Slots, queue and cost curve of a simulated model.
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

/// Reason for which a call was not run.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// The maximum number of calls is already waiting.
    QueueFull,
    /// No timer could be created.
    NoTimer,
}

/// Parameters of t(n).
#[derive(Debug, Clone, Copy)]
struct Curve {
    base: Duration,
    per_item: Duration,
    shape: Shape,
}

/// Target number of slots.
#[derive(Debug)]
struct Count {
    slots: usize,
    /// Number of slots to remove that are still in use. Each is removed when it is released.
    owed: usize,
}

/// Guard of a slot in use.
struct Slot<'a> {
    model: &'a Model,
    permit: Option<SemaphorePermit<'a>>,
}

/// Guard that counts a call as waiting until it is dropped.
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

    /// Sets the shape of the cost curve.
    pub(crate) fn shaped(self, shape: Shape) -> Self {
        self.curve().shape = shape;
        self
    }

    /// Returns the time for which a call of `items` items holds its slot. `base` replaces the fixed
    /// cost.
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

    /// Replaces the parameters of the curve, but not its shape, for executions that start from now
    /// on.
    pub(crate) fn set_curve(&self, base: Duration, per_item: Duration) {
        let mut curve = self.curve();
        (curve.base, curve.per_item) = (base, per_item);
    }

    fn curve(&self) -> MutexGuard<'_, Curve> {
        self.curve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the number of slots. Running computations are not interrupted.
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

    /// Waits for a slot and holds it for the cost of `items`. Dropping the future releases the slot
    /// or the place in the queue immediately.
    pub(crate) async fn run(&self, items: usize) -> Result<(), NotRun> {
        self.run_as(items, None).await
    }

    /// Like [`Self::run`], for a call with its own fixed cost.
    pub(crate) async fn run_as(&self, items: usize, base: Option<Duration>) -> Result<(), NotRun> {
        let _slot = self.slot().await?;
        self.sleep(self.cost(items, base)).await
    }

    /// Simulates a computation of duration `span` that needs no slot.
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
        // The semaphore is fair: while calls wait, no permit is available, so this call cannot
        // overtake them.
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
