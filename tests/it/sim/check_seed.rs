//! The complete check of one seed: a run, a second run and a replay.

use groupage::batching::InvariantId;

use super::invariant::{CheckResult, Coverage, Violation, catch_panic, ensure_invariant};
use super::simulation::Simulation;
use super::trace::Trace;

/// The result of a seed's run.
#[derive(Debug)]
pub(crate) struct SimulationRun {
    pub(crate) trace: Trace,
    pub(crate) tally: Coverage,
    pub(crate) end: CheckResult,
}

/// Runs the simulation of a seed once.
pub(crate) fn simulate(seed: u64) -> SimulationRun {
    let mut simulation = Simulation::new(seed);
    let end = catch_panic(|| simulation.run());
    SimulationRun { trace: simulation.trace, tally: simulation.model.tally, end }
}

/// Runs a seed twice and replays it: the invariants hold, and the run depends on nothing but the
/// seed.
///
/// # Errors
/// Returns the violated invariant and the seed.
pub(crate) fn check_seed(seed: u64) -> Result<SimulationRun, String> {
    let run = simulate(seed);
    let held = run.end.clone().and_then(|()| {
        let again = simulate(seed);
        ensure_invariant(InvariantId::Deterministic, run.trace.text() == again.trace.text(), || {
            "the second run differs".to_owned()
        })?;
        ensure_invariant(InvariantId::Deterministic, run.trace.replay() == run.trace.responses, || {
            "its replay differs".to_owned()
        })
    });
    match held {
        Ok(()) => Ok(run),
        Err(Violation { invariant, how }) => Err(format!("seed {seed}: invariant {invariant:?} broken: {how}")),
    }
}
