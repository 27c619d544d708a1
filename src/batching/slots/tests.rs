use super::*;

const MS: u64 = 1_000_000;

/// An upstream of equal slots with one queue before them. Host work before and after an execution
/// overlaps with other batches; executions do not.
struct Server {
    free: Vec<u64>,
    host: u64,
    time: u64,
    /// Maximum deviation of an execution in either direction, in thousandths.
    noise: u64,
    /// Probability of an execution that takes six times as long, in thousandths.
    stall_permille: u32,
    draw: SplitMix64,
}

/// A proxy with a full batch queued at any time, or with one every `gap`.
struct SlotBench {
    server: Server,
    slots: SlotEstimator,
    draw: SplitMix64,
    now: u64,
    /// Flight, expected completion, actual completion.
    out: Vec<(SlotFlight, u64, u64)>,
    slots_max: u32,
    samples: u64,
    mean_time: f64,
    answered: u64,
    most_out: u32,
}

impl Server {
    fn new(slots: usize, host: u64, time: u64) -> Self {
        Self { free: vec![0; slots], host, time, noise: 80, stall_permille: 0, draw: SplitMix64::new(11) }
    }

    fn answers_at(&mut self, now: u64) -> u64 {
        let swing = self.time * self.noise / 1000;
        let stall = if self.draw.next_bool(self.stall_permille) { 5 * self.time } else { 0 };
        let time = self.time - swing + self.draw.next_u64() % (2 * swing + 1) + stall;
        let slot = self.free.iter_mut().min().expect("it has slots");
        *slot = (*slot).max(now + self.host / 2) + time;
        *slot + self.host / 2
    }

    fn lone(&self) -> u64 {
        self.time + self.host
    }
}

impl SlotBench {
    fn new(server: Server, slots_max: u32, seed: u64) -> Self {
        Self {
            server,
            slots: SlotEstimator::new(),
            draw: SplitMix64::new(seed),
            now: 0,
            out: Vec::new(),
            slots_max,
            samples: 0,
            mean_time: 5e6,
            answered: 0,
            most_out: 0,
        }
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.out.len()).expect("few")
    }

    fn earliest_due(&self) -> Option<Tick> {
        self.out.iter().map(|(_, due, _)| Tick(*due)).min()
    }

    fn decide(&mut self) -> SlotAvailability {
        let view = SlotInputs {
            in_flight: self.in_flight(),
            earliest_due: self.earliest_due(),
            slots_max: self.slots_max,
            samples: self.samples,
            mean_time: round_to_u64(self.mean_time),
            backlog: true,
        };
        self.slots.decide(Tick(self.now), view, &mut self.draw)
    }

    fn send(&mut self) {
        let wait = self.slots.expected_wait(self.in_flight(), self.earliest_due(), Tick(self.now));
        let flight = self.slots.on_dispatch(Tick(self.now), self.in_flight());
        let back = self.server.answers_at(self.now);
        self.out.push((flight, self.now + wait + self.server.lone(), back));
        self.most_out = self.most_out.max(self.in_flight());
    }

    fn complete_first(&mut self) {
        let first = (0..self.out.len()).min_by_key(|i| self.out[*i].2).expect("something is out");
        let (flight, _, back) = self.out.remove(first);
        self.now = back;
        let execution = self.server.lone();
        for (other, due, _) in &mut self.out {
            *due = self.slots.due_after_return(other, Tick(*due), Tick(back), execution).0;
            other.on_other_return(Tick(back));
        }
        self.answered += 1;
        let sample = self.slots.on_completion(Tick(back), &flight, self.server.lone());
        if sample == SampleUse::Lone {
            self.mean_time += 0.1 * (to_f64(back - flight.sent.0) - self.mean_time);
        }
        self.samples += u64::from(sample != SampleUse::No);
    }

    /// Runs with a batch waiting at any time, until this many more were answered.
    fn run(&mut self, batches: u64) {
        let end = self.answered + batches;
        while self.answered < end {
            let next_back = self.out.iter().map(|out| out.2).min();
            match self.decide() {
                SlotAvailability::Free => self.send(),
                SlotAvailability::At(at) if next_back.is_none_or(|back| at.0 < back) => {
                    assert!(at.0 > self.now, "an instant that is past is no reason to wait");
                    self.now = at.0;
                }
                SlotAvailability::At(_) | SlotAvailability::Busy => self.complete_first(),
            }
        }
    }

    /// Returns the batches answered per second of the server's time.
    fn pace(&mut self, batches: u64) -> u64 {
        let start = self.now;
        self.run(batches);
        batches * 1_000_000_000 / (self.now - start)
    }
}

