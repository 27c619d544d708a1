//! The state of a listener: set by its owner, and watched by its accept loops and connections.

use tokio::sync::watch;

/// State of a listener and its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerState {
    /// Connections are accepted and served.
    Serving,
    /// Draining: connections are served, and responses direct clients to reconnect elsewhere.
    Draining,
    /// No connections are accepted, and open ones are closed once their calls have ended.
    Closed,
}

/// Broadcasts the state of a listener to its connections.
#[derive(Debug)]
pub struct ListenerChannel {
    pub(super) control: ListenerControl,
    pub(super) state: watch::Receiver<ListenerState>,
}

/// Sets the state of a listener.
#[derive(Debug, Clone)]
pub struct ListenerControl(watch::Sender<ListenerState>);

// === impl ListenerChannel ===

impl ListenerChannel {
    /// Returns the handle that sets the state.
    #[must_use]
    pub fn control(&self) -> ListenerControl {
        self.control.clone()
    }
}

impl Default for ListenerChannel {
    fn default() -> Self {
        let (control, state) = watch::channel(ListenerState::Serving);
        Self { control: ListenerControl(control), state }
    }
}

// === impl ListenerControl ===

impl ListenerControl {
    /// Sets the state. `Closed` is final.
    pub fn set_state(&self, state: ListenerState) {
        self.0.send_if_modified(|now| {
            let changes = *now != state && *now != ListenerState::Closed;
            if changes {
                *now = state;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_state_is_final() {
        let channel = ListenerChannel::default();
        let (control, state) = (channel.control(), channel.state);
        for (next, now) in [
            (ListenerState::Draining, ListenerState::Draining),
            (ListenerState::Serving, ListenerState::Serving),
            (ListenerState::Closed, ListenerState::Closed),
            (ListenerState::Serving, ListenerState::Closed),
        ] {
            control.set_state(next);
            assert_eq!(*state.borrow(), now);
        }
    }
}
