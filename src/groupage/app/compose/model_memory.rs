//! The memory of a model that the process executes, beside the limits on its connections and
//! buffers.

use std::collections::BTreeMap;

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
    /// Number of threads, each of which has a part of the scratch memory.
    pub(super) threads: usize,
}

/// Memory that a model may take in this process; none by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct HostDemand {
    /// Memory by the maximum number of tokens of a batch. It is empty if the CPU executes no model.
    pub(super) by_tokens: BTreeMap<usize, ModelMemory>,
    /// `true` if the CPU executes the model only if the chosen GPU cannot.
    pub(super) is_fallback: bool,
}

/// Limits of the process beside its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LimitsBeside {
    pub(super) limits: ProcessLimits,
    /// Memory that is left to the model.
    pub(super) model: ModelMemory,
    /// Maximum number of tokens of a batch on the CPU; `None` if the CPU executes no model.
    pub(super) cpu_tokens_max: Option<usize>,
    /// Reason for which the CPU does not execute a model that the chosen GPU cannot: it needs more
    /// memory than there is. `None` if it may.
    pub(super) cpu_refusal: Option<String>,
}

// === impl HostDemand ===

impl HostDemand {
    /// Returns the number of tokens of the largest batch, which memory may lower.
    pub(super) fn tokens_wanted(&self) -> Option<usize> {
        self.by_tokens.keys().next_back().copied()
    }