#[test]
fn four_slots_are_found_from_one() {
    for seed in 0..20 {
        let mut simulation = SlotBench::new(Server::new(4, 200_000, 8 * MS), 16, seed);
        simulation.run(400);
        assert_eq!(simulation.slots.in_use(), 4, "seed {seed}");
        let pace = simulation.pace(2000);
        assert!(pace > 4 * 125 * 97 / 100, "all four are kept busy: {pace} with seed {seed}");
        assert!((4..=5).contains(&simulation.slots.in_use()), "{} with seed {seed}", simulation.slots.in_use());
    }
}

#[test]
fn a_dozen_slots_are_found_although_every_wait_is_then_short() {
    for seed in 0..10 {
        let mut simulation = SlotBench::new(Server::new(12, 200_000, 8 * MS), 16, seed);
        simulation.run(400);
        let pace = simulation.pace(2000);
        assert!(pace > 12 * 125 * 95 / 100, "all twelve are kept busy: {pace} with seed {seed}");
        assert!((12..=13).contains(&simulation.slots.in_use()), "{} with seed {seed}", simulation.slots.in_use());
    }
}

#[test]
fn two_slots_and_a_lead_are_found_on_a_server_with_host_work() {
    for seed in 0..10 {
        let mut simulation = SlotBench::new(Server::new(2, 3 * MS, 10 * MS), 16, seed);
        simulation.run(300);
        let pace = simulation.pace(1000);
        assert!(pace >= 190, "200 a second is all the device can do: {pace} with seed {seed}");
        assert_eq!(simulation.slots.in_use(), 2, "seed {seed}");
        assert!(
            (2_200_000..3_800_000).contains(&simulation.slots.lead()),
            "{} with seed {seed}",
            simulation.slots.lead()
        );
    }
}

#[test]
fn slots_that_vanish_are_given_up() {
    for (seed, left) in [(1, 1), (2, 2), (3, 3), (4, 1), (5, 2)] {
        let mut simulation = SlotBench::new(Server::new(4, 200_000, 8 * MS), 16, seed);
        simulation.run(500);
        assert!(simulation.slots.in_use() >= 4, "seed {seed}");
        simulation.server.free.truncate(left);
        simulation.run(400);
        let found = usize::try_from(simulation.slots.in_use()).expect("small");
        assert!(found >= left && found <= left + 1, "{found} of {left} with seed {seed}");
    }
}

#[test]
fn many_slots_that_vanish_at_once_are_given_up() {
    for seed in 0..5 {
        let mut simulation = SlotBench::new(Server::new(12, 200_000, 8 * MS), 16, seed);
        simulation.run(500);
        assert!(simulation.slots.in_use() >= 12, "{} with seed {seed}", simulation.slots.in_use());
        simulation.server.free.truncate(1);
        simulation.run(1000);
        assert!(simulation.slots.in_use() <= 2, "{} with seed {seed}", simulation.slots.in_use());
    }
}

#[test]
fn occasional_stalls_cost_no_slot() {
    for seed in 0..5 {
        let mut simulation = SlotBench::new(Server::new(4, 200_000, 8 * MS), 16, seed);
        simulation.server.stall_permille = 10;
        simulation.run(500);
        for _ in 0..50 {
            simulation.run(50);
            assert!(simulation.slots.in_use() >= 4, "seed {seed}");
        }
    }
}

