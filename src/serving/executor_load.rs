//! Creation of the executor of a model: on the chosen GPU; or on the CPU, if it is chosen or if the
//! GPU cannot execute the model and is not required.

use std::fmt;
use std::path::{Path, PathBuf};

use groupage_engine::{
    CpuExecutor, CudaLoadError, CudaOptions, DeviceChoice, Executor, LoadError, MemoryLimit, Model, open_gpu_executor,
};

use crate::model::ServedModel;

/// Settings of the executor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorSettings {
    /// The device, as `groupage_engine::choose_device` returns it.
    pub device: DeviceChoice,
    /// `true` to refuse a model that the chosen GPU cannot execute. Otherwise, it is executed on
    /// the CPU.
    pub is_device_required: bool,
    /// Maximum memory on a GPU. On the CPU, the caller compares the demand with its limit.
    pub memory: MemoryLimit,
    /// Maximum number of tokens of a batch on the CPU, one of [`ServedModel::cpu_batch_sizes`]; `None`
    /// for the largest.
    pub cpu_tokens_max: Option<usize>,
    /// Reason for which the CPU does not execute a model that the chosen GPU cannot, such as a lack
    /// of memory; `None` if it may.
    pub cpu_refusal: Option<String>,
    /// `true` to refuse an executor without batch invariance.
    pub batch_invariant: bool,
    /// Directory in which compiled kernels of a GPU are kept; `None` to compile them at each start.
    pub kernel_cache: Option<PathBuf>,
}

/// Error of an executor that cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorLoadError {
    /// The executor on the CPU cannot be created.
    #[error(transparent)]
    Cpu(#[from] LoadError),
    /// The executor on the GPU cannot be created, and no other one is allowed.
    #[error("the GPU is required and cannot be used: {0}")]
    Gpu(CudaLoadError),
    /// The executor on the chosen GPU cannot be created, and the one on the CPU is refused.
    #[error("the GPU cannot execute the model: {gpu}; and the CPU cannot either: {cpu}")]
    NoFallback {
        /// Error of the GPU.
        gpu: Box<CudaLoadError>,
        /// Reason against the CPU.
        cpu: String,
    },
    /// Batch invariance is required and the executor has none.
    #[error(
        "results of the executor ({kernels}) depend on the batch: choose another device, or do not require batch \
         invariance"
    )]
    BatchDependent {
        /// The kernels of the executor.
        kernels: String,
    },
}

/// An executor, and the reason for which it is not on the chosen device.
pub struct LoadedExecutor {
    /// The executor.
    pub executor: Box<dyn Executor>,
    /// Error of the chosen GPU, if the CPU is used instead.
    pub refusal: Option<CudaLoadError>,
}

// === impl LoadedExecutor ===

impl From<Box<dyn Executor>> for LoadedExecutor {
    /// The executor of the chosen device.
    fn from(executor: Box<dyn Executor>) -> Self {
        Self { executor, refusal: None }
    }
}

impl fmt::Debug for LoadedExecutor {
    /// Prints the report of the executor.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executor, refusal } = self;
        f.debug_struct("LoadedExecutor").field("report", executor.report()).field("refusal", refusal).finish()
    }
}

/// Creates the executor of a model. It takes as long as the weights need to be read and packed.
///
/// # Errors
/// No allowed executor can be created.
pub fn load_executor(model: &ServedModel, settings: &ExecutorSettings) -> Result<LoadedExecutor, ExecutorLoadError> {
    load_with(model, settings, open_gpu_executor)
}

/// As [`load_executor`], with the function that creates an executor on a GPU.
fn load_with(
    model: &ServedModel,
    settings: &ExecutorSettings,
    open_gpu: impl Fn(&Model, usize, Option<&Path>, CudaOptions) -> Result<Box<dyn Executor>, CudaLoadError>,
) -> Result<LoadedExecutor, ExecutorLoadError> {
    let (executor, refusal) = match settings.device {
        DeviceChoice::Cpu => (load_on_cpu(model, settings)?, None),
        DeviceChoice::Cuda { ordinal } => {
            let open =
                |options: CudaOptions| open_gpu(model.model(), ordinal, settings.kernel_cache.as_deref(), options);
            let memory = settings.memory;
            let options =
                CudaOptions { tokens_max: model.batch_tokens_max(), memory, batch_invariant: settings.batch_invariant };
            match load_on_gpu(options, open) {
                Ok(executor) => (executor, None),
                Err(error) if settings.is_device_required => return Err(ExecutorLoadError::Gpu(error)),
                Err(error) => {
                    if let Some(reason) = &settings.cpu_refusal {
                        return Err(ExecutorLoadError::NoFallback { gpu: Box::new(error), cpu: reason.clone() });
                    }
                    tracing::warn!(reason = %error, "the GPU cannot execute the model: it is executed on the CPU");
                    (load_on_cpu(model, settings)?, Some(error))
                }
            }
        }
    };
    let report = executor.report();
    if settings.batch_invariant && !report.batch_invariant {
        return Err(ExecutorLoadError::BatchDependent { kernels: report.kernels.clone() });
    }
    Ok(LoadedExecutor { executor, refusal })
}

fn load_on_cpu(model: &ServedModel, settings: &ExecutorSettings) -> Result<Box<dyn Executor>, LoadError> {
    let tokens_max = settings.cpu_tokens_max.unwrap_or_else(|| model.batch_tokens_max());
    Ok(Box::new(CpuExecutor::new(model.model(), model.cpu_options(tokens_max))?))
}

