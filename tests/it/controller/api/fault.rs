//! Faults that the API server injects.

use std::time::Duration;

/// The way in which a request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum FaultKind {
    /// 410: the requested version is gone.
    Gone,
    /// A watch that begins and then reports 410 in its first frame.
    GoneInStream,
    /// No response at all, not even a head.
    Silence,
    /// A watch that begins and never sends anything, not even changes.
    HungWatch,
    /// A watch that ends in the middle of a frame.
    EofInFrame,
    /// A watch that ends as soon as it has begun, in good order.
    EndsAtOnce,
    /// A watch with a frame that is not JSON.
    Garbage,
    /// 429, to be retried after this many seconds.
    TooMany(u64),
    /// 409.
    Conflict,
    /// 403.
    Forbidden,
    /// 500, 503 and others.
    Status(u16),
    /// The connection is closed without a response.
    Reset,
    /// The response is correct but late.
    Slow(Duration),
}

/// A fault, with the requests that it applies to and the number of times left.
#[derive(Debug, Clone)]
pub(in super::super) struct Fault {
    verb: Option<&'static str>,
    resource: Option<&'static str>,
    left: usize,
    what: FaultKind,
}

// === impl Fault ===

impl Fault {
    /// Fails every request, always.
    pub(in super::super) fn always(what: FaultKind) -> Self {
        Self { verb: None, resource: None, left: usize::MAX, what }
    }

    /// Restricts the fault to a verb of a resource.
    pub(in super::super) fn for_verb_and_resource(mut self, verb: &'static str, resource: &'static str) -> Self {
        (self.verb, self.resource) = (Some(verb), Some(resource));
        self
    }

    /// Restricts the fault to a resource, with any verb.
    pub(in super::super) fn for_resource(mut self, resource: &'static str) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Restricts the fault to this many requests.
    pub(in super::super) fn times(mut self, times: usize) -> Self {
        self.left = times;
        self
    }
}

/// Returns the fault that applies to a request.
pub(super) fn take_fault(faults: &mut [Fault], verb: &str, resource: &str) -> Option<FaultKind> {
    let fault = faults.iter_mut().find(|fault| {
        fault.left > 0
            && fault.verb.is_none_or(|known| known == verb)
            && fault.resource.is_none_or(|known| known == resource)
    })?;
    fault.left -= 1;
    Some(fault.what.clone())
}
