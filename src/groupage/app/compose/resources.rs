//! Resources of the process that all ports share: budgets, permits, certificates and metrics.

use std::path::Path;
use std::sync::Arc;

use super::certs::TlsCertificates;
use super::model_memory::{ModelMemory, log_lowered};
use crate::admin::AdminServer;
use crate::clock::Clock;
use crate::config::{Policy, ProcessLimits};
use crate::error::BoxError;
use crate::memory::{BufferBudget, ControlGroup, watch_pressure};
use crate::proxy::Connections;
use crate::telemetry::Metrics;
use crate::upstream::UpstreamPermits;

/// Resources that all ports share.
#[derive(Debug)]
pub(super) struct ProcessResources {
    pub(super) clock: Clock,
    /// Metrics of the process: those of the first port.
    pub(super) metrics: Arc<Metrics>,
    pub(super) buffers: BufferBudget,
    pub(super) certs: TlsCertificates,
    /// Downstream connections.
    pub(super) connections: Arc<Connections>,
    /// Permits of upstream connections.
    pub(super) upstream_permits: UpstreamPermits,
    /// Memory of the model that the process executes.
    model: ModelMemory,
}

// === impl ProcessResources ===

impl ProcessResources {
    /// Creates the budgets and loads the certificates. `model` is the memory of the model that the
    /// process executes.
    ///
    /// # Errors
    /// If a certificate file that the policy names is unusable, or the model leaves no memory.
    pub(super) fn load(
        policy: &Policy,
        model: ModelMemory,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BoxError> {
        let limits = process_limits(policy, model)?;
        let ProcessLimits { connections_max, buffered_bytes_max } = limits;
        let buffers = BufferBudget::new(buffered_bytes_max, clock);
        let certs = TlsCertificates::load(&policy.proxy)?;
        let connections = Connections::new(connections_max, buffered_bytes_max, clock, metrics.clone());
        let upstream_permits = UpstreamPermits::new(connections_max, clock, buffers.clone());
        Ok(Self { clock, metrics, buffers, certs, connections, upstream_permits, model })
    }

    /// Spawns the tasks that watch the certificate files and the memory pressure, on the thread of
    /// the admin ports.
    pub(super) fn watch(&self, admin: &AdminServer) {
        for watched in self.certs.watch(&self.metrics) {
            admin.spawn(watched);
        }
        if let Some(group) = ControlGroup::find(Path::new("/")) {
            let (buffers, connections) = (self.buffers.clone(), self.connections.clone());
            admin.spawn(watch_pressure(group.without_model(self.model.sum()), move |level| {
                buffers.set_pressure(level);
                connections.set_pressure(level);
            }));
        }
    }
}

/// Returns the limits of a policy, or what a model leaves of them within the memory limit of the
/// control group.
fn process_limits(policy: &Policy, model: ModelMemory) -> Result<ProcessLimits, BoxError> {
    let configured = policy.proxy.process.clone();
    if model == ModelMemory::default() {
        return Ok(configured);
    }
    // Without a control group, no share of its limit can be exceeded.
    let memory_limit = ControlGroup::find(Path::new("/")).map_or(u64::MAX, |group| group.limit());
    if let Some(budget) = policy.engine.as_ref().and_then(|engine| engine.memory) {
        model.check_budget(budget, memory_limit)?;
    }
    let limits = model.limits_beside(&configured, memory_limit)?;
    log_lowered(&configured, &limits);
    Ok(limits)
}
