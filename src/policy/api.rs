//! The Kubernetes API types of the group `groupage.dev`.
//!
//! This module contains plain types only, so that the local file, the objects in a cluster and the
//! tools use the same keys. The meaning of a key, its default, its range and its known values are
//! defined in `config`: a type that rejected unknown values could not be read by an older
//! controller when a newer object exists. Of Kubernetes, the module uses names and schemas, but no
//! client.

pub mod v1alpha1;

/// Name of the API group.
pub const GROUP: &str = "groupage.dev";
