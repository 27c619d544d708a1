//! The model server of a port: one that is reached over HTTP, or the engine in this process.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "engine")]
use groupage_serving::EngineServer;
use serde_json::Value;
use tokio::sync::watch;

use super::engine::EngineModel;
use super::model_memory::HostDemand;
use crate::backend::{Backend, Forwarder};
use crate::protocol::TokenCalibration;
use crate::upstream::{ServerIdentity, Upstream, UpstreamTarget};

/// The place of the model server.
#[derive(Debug, Clone)]
pub(super) enum ServerTarget {
    Upstream(UpstreamTarget),
    Engine(EngineModel),
}

/// The model server of a port.
#[derive(Debug, Clone)]
pub(in crate::app) enum ModelServer {
    Upstream(Upstream),
    #[cfg(feature = "engine")]
    Engine(EngineServer),
}

// === impl ServerTarget ===

impl ServerTarget {
    /// Returns the memory that the model of this process may take, with batches of at most
    /// `weight_max`; `None` for an upstream.
    pub(super) fn host_demand(&self, weight_max: Option<u64>) -> Option<HostDemand> {
        match self {
            Self::Upstream(_) => None,
            Self::Engine(model) => Some(model.host_demand(weight_max)),
        }
    }
}

impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream(target) => target.fmt(f),
            Self::Engine(model) => model.fmt(f),
        }
    }
}

// === impl ModelServer ===

impl ModelServer {
    /// Returns the interface for batches.
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::Upstream(upstream) => upstream.backend(),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.backend(),
        }
    }

    /// Returns the interface for all other calls.
    pub(super) fn forward(&self) -> Arc<dyn Forwarder> {
        match self {
            Self::Upstream(upstream) => upstream.forward(),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.forward(),
        }
    }

    /// Returns the rates of tokens that are learned from responses. The engine counts tokens before
    /// calls are queued, so it learns none.
    pub(super) fn token_calibration(&self) -> Arc<TokenCalibration> {
        match self {
            Self::Upstream(upstream) => upstream.token_calibration(),
            #[cfg(feature = "engine")]
            Self::Engine(_) => Arc::default(),
        }
    }

    /// Returns the latest identity of the server.
    pub(in crate::app) fn identity(&self) -> watch::Receiver<ServerIdentity> {
        match self {
            Self::Upstream(upstream) => upstream.identity(),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.identity(),
        }
    }

    /// Returns `true` if the server can answer calls.
    pub(in crate::app) fn is_ready(&self) -> bool {
        match self {
            Self::Upstream(upstream) => upstream.is_ready(),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.is_ready(),
        }
    }

    /// Returns the number of times that the server became reachable again.
    pub(super) fn recoveries(&self) -> watch::Receiver<u64> {
        match self {
            Self::Upstream(upstream) => upstream.recoveries(),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.recoveries(),
        }
    }

    /// Returns `true` if the server accepts a connection now. The result does not affect readiness.
    pub(super) async fn can_connect(&self) -> bool {
        match self {
            Self::Upstream(upstream) => upstream.can_connect().await,
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.is_ready(),
        }
    }

    /// Returns `true` if the server accepts a connection. An upstream that does not is probed until
    /// it does.
    pub(super) async fn check_connection(&self) -> bool {
        match self {
            Self::Upstream(upstream) => upstream.check_connection().await,
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.is_ready(),
        }
    }

    /// Applies the settings for calls that are sent again. The engine does so for `verify` only.
    pub(super) fn set_failure(&self, isolate_above: u32, replay_ppm: u32) {
        match self {
            Self::Upstream(upstream) => upstream.set_failure(isolate_above, replay_ppm),
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.set_replay_share(replay_ppm),
        }
    }

    /// Starts to watch whether an upstream is reachable.
    pub(super) fn watch(&self) {
        match self {
            Self::Upstream(upstream) => upstream.watch(),
            #[cfg(feature = "engine")]
            Self::Engine(_) => {}
        }
    }

    /// Resolves when the server has failed for good, which only the engine does.
    pub(super) async fn failed(&self) {
        match self {
            Self::Upstream(_) => std::future::pending().await,
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.failed().await,
        }
    }

    /// Resolves with a description of the device of the engine once its model is loaded, and with
    /// `true` if it is not the chosen one. An upstream, and an engine that fails, have none.
    pub(in crate::app) async fn engine_device(&self) -> Option<(String, bool)> {
        match self {
            Self::Upstream(_) => std::future::ready(None).await,
            #[cfg(feature = "engine")]
            Self::Engine(engine) => engine.loaded().await.map(|device| (device.description, device.is_fallback)),
        }
    }

    /// Returns the report of the engine; `None` for an upstream.
    pub(super) fn engine_report(&self) -> Option<Value> {
        match self {
            Self::Upstream(_) => None,
            #[cfg(feature = "engine")]
            Self::Engine(engine) => Some(engine.report()),
        }
    }
}