#[test]
fn a_lead_of_the_hosts_work_is_found() {
    for seed in 0..20 {
        let mut simulation = SlotBench::new(Server::new(1, 3 * MS, 10 * MS), 16, seed);
        simulation.run(600);
        let lead = simulation.slots.lead();
        assert_eq!(simulation.slots.in_use(), 1, "seed {seed}");
        assert!((2_400_000..3_600_000).contains(&lead), "{lead} with seed {seed}");
        let pace = simulation.pace(2000);
        assert!(pace >= 95, "100 a second is all the device can do, 77 without a lead: {pace} with seed {seed}");
    }
}

#[test]
fn a_plain_server_keeps_one_slot_and_no_lead() {
    for seed in 0..20 {
        let mut simulation = SlotBench::new(Server::new(1, 0, 8 * MS), 16, seed);
        for _ in 0..100 {
            simulation.run(30);
            assert_eq!(simulation.slots.in_use(), 1, "seed {seed}");
        }
        assert!(simulation.slots.lead() < 600_000, "{} with seed {seed}", simulation.slots.lead());
    }
}

#[test]
fn a_lead_that_has_become_too_long_is_cut() {
    let mut simulation = SlotBench::new(Server::new(1, 3 * MS, 10 * MS), 16, 3);
    simulation.run(600);
    simulation.server.time += simulation.server.host;
    simulation.server.host = 0;
    simulation.run(600);
    assert!(simulation.slots.lead() < 800_000, "{}", simulation.slots.lead());
}

#[test]
fn the_slot_limit_is_never_exceeded() {
    for (slots, slots_max) in [(8, 3), (8, 1), (2, 2), (100, 64)] {
        let mut simulation = SlotBench::new(Server::new(slots, 200_000, 8 * MS), slots_max, 5);
        simulation.run(3000);
        assert!(simulation.most_out <= slots_max, "{} of {slots_max}", simulation.most_out);
        assert!(simulation.slots.in_use() <= slots_max);
    }
}

#[test]
fn a_lowered_slot_limit_holds_at_once() {
    let mut simulation = SlotBench::new(Server::new(8, 200_000, 8 * MS), 16, 5);
    simulation.run(1500);
    simulation.slots_max = 2;
    while simulation.in_flight() > 2 {
        assert_ne!(simulation.decide(), SlotAvailability::Free);
        simulation.complete_first();
    }
    simulation.most_out = 0;
    simulation.run(200);
    assert_eq!((simulation.most_out, simulation.slots.in_use()), (2, 2));
}

#[test]
fn no_more_than_one_batch_beyond_the_slots_is_out() {
    let mut simulation = SlotBench::new(Server::new(4, 3 * MS, 10 * MS), 16, 8);
    for _ in 0..2000 {
        simulation.run(1);
        assert!(simulation.in_flight() <= simulation.slots.in_use() + 2, "one beyond, before the last one came back");
        if simulation.decide() == SlotAvailability::Free {
            assert!(simulation.in_flight() <= simulation.slots.in_use());
        }
    }
}

#[test]
fn an_idle_upstream_is_always_free() {
    let mut slots = SlotEstimator::new();
    let mut draw = SplitMix64::new(1);
    let view = SlotInputs { in_flight: 0, earliest_due: None, slots_max: 0, samples: 0, mean_time: 0, backlog: false };
    assert_eq!(slots.decide(Tick(0), view, &mut draw), SlotAvailability::Free);
    assert_eq!(slots.expected_wait(0, None, Tick(0)), 0);
}

#[test]
fn without_a_known_curve_there_is_no_lead() {
    for seed in 0..50 {
        let mut simulation = SlotBench::new(Server::new(4, 0, 8 * MS), 16, seed);
        while simulation.samples < SAMPLES_MIN {
            assert!(simulation.most_out <= 1, "seed {seed}");
            simulation.run(1);
        }
    }
}

