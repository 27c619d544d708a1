//! Resources of the process that all ports share: budgets, permits, certificates and metrics.

use std::path::Path;
use std::sync::Arc;

use super::certs::TlsCertificates;
use super::model_memory::{HostDemand, LimitsBeside, ModelMemory, log_lowered, log_smaller_batches};
use crate::admin::AdminServer;
use crate::clock::Clock;
use crate::config::{Policy, ProcessLimits};
use crate::error::BoxError;
use crate::memory::{BufferBudget, ControlGroup, MachineMemory, watch_pressure};
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
    /// Maximum number of tokens of a batch on the CPU.
    #[cfg_attr(not(feature = "engine"), expect(dead_code, reason = "a build without the engine executes no model"))]
    pub(super) cpu_tokens_max: Option<usize>,
    /// Reason for which the CPU does not execute a model that the chosen GPU cannot.
    #[cfg_attr(not(feature = "engine"), expect(dead_code, reason = "a build without the engine executes no model"))]
    pub(super) cpu_refusal: Option<String>,
    /// Memory that is left to the model that the process executes.
    model: ModelMemory,
}

// === impl ProcessResources ===

impl ProcessResources {
    /// Creates the budgets and loads the certificates. `model` is the memory that the model of the
    /// process may take.
    ///
    /// # Errors
    /// If a certificate file that the policy names is unusable, or the model leaves no memory.
    pub(super) fn load(
        policy: &Policy,
        model: &HostDemand,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BoxError> {
        let machine = MachineMemory::read(Path::new("/"));
        let LimitsBeside { limits, model, cpu_tokens_max, cpu_refusal } = process_limits(policy, model, machine)?;
        let ProcessLimits { connections_max, buffered_bytes_max } = limits;
        let buffers = BufferBudget::new(buffered_bytes_max, clock);
        let certs = TlsCertificates::load(&policy.proxy)?;
        let connections = Connections::new(connections_max, buffered_bytes_max, clock, metrics.clone());
        let upstream_permits = UpstreamPermits::new(connections_max, clock, buffers.clone());
        Ok(Self { clock, metrics, buffers, certs, connections, upstream_permits, cpu_tokens_max, cpu_refusal, model })
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

/// Returns the limits of a policy, or what a model leaves of them within the memory of this process.
///
/// # Errors
/// The model leaves too little memory, or exceeds `engine.memory`.
pub(super) fn process_limits(
    policy: &Policy,
    model: &HostDemand,
    machine: MachineMemory,
) -> Result<LimitsBeside, String> {
    let configured = &policy.proxy.process;
    let budget = policy.engine.as_ref().and_then(|engine| engine.memory);
    let beside = model.limits_beside(budget, configured, machine)?;
    log_lowered(configured, &beside.limits);
    log_smaller_batches(model.tokens_wanted(), beside.cpu_tokens_max);
    if let Some(reason) = &beside.cpu_refusal {
        tracing::info!(reason, "the CPU does not execute the model if the GPU cannot");
    }
    Ok(beside)
}
