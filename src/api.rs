//! The objects a user writes: group `groupage.dev`.
//!
//! Plain types and nothing else, so that the local file, the cluster's objects and the tools speak of the same keys. What a key means, its
//! default, its range and whether a word is known are `config`'s: a type that refused what it does not know could not be read by an older
//! controller beside a newer object. Of Kubernetes it knows names and schemas, no client.

pub mod v1alpha1;

/// The API group.
pub const GROUP: &str = "groupage.dev";
