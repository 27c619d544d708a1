//! The custom resources `BatchPolicy` and `BatchProfile`, and the configuration of a proxy: types,
//! schema, validation, defaults, and the origin of each value.
//!
//! ```text
//! file, snapshot, stream ─▶ config::load ─▶ LoadedPolicy ─┐
//! flags, environment     ─▶ config::Overrides ────────────┼─▶ config::build ─▶ Policy ─▶ proxy
//! control group          ─▶ config::MachineLimits ────────┘
//! ```
//! - [`api`] has the types of the custom resources, with the keys that a file, the objects of a
//!   cluster and all commands share.
//! - [`config`] has one table, the schema, from which files are validated, the CRDs are generated
//!   ([`config::crds`]) and `docs/configuration.md` is written. [`config::load`] reports all
//!   problems of a text at once, and [`config::build`] returns a [`config::Policy`] in which no
//!   value is missing.
//!
//! Watching files, reading objects from an API server and applying a policy to a running proxy are
//! left out (`app`, `controller`).

pub mod api;
pub mod config;

use groupage_protocol as protocol;
use groupage_runtime::memory;
