//! Selection of the key queue that leaves next, under a fixed policy or the adaptive one.

use super::super::adaptive::{Action, DecisionContext};
use super::super::batch::{Decision, DispatchCause};
use super::super::call::{KeyId, ScopeId};
use super::super::select::Readiness;
use super::super::tick::Tick;
use super::Batcher;
use super::selected_batch::MemberChoice;

// === impl Batcher ===

impl Batcher {
    /// Returns the first key queue, by the arrival of its head, that may leave now. A key queue
    /// that is held does not keep the others from leaving.
    pub(super) fn pick(&self, now: Tick) -> Option<(KeyId, DispatchCause)> {
        if !self.has_free_slot() {
            return None;
        }
        debug_assert_eq!(now, self.now);
        let heads = self.queue.heads().filter(|(_, head)| self.has_free_scope_slot(head.call.scope));
        heads.filter(|(key, _)| self.paused_until(*key).is_none()).find_map(|(key, head)| {
            match self.ready(&self.queue, key, head) {
                Readiness::Now(cause) => Some((key, cause)),
                Readiness::At(_) => None,
            }
        })
    }

    pub(super) fn next_adaptive(&mut self, now: Tick, hold_permille: u32) -> Option<Decision> {
        loop {
            return match self.adaptive_decision(now, hold_permille) {
                Action::Send { key, items, cause, kind } => {
                    self.dispatch(now, key, cause, MemberChoice::Front(Some(items)), kind)
                }
                Action::Chosen { key, cause, kind } => self.dispatch(now, key, cause, MemberChoice::Chosen, kind),
                // Deferred calls move behind those that can be in time. Each is deferred at most
                // once.
                Action::Expire { id, .. } if self.defer(now, id) => continue,
                Action::Expire { id, reason } => Some(self.expire_call(now, id, reason)),
                Action::Nothing => None,
            };
        }
    }

    fn adaptive_decision(&mut self, now: Tick, hold_permille: u32) -> Action {
        let free = self.free.total(now);
        let sheds = self.sheds;
        let ctx = DecisionContext { now, limits: &self.limits, queue: &self.queue, free, hold_permille, sheds };
        let scopes = &self.scopes_in_flight;
        let scope_is_free =
            |scope: ScopeId| scopes.get(&scope).copied().unwrap_or(0) < self.limits.scope(scope).slots_max;
        let (paused, draining) = (&self.paused, self.draining);
        let heads = self.queue.heads().filter(|(_, head)| scope_is_free(head.call.scope));
        let heads = heads.filter(|(key, _)| draining || paused.until(now, *key).is_none());
        self.adaptive.next(ctx, heads, &self.classes, self.steps)
    }
}
