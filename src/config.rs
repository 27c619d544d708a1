//! What the proxy is told: one file, the environment, flags, and the built-in rest.
//!
//! [`load`] reads a text and finds everything that is wrong with it at once; [`build`] puts flag over environment over file over default and gives
//! a [`Policy`] in which nothing is missing, with the source of every value. The table of `schema` decides what a key may say; the words are those
//! of `api::v1alpha1`. From the same table come the definitions of the cluster's objects ([`crds`]). What differs between two policies is told here (`change`); when a file is read again, and what is done about it, is not, nor are
//! the cluster's objects and what is learned.

mod capture;
mod change;
mod check;
mod code;
mod controller;
mod crd;
mod effective;
mod env;
mod file;
mod fill;
mod finding;
mod generic;
mod hints;
mod peers;
mod listen;
mod policy;
pub mod quantity;
mod rules;
mod schema;
mod text;
mod tree;
mod tuned;
mod units;
mod validate;

#[cfg(test)]
mod tests;

pub use capture::{Capture, RoutePort};
pub use change::Change;
pub use code::Code;
pub use controller::{CaBundle, Controller, is_controller};
pub use crd::crds;
pub use effective::Setting;
pub use env::{ControllerPod, Given, Machine, Overrides, Pod, Source};
pub use file::{LoadError, Loaded, Origin, load, read, read_text};
pub use finding::{Errors, Finding, Notice};
pub use listen::{is_listen_knob, knobs};
pub use policy::{
    Client, ClientHttp2, Connection, Deadline, Drain, Failure, Limits, LimitsOverride, Log, MergeNames, Mode, Policy,
    Priority, PriorityClass, Process, Proxy, Route, Scheduling, SchedulingPolicy, Tls, Upstream, UpstreamTls,
};
pub use tuned::Tuned;
pub use units::{Share, format_duration, format_size, parse_duration, parse_share, parse_size};
pub use validate::{EXIT_FINDINGS, Verdict, validate};

/// A start that fails over its configuration ends with this.
pub const EXIT_CONFIG: u8 = 78;

/// Puts together what is in effect: flag and environment over the file, the file over the defaults, all within what the machine allows.
///
/// # Errors
///
/// Every flag or variable that is wrong; a file was judged by [`load`].
pub fn build(loaded: Option<&Loaded>, overrides: &Overrides, machine: &Machine) -> Result<Policy, Errors> {
    fill::build(loaded, overrides, machine)
}

/// Whether a text is a level or a log filter as `proxy.log.level` takes it.
#[must_use]
pub fn is_log_level(text: &str) -> bool {
    text::LEVEL.judge(text).is_ok()
}

// === impl Policy ===

impl Policy {
    /// Every value in effect with its source, in the order of the schema.
    #[must_use]
    pub fn effective(&self) -> &[Setting] {
        &self.settings
    }

    /// The same as a plain proxy, because of `why`: every setting that turns batching on says so.
    #[must_use]
    pub fn stepped_aside(mut self, why: &'static str) -> Self {
        self.mode = Mode::Passthrough;
        for route in &mut self.routes {
            route.mode = Mode::Passthrough;
        }
        let modes = |setting: &&mut Setting| setting.path == "mode" || setting.path.ends_with("].mode");
        for mode in self.settings.iter_mut().filter(modes) {
            "Passthrough".clone_into(&mut mode.value);
            mode.source = Source::Guard(why);
        }
        self
    }
}
