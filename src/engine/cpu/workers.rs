//! Threads that run the tasks of a forward pass.

use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// A pool of threads. One thread needs none: its tasks are run by the caller.
#[derive(Debug)]
pub(super) struct WorkerPool {
    pool: Option<ThreadPool>,
    threads: usize,
}

// === impl WorkerPool ===

impl WorkerPool {
    /// # Errors
    /// The threads cannot be started.
    pub(super) fn new(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let build = || ThreadPoolBuilder::new().num_threads(threads).thread_name(|at| format!("engine-{at}")).build();
        let pool = (threads > 1).then(build).transpose()?;
        Ok(Self { pool, threads: threads.max(1) })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs tasks by their numbers from 0, in any order and concurrently. The second argument of the
    /// task is the number of the worker that runs it, below [`Self::threads`].
    pub(super) fn run(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => pool.install(|| {
                (0..tasks).into_par_iter().for_each(|at| task(at, rayon::current_thread_index().unwrap_or_default()));
            }),
            _ => (0..tasks).for_each(|at| task(at, 0)),
        }
    }

    /// Runs a closure on one of the threads, so that tasks within it begin without a switch of
    /// threads.
    pub(super) fn enter<R: Send>(&self, run: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(run),
            None => run(),
        }
    }
}
