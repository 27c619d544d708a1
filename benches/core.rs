//! Cost of the batching core: `cargo bench --bench core`, or `just bench-core`.
//!
//! 1. Nanoseconds per item for `enqueue`, `poll`, `next_wakeup` and `complete` together, with a
//!    poll after every single event. The figure is the median over *stretches*, which are equal
//!    numbers of consecutive batches.
//! 2. Allocations per batch, and per additional item of a batch. The latter are zero once the
//!    core is warm.
//! 3. Idle: an idle core requests no wake-up.
//! 4. Decisions by weights (`group`): the time of the polls that dispatch a batch, where the server
//!    pads the items to the heaviest one.
//! 5. Plans: the share of a CPU core that solving them takes, in the first minute and in an hour of
//!    virtual time.
//!
//! The number of allocations and the idle core are asserted in every run, also in the short one of
//! `just bench-tiny`. Times are compared with limits, and the last line counts the limits met and
//! missed. Arguments other than flags select loads by name.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "counts of a bench")]

use std::time::Duration;

#[path = "core/allocations.rs"]
mod allocations;
#[path = "core/core_driver.rs"]
mod core_driver;
#[path = "support/statistics.rs"]
mod statistics;

use core_driver::{CoreDriver, Load, StretchMeasurement};
use statistics::median;

#[global_allocator]
static ALLOCATOR: allocations::CountingAllocator = allocations::CountingAllocator;

/// Limits: cost of an item, time of a decision by weights, and share of a CPU core that plans take.
const NANOS_PER_ITEM_MAX: f64 = 1000.0;
const GROUP_MICROS_MAX: f64 = 20.0;
const PLAN_SHARE_MAX: f64 = 0.01;
/// Maximum number of allocations per additional item. It is above zero because a table may grow
/// once more, which is spread over thousands of items.
const ALLOCATIONS_PER_ITEM_MAX: f64 = 0.05;

/// Extent of the measurements.
#[derive(Clone, Copy)]
struct Scale {
    /// Number of batches before the first measurement.
    warm: u64,
    /// Number of batches of a stretch.
    stretch: u64,
    /// Number of stretches.
    stretches: usize,
    /// Virtual time for which plans are solved.
    plan_time: Duration,
}

/// Number of limits met and missed.
#[derive(Default)]
struct Tally {
    met: u32,
    missed: u32,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tiny = !arguments.iter().any(|argument| argument == "--bench")
        || arguments.iter().any(|argument| argument == "--test");
    let scale = if tiny {
        Scale { warm: 300, stretch: 20, stretches: 3, plan_time: Duration::from_secs(5) }
    } else {
        Scale { warm: 3000, stretch: 50, stretches: 101, plan_time: Duration::from_secs(3600) }
    };
    let chosen: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_selected = |name: &str| chosen.is_empty() || chosen.iter().any(|part| name.contains(part.as_str()));
    let mut tally = Tally::default();
    println!("core: each event on its own, with a poll and next_wakeup after it");
    println!("  load                      items/batch   ns/item   allocations/batch");
    for load in loads().into_iter().filter(|load| is_selected(load.name)) {
        let (measured, nanos) = measure_cost(load, scale);
        let per_batch = measured.allocations as f64 / measured.batches as f64;
        println!("  {:<26} {:>10.1} {nanos:>9.0} {per_batch:>19.2}", load.name, per(measured.items, measured.batches));
        if load.is_judged() && !tiny {
            tally.judge("ns an item", nanos, NANOS_PER_ITEM_MAX);
        }
    }
    if is_selected("allocations") {
        let further = allocations_per_further_item(scale);
        tally.judge("allocations for each further item of a batch", further, ALLOCATIONS_PER_ITEM_MAX);
        assert!(further <= ALLOCATIONS_PER_ITEM_MAX, "{further} allocations an item in the steady state");
    }
    if is_selected("idle") {
        let mut driver = CoreDriver::new(Load::MID);
        driver.run(scale.warm);
        assert_eq!(driver.wakeup_when_idle(), None, "an idle core requests no wake-up");
        println!("idle: no wake-up");
    }
    if is_selected("group") {
        println!(
            "group: a decision by weights, from the poll that makes it to its batch; whole, so more than `group` alone"
        );
        for load in [Load::PADDED, Load::PADDED_OVER] {
            let mut driver = CoreDriver::new(load).timing_decisions();
            driver.run(scale.warm);
            let each = |measured: StretchMeasurement| measured.deciding.as_secs_f64() * 1e6 / measured.batches as f64;
            let stretches: Vec<f64> = (0..scale.stretches).map(|_| each(driver.run(scale.stretch))).collect();
            let micros = median(&stretches);
            println!("  {}: {micros:.1} us", load.name);
            if !tiny {
                tally.judge("us a decision", micros, GROUP_MICROS_MAX);
            }
        }
    }
    if is_selected("plan") {
        measure_plans(scale, tiny, &mut tally);
    }
    println!("{} met, {} missed", tally.met, tally.missed);
}

