//! The memory of a model that the process executes, beside the limits on its connections and
//! buffers.

use crate::config::{MemoryBudget, ProcessLimits, format_size};
use crate::memory::{MachineMemory, PROCESS_BYTES_MIN, buffered_bytes_within, connections_within};

const MILLION: u128 = 1_000_000;

/// Memory of a model and of its executor in bytes, without files, which the kernel can drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ModelMemory {
    pub(super) weights: u64,
    pub(super) scratch: u64,
    /// Memory of the tokenizer, as measured when the model was opened. It is several times the size of
    /// its file, depending on the kind of the tokenizer.
    pub(super) tokenizer: u64,
}

/// Memory that a model may take in this process; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HostDemand {
    pub(super) memory: ModelMemory,
    /// `true` if the CPU executes the model only if the chosen GPU cannot.
    pub(super) is_fallback: bool,
}

/// Limits of the process beside its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LimitsBeside {
    pub(super) limits: ProcessLimits,
    /// Memory that is left to the model.
    pub(super) model: ModelMemory,
    /// Reason for which the CPU does not execute a model that the chosen GPU cannot: it needs more
    /// memory than there is. `None` if it may.
    pub(super) cpu_refusal: Option<String>,
}

// === impl HostDemand ===

impl HostDemand {
    /// Returns the limits of the process beside the model, within `engine.memory` and the memory
    /// limit of the control group. They are the same if the CPU may have to execute the model and
    /// if it has to, because they are fixed before the GPU has accepted the model.
    ///
    /// # Errors
    /// The CPU has to execute the model, which needs more.
    pub(super) fn limits_beside(
        self,
        budget: Option<MemoryBudget>,
        configured: &ProcessLimits,
        machine: MachineMemory,
    ) -> Result<LimitsBeside, String> {
        let Self { memory: model, is_fallback } = self;
        if model == ModelMemory::default() {
            return Ok(LimitsBeside { limits: configured.clone(), model, cpu_refusal: None });
        }
        let checked = budget.map_or(Ok(()), |budget| model.check_budget(budget, machine));
        // Without a control group, its limit cannot be exceeded.
        let memory_limit = machine.limit.unwrap_or(u64::MAX);
        match checked.and_then(|()| model.limits_beside(configured, memory_limit)) {
            Ok(limits) => Ok(LimitsBeside { limits, model, cpu_refusal: None }),
            Err(reason) if is_fallback => {
                let (limits, model) = (configured.clone(), ModelMemory::default());
                Ok(LimitsBeside { limits, model, cpu_refusal: Some(reason) })
            }
            Err(reason) => Err(reason),
        }
    }
}

// === impl ModelMemory ===

impl ModelMemory {
    /// Returns the memory of all parts.
    pub(super) const fn sum(self) -> u64 {
        self.weights.saturating_add(self.scratch).saturating_add(self.tokenizer)
    }

    /// Checks the memory of the executor against `engine.memory`. A share is one of the memory
    /// limit or, without a limit, of the memory of the machine.
    ///
    /// # Errors
    /// The model needs more.
    fn check_budget(self, budget: MemoryBudget, machine: MachineMemory) -> Result<(), String> {
        let Self { weights, scratch, .. } = self;
        let budget = match budget {
            MemoryBudget::Bytes(bytes) => bytes,
            MemoryBudget::FreeShare(share) => {
                // Nothing is known of the memory where `/proc` is not readable.
                let whole = machine.whole().unwrap_or(u64::MAX);
                let share = u128::from(whole) * u128::from(share.ppm()) / MILLION;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        };
        let sum = weights.saturating_add(scratch);
        if sum <= budget {
            return Ok(());
        }
        let [weights, scratch, sum, budget] = [weights, scratch, sum, budget].map(to_mebibytes);
        Err(format!(
            "engine.memory: {weights} of packed weights and {scratch} of working memory are {sum}, above the budget of \
             {budget}: raise it to at least {sum}, or serve a smaller model"
        ))
    }

    /// Returns limits of the process that fit into the memory limit beside the model. They are those
    /// that were configured, or lower.
    ///
    /// # Errors
    /// The model leaves too little memory for the proxy.
    fn limits_beside(self, configured: &ProcessLimits, memory_limit: u64) -> Result<ProcessLimits, String> {
        let Self { weights, scratch, tokenizer } = self;
        let rest = memory_limit.saturating_sub(self.sum());
        if rest < PROCESS_BYTES_MIN {
            let sum = self.sum().saturating_add(PROCESS_BYTES_MIN);
            let [weights, scratch, tokenizer, proxy, sum, limit] =
                [weights, scratch, tokenizer, PROCESS_BYTES_MIN, sum, memory_limit].map(to_mebibytes);
            return Err(format!(
                "--engine: {weights} of packed weights, {scratch} of working memory, {tokenizer} of the tokenizer and \
                 {proxy} for the proxy are {sum}, above the memory limit of {limit}: raise the memory limit of the \
                 container to at least {sum}, or serve a smaller model"
            ));
        }
        let within = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let buffered_bytes_max = configured.buffered_bytes_max.min(within(buffered_bytes_within(rest)));
        let connections_max =
            configured.connections_max.min(within(connections_within(rest, buffered_bytes_max as u64)));
        Ok(ProcessLimits { connections_max, buffered_bytes_max })
    }
}

/// Logs limits that are lower than those that were configured.
pub(super) fn log_lowered(configured: &ProcessLimits, limits: &ProcessLimits) {
    if configured == limits {
        return;
    }
    let ProcessLimits { connections_max, buffered_bytes_max } = *limits;
    tracing::info!(
        connections_max,
        buffered_bytes_max = format_size(buffered_bytes_max as u64),
        "limits of the process are lowered to what the model leaves of the memory limit"
    );
}

/// Writes bytes as MiB, rounded up.
fn to_mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_share;

