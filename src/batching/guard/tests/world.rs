//! A one-slot proxy with the guard in front of a server that may batch by itself, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive,
    Enter(usize),
    Finish,
    Return(usize),
}

/// A greedy one-slot proxy with the guard in front of a server 0.4 ms away that takes 4 + 0.25n ms a run: of one call, or of all that wait.
struct World {
    batches_inside: bool,
    now: u64,
    random: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    guard: Guard,
    queue: VecDeque<u64>,
    out: BTreeMap<usize, (Vec<u64>, Option<Part>)>,
    sent: usize,
    waiting: VecDeque<usize>,
    running: Vec<usize>,
    probes: usize,
    trials: usize,
}

impl World {
    const ONE_WAY: u64 = 400_000;

    fn new(batches_inside: bool, seed: u64) -> Self {
        let mut world = Self {
            batches_inside,
            now: 0,
            random: seed,
            events: BinaryHeap::new(),
            order: 0,
            guard: Guard::new(512, false),
            queue: VecDeque::new(),
            out: BTreeMap::new(),
            sent: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            probes: 0,
            trials: 0,
        };
        world.at(1, Event::Arrive);
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn run(&mut self, until: u64) {
        while self.now < until {
            let Some(Reverse((now, _, event))) = self.events.pop() else { return };
            self.now = now;
            match event {
                Event::Arrive => {
                    self.queue.push_back(now);
                    let pause = self.draw(1_000_000);
                    self.at(now + pause, Event::Arrive);
                }
                Event::Enter(call) => self.waiting.push_back(call),
                Event::Finish => {
                    for call in std::mem::take(&mut self.running) {
                        self.at(now + Self::ONE_WAY, Event::Return(call));
                    }
                }
                Event::Return(call) => self.returned(call),
            }
            self.serve();
            let trying = self.guard.report().trying;
            self.guard.tick(Tick(now), MEAN, self.queue.front().map(|at| Tick(*at)));
            self.trials += usize::from(!trying && self.guard.report().trying);
            self.send();
        }
    }

    fn serve(&mut self) {
        if !self.running.is_empty() || self.waiting.is_empty() {
            return;
        }
        let calls = if self.batches_inside { self.waiting.len() } else { 1 };
        self.running = self.waiting.drain(..calls).collect();
        let items: usize = self.running.iter().map(|call| self.out[call].0.len()).sum();
        let noise = 960 + self.draw(80);
        self.at(self.now + execution(items) * noise / 1000, Event::Finish);
    }

    fn send(&mut self) {
        if self.guard.mode() == Mode::Pass {
            while self.out.len() < self.guard.pass_max() as usize && !self.queue.is_empty() {
                self.dispatch(1, None);
            }
            return;
        }
        if !self.out.is_empty() || self.queue.is_empty() {
            return;
        }
        let calls = self.queue.len().min(32);
        let backlog = self.queue.len() - calls >= 32;
        let chance = Chance { calls, in_flight: 0, slots: 1, backlog };
        let Some((single, first, second)) = self.guard.probe_due(chance) else { return self.dispatch(calls, None) };
        self.probes += 1;
        let alone = |items| Duration::from_nanos(execution(items) + 2 * Self::ONE_WAY);
        self.guard.probe_sent(Tick(self.now), Alone { single: alone(1), half: alone(second) });
        for (calls, part) in [(single, Part::Single), (first, Part::First), (second, Part::Second)] {
            self.dispatch(calls, Some(part));
        }
    }

    fn dispatch(&mut self, calls: usize, part: Option<Part>) {
        self.sent += 1;
        let members = self.queue.drain(..calls).collect();
        if self.guard.mode() == Mode::Batch {
            self.guard.batch_left(calls);
        }
        self.out.insert(self.sent, (members, part));
        self.at(self.now + Self::ONE_WAY, Event::Enter(self.sent));
    }

    fn returned(&mut self, call: usize) {
        let now = Tick(self.now);
        let in_flight = self.out.len();
        let (members, part) = self.out.remove(&call).expect("it was sent");
        for arrived in &members {
            self.guard.ended(now, Ended { arrived: Tick(*arrived), items: 1, expired: false, slo: Some(SLO) });
        }
        if let Some(part) = part {
            self.guard.probe_returned(part, now);
        }
        if self.guard.mode() == Mode::Batch {
            return self.guard.batch_done();
        }
        self.guard.pass_ended();
        self.guard.call_passed(in_flight);
    }
}

fn execution(items: usize) -> u64 {
    4_000_000 + 250_000 * u64::try_from(items).expect("few")
}

#[test]
fn a_server_that_batches_by_itself_is_found_and_left_alone() {
    for seed in 1..=5 {
        let mut world = World::new(true, seed);
        world.run(20_000_000_000);
        assert_eq!(world.guard.mode(), Mode::Pass, "seed {seed}: {:?}", world.guard.report());
        assert_eq!(world.trials, 1, "seed {seed}");
        assert!(world.probes <= 4, "seed {seed}: {} probes", world.probes);
    }
}

#[test]
fn a_plain_server_is_probed_and_never_left() {
    for seed in 1..=5 {
        let mut world = World::new(false, seed);
        world.run(60_000_000_000);
        assert!(world.probes >= 3, "seed {seed}: {} probes", world.probes);
        assert_eq!((world.guard.mode(), world.trials), (Mode::Batch, 0), "seed {seed}");
    }
}