/// Creates the executor for batches of the usual size or, if there is not enough memory, for the
/// largest possible ones. Every job can still be executed, in more batches.
fn load_on_gpu(
    options: CudaOptions,
    open: impl Fn(CudaOptions) -> Result<Box<dyn Executor>, CudaLoadError>,
) -> Result<Box<dyn Executor>, CudaLoadError> {
    match open(options) {
        Err(CudaLoadError::Memory(shortage)) if shortage.tokens_possible > 0 => {
            tracing::warn!(%shortage, "batches are smaller for lack of device memory");
            open(CudaOptions { tokens_max: shortage.tokens_possible, ..options })
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use groupage_engine::MemoryShortage;

    use super::*;
    use crate::tests::{FakeExecutor, TestModel};

    const GPU: ExecutorSettings = ExecutorSettings {
        device: DeviceChoice::Cuda { ordinal: 3 },
        is_device_required: false,
        memory: MemoryLimit::Bytes(1000),
        cpu_tokens_max: Some(64),
        cpu_refusal: None,
        batch_invariant: true,
        kernel_cache: None,
    };

    fn kernels(loaded: Result<LoadedExecutor, ExecutorLoadError>) -> Result<String, ExecutorLoadError> {
        loaded.map(|loaded| loaded.executor.report().kernels.clone())
    }

    fn shortage(tokens_possible: usize) -> CudaLoadError {
        let (weights, workspace, results) = (600, 500, 100);
        let (total, available, tokens_max) = (1200, 1000, 16_384);
        MemoryShortage { weights, workspace, results, total, available, tokens_max, tokens_possible }.into()
    }

    fn fake(tokens_max: usize) -> Box<dyn Executor> {
        Box::new(FakeExecutor::new(tokens_max))
    }

    #[test]
    fn the_chosen_device_executes_the_model() {
        let model = TestModel::embedding();
        let opened = RefCell::new(Vec::new());
        let open = |_: &Model, ordinal, cache: Option<&Path>, options: CudaOptions| {
            let cache = cache.map(Path::to_owned);
            opened.borrow_mut().push((ordinal, options, cache));
            Ok(fake(options.tokens_max))
        };
        let kernel_cache = Some(PathBuf::from("/state/kernels"));
        let cached = ExecutorSettings { kernel_cache: kernel_cache.clone(), ..GPU };
        assert_eq!(kernels(load_with(&model.served, &cached, open)).unwrap(), "fake");
        let options = CudaOptions { tokens_max: 16_384, memory: MemoryLimit::Bytes(1000), batch_invariant: true };
        assert_eq!(*opened.borrow(), [(3, options, kernel_cache)]);
        let cpu = ExecutorSettings { device: DeviceChoice::Cpu, ..GPU };
        let tokens_max = |settings: &ExecutorSettings| {
            load_with(&model.served, settings, open).unwrap().executor.report().tokens_max
        };
        assert_eq!(tokens_max(&cpu), 64);
        assert_eq!(tokens_max(&ExecutorSettings { cpu_tokens_max: None, ..cpu.clone() }), 16_384);
        assert!(kernels(load_with(&model.served, &cpu, open)).unwrap().starts_with("CPU, "));
        assert_eq!(opened.borrow().len(), 1, "no GPU is opened for the CPU");
    }

    #[test]
    fn a_model_that_a_gpu_cannot_execute_is_executed_on_the_cpu_unless_the_gpu_is_required() {
        let model = TestModel::embedding();
        let open = |_: &Model, _, _: Option<&Path>, _| Err(shortage(0));
        let loaded = load_with(&model.served, &GPU, open).unwrap();
        assert_eq!(loaded.refusal, Some(shortage(0)));
        assert!(kernels(Ok(loaded)).unwrap().starts_with("CPU, "));
        let refused = ExecutorSettings { cpu_refusal: Some("190 MiB are above 100 MiB".to_owned()), ..GPU };
        let error = kernels(load_with(&model.served, &refused, open)).unwrap_err().to_string();
        assert!(error.contains("1 MiB of weights") && error.ends_with("either: 190 MiB are above 100 MiB"), "{error}");
        let required = ExecutorSettings { is_device_required: true, ..GPU };
        let error = kernels(load_with(&model.served, &required, open)).unwrap_err();
        assert_eq!(error, ExecutorLoadError::Gpu(shortage(0)));
        assert!(error.to_string().starts_with("the GPU is required and cannot be used: 1 MiB of weights"), "{error}");
    }

    #[test]
    fn batches_are_as_large_as_the_memory_allows() {
        let model = TestModel::embedding();
        let open = |_: &Model, _, _: Option<&Path>, options: CudaOptions| match options.tokens_max {
            0..=4096 => Ok(fake(options.tokens_max)),
            _ => Err(shortage(4096)),
        };
        let loaded = load_with(&model.served, &ExecutorSettings { is_device_required: true, ..GPU }, open).unwrap();
        assert_eq!((loaded.executor.report().tokens_max, loaded.refusal), (4096, None));
    }

    #[test]
    fn an_executor_whose_results_depend_on_the_batch_is_refused_if_they_may_not() {
        let model = TestModel::embedding();
        let open = |_: &Model, _, _: Option<&Path>, options: CudaOptions| {
            let executor: Box<dyn Executor> = Box::new(FakeExecutor::new(options.tokens_max).batch_dependent());
            Ok(executor)
        };
        let error = kernels(load_with(&model.served, &GPU, open)).unwrap_err();
        assert_eq!(error, ExecutorLoadError::BatchDependent { kernels: "fake".to_owned() });
        kernels(load_with(&model.served, &ExecutorSettings { batch_invariant: false, ..GPU }, open)).unwrap();
    }
}
