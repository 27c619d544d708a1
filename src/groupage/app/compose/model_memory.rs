//! The memory of a model that the process executes, beside the limits on its connections and
//! buffers.

use crate::config::{MemoryBudget, ProcessLimits, format_size};
use crate::memory::{PROCESS_BYTES_MIN, buffered_bytes_within, connections_within};

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

// === impl ModelMemory ===

impl ModelMemory {
    /// Returns the memory of all parts.
    pub(super) const fn sum(self) -> u64 {
        self.weights.saturating_add(self.scratch).saturating_add(self.tokenizer)
    }

    /// Checks the memory of the executor against `engine.memory`. A share is one of the memory limit.
    ///
    /// # Errors
    /// The model needs more.
    pub(super) fn check_budget(self, budget: MemoryBudget, memory_limit: u64) -> Result<(), String> {
        let Self { weights, scratch, .. } = self;
        let budget = match budget {
            MemoryBudget::Bytes(bytes) => bytes,
            MemoryBudget::FreeShare(share) => {
                let share = u128::from(memory_limit) * u128::from(share.ppm()) / MILLION;
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
    pub(super) fn limits_beside(self, configured: &ProcessLimits, memory_limit: u64) -> Result<ProcessLimits, String> {
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
        let share = |text| MemoryBudget::FreeShare(parse_share(text).unwrap());
        for budget in [MemoryBudget::Bytes(190 << 20), share("50%"), share("100%")] {
            assert_eq!(MODEL.check_budget(budget, 380 << 20), Ok(()), "{budget:?}");
        }
        for budget in [MemoryBudget::Bytes((190 << 20) - 1), share("49%")] {
            let error = MODEL.check_budget(budget, 380 << 20).unwrap_err();
            assert!(error.starts_with("engine.memory: 90 MiB") && error.contains("at least 190 MiB"), "{error}");
        }
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
