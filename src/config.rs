//! What the proxy is told: one file, the environment, flags, and the built-in rest.
//!
//! [`load`] reads a text and finds everything that is wrong with it at once; [`build`] puts flag over environment over file over default and gives
//! a [`Policy`] in which nothing is missing, with the source of every value. The table of `schema` decides what a key may say; the words are those
//! of `api::v1alpha1`. Changes while running, the cluster's objects and what is learned are not here.

use std::path::Path;

mod check;
mod effective;
mod env;
mod file;
mod fill;
mod finding;
mod generic;
mod policy;
mod rules;
mod schema;
mod text;
mod tree;
mod units;
mod validate;

#[cfg(test)]
mod tests;

pub use effective::Setting;
pub use env::{Given, Machine, Overrides, Source};
pub use file::{LoadError, Loaded, load, read};
pub use finding::{Code, Errors, Finding, Notice};
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

/// Reads the file, if there is one, and puts together what is in effect.
///
/// # Errors
///
/// The file cannot be read, or every problem of what it says, or of what flags and environment say.
pub fn load_policy(
    path: Option<&Path>,
    overrides: &Overrides,
    machine: &Machine,
) -> Result<(Policy, Vec<Notice>), LoadError> {
    let loaded = path.map(read).transpose()?;
    let policy = build(loaded.as_ref(), overrides, machine)?;
    Ok((policy, loaded.map(|loaded| loaded.notices).unwrap_or_default()))
}

// === impl Policy ===

impl Policy {
    /// Every value in effect with its source, in the order of the schema.
    #[must_use]
    pub fn effective(&self) -> &[Setting] {
        &self.settings
    }
}