    const MODEL: ModelMemory = ModelMemory { weights: 90 << 20, scratch: 100 << 20, tokenizer: 10 << 20 };
    const CONFIGURED: ProcessLimits = ProcessLimits { connections_max: 10_000, buffered_bytes_max: 64 << 20 };

    fn share(text: &str) -> MemoryBudget {
        MemoryBudget::FreeShare(parse_share(text).unwrap())
    }

    #[test]
    fn limits_fit_beside_the_model() {
        let limits = MODEL.limits_beside(&CONFIGURED, 328 << 20).unwrap();
        // As without a model under a limit of 128 MiB.
        assert_eq!(limits, ProcessLimits { connections_max: 806, buffered_bytes_max: 32 << 20 });
        assert_eq!(MODEL.limits_beside(&CONFIGURED, 8 << 30).unwrap(), CONFIGURED);
        assert_eq!(ModelMemory::default().limits_beside(&limits, 128 << 20).unwrap(), limits, "nothing is raised");
    }

    #[test]
    fn a_model_above_its_budget_is_refused_with_the_sum() {
        let machine = |total, limit| MachineMemory { total, available: Some(1), limit };
        // A share is one of the limit, and without a limit one of all memory.
        for machine in [machine(Some(8 << 30), Some(380 << 20)), machine(Some(380 << 20), None)] {
            for budget in [MemoryBudget::Bytes(190 << 20), share("50%"), share("100%")] {
                assert_eq!(MODEL.check_budget(budget, machine), Ok(()), "{budget:?} of {machine:?}");
            }
            for budget in [MemoryBudget::Bytes((190 << 20) - 1), share("49%")] {
                let error = MODEL.check_budget(budget, machine).unwrap_err();
                assert!(error.starts_with("engine.memory: 90 MiB") && error.contains("at least 190 MiB"), "{error}");
            }
        }
        assert_eq!(MODEL.check_budget(share("1%"), MachineMemory::default()), Ok(()), "nothing is known");
    }

    #[test]
    fn a_model_that_the_cpu_may_have_to_execute_has_the_checks_of_one_that_it_has_to() {
        let limited = |limit: u64| MachineMemory { limit: Some(limit), ..MachineMemory::default() };
        let beside = |is_fallback, budget, machine| {
            HostDemand { memory: MODEL, is_fallback }.limits_beside(budget, &CONFIGURED, machine)
        };
        let fits = beside(false, Some(share("80%")), limited(328 << 20)).unwrap();
        assert_eq!(fits.limits, ProcessLimits { connections_max: 806, buffered_bytes_max: 32 << 20 });
        assert_eq!((fits.model, &fits.cpu_refusal), (MODEL, &None));
        assert_eq!(beside(true, Some(share("80%")), limited(328 << 20)).unwrap(), fits);
        for (budget, machine) in [(None, limited(220 << 20)), (Some(share("10%")), limited(1 << 30))] {
            let reason = beside(false, budget, machine).unwrap_err();
            let refused = beside(true, budget, machine).unwrap();
            assert_eq!((refused.limits, refused.model), (CONFIGURED, ModelMemory::default()), "the GPU is used");
            assert_eq!(refused.cpu_refusal, Some(reason));
        }
        let unlimited = beside(false, None, MachineMemory::default()).unwrap();
        assert_eq!(unlimited.limits, CONFIGURED);
        let none = HostDemand::default().limits_beside(Some(MemoryBudget::Bytes(1)), &CONFIGURED, limited(1)).unwrap();
        assert_eq!((none.limits, none.cpu_refusal), (CONFIGURED, None));
    }

    #[test]
    fn a_model_that_leaves_nothing_is_refused_with_the_sum() {
        let error = MODEL.limits_beside(&CONFIGURED, 220 << 20).unwrap_err();
        for part in [
            "90 MiB of packed weights",
            "100 MiB of working memory",
            "10 MiB of the tokenizer",
            "memory limit of 220 MiB",
            "at least 23",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(MODEL.limits_beside(&CONFIGURED, 240 << 20).is_ok());
    }

    #[test]
    fn the_default_limit_of_a_sidecar_has_room_for_bert_large() {
        let bert_large = ModelMemory { weights: 1152 << 20, scratch: 384 << 20, tokenizer: 32 << 20 };
        let limits = bert_large.limits_beside(&CONFIGURED, 2 << 30).unwrap();
        assert_eq!(limits, ProcessLimits { connections_max: 5167, ..CONFIGURED });
    }
}
