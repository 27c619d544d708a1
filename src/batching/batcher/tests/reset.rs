//! Tests of a server that is replaced under load.

use std::collections::VecDeque;

use super::*;

/// Service time of a lone call in nanoseconds, and of each further item of a batch, as a part of it.
const LONE: u64 = 20_000_000;
const ITEM_PARTS: u64 = 20;

/// Clients that call again once they are answered, in front of a server that runs this many
/// requests at once.
struct ClosedLoop {
    batcher: Batcher,
    workers: usize,
    /// Batches at the server, with the instant of their dispatch.
    waiting: VecDeque<(Tick, Batch)>,
    /// The same with the instant of their end.
    running: Vec<(Tick, Tick, Batch)>,
    calls: u64,
    now: Tick,
}

impl ClosedLoop {
    fn new(workers: usize, callers: u64) -> Self {
        let adaptive = limits(|l| (l.policy, l.slots) = (DispatchPolicy::Adaptive { hold_permille: 0 }, 256));
        let batcher = Batcher::new(adaptive, 0);
        let mut clients =
            Self { batcher, workers, waiting: VecDeque::new(), running: Vec::new(), calls: 0, now: Tick(0) };
        (0..callers).for_each(|_| clients.call());
        clients
    }

    fn call(&mut self) {
        self.calls += 1;
        self.batcher.enqueue(self.now, call(self.calls)).unwrap();
    }

    /// Dispatches what may leave, and starts what the server has room for.
    fn send(&mut self) {
        while let Some(decision) = self.batcher.poll(self.now) {
            let Decision::Dispatch(batch) = decision else { panic!("unexpected {decision:?}") };
            self.waiting.push_back((self.now, batch));
        }
        while self.running.len() < self.workers {
            let Some((sent, batch)) = self.waiting.pop_front() else { break };
            let takes = LONE + LONE / ITEM_PARTS * u64::from(batch.items - 1) + batch.id.0 % 7 * 50_000;
            self.running.push((Tick(self.now.0 + takes), sent, batch));
        }
    }

    /// Runs for this long and returns the number of calls answered meanwhile.
    fn run(&mut self, millis: u64) -> usize {
        let until = Tick(self.now.0 + ms(millis).0);
        let mut answered = 0;
        loop {
            self.send();
            let end = self.running.iter().map(|(end, ..)| *end).min();
            let next = [end, self.batcher.next_wakeup()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while let Some(ended) = self.running.iter().position(|(end, ..)| *end <= self.now) {
                let (_, sent, batch) = self.running.swap_remove(ended);
                self.batcher.complete(self.now, batch.id, ok(self.now.since(sent)));
                answered += batch.members.len();
                self.send();
                (0..batch.members.len()).for_each(|_| self.call());
            }
        }
        self.now = until;
        answered
    }
}

/// The requests from before the reset queue in the new server, so that the load curve has no cell
/// without a queue.
#[test]
fn calls_are_merged_after_a_server_was_replaced_by_a_serial_one_under_load() {
    for callers in [12, 32] {
        for loaded in [0, 30, 200] {
            let mut clients = ClosedLoop::new(64, callers);
            clients.run(2000);
            clients.workers = 1;
            clients.run(loaded);
            clients.batcher.reset(clients.now);
            // Thirty times the latency of direct calls, for two trials.
            clients.run(30 * 20 * callers);
            let answered = clients.run(2000);
            assert!(answered >= 4 * 100, "{callers} callers, {loaded} ms: {answered} answers, directly 100");
        }
    }
}
