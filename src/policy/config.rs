//! Configuration of the proxy: one file, the environment, command-line flags, and built-in
//! defaults.
//!
//! [`load`] parses a text and reports all of its problems at once. [`build`] applies flags over
//! environment over file over defaults and returns a [`Policy`] in which no value is missing, with
//! the source of every value. The table in `schema` defines the type and range of each key; the
//! names are those of `api::v1alpha1`. The definitions of the cluster's objects ([`crds`]) are
//! generated from the same table. `change` computes the difference between two policies. Reloading
//! a file, the cluster's objects and learned state are handled elsewhere.

mod capture;
mod change;
mod check;
mod code;
mod controller;
mod crd;
mod defaults;
mod effective;
mod engine;
mod env;
mod file;
mod resolve;
mod finding;
mod generic;
mod hints;
mod foreign_keys;
mod app_listen;
mod policy;
pub mod quantity;
mod rules;
mod schema;
mod text;
mod tree;
mod tuned;
mod units;
mod upstream;
mod validate;
mod values;

#[cfg(test)]
mod tests;

pub use crate::api::v1alpha1::{Mode, SchedulingPolicy};
pub use app_listen::{is_listen_override, split_overrides};
pub use capture::Capture;
pub use change::SettingChange;
pub use code::ConfigCode;
pub use controller::{CaBundle, ControllerEndpoint, is_controller_address};
pub use crd::crds;
pub use effective::Setting;
pub use engine::{EngineConfig, MemoryBudget, parse_engine_device};
pub use env::{ControllerPodInfo, MachineLimits, Overrides, PodInfo, SettingSource, SourcedValue};
pub use file::{LOCAL_PROXY_KEYS, LoadError, LoadedPolicy, Origin, load, read, read_text};
pub use finding::{ConfigErrors, Finding, Notice};
pub use policy::{
    DownstreamHttp2, DownstreamLimits, DownstreamTls, DrainConfig, FailureHandling, Limits, LimitsOverride, LogConfig,
    MergeNames, Policy, Priority, PriorityClass, ProcessConfig, ProcessLimits, Route, SchedulingConfig,
};
pub use resolve::build;
pub use tuned::TunedValues;
pub use units::{Share, format_duration, format_size, parse_duration, parse_share, parse_size};
pub use upstream::{UpstreamAddress, UpstreamConnection, UpstreamTls};
pub use validate::{EXIT_FINDINGS, ValidationReport, validate};

use crate::api::v1alpha1::MergeRule;
use crate::protocol::RouteProtocol;

/// Exit code of a start that fails because of its configuration: `EX_CONFIG` of `sysexits.h`.
pub const EXIT_CONFIG: u8 = 78;
/// Exit code of a command that cannot read an input: `EX_NOINPUT` of `sysexits.h`.
pub const EXIT_NO_INPUT: u8 = 66;

/// Returns `true` if a text is a level or a log filter that `proxy.log.level` accepts.
#[must_use]
pub fn is_log_level(text: &str) -> bool {
    text::LEVEL.validate(text).is_ok()
}

// === impl Policy ===

impl Policy {
    /// Returns every effective value with its source, in the order of the schema.
    #[must_use]
    pub fn effective(&self) -> &[Setting] {
        &self.settings
    }

    /// Returns the rule for merging and the protocol of calls that no route of the policy matches.
    #[must_use]
    pub fn default_rules(&self) -> (MergeRule, RouteProtocol) {
        match self.engine {
            Some(_) => (MergeRule::Always, RouteProtocol::Tei),
            None => (MergeRule::Auto, RouteProtocol::Auto),
        }
    }

    /// Returns this policy in mode `Passthrough`. `reason` becomes the source of every mode.
    #[must_use]
    pub fn into_passthrough(mut self, reason: &'static str) -> Self {
        self.mode = Mode::Passthrough;
        for route in &mut self.routes {
            route.mode = Mode::Passthrough;
        }
        let modes = |setting: &&mut Setting| setting.path == "mode" || setting.path.ends_with("].mode");
        for mode in self.settings.iter_mut().filter(modes) {
            "Passthrough".clone_into(&mut mode.value);
            mode.source = SettingSource::Passthrough(reason);
        }
        self
    }
}