#[test]
fn forgetting_resets_slots_and_lead() {
    let mut simulation = SlotBench::new(Server::new(4, 200_000, 8 * MS), 3, 1);
    simulation.run(400);
    assert_eq!(simulation.slots.in_use(), 3);
    simulation.slots.forget();
    assert_eq!((simulation.slots.in_use(), simulation.slots.lead()), (1, 0));
}

#[test]
fn the_expected_wait_is_the_rest_of_the_first_batch_minus_the_lead() {
    let mut simulation = SlotBench::new(Server::new(1, 0, 8 * MS), 16, 2);
    let due = Some(Tick(10 * MS));
    assert_eq!(simulation.slots.expected_wait(1, due, Tick(4 * MS)), 6 * MS);
    assert_eq!(simulation.slots.expected_wait(1, due, Tick(12 * MS)), 0, "an overdue batch is back any moment");
    simulation.server.host = 3 * MS;
    simulation.run(600);
    let lead = simulation.slots.lead();
    assert_eq!(
        simulation.slots.expected_wait(1, Some(Tick(simulation.now + 6 * MS)), Tick(simulation.now)),
        6 * MS - lead
    );
}

#[test]
fn a_batch_that_left_early_is_due_again_from_the_return_it_waited_for() {
    let mut simulation = SlotBench::new(Server::new(1, 3 * MS, 10 * MS), 16, 2);
    simulation.run(600);
    let lead = simulation.slots.lead();
    let (early, lone) = (simulation.slots.on_dispatch(Tick(0), 1), simulation.slots.on_dispatch(Tick(0), 0));
    let due = |flight, back| simulation.slots.due_after_return(flight, Tick(13 * MS), Tick(back), 13 * MS);
    assert_eq!(due(&early, 5 * MS), Tick(18 * MS - lead));
    assert_eq!(due(&early, 0), Tick(13 * MS), "an early return does not make it faster than alone");
    assert_eq!(due(&lone, 5 * MS), Tick(13 * MS));
    let mut again = early;
    again.on_other_return(Tick(MS));
    assert_eq!(due(&again, 5 * MS), Tick(13 * MS), "only the first return counts");
}

#[test]
fn no_wait_is_expected_beside_a_confirmed_slot() {
    let mut simulation = SlotBench::new(Server::new(4, 200_000, 8 * MS), 16, 1);
    simulation.run(1000);
    let wait = simulation.slots.expected_wait(3, Some(Tick(simulation.now + 8 * MS)), Tick(simulation.now));
    assert!(wait < MS, "{wait}");
}

#[test]
fn batches_of_a_doubtful_slot_are_no_samples_until_it_is_confirmed() {
    let mut simulation = SlotBench::new(Server::new(2, 0, 8 * MS), 16, 1);
    simulation.run(1000);
    assert_eq!(simulation.slots.in_use(), 2);
    let mut beside = |extra: u64| {
        let mut flight = simulation.slots.on_dispatch(Tick(0), 1);
        flight.on_other_return(Tick(4 * MS));
        simulation.slots.on_completion(Tick(8 * MS + extra), &flight, 8 * MS)
    };
    assert_eq!(beside(3 * MS), SampleUse::Beside, "one late batch proves nothing");
    // Three quarters of the possible wait: too little to give the slot up, and not late enough to
    // be excluded as a sample for its own lateness.
    for _ in 0..20 {
        beside(3 * MS);
    }
    assert_eq!(beside(3 * MS), SampleUse::No);
    for _ in 0..20 {
        beside(0);
    }
    assert_eq!(beside(0), SampleUse::Beside);
    assert_eq!(simulation.slots.in_use(), 2);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut simulation = SlotBench::new(Server::new(4, 3 * MS, 10 * MS), 16, seed);
        simulation.run(1000);
        (simulation.now, simulation.slots.in_use(), simulation.slots.lead())
    };
    assert_eq!(run(6), run(6));
    assert_ne!(run(6), run(7));
}
