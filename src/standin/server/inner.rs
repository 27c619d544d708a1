//! A model that batches by itself, as TEI does: a front end of one thread, then iterations that take everything queued.
//!
//! What it leaves out: weights; an iteration is bounded by its items alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::model::{Model, NotRun};

/// How a server batches by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inner {
    /// The front end's time for a call.
    pub front: Duration,
    /// And for each item of it.
    pub front_item: Duration,
    /// Most items in an iteration.
    pub items_max: usize,
    /// Most items inside; a call that would pass it is refused.
    pub inside_max: usize,
}

/// The engine behind the front end.
#[derive(Debug)]
pub(crate) struct Engine {
    inner: Inner,
    shared: Arc<Shared>,
    /// Works through the queue; begun with the first call, as there is a runtime then.
    worker: OnceLock<JoinHandle<()>>,
    front: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    model: Arc<Model>,
    items_max: usize,
    queue: Mutex<Queue>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Items of a call that no iteration has taken, and whom to tell when they are done.
    waiting: VecDeque<(usize, oneshot::Sender<()>)>,
    inside: usize,
}

/// Items that are inside until this is dropped.
struct Inside<'a>(&'a Shared, usize);

// === impl Engine ===

impl Engine {
    /// Iterations cost what calls of `model` do.
    pub(crate) fn new(model: Arc<Model>, inner: Inner) -> Self {
        let shared = Shared { model, items_max: inner.items_max.max(1), queue: Mutex::default(), came: Notify::new() };
        Self { inner, shared: Arc::new(shared), worker: OnceLock::new(), front: tokio::sync::Mutex::new(()) }
    }

    pub(crate) async fn run(&self, items: usize) -> Result<(), NotRun> {
        self.worker.get_or_init(|| tokio::spawn(work(Arc::clone(&self.shared))));
        {
            let mut queue = self.shared.queue();
            if queue.inside + items > self.inner.inside_max {
                return Err(NotRun::QueueFull);
            }
            queue.inside += items;
        }
        let _inside = Inside(&self.shared, items);
        {
            let _front = self.front.lock().await;
            let span = self.inner.front + self.inner.front_item * u32::try_from(items).unwrap_or(u32::MAX);
            self.shared.model.sleep(span).await?;
        }
        let (done, wait) = oneshot::channel();
        self.shared.queue().waiting.push_back((items, done));
        self.shared.came.notify_one();
        wait.await.map_err(|_gone| NotRun::NoTimer)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.get() {
            worker.abort();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Items for an iteration, and the calls that are done with it. A call larger than what is left goes on in the next.
    fn take(&self) -> (usize, Vec<oneshot::Sender<()>>) {
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

// === impl Inside ===

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.queue().inside -= self.1;
    }
}

async fn work(shared: Arc<Shared>) {
    loop {
        let (items, done) = shared.take();
        if items == 0 {
            shared.came.notified().await;
            continue;
        }
        if shared.model.run(items).await.is_err() {
            return;
        }
        // Whoever has gone needs no word.
        for done in done {
            done.send(()).ok();
        }
    }
}
