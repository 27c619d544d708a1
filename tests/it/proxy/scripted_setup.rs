//! A proxy in front of a scripted server, and calls whose batches the test determines.

use serde_json::Value;

use super::scripted_server::{PendingRequest, ScriptedServer};
use super::setup::{PendingCall, TestProxy, assert_served};
use super::support::client::Outgoing;

/// Starts a proxy in front of a model server that the test controls.
pub(super) async fn start_with_scripted_server(spec: Value) -> (TestProxy, ScriptedServer) {
    let hand = ScriptedServer::start().await;
    (TestProxy::start_in_front_of(&hand.url(), spec), hand)
}

/// Takes the request for the limits that the server publishes and the call that caused it. They
/// arrive in either order.
pub(super) async fn take_look_up(hand: &mut ScriptedServer) -> (PendingRequest, PendingRequest) {
    let (first, second) = (hand.next_request().await, hand.next_request().await);
    if first.request.target == "/info" { (first, second) } else { (second, first) }
}

// === impl TestProxy ===

impl TestProxy {
    /// Occupies the only slot with a call. The call is upstream when this returns.
    pub(super) async fn occupy_slot(&self, hand: &mut ScriptedServer) -> (PendingCall, PendingRequest) {
        let caller = self.call(self.predict(0));
        (caller, hand.next_request().await)
    }

    /// Lets the proxy see that batches of this many items are answered: the adaptive policy starts
    /// with one item and doubles the size.
    pub(super) async fn grow_batch_size(&self, hand: &mut ScriptedServer, items: u64) {
        let mut size = 1;
        while size < items {
            size = (2 * size).min(items);
            let (first, turn) = self.occupy_slot(hand).await;
            let callers = self.queue((0..size).map(|item| self.predict(item))).await;
            turn.echo().await;
            assert_eq!(first.answer().await.status, Some(200));
            let mut left = size;
            while left > 0 {
                let turn = hand.next_request().await;
                left -= turn.instances().len() as u64;
                turn.echo().await;
            }
            assert_served(callers).await;
            self.wait_idle().await;
        }
    }

    /// Makes these calls share one batch: they collect behind a busy slot, which then becomes free.
    /// The returned turn is the shared call.
    pub(super) async fn form_batch(
        &self,
        hand: &mut ScriptedServer,
        requests: Vec<Outgoing>,
    ) -> (Vec<PendingCall>, PendingRequest) {
        let (first, turn) = self.occupy_slot(hand).await;
        let callers = self.queue(requests).await;
        turn.echo().await;
        assert_eq!(first.answer().await.status, Some(200));
        (callers, hand.next_request().await)
    }
}
