//! Allocation of port numbers for the sidecar's listeners.

use std::collections::BTreeSet;

use serde_json::Value;

use super::ports::{ISTIO_PORTS, PortCandidate, application_containers, declared_ports};
use super::{SkipReason, SkippedPod, probe_ports};

/// First port number tried for the listener of a captured port.
const LISTEN_FIRST: u16 = 15080;
/// Preferred port of `/metrics`.
const METRICS: u16 = 9190;
/// Preferred port of `/api`.
const ADMIN: u16 = 9191;

/// Port numbers of the sidecar's listeners.
#[derive(Debug, Clone)]
pub(super) struct PortAllocator {
    taken: BTreeSet<u16>,
    pub(super) metrics: u16,
    pub(super) admin: u16,
}

// === impl PortAllocator ===

impl PortAllocator {
    /// Collects the port numbers in use and allocates those of `/metrics` and `/api`. `more` are
    /// captured ports that no container declares.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn new(pod: &Value, more: &[PortCandidate]) -> Result<Self, SkippedPod> {
        let dialled = application_containers(pod).flat_map(probe_ports::probe_ports);
        let known = declared_ports(pod).map(|port| port.number).chain(more.iter().map(|port| port.number));
        let taken = known.chain(dialled).chain(ISTIO_PORTS).collect();
        let mut numbers = Self { taken, metrics: 0, admin: 0 };
        numbers.metrics = numbers.allocate_from(METRICS)?;
        numbers.admin = numbers.allocate_from(ADMIN)?;
        Ok(numbers)
    }

    /// Reserves numbers that the application listens on without declaring them. `/metrics` or
    /// `/api` moves if it had one of them.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn reserve(&mut self, more: impl Iterator<Item = u16>) -> Result<(), SkippedPod> {
        let own = [self.metrics, self.admin];
        let more: Vec<u16> = more.filter(|number| self.taken.insert(*number) || own.contains(number)).collect();
        if more.contains(&self.metrics) {
            self.metrics = self.allocate_from(METRICS)?;
        }
        if more.contains(&self.admin) {
            self.admin = self.allocate_from(ADMIN)?;
        }
        Ok(())
    }

    /// Allocates the next number for a captured port.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn next_listen_port(&mut self) -> Result<u16, SkippedPod> {
        self.allocate_from(LISTEN_FIRST)
    }

    /// Allocates the first free number from `first` on.
    fn allocate_from(&mut self, first: u16) -> Result<u16, SkippedPod> {
        let number = (first..=u16::MAX).find(|number| !self.taken.contains(number));
        let number = number.ok_or_else(|| {
            SkipReason::TooLarge
                .with_detail(format!("every port from {first} on is in use: no port is left for the sidecar"))
        })?;
        self.taken.insert(number);
        Ok(number)
    }
}
