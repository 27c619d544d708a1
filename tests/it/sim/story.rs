//! A seed's whole story: run, run again, replayed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use groupage::batching::InvariantId;

use super::promise::{Broken, Held, Tally, promise};
use super::trace::Trace;
use super::world::World;

/// What a seed told.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    pub(crate) end: Held,
}

/// Tells the story of a seed once.
pub(crate) fn tell(seed: u64) -> Story {
    let mut world = World::new(seed);
    // A panic of the core is a broken promise like any other, and the story up to it is worth reading.
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

/// Tells a story twice and replays it: the promises hold, and nothing but the seed decides.
///
/// # Errors
/// The promise that broke, with the seed.
pub(crate) fn check(seed: u64) -> Result<Story, String> {
    let story = tell(seed);
    let held = story.end.clone().and_then(|()| {
        let again = tell(seed);
        promise(InvariantId::Deterministic, story.trace.text() == again.trace.text(), || {
            "the second telling differs".to_owned()
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