fn loads() -> Vec<Load> {
    let deep = Load::DEEP;
    vec![
        deep,
        Load { name: "2048 queued, batches of 8", batch_max: 8, ..deep },
        Load { name: "2048 queued, no deadline", slo: None, ..deep },
        Load { name: "2048 queued, 8 keys", keys: 8, ..deep },
        Load { name: "2048 queued, 8 tenants", tenants: 8, ..deep },
        Load::MID,
        Load::LOOP,
        Load { name: "overload, shedding", queued: None, rate: 4800, slo: Some(Duration::from_millis(50)), ..deep },
        Load::PADDED,
        Load::PADDED_OVER,
    ]
}

/// Returns the sums over all stretches and the median cost of an item in nanoseconds.
fn measure_cost(load: Load, scale: Scale) -> (StretchMeasurement, f64) {
    let mut driver = CoreDriver::new(load);
    driver.run(scale.warm);
    let mut all = StretchMeasurement::default();
    let stretches = (0..scale.stretches).map(|_| {
        let measured = driver.run(scale.stretch);
        all.items += measured.items;
        all.batches += measured.batches;
        all.allocations += measured.allocations;
        measured.spent.as_secs_f64() * 1e9 / measured.items as f64
    });
    let nanos = median(&stretches.collect::<Vec<f64>>());
    (all, nanos)
}

/// Returns the allocations per additional item: the difference between batches of 64 and of 16
/// items, divided by the difference in items. Allocations for the batch as a whole cancel out.
fn allocations_per_further_item(scale: Scale) -> f64 {
    let of = |batch_max| {
        let (measured, _) = measure_cost(Load { batch_max, ..Load::DEEP }, scale);
        (measured.allocations as f64 / measured.batches as f64, per(measured.items, measured.batches))
    };
    let ((few, small), (many, large)) = (of(16), of(64));
    println!("allocations: {few:.2} for a batch of {small:.0}, {many:.2} for one of {large:.0}");
    (many - few) / (large - small)
}

fn measure_plans(scale: Scale, tiny: bool, tally: &mut Tally) {
    let mut driver = CoreDriver::new(Load::MID);
    let (mut solving, mut plans, mut after_minute) = (Duration::ZERO, 0, None);
    while u128::from(driver.now().0) < scale.plan_time.as_nanos() {
        let measured = driver.run(1000.min(scale.warm));
        solving += measured.solving;
        plans += measured.plans;
        if driver.now().0 >= 60_000_000_000 {
            after_minute.get_or_insert((solving, plans));
        }
    }
    let share = |solving: Duration, of: Duration| solving.as_secs_f64() / of.as_secs_f64();
    println!("plan: {plans} plans in {:?} of virtual time, {solving:.1?} to solve", scale.plan_time);
    if let Some((solving, plans)) = after_minute {
        println!(
            "  of them {plans} in the first minute, {solving:.1?}: {:.4} of a core",
            share(solving, Duration::from_secs(60))
        );
    }
    if !tiny {
        tally.judge("share of a core over the hour", share(solving, scale.plan_time), PLAN_SHARE_MAX);
    }
}

fn per(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

// === impl Tally ===

impl Tally {
    fn judge(&mut self, what: &str, value: f64, most: f64) {
        let met = value <= most;
        if met {
            self.met += 1;
        } else {
            self.missed += 1;
        }
        println!("  {} {what}: {value:.4}, at most {most}", if met { "met   " } else { "MISSED" });
    }
}
