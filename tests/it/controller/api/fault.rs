//! The ways to fail, by name.

use std::time::Duration;

/// How a question is failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum What {
    /// 410: the version asked for is gone.
    Gone,
    /// A watch that begins and then says 410 in its first frame.
    GoneInStream,
    /// No answer at all, not even a head.
    Silence,
    /// A watch that begins and never says anything, not even what happens.
    HungWatch,
    /// A watch that ends within a frame.
    EofInFrame,
    /// A watch that ends as soon as it began, in good order.
    EndsAtOnce,
    /// A watch with a frame that is no JSON.
    Garbage,
    /// 429, to be tried again after so many seconds.
    TooMany(u64),
    /// 409.
    Conflict,
    /// 403.
    Forbidden,
    /// 500, 503 and others.
    Status(u16),
    /// The connection is closed without a word.
    Reset,
    /// The answer is right and comes late.
    Slow(Duration),
}

/// What is to fail, and how often.
#[derive(Debug, Clone)]
pub(in super::super) struct Fault {
    verb: Option<&'static str>,
    resource: Option<&'static str>,
    left: usize,
    what: What,
}

// === impl Fault ===

impl Fault {
    /// Fails everything, always.
    pub(in super::super) fn always(what: What) -> Self {
        Self { verb: None, resource: None, left: usize::MAX, what }
    }

    /// Only this verb of this resource.
    pub(in super::super) fn on(mut self, verb: &'static str, resource: &'static str) -> Self {
        (self.verb, self.resource) = (Some(verb), Some(resource));
        self
    }

    /// Only every verb of this resource.
    pub(in super::super) fn of(mut self, resource: &'static str) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Only so often.
    pub(in super::super) fn times(mut self, times: usize) -> Self {
        self.left = times;
        self
    }
}

/// The fault that this question meets.
pub(super) fn meet(faults: &mut [Fault], verb: &str, resource: &str) -> Option<What> {
    let fault = faults.iter_mut().find(|fault| {
        fault.left > 0
            && fault.verb.is_none_or(|known| known == verb)
            && fault.resource.is_none_or(|known| known == resource)
    })?;
    fault.left -= 1;
    Some(fault.what.clone())
}
