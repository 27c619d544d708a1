//! Certificates of the controller's two TLS ports, the webhook and the control stream.
//!
//! By default the controller is its own CA. One Secret holds a CA for a year and a leaf for thirty
//! days; the leader writes it, every replica reads it, and certificates are replaced without
//! closing connections. `plan` decides about rotation as a pure function of the time and the
//! Secret. A new CA is trusted before it is used ([`CA_INTRODUCTION_PERIOD`]), and an old one long
//! after ([`CA_RETIREMENT_AGE`]), so a client that was disconnected in between (API server or
//! sidecar) always trusts the current leaf. Alternatively, certificates are read from files
//! (`files`), issued for example by cert-manager. The distribution of their CA is then not managed
//! here.
//!
//! Times are in seconds since 1970, as in [`Validity`]. Revocation is not supported. The control
//! stream pushes a new CA bundle, which it gets from [`ServingCertificate`].

mod files;
mod rotator;
mod certificates;
mod plan;
mod serving_certificate;

pub use self::certificates::{CaCertificate, LeafCertificate, SecretContents, Validity, parse_certificates, validity};
pub use self::files::watch_files;
pub use self::plan::{RotationStep, plan};
pub use self::rotator::{RotationSettings, rotate_certificates};
pub use self::serving_certificate::{CertificateInfo, ServingCertificate};

use std::time::Duration;

/// Validity period of a CA.
pub const CA_LIFE: Duration = days(365);
/// Validity period of a leaf.
pub const LEAF_LIFE: Duration = days(30);
/// Time for which a new CA is trusted before a leaf of it is used: longer than the 72 h for which a
/// sidecar may be disconnected.
pub const CA_INTRODUCTION_PERIOD: Duration = days(4);
/// Time for which a CA stays trusted after the introduction of its successor:
/// [`CA_INTRODUCTION_PERIOD`] plus the validity period of a leaf.
pub const CA_RETIREMENT_AGE: Duration = days(34);
/// Minimum time for which the leaf of the new CA is in use before the old CA is removed. It equals
/// [`CA_INTRODUCTION_PERIOD`], and matters if the leaf was replaced late because no controller was
/// running.
pub const NEW_LEAF_MIN_AGE: Duration = days(4);
/// Remaining validity at which a leaf of an old CA is replaced even if the new CA is younger than
/// [`CA_INTRODUCTION_PERIOD`]: an expired leaf is useless to all clients.
pub const LEAF_REPLACE_BEFORE: Duration = days(1);
/// Time by which the validity of a certificate starts before its issuance, for clients with slow
/// clocks.
pub const BACKDATE: Duration = Duration::from_secs(3600);

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}
