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

    use groupage_engine::Model;
    use groupage_serving::{ExecutorSettings, ServedModel};

    use super::super::executor_choice::choose_executor;
    use crate::clock::Clock;
    use crate::config::EngineConfig;
    use crate::error::BoxError;

    /// An opened model, and the settings of its executor, which does not exist yet.
    #[derive(Debug, Clone)]
    pub(in crate::app::compose) struct EngineModel {
        pub(in crate::app::compose) served: Arc<ServedModel>,
        pub(in crate::app::compose) executor: ExecutorSettings,
    }

    impl EngineModel {
        /// Opens the model of a policy, and chooses the device that executes it. Compiled
        /// kernels are kept in `kernel_folder`, if there is one.
        pub(in crate::app::compose) fn open(
            config: &EngineConfig,
            kernel_folder: Option<&Path>,
        ) -> Result<Self, BoxError> {
            let model = Model::open(&config.model).map_err(|error| format!("--engine: {error}"))?;
            let served = Arc::new(ServedModel::new(model, Clock::wall_micros() / 1_000_000));
            Ok(Self { served, executor: choose_executor(config, kernel_folder)? })
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
