//! The simulated model: slots behind a bounded FIFO queue, and the time t(n) for which a call holds
//! its slot, a + b·n or another shape. The curve and the slots can be changed at run time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::time::Timer;

/// Shape of the cost curve: the time for which a call of n items holds its slot, where a is the
/// fixed cost and b the cost of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CurveShape {
    /// a + b·n.
    #[default]
    Linear,
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
pub(crate) struct SimulatedModel {
    curve: Mutex<LatencyCurve>,
    queue_max: usize,
    slots: Semaphore,
    count: Mutex<SlotCount>,
    waiting: AtomicUsize,
    /// Timers that no slot is using.
    timers: Mutex<Vec<Timer>>,
}

/// Reason for which a call was not run.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The maximum number of calls is already waiting.
    QueueFull,
    /// No timer could be created.
    NoTimer,
}

/// Parameters of t(n).
#[derive(Debug, Clone, Copy)]
struct LatencyCurve {
    base: Duration,
    per_item: Duration,
    shape: CurveShape,
}

/// Target number of slots.
#[derive(Debug)]
struct SlotCount {
    slots: usize,
    /// Number of slots to remove that are still in use. Each is removed when it is released.
    to_remove: usize,
}

/// Guard of a slot in use.
struct SlotGuard<'a> {
    model: &'a SimulatedModel,
    permit: Option<SemaphorePermit<'a>>,
}

/// Guard that counts a call as waiting until it is dropped.
struct WaitingGuard<'a>(&'a AtomicUsize);

// === impl SimulatedModel ===

impl SimulatedModel {
    pub(crate) fn new(base: Duration, per_item: Duration, slots: usize, queue_max: usize) -> Self {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            curve: Mutex::new(LatencyCurve { base, per_item, shape: CurveShape::Linear }),
            queue_max,
            slots: Semaphore::new(slots),
            count: Mutex::new(SlotCount { slots, to_remove: 0 }),
            waiting: AtomicUsize::new(0),
            timers: Mutex::new(Vec::new()),
        }
    }

    /// Sets the shape of the cost curve.
    pub(crate) fn with_shape(self, shape: CurveShape) -> Self {
        self.curve().shape = shape;
        self
    }

    /// Returns the time for which a call of `items` items holds its slot. `base` replaces the fixed
    /// cost.
    pub(crate) fn cost(&self, items: usize, base: Option<Duration>) -> Duration {
        let items = u32::try_from(items).unwrap_or(u32::MAX);
        let LatencyCurve { base: usual, per_item, shape } = *self.curve();
        let base = base.unwrap_or(usual);
        match shape {
            CurveShape::Linear => base + per_item * items,
            CurveShape::NextPow2 => base + per_item * items.checked_next_power_of_two().unwrap_or(u32::MAX),
            CurveShape::Knee { items: knee, beyond } => {
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

    fn curve(&self) -> MutexGuard<'_, LatencyCurve> {
        self.curve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the number of slots. Running computations are not interrupted.
    pub(crate) fn set_slots(&self, slots: usize) {
        let slots = slots.clamp(1, Semaphore::MAX_PERMITS);
        let mut count = self.count();
        if slots < count.slots {
            let fewer = count.slots - slots;
            count.to_remove += fewer - self.slots.forget_permits(fewer);
        } else {
            let more = slots - count.slots;
            let retained = more.min(count.to_remove);
            count.to_remove -= retained;
            self.slots.add_permits(more - retained);
        }
        count.slots = slots;
    }

    fn count(&self) -> MutexGuard<'_, SlotCount> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot and holds it for the cost of `items`. Dropping the future releases the slot
    /// or the place in the queue immediately.
    pub(crate) async fn run(&self, items: usize) -> Result<(), RunError> {
        self.run_with_base(items, None).await
    }

    /// Like [`Self::run`], for a call with its own fixed cost.
    pub(crate) async fn run_with_base(&self, items: usize, base: Option<Duration>) -> Result<(), RunError> {
        let _slot = self.acquire_slot().await?;
        self.compute_for(self.cost(items, base)).await
    }

    /// Simulates a computation of duration `span` that needs no slot.
    pub(crate) async fn compute_for(&self, span: Duration) -> Result<(), RunError> {
        let free = self.timers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut timer = match free {
            Some(timer) => timer,
            None => Timer::new().map_err(|_| RunError::NoTimer)?,
        };
        timer.sleep(span).await.map_err(|_| RunError::NoTimer)?;
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).push(timer);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn slots_free(&self) -> usize {
        self.slots.available_permits()
    }

    async fn acquire_slot(&self) -> Result<SlotGuard<'_>, RunError> {
        // The semaphore is fair: while calls wait, no permit is available, so this call cannot
        // overtake them.
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(SlotGuard { model: self, permit: Some(permit) });
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(RunError::QueueFull);
        }
        let _waiting = WaitingGuard(&self.waiting);
        let permit = self.slots.acquire().await.map_err(|_closed| RunError::QueueFull)?;
        Ok(SlotGuard { model: self, permit: Some(permit) })
    }
}

// === impl SlotGuard ===

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let mut count = self.model.count();
        let Some(permit) = self.permit.take() else { return };
        if count.to_remove > 0 {
            count.to_remove -= 1;
            permit.forget();
        }
    }
}

// === impl WaitingGuard ===

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
