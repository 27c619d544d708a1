//! The queue of a baseline: one FIFO queue per merge key.

use std::collections::{BTreeMap, VecDeque};

use crate::batching::{CallId, KeyId};

use super::super::batch::{BatchCompletion, ResponseStatus};
use super::super::proxy::SimProxy;

/// The queued calls of all merge keys, and the number of batches in flight.
#[derive(Debug, Default)]
pub(super) struct BaselineQueue {
    key_queues: BTreeMap<KeyId, KeyQueue>,
    /// Number of batches in flight.
    pub(super) in_flight: u32,
}

/// The queue of one merge key.
#[derive(Debug, Default)]
struct KeyQueue {
    /// Calls in order of arrival. Those of a batch that was refused for overload are in front
    /// again.
    calls: VecDeque<CallId>,
    /// Number of their items.
    items: u32,
}

// === impl BaselineQueue ===

impl BaselineQueue {
    pub(super) fn push(&mut self, proxy: &SimProxy, id: CallId) {
        let call = &proxy.arrival(id).call;
        let key_queue = self.key_queues.entry(call.key).or_default();
        key_queue.calls.push_back(id);
        key_queue.items += call.items;
    }

    pub(super) fn remove(&mut self, proxy: &SimProxy, key: KeyId, id: CallId) {
        if let Some(key_queue) = self.key_queues.get_mut(&key)
            && let Some(place) = key_queue.calls.iter().position(|queued| *queued == id)
        {
            key_queue.calls.remove(place);
            key_queue.items -= proxy.arrival(id).call.items;
        }
    }

    pub(super) fn keys(&self) -> Vec<KeyId> {
        self.key_queues.keys().copied().collect()
    }

    /// Returns the key with the head that arrived first.
    pub(super) fn oldest_key(&self) -> Option<KeyId> {
        let heads =
            self.key_queues.iter().filter_map(|(key, key_queue)| key_queue.calls.front().map(|head| (*head, *key)));
        heads.min().map(|(_, key)| key)
    }

    pub(super) fn items(&self, key: KeyId) -> u32 {
        self.key_queues.get(&key).map_or(0, |key_queue| key_queue.items)
    }

    pub(super) fn head(&self, key: KeyId) -> Option<CallId> {
        self.key_queues.get(&key)?.calls.front().copied()
    }

    pub(super) fn newest(&self, key: KeyId) -> Option<CallId> {
        self.key_queues.get(&key)?.calls.back().copied()
    }

    pub(super) fn expire_head(&mut self, proxy: &mut SimProxy, key: KeyId) {
        if let Some(id) = self.pop(proxy, key) {
            proxy.expire(id);
        }
    }

    /// Sends calls from the head of a queue with up to this number of items together, and at least
    /// one call, however large it is.
    pub(super) fn send(&mut self, proxy: &mut SimProxy, key: KeyId, items_max: u32) {
        let mut members = Vec::new();
        let mut items = 0;
        while let Some(head) = self.head(key) {
            items += proxy.arrival(head).call.items;
            if items > items_max && !members.is_empty() {
                break;
            }
            members.extend(self.pop(proxy, key));
        }
        if !members.is_empty() {
            self.in_flight += 1;
            proxy.send(members);
        }
    }

    /// Handles the completion of a batch. A batch refused for its size is sent again in halves; the
    /// members of a batch refused for overload are queued again in front.
    pub(super) fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        self.in_flight -= 1;
        match (done.status, done.members.as_slice()) {
            (ResponseStatus::Ok, _) | (_, []) => {}
            (ResponseStatus::Overloaded, members) => {
                for &id in members.iter().rev() {
                    let call = &proxy.arrival(id).call;
                    let key_queue = self.key_queues.entry(call.key).or_default();
                    key_queue.calls.push_front(id);
                    key_queue.items += call.items;
                }
            }
            (ResponseStatus::TooLarge { .. } | ResponseStatus::OutOfMemory, [id]) => proxy.refuse(*id),
            (ResponseStatus::TooLarge { .. } | ResponseStatus::OutOfMemory, members) => {
                let (first, second) = members.split_at(members.len() / 2);
                for half in [first, second] {
                    self.in_flight += 1;
                    proxy.send(half.to_vec());
                }
            }
        }
    }

    fn pop(&mut self, proxy: &SimProxy, key: KeyId) -> Option<CallId> {
        let key_queue = self.key_queues.get_mut(&key)?;
        let id = key_queue.calls.pop_front()?;
        key_queue.items -= proxy.arrival(id).call.items;
        if key_queue.calls.is_empty() {
            self.key_queues.remove(&key);
        }
        Some(id)
    }
}
