//! Settings of the upstream in the effective policy: its address, TLS and connections.
//!
//! They are separate from `policy`, because the rules of `text`, on which the policy is built,
//! parse the address.

use std::path::PathBuf;
use std::time::Duration;

use crate::api::v1alpha1::{ConnectionReuse, Http2Mode};

/// Address of the model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAddress {
    /// HTTP over TCP.
    Http {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
        /// Host and port as written, for a `Host` header that the proxy generates.
        authority: String,
        /// `true` for `https`.
        tls: bool,
    },
    /// HTTP over a Unix socket.
    Unix(PathBuf),
}

/// Files for upstream TLS: verification of the upstream, and the client certificate presented to
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CA certificates; `None` for those of the machine.
    pub ca_file: Option<PathBuf>,
    /// Name to verify; `None` for the host.
    pub server_name: Option<String>,
    /// Client certificate chain and private key, if one is presented.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// Settings of upstream connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamConnection {
    /// Time limit for connecting.
    pub connect_timeout: Duration,
    /// Maximum time between reads of a recognised answer.
    pub body_idle_timeout: Duration,
    /// Maximum size of an answer that is buffered completely, in bytes.
    pub answer_bytes_max: usize,
    /// Use of HTTP/2.
    pub http2: Http2Mode,
    /// Reuse of HTTP/1 connections for batches.
    pub reuse: ConnectionReuse,
}
