//! The plan of a start for the model of a policy, without ports: for `groupage doctor`.

use std::sync::Arc;

use groupage_serving::{ExecutorSettings, ServedModel};

use super::engine::EngineModel;
use super::executor_choice::ExecutorChoice;
use super::limits::batch_weight_max;
use super::model_memory::LimitsBeside;
use super::resources::process_limits;
use crate::config::Policy;
use crate::error::BoxError;
use crate::memory::MachineMemory;

/// An opened model, the device that executes it, and the settings of its executor.
#[derive(Debug, Clone)]
pub(crate) struct EnginePlan {
    pub(crate) served: Arc<ServedModel>,
    pub(crate) choice: ExecutorChoice,
}

/// Plans the execution of the model of a policy. The plan and its errors are those of a start.
///
/// # Errors
/// The policy names no model, the model cannot be opened, a GPU is required and there is none, or the
/// model needs more memory than there is.
pub(crate) fn plan_engine(policy: &Policy, machine: MachineMemory) -> Result<EnginePlan, BoxError> {
    let config = policy.engine.as_ref().ok_or("the policy names no model: set engine.model")?;
    let model = EngineModel::open(config, None)?;
    let demand = model.host_demand(batch_weight_max(policy));
    let LimitsBeside { cpu_tokens_max, cpu_refusal, .. } = process_limits(policy, &demand, machine)?;
    let EngineModel { served, choice, .. } = model;
    let settings = ExecutorSettings { cpu_tokens_max, cpu_refusal, ..choice.settings };
    Ok(EnginePlan { served, choice: ExecutorChoice { settings, ..choice } })
}