    /// Returns the limits of the process beside the model, within `engine.memory` and the memory of
    /// this process, and the largest batch that fits. They are the same if the CPU may have to execute
    /// the model and if it has to, because they are fixed before the GPU has accepted the model.
    ///
    /// # Errors
    /// The CPU has to execute the model, which needs more even with the smallest batch.
    pub(super) fn limits_beside(
        &self,
        budget: Option<MemoryBudget>,
        configured: &ProcessLimits,
        machine: MachineMemory,
    ) -> Result<LimitsBeside, String> {
        let mut refusal = None;
        for (tokens_max, model) in self.by_tokens.iter().rev() {
            let checked = budget.map_or(Ok(()), |budget| model.check_budget(budget, machine));
            match checked.and_then(|()| model.limits_beside(configured, machine)) {
                Ok(limits) => {
                    let (model, cpu_tokens_max) = (*model, Some(*tokens_max));
                    return Ok(LimitsBeside { limits, model, cpu_tokens_max, cpu_refusal: None });
                }
                // That of the smallest batch has the least memory with which the model is executed.
                Err(reason) => refusal = Some(reason),
            }
        }
        match refusal {
            Some(reason) if !self.is_fallback => Err(reason),
            cpu_refusal => {
                let (limits, model) = (configured.clone(), ModelMemory::default());
                Ok(LimitsBeside { limits, model, cpu_tokens_max: None, cpu_refusal })
            }
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
        let Self { weights, scratch, threads, .. } = self;
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
            "engine.memory: {weights} of packed weights and {scratch} of working memory of {threads} threads are {sum}, \
             above the budget of {budget}: raise it to at least {sum}, or serve a smaller model"
        ))
    }

    /// Returns limits of the process that fit beside the model into the memory limit of the control
    /// group or, without one, into the memory of the machine. They are those that were configured, or
    /// lower.
    ///
    /// # Errors
    /// The model leaves too little memory for the proxy.
    fn limits_beside(self, configured: &ProcessLimits, machine: MachineMemory) -> Result<ProcessLimits, String> {
        // Nothing is known of the memory where `/proc` is not readable.
        let whole = machine.whole().unwrap_or(u64::MAX);
        let rest = whole.saturating_sub(self.sum());
        if rest < PROCESS_BYTES_MIN {
            return Err(self.describe_shortage(whole, machine.limit == Some(whole)));
        }
        let within = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        let buffered_bytes_max = configured.buffered_bytes_max.min(within(buffered_bytes_within(rest)));
        let connections_max =
            configured.connections_max.min(within(connections_within(rest, buffered_bytes_max as u64)));
        Ok(ProcessLimits { connections_max, buffered_bytes_max })
    }

    /// Describes a model that leaves too little of `whole`, which is a memory limit or the memory of
    /// the machine.
    fn describe_shortage(self, whole: u64, is_limit: bool) -> String {
        let Self { weights, scratch, tokenizer, threads } = self;
        let sum = self.sum().saturating_add(PROCESS_BYTES_MIN);
        let [weights, scratch, tokenizer, proxy, sum, whole] =
            [weights, scratch, tokenizer, PROCESS_BYTES_MIN, sum, whole].map(to_mebibytes);
        let (bound, remedy) = if is_limit {
            ("memory limit", "raise the memory limit of the container to at least")
        } else {
            ("memory of this machine", "use a machine with at least")
        };
        format!(
            "--engine: {weights} of packed weights, {scratch} of working memory of {threads} threads, {tokenizer} of \
             the tokenizer and {proxy} for the proxy are {sum}, above the {bound} of {whole}: {remedy} {sum}, or serve \
             a smaller model"
        )
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

/// Logs a maximum number of tokens of a batch on the CPU that is lower than `wanted`.
pub(super) fn log_smaller_batches(wanted: Option<usize>, tokens_max: Option<usize>) {
    if let Some(tokens_max) = tokens_max
        && wanted.is_some_and(|wanted| tokens_max < wanted)
    {
        tracing::warn!(tokens_max, "batches on the CPU are smaller for lack of memory");
    }
}

/// Writes bytes as MiB, rounded up.
fn to_mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_share;

    const MODEL: ModelMemory = ModelMemory { weights: 90 << 20, scratch: 100 << 20, tokenizer: 10 << 20, threads: 3 };
    const CONFIGURED: ProcessLimits = ProcessLimits { connections_max: 10_000, buffered_bytes_max: 64 << 20 };

    fn share(text: &str) -> MemoryBudget {
        MemoryBudget::FreeShare(parse_share(text).unwrap())
    }

    /// A machine of 64 GiB with a memory limit.
    fn limited(limit: u64) -> MachineMemory {
        MachineMemory { total: Some(64 << 30), available: Some(1), limit: Some(limit) }
    }

    /// A machine without a memory limit.
    fn unlimited(total: u64) -> MachineMemory {
        MachineMemory { total: Some(total), available: Some(1), limit: None }
    }

    fn demand(is_fallback: bool) -> HostDemand {
        HostDemand { by_tokens: BTreeMap::from([(1000, MODEL)]), is_fallback }
    }

    #[test]
    fn limits_fit_beside_the_model() {
        let limits = MODEL.limits_beside(&CONFIGURED, limited(328 << 20)).unwrap();
        // As without a model under a limit of 128 MiB.
        assert_eq!(limits, ProcessLimits { connections_max: 806, buffered_bytes_max: 32 << 20 });
        assert_eq!(MODEL.limits_beside(&CONFIGURED, limited(8 << 30)).unwrap(), CONFIGURED);
        let none = ModelMemory::default().limits_beside(&limits, limited(128 << 20)).unwrap();
        assert_eq!(none, limits, "nothing is raised");
    }

    #[test]
    fn a_model_above_its_budget_is_refused_with_the_sum() {
        // A share is one of the limit, and without a limit one of all memory.
        for machine in [limited(380 << 20), unlimited(380 << 20)] {
            for budget in [MemoryBudget::Bytes(190 << 20), share("50%"), share("100%")] {
                assert_eq!(MODEL.check_budget(budget, machine), Ok(()), "{budget:?} of {machine:?}");
            }
            for budget in [MemoryBudget::Bytes((190 << 20) - 1), share("49%")] {
                let error = MODEL.check_budget(budget, machine).unwrap_err();
                assert!(error.starts_with("engine.memory: 90 MiB") && error.contains("at least 190 MiB"), "{error}");
                assert!(error.contains("100 MiB of working memory of 3 threads"), "{error}");
            }
        }
        assert_eq!(MODEL.check_budget(share("1%"), MachineMemory::default()), Ok(()), "nothing is known");
    }

    #[test]
    fn a_model_that_the_cpu_may_have_to_execute_has_the_checks_of_one_that_it_has_to() {
        let beside = |is_fallback, budget, machine| demand(is_fallback).limits_beside(budget, &CONFIGURED, machine);
        let fits = beside(false, Some(share("80%")), limited(328 << 20)).unwrap();
        assert_eq!(fits.limits, ProcessLimits { connections_max: 806, buffered_bytes_max: 32 << 20 });
        assert_eq!((fits.model, fits.cpu_tokens_max, &fits.cpu_refusal), (MODEL, Some(1000), &None));
        assert_eq!(beside(true, Some(share("80%")), limited(328 << 20)).unwrap(), fits);
        for (budget, machine) in
            [(None, limited(220 << 20)), (None, unlimited(220 << 20)), (Some(share("10%")), limited(1 << 30))]
        {
            let reason = beside(false, budget, machine).unwrap_err();
            let refused = beside(true, budget, machine).unwrap();
            assert_eq!((refused.limits, refused.model), (CONFIGURED, ModelMemory::default()), "the GPU is used");
            assert_eq!((refused.cpu_tokens_max, refused.cpu_refusal), (None, Some(reason)));
        }
        let unknown = beside(false, None, MachineMemory::default()).unwrap();
        assert_eq!(unknown.limits, CONFIGURED);
        let none = HostDemand::default().limits_beside(Some(MemoryBudget::Bytes(1)), &CONFIGURED, limited(1)).unwrap();
        assert_eq!((none.limits, none.cpu_tokens_max, none.cpu_refusal), (CONFIGURED, None, None));
    }

    #[test]
    fn batches_are_as_large_as_the_memory_allows() {
        let memory = |tokens: u64| ModelMemory { scratch: tokens << 20, ..MODEL };
        let by_tokens = BTreeMap::from([(100, memory(100)), (50, memory(50)), (30, memory(30))]);
        let demand = HostDemand { by_tokens, is_fallback: false };
        assert_eq!(demand.tokens_wanted(), Some(100));
        let tokens = |budget, machine| {
            let beside = demand.limits_beside(budget, &CONFIGURED, machine)?;
            assert_eq!(Some(beside.model.scratch >> 20), beside.cpu_tokens_max.map(|tokens| tokens as u64));
            Ok::<_, String>(beside.cpu_tokens_max)
        };
        // The rest of the process takes 33 MiB.
        for (limit, expected) in [(240, 100), (230, 50), (180, 30)] {
            assert_eq!(tokens(None, limited(limit << 20)), Ok(Some(expected)), "{limit} MiB");
            assert_eq!(tokens(None, unlimited(limit << 20)), Ok(Some(expected)), "{limit} MiB");
        }
        assert_eq!(tokens(Some(MemoryBudget::Bytes(189 << 20)), limited(1 << 30)), Ok(Some(50)));
        let error = tokens(None, limited(160 << 20)).unwrap_err();
        assert!(error.contains("30 MiB of working memory"), "the least that is enough: {error}");
    }

    #[test]
    fn a_model_that_leaves_nothing_is_refused_with_the_sum() {
        let error = |machine| MODEL.limits_beside(&CONFIGURED, machine).unwrap_err();
        let limit = error(limited(220 << 20));
        for part in [
            "90 MiB of packed weights",
            "100 MiB of working memory of 3 threads",
            "10 MiB of the tokenizer",
            "above the memory limit of 220 MiB: raise the memory limit of the container to at least 23",
        ] {
            assert!(limit.contains(part), "{part}: {limit}");
        }
        let machine = error(unlimited(220 << 20));
        let part = "above the memory of this machine of 220 MiB: use a machine with at least 23";
        assert!(machine.contains(part), "{machine}");
        // A limit above the memory of the machine cannot be reached.
        assert_eq!(error(MachineMemory { total: Some(220 << 20), ..limited(1 << 30) }), machine);
        assert!(MODEL.limits_beside(&CONFIGURED, limited(240 << 20)).is_ok());
    }

    #[test]
    fn the_default_limit_of_a_sidecar_has_room_for_bert_large() {
        let bert_large = ModelMemory { weights: 1152 << 20, scratch: 384 << 20, tokenizer: 32 << 20, threads: 1 };
        let limits = bert_large.limits_beside(&CONFIGURED, limited(2 << 30)).unwrap();
        assert_eq!(limits, ProcessLimits { connections_max: 5167, ..CONFIGURED });
    }
}
