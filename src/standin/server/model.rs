//! The pretended model: slots, a bounded first-come queue before them, and t(n) = a + b·n in a slot. Curve and slots can be changed while it runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::standin::time::Timer;

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

/// The a and b of t(n) = a + b·n.
#[derive(Debug, Clone, Copy)]
struct Curve {
    base: Duration,
    per_item: Duration,
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
            curve: Mutex::new(Curve { base, per_item }),
            queue_max,
            slots: Semaphore::new(slots),
            count: Mutex::new(Count { slots, owed: 0 }),
            waiting: AtomicUsize::new(0),
            timers: Mutex::new(Vec::new()),
        }
    }

    /// How long a call of `items` items holds its slot.
    pub(crate) fn cost(&self, items: usize) -> Duration {
        let Curve { base, per_item } = *self.curve.lock().unwrap_or_else(PoisonError::into_inner);
        base + per_item * u32::try_from(items).unwrap_or(u32::MAX)
    }

    /// Another curve, for what starts from now on.
    pub(crate) fn set_curve(&self, base: Duration, per_item: Duration) {
        *self.curve.lock().unwrap_or_else(PoisonError::into_inner) = Curve { base, per_item };
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
        let _slot = self.slot().await?;
        let free = self.timers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut timer = match free {
            Some(timer) => timer,
            None => Timer::new().map_err(|_| NotRun::NoTimer)?,
        };
        timer.sleep(self.cost(items)).await.map_err(|_| NotRun::NoTimer)?;
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).push(timer);
        Ok(())
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
