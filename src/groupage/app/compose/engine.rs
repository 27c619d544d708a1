//! The model that the process executes itself, opened before any port is bound.
//!
//! The feature `engine` of this package has it. Without it, a policy with a model is refused.

#[cfg(feature = "engine")]
pub(super) use self::served::EngineModel;
#[cfg(not(feature = "engine"))]
pub(super) use self::unavailable::EngineModel;

#[cfg(feature = "engine")]
mod served {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use groupage_engine::{CpuExecutor, DeviceChoice, MemoryDemand, Model};
    use groupage_serving::ServedModel;

    use super::super::executor_choice::{ExecutorChoice, choose_executor};
    use super::super::model_memory::{HostDemand, ModelMemory};
    use crate::clock::Clock;
    use crate::config::EngineConfig;
    use crate::error::BoxError;
    use crate::memory::anonymous_bytes;

    /// An opened model, and the choice of its executor, which does not exist yet.
    #[derive(Debug, Clone)]
    pub(in crate::app::compose) struct EngineModel {
        pub(in crate::app::compose) served: Arc<ServedModel>,
        pub(in crate::app::compose) choice: ExecutorChoice,
        /// Memory that opening the model took: that of its tokenizer. Weights are read later, when
        /// the executor is created.
        tokenizer_bytes: u64,
    }

    impl EngineModel {
        /// Opens the model of a policy, checks its tensors, and chooses the device that executes it.
        /// Compiled kernels are kept in `kernel_folder`, if there is one.
        pub(in crate::app::compose) fn open(
            config: &EngineConfig,
            kernel_folder: Option<&Path>,
        ) -> Result<Self, BoxError> {
            let allocated = || anonymous_bytes(Path::new("/")).unwrap_or(0);
            let before = allocated();
            let mut model = Model::open(&config.model).map_err(|error| format!("--engine: {error}"))?;
            if let Some(tokens_max) = config.item_tokens_max {
                model = model.with_tokens_max(usize::try_from(tokens_max).unwrap_or(usize::MAX));
            }
            let tokenizer_bytes = allocated().saturating_sub(before);
            model.check_tensors().map_err(|error| format!("--engine: {error}"))?;
            if model.lacks_head() {
                tracing::info!(
                    architecture = ?model.config().architecture,
                    "the classification head that `config.json` names is not used: the files lack its weights"
                );
            }
            let served = Arc::new(ServedModel::new(model, Clock::wall_micros() / 1_000_000));
            let mut choice = choose_executor(config)?;
            choice.log();
            choice.settings.kernel_cache = kernel_folder.map(Path::to_owned);
            Ok(Self { served, choice, tokenizer_bytes })
        }

        /// Returns the memory that the model may take in this process, with batches of at most
        /// `weight_max`. On a GPU, its weights and intermediate results are in the memory of the
        /// device; if it is not required, the CPU may have to execute the model.
        pub(in crate::app::compose) fn host_demand(&self, weight_max: Option<u64>) -> HostDemand {
            let settings = &self.choice.settings;
            let is_fallback = settings.device != DeviceChoice::Cpu;
            if is_fallback && settings.is_device_required {
                return HostDemand::default();
            }
            let sizes = self.served.cpu_batch_sizes(weight_max);
            HostDemand { by_tokens: sizes.map(|tokens| (tokens, self.memory(tokens))).collect(), is_fallback }
        }

        /// Returns the memory of an executor on the CPU with batches of at most `tokens_max` tokens.
        fn memory(&self, tokens_max: usize) -> ModelMemory {
            let options = self.served.cpu_options(tokens_max);
            let MemoryDemand { weights, scratch, threads } = CpuExecutor::memory_demand(self.served.model(), options);
            let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
            let (weights, scratch) = (bytes(weights), bytes(scratch));
            ModelMemory { weights, scratch, tokenizer: self.tokenizer_bytes, threads }
        }
    }

    impl fmt::Display for EngineModel {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "engine:{}", self.served.name())
        }
    }
}

#[cfg(not(feature = "engine"))]
mod unavailable {
    use std::convert::Infallible;
    use std::fmt;
    use std::path::Path;

    use super::super::model_memory::HostDemand;
    use crate::config::EngineConfig;
    use crate::error::BoxError;

    /// A model, of which this binary has none.
    #[derive(Debug, Clone)]
    pub(in crate::app::compose) struct EngineModel(pub(in crate::app::compose) Infallible);

    impl EngineModel {
        /// Refuses the model of a policy.
        pub(in crate::app::compose) fn open(config: &EngineConfig, _: Option<&Path>) -> Result<Self, BoxError> {
            let model = config.model.display();
            Err(format!(
                "--engine {model}: this binary is built without the engine: build it with `--features engine`, or name \
                 a model server with --upstream URL"
            )
            .into())
        }

        /// Returns the memory that the model may take.
        pub(in crate::app::compose) fn host_demand(&self, _: Option<u64>) -> HostDemand {
            match self.0 {}
        }
    }

    impl fmt::Display for EngineModel {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {}
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn without_the_feature_the_message_names_it() {
            let error = EngineModel::open(&EngineConfig::new("/models/m"), None).unwrap_err().to_string();
            assert!(error.contains("/models/m") && error.contains("--features engine"), "{error}");
        }
    }
}
