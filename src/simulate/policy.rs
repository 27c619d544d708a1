//! What decides in a run: ours or a baseline.

use crate::batching::{CallId, Tick};

use super::desk::Desk;

/// A batch sent upstream; numbered from 0 in order of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SentId(pub u64);

/// What the upstream said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Answered whole.
    Ok,
    /// 413: more items or weight than it takes, with the limit if it names one.
    TooLarge {
        /// Most items.
        limit: Option<u32>,
    },
    /// It ran out of memory.
    OutOfMemory,
    /// 429: it has too much inside already.
    Overloaded,
}

/// A batch that came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Which one.
    pub id: SentId,
    /// When it was sent.
    pub sent: Tick,
    /// Items that were sent.
    pub items: u32,
    /// How it ended.
    pub status: Status,
    /// Its calls in order, if it was answered; else those whose callers are still there, to be sent again or refused.
    pub members: Vec<CallId>,
}

/// A batching policy. It sees what a real proxy sees: its queue, what it has in flight, and when that comes back.
pub trait Policy {
    /// What stands in tables.
    fn name(&self) -> String;

    /// A call came.
    fn arrival(&mut self, desk: &mut Desk, id: CallId);

    /// A batch came back. If the status is not `Ok`, its members are the policy's again.
    fn done(&mut self, desk: &mut Desk, done: &Done);

    /// The instant asked for with [`Desk::wake`] has come.
    fn tick(&mut self, desk: &mut Desk);

    /// The caller of a call left; the call has ended already.
    fn cancel(&mut self, desk: &mut Desk, id: CallId);
}
