//! The complete check of one seed: a run, a second run and a replay.

use std::panic::{AssertUnwindSafe, catch_unwind};

use groupage::batching::InvariantId;

use super::promise::{Broken, Held, Tally, promise};
use super::trace::Trace;
use super::world::World;

/// The result of a seed's run.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    pub(crate) end: Held,
}

/// Runs the simulation of a seed once.
pub(crate) fn tell(seed: u64) -> Story {
    let mut world = World::new(seed);
    // A panic of the core counts as a violated invariant, and the trace up to it is kept.
    let end = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        let how = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        Err(Broken { promise: InvariantId::Ends, how: format!("panicked: {how}") })
    });
    Story { trace: world.trace, tally: world.model.tally, end }
}

/// Runs a seed twice and replays it: the invariants hold, and the run depends on nothing but the
/// seed.
///
/// # Errors
/// Returns the violated invariant and the seed.
pub(crate) fn check(seed: u64) -> Result<Story, String> {
    let story = tell(seed);
    let held = story.end.clone().and_then(|()| {
        let again = tell(seed);
        promise(InvariantId::Deterministic, story.trace.text() == again.trace.text(), || {
            "the second run differs".to_owned()
        })?;
        promise(InvariantId::Deterministic, story.trace.replay() == story.trace.said, || {
            "its replay differs".to_owned()
        })
    });
    match held {
        Ok(()) => Ok(story),
        Err(Broken { promise, how }) => Err(format!("seed {seed}: invariant {promise:?} broken: {how}")),
    }
}
