//! A model server that batches internally, as TEI does: a single-threaded front end, followed by
//! iterations that process all queued items.
//!
//! Weights are not simulated. Only the number of items bounds an iteration.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::model::{RunError, SimulatedModel};

/// Internal batching of a model server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InternalBatching {
    /// Time that the front end takes for each call.
    pub front: Duration,
    /// Additional time that the front end takes for each item of a call.
    pub front_item: Duration,
    /// Maximum number of items in an iteration.
    pub items_max: usize,
    /// Maximum number of items in the server. A call that would exceed it is refused.
    pub admitted_items_max: usize,
}

/// The engine behind the front end.
#[derive(Debug)]
pub(crate) struct Engine {
    inner: InternalBatching,
    shared: Arc<EngineState>,
    /// Task that processes the queue. It is spawned by the first call, because `new` may run
    /// outside a runtime.
    worker: OnceLock<JoinHandle<()>>,
    front: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct EngineState {
    model: Arc<SimulatedModel>,
    items_max: usize,
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Number of items of each call that no iteration has taken yet, and the channel that signals
    /// their completion.
    waiting: VecDeque<(usize, oneshot::Sender<()>)>,
    inside: usize,
}

/// Guard that counts items as inside the server until it is dropped.
struct AdmissionGuard<'a>(&'a EngineState, usize);

// === impl Engine ===

impl Engine {
    /// Creates an engine. Its iterations cost as much as calls of `model`.
    pub(crate) fn new(model: Arc<SimulatedModel>, inner: InternalBatching) -> Self {
        let shared =
            EngineState { model, items_max: inner.items_max.max(1), queue: Mutex::default(), arrived: Notify::new() };
        Self { inner, shared: Arc::new(shared), worker: OnceLock::new(), front: tokio::sync::Mutex::new(()) }
    }

    pub(crate) async fn run(&self, items: usize) -> Result<(), RunError> {
        self.worker.get_or_init(|| tokio::spawn(run_iterations(Arc::clone(&self.shared))));
        {
            let mut queue = self.shared.queue();
            if queue.inside + items > self.inner.admitted_items_max {
                return Err(RunError::QueueFull);
            }
            queue.inside += items;
        }
        let _inside = AdmissionGuard(&self.shared, items);
        {
            let _front = self.front.lock().await;
            let span = self.inner.front + self.inner.front_item * u32::try_from(items).unwrap_or(u32::MAX);
            self.shared.model.compute_for(span).await?;
        }
        let (done, wait) = oneshot::channel();
        self.shared.queue().waiting.push_back((items, done));
        self.shared.arrived.notify_one();
        wait.await.map_err(|_gone| RunError::NoTimer)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.get() {
            worker.abort();
        }
    }
}

// === impl EngineState ===

impl EngineState {
    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the items of the next iteration, and returns their number and the calls that it
    /// completes. A call with more items than the iteration has room for continues in the next
    /// iteration.
    fn take_iteration(&self) -> (usize, Vec<oneshot::Sender<()>>) {
        let mut queue = self.queue();
        let (mut taken, mut done) = (0, Vec::new());
        while let Some((items, _)) = queue.waiting.front_mut() {
            let part = (*items).min(self.items_max - taken);
            taken += part;
            *items -= part;
            if *items > 0 {
                break;
            }
            done.extend(queue.waiting.pop_front().map(|(_, done)| done));
        }
        (taken, done)
    }
}

// === impl AdmissionGuard ===

impl Drop for AdmissionGuard<'_> {
    fn drop(&mut self) {
        self.0.queue().inside -= self.1;
    }
}

async fn run_iterations(shared: Arc<EngineState>) {
    loop {
        let (items, done) = shared.take_iteration();
        if items == 0 {
            shared.arrived.notified().await;
            continue;
        }
        if shared.model.run(items).await.is_err() {
            return;
        }
        // An error means that the call was cancelled, which needs no completion.
        for done in done {
            done.send(()).ok();
        }
    }
}
