//! A pool of threads that runs independent jobs and yields their results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Number of jobs that run concurrently. A run of a day takes 2 GB, so it does not follow the
/// number of cores.
const WORKERS: usize = 2;

/// Runs the jobs, two at a time, and passes each result to `consume` once all before it were. Equal
/// jobs therefore give equal output.
pub fn run_in_order<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync, mut consume: impl FnMut(R)) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = sync_channel(WORKERS);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (sender, next, run) = (sender.clone(), &next, &run);
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(place) else { return };
                    if sender.send((place, run(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (place, result) in receiver {
            early.insert(place, result);
            while let Some(result) = early.remove(&due) {
                due += 1;
                consume(result);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_consumed_in_the_order_of_their_jobs() {
        // The first jobs take longest, so that later ones end before them.
        let jobs: Vec<u64> = (0..50).collect();
        let mut results = Vec::new();
        let slow = |job: &u64| (0..(50 - job) * 1000).fold(*job, |sum, _| std::hint::black_box(sum));
        run_in_order(&jobs, slow, |result| results.push(result));
        assert_eq!(results, jobs);
    }
}
