//! Captured ports and their capture modes.

use super::ports::PortCandidate;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum PortCapture {
    /// The port's name moves to the sidecar.
    Named,
    /// The application listens on loopback, the sidecar on the pod's addresses.
    Loopback,
    /// A recipe moves the application to another port, and the sidecar listens on its number.
    Moved,
    /// The kernel redirects inbound connections to the sidecar.
    Redirect,
    /// The sidecar listens, but no reference to the port leads to it.
    None,
}

/// A port and its capture mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedPort {
    pub(super) port: PortCandidate,
    /// Other names of the same port number, which moved with it.
    pub(super) other_names: Vec<String>,
    pub(super) mode: PortCapture,
    /// Port number of the sidecar's listener. With `Loopback` it equals the application's port
    /// number, on the pod's addresses.
    pub(super) listen: u16,
    /// Port number of the application. It differs from the declared number only with `Moved`.
    pub(super) application: u16,
    /// Traffic that bypasses the sidecar, or that is lost on the way to it.
    pub(super) bypass: Vec<String>,
    /// Reason why no reference to the port leads to the sidecar, for mode `None`.
    pub(super) uncaptured: Option<String>,
}

// === impl PlannedPort ===

impl PlannedPort {
    /// Returns the names that refer to this port. The sidecar's port has them if they were moved.
    pub(super) fn all_names(&self) -> Vec<&str> {
        self.port.name.iter().chain(&self.other_names).map(String::as_str).collect()
    }

    /// Returns the names that were moved to the sidecar.
    pub(super) fn names(&self) -> Vec<&str> {
        if self.mode == PortCapture::Named { self.all_names() } else { Vec::new() }
    }
}
