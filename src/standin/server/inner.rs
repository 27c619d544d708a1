//! A batcher inside the stand-in: whatever waits when the model is free is computed together, as text-embeddings-inference and its like do.
//!
//! A call first passes a front end that does one after the other, as a tokeniser does, beside the model. Then a round takes what waits, up to so many
//! items, has the model compute it in one go and answers everybody in it. Nothing runs while nothing waits, and a caller that leaves while it waits is not
//! computed. It leaves out delays: a lone call on a free model starts at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::model::{Model, NotRun};
use crate::standin::time::Timer;

/// How a stand-in batches by itself.
#[derive(Debug, Clone, Copy)]
pub struct InnerConfig {
    /// Items computed together at most.
    pub items_max: usize,
    /// The front end's time for a call.
    pub front: Duration,
    /// And for each item of it.
    pub front_item: Duration,
}

/// The calls that wait, and the rounds that take them.
#[derive(Debug)]
pub(super) struct Inner {
    model: Arc<Model>,
    config: InnerConfig,
    /// The front end, which is fair.
    front: tokio::sync::Mutex<Option<Timer>>,
    /// Rounds at once: the model's slots.
    rounds_max: usize,
    queue_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    rounds: usize,
}

#[derive(Debug)]
struct Waiting {
    items: usize,
    done: oneshot::Sender<bool>,
}

// === impl Inner ===

impl Inner {
    pub(super) fn new(model: Arc<Model>, config: InnerConfig, rounds_max: usize, queue_max: usize) -> Self {
        let (front, state) = (tokio::sync::Mutex::new(None), Mutex::default());
        Self { model, config, front, rounds_max: rounds_max.max(1), queue_max, state }
    }

    /// Waits until a round has computed these items.
    pub(super) async fn run(self: &Arc<Self>, items: usize) -> Result<(), NotRun> {
        self.prepare(items).await?;
        let (done, computed) = oneshot::channel();
        {
            let mut state = self.state();
            if state.waiting.len() >= self.queue_max {
                return Err(NotRun::QueueFull);
            }
            state.waiting.push_back(Waiting { items, done });
            if state.rounds < self.rounds_max {
                state.rounds += 1;
                tokio::spawn(Arc::clone(self).rounds());
            }
        }
        if computed.await == Ok(true) { Ok(()) } else { Err(NotRun::NoTimer) }
    }

    async fn prepare(&self, items: usize) -> Result<(), NotRun> {
        let span = self.config.front + self.config.front_item * u32::try_from(items).unwrap_or(u32::MAX);
        if span.is_zero() {
            return Ok(());
        }
        let mut front = self.front.lock().await;
        let timer = match front.as_mut() {
            Some(timer) => timer,
            None => front.insert(Timer::new().map_err(|_| NotRun::NoTimer)?),
        };
        timer.sleep(span).await.map_err(|_| NotRun::NoTimer)
    }

    /// One round after the other, until nothing waits.
    async fn rounds(self: Arc<Self>) {
        loop {
            let batch = self.take();
            if batch.is_empty() {
                return;
            }
            let items = batch.iter().map(|call| call.items).sum();
            let computed = self.model.run(items).await.is_ok();
            for call in batch {
                // It may have left meanwhile.
                call.done.send(computed).ok();
            }
        }
    }

    /// What is computed next; nothing: the round is over, and the next call starts one.
    fn take(&self) -> Vec<Waiting> {
        let mut state = self.state();
        let (mut batch, mut items) = (Vec::new(), 0);
        while let Some(next) = state.waiting.pop_front() {
            if next.done.is_closed() {
                continue;
            }
            if !batch.is_empty() && items + next.items > self.config.items_max {
                state.waiting.push_front(next);
                break;
            }
            items += next.items;
            batch.push(next);
        }
        if batch.is_empty() {
            state.rounds -= 1;
        }
        batch
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
