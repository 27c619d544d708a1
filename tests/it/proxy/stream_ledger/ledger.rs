//! The record of the server and the callers: what happened, which calls shared a response, and
//! which have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::seeded_faults::{Fault, is_long};

/// Counts of what happened.
#[derive(Debug, Default)]
pub(super) struct LedgerCounts {
    pub(super) next: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) complete: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) truncated: AtomicU64,
    /// Truncated long streams of responses without a fault: the caller read too late.
    pub(super) dropped: AtomicU64,
    pub(super) left: AtomicU64,
}

/// A response of the server.
#[derive(Debug)]
pub(super) struct ServedResponse {
    /// Calls of the request.
    nonces: Vec<u64>,
    fault: Fault,
    /// The server writes no more of it.
    is_over: AtomicBool,
}

/// The record of a run.
#[derive(Debug, Default)]
pub(super) struct StreamLedger {
    pub(super) counts: LedgerCounts,
    /// The last response with a part for each nonce.
    responses: Mutex<BTreeMap<u64, Arc<ServedResponse>>>,
    /// Nonces of the calls that have ended.
    ended: Mutex<BTreeSet<u64>>,
    /// Notified when a response or a call has ended.
    changed: Notify,
}

// === impl ServedResponse ===

impl ServedResponse {
    pub(super) fn is_shared(&self) -> bool {
        self.nonces.len() > 1
    }

    /// Returns `true` for a shared response with a long stream and without a fault, from which each
    /// caller receives everything unless it reads too late.
    pub(super) fn is_sound_with_long(&self) -> bool {
        self.is_shared() && self.fault == Fault::None && self.nonces.iter().copied().any(is_long)
    }
}

// === impl StreamLedger ===

impl StreamLedger {
    /// Records that the server responds to a request with these calls.
    pub(super) fn begin_response(&self, nonces: &[u64], fault: Fault) -> Arc<ServedResponse> {
        let response = Arc::new(ServedResponse { nonces: nonces.to_vec(), fault, is_over: AtomicBool::new(false) });
        if response.is_shared() {
            self.counts.shared.fetch_add(nonces.len() as u64, Ordering::Relaxed);
        }
        let own = nonces.iter().map(|nonce| (*nonce, Arc::clone(&response)));
        self.responses.lock().unwrap().extend(own);
        response
    }

    /// Records that the server writes no more of a response.
    pub(super) fn end_response(&self, response: &ServedResponse) {
        response.is_over.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Records that a call has ended for its caller.
    pub(super) fn end_call(&self, nonce: u64) {
        self.ended.lock().unwrap().insert(nonce);
        self.changed.notify_waiters();
    }

    /// Returns the last response with a part for a call.
    pub(super) fn response(&self, nonce: u64) -> Option<Arc<ServedResponse>> {
        self.responses.lock().unwrap().get(&nonce).cloned()
    }

    /// Waits until the response to a call is over, and the short calls in it have ended. The
    /// response to a call that was sent alone is not awaited, because it ends only if it is read.
    pub(super) async fn wait_neighbours(&self, nonce: u64) {
        loop {
            // Created before the check, so that no change between the two is missed.
            let changed = self.changed.notified();
            if self.have_neighbours_ended(nonce) {
                return;
            }
            changed.await;
        }
    }

    fn have_neighbours_ended(&self, nonce: u64) -> bool {
        let Some(response) = self.response(nonce).filter(|own| own.is_shared()) else { return true };
        let ended = self.ended.lock().unwrap();
        let has_ended = |nonce: &u64| is_long(*nonce) || ended.contains(nonce);
        response.is_over.load(Ordering::Acquire) && response.nonces.iter().all(has_ended)
    }
}
