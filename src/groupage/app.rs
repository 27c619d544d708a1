//! The processes that `groupage` runs: the proxy, as a sidecar or alone, and the controller. They
//! are assembled here from the packages, and run from their start to the end of their shutdown.
//!
//! ```text
//! proxy_process ─┬─▶ sources   initial settings: flags, environment, file, last good settings
//!                ├─▶ compose   the proxy: ports, reconfiguration, drain, admin ports
//!                ├─▶ reload    settings from the policy file, while the proxy runs
//!                └─▶ stream    settings from the controller, and reports to it
//! controller     ───▶ the package `controller`
//! ```
//! `reload` and `stream` change settings through `compose::SettingsHandle`. `state_dir` is the
//! state that outlives a process.
//!
//! This module parses no argument and prints nothing: commands are in `cli`, which imports from
//! here and not the other way round.

mod compose;
mod controller;
mod file_watch;
mod process;
mod proxy_process;
mod reload;
mod settings_log;
mod sources;
mod state_dir;
mod stream;

pub use self::compose::{AppOptions, AppliedSettings, RunningApp, SettingsHandle, SettingsRefusal, start};
#[cfg(feature = "engine")]
pub(crate) use self::compose::{EnginePlan, ExecutorChoice, plan_engine};
pub(crate) use self::compose::{build_route_table, build_upstream};
pub(crate) use self::controller::ControllerProcess;
pub(crate) use self::process::{EXIT_INTERNAL, ProcessError, build_runtime};
pub(crate) use self::proxy_process::ProxyProcess;
pub(crate) use self::sources::SettingsSources;
