//! Certificates out of files, and TLS with them at either side of the proxy: [`Callers`] for those who call, [`Servers`] for model servers behind `https://`.
//!
//! ```text
//! files ─▶ read (bounded) ─▶ material: chain, key, authorities ─▶ Callers | Servers ─▶ accept | connect
//!   ▲ look again, when somebody says that they may have changed       what cannot be used changes nothing
//! ```
//! Both live through a change of their files: what is read and fits together is used by the next handshake, connections that are open go on with what they
//! began with, and what is torn or broken is refused with a reason. There is one provider of cryptography, aws-lc-rs, and TLS 1.2 with AEAD or 1.3.
//!
//! What it leaves out: who notices that a file changed and when (`cli::compose::certs`), how long a handshake may take (`proxy::terminate`,
//! `upstream::connect`), and making certificates (`controller::certs`).

mod callers;
mod material;
mod read;
mod servers;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use self::callers::{CallerFiles, CallerStream, Callers};
pub use self::material::{Validity, certificates, certified, validity};
pub use self::servers::{Refused, ServerFiles, ServerStream, Servers, Speak, refused_within};
pub use self::words::{Ended, ended};

/// Why files cannot be used: which, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("GRP1106: `{key}` cannot be used: {path}: {why}; {advice}")]
pub struct Unusable {
    key: &'static str,
    path: String,
    why: String,
    advice: &'static str,
}

/// What was found in files that were looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// What there was.
    Same,
    /// Something else, which is in use from now on.
    Changed,
}

/// Certificates in use that came out of files.
pub trait Kept: Send + Sync + std::fmt::Debug {
    /// Whom they are shown to: the label of metrics.
    fn side(&self) -> &'static str;

    /// Where they come from.
    fn files(&self) -> Vec<PathBuf>;

    /// When what is shown expires, in seconds since 1970; `None` where nothing is shown.
    fn expires(&self) -> Option<u64>;

    /// Reads the files again; blocks as reading does.
    ///
    /// # Errors
    /// They cannot be used: what was in use stays so.
    fn look(&self) -> Result<Look, Unusable>;
}

/// The one provider of cryptography.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
