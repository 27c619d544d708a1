//! The interface of a batching policy: Groupage itself or a baseline.

use crate::batching::CallId;

use super::batch::BatchCompletion;
use super::proxy::SimProxy;

/// A batching policy. It observes only what a real proxy can observe: its queue, its batches in
/// flight, and their completions.
pub trait SimPolicy {
    /// Returns the name used in tables.
    fn name(&self) -> String;

    /// Handles the arrival of a call.
    fn on_arrival(&mut self, proxy: &mut SimProxy, id: CallId);

    /// Handles the completion of a batch. If the status is not `Ok`, its members are queued again,
    /// and the policy decides on them.
    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion);

    /// Handles the instant requested with [`SimProxy::set_wakeup`].
    fn on_tick(&mut self, proxy: &mut SimProxy);

    /// Handles the cancellation of a call by its client. The call has already ended.
    fn on_cancel(&mut self, proxy: &mut SimProxy, id: CallId);
}
