//! The custom resources `BatchPolicy` and `BatchProfile`, and the configuration of a proxy: types,
//! schema, validation, defaults, and the origin of each value.

pub mod api;
pub mod config;

use groupage_protocol as protocol;
use groupage_runtime::memory;
