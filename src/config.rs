//! What the proxy is told: one file, the environment, flags, and the built-in rest.
//!
//! [`load`] reads a text and finds everything that is wrong with it at once; [`build`] puts flag over environment over file over default and gives
//! a [`Policy`] in which nothing is missing, with the source of every value. The table of `schema` decides what a key may say; the words are those
//! of `api::v1alpha1`. What differs between two policies is told here (`change`); when a file is read again, and what is done about it, is not, nor are
//! the cluster's objects and what is learned.

mod change;
mod check;
mod code;
mod effective;
mod env;
mod file;
mod fill;
mod finding;
mod generic;
mod peers;
mod policy;
mod rules;
mod schema;
mod text;
mod tree;
mod units;
mod validate;

#[cfg(test)]
mod tests;

pub use change::Change;
pub use code::Code;
pub use effective::Setting;
pub use env::{Given, Machine, Overrides, Source};
pub use file::{LoadError, Loaded, load, read, read_text};
pub use finding::{Errors, Finding, Notice};
pub use policy::{
    Client, ClientHttp2, Connection, Deadline, Drain, Failure, Limits, LimitsOverride, Log, MergeNames, Mode, Policy,
    Priority, PriorityClass, Process, Proxy, Route, Scheduling, SchedulingPolicy, Upstream,
};
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

// === impl Policy ===

impl Policy {
    /// Every value in effect with its source, in the order of the schema.
    #[must_use]
    pub fn effective(&self) -> &[Setting] {
        &self.settings
    }
}
