//! The keys of the process: `proxy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DurationText, Http2, LogFormat, Reuse, ShareText, SizeText, Word};

/// The process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxySpec {
    /// Addresses to listen on; port 0 takes a free one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Vec<String>>,
    /// The model server: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// TLS for callers; absent: plain. Files are watched, and read again when they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
    /// TLS to an upstream of `https://`; files are watched, and read again when they change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_tls: Option<UpstreamTlsSpec>,
    /// Bounds on what callers may do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientSpec>,
    /// Bounds on the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSpec>,
    /// Connections to the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionSpec>,
    /// The end of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainSpec>,
    /// The two other listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminSpec>,
    /// Logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogSpec>,
    /// Folder for what was learned and the last good settings; absent: none kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// TLS for callers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsSpec {
    /// Certificate chain in PEM, that of the server first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// Its private key in PEM, not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Authorities in PEM: callers must show a certificate of one of them. Calls of two certificates share no batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<String>,
}

/// TLS to the upstream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamTlsSpec {
    /// Authorities to trust, in PEM; absent: those that the machine trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The name that its certificate must be for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// Certificate chain to show, in PEM; with `keyFile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<String>,
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
}

/// Bounds on callers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientSpec {
    /// Request line and headers; 431 above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_bytes_max: Option<SizeText>,
    /// Headers of a request; 431 above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers_max: Option<u32>,
    /// Time to send the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_timeout: Option<DurationText>,
    /// Recognised calls: time between two reads of the body; 408 after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_idle_timeout: Option<DurationText>,
    /// Recognised calls: time for the whole body; 408 after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_timeout: Option<DurationText>,
    /// Everything else: time in which neither direction moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_through_idle_timeout: Option<DurationText>,
    /// Idle time of a connection between calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_timeout: Option<DurationText>,
    /// Time in which a caller must take some of its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_timeout: Option<DurationText>,
    /// Calls on one HTTP/1 connection, which is then closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_connection_max: Option<u32>,
    /// HTTP/2 from callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<ClientHttp2Spec>,
}

/// HTTP/2 from callers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientHttp2Spec {
    /// Calls at once on a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_max: Option<u32>,
    /// Flow-control window of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_window: Option<SizeText>,
    /// Flow-control window of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_window: Option<SizeText>,
    /// Time between pings on a quiet connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_interval: Option<DurationText>,
    /// Time to answer one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_timeout: Option<DurationText>,
    /// Streams that may be reset before the connection is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_max: Option<u32>,
    /// Age at which a connection is asked to end, give or take a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_max: Option<DurationText>,
}

/// Bounds on the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessSpec {
    /// Client connections; also at most two fifths of the limit on open files, and what the memory limit holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<u32>,
    /// Bytes of heads, requests, streams and answers held at once; also at most 25 % of the memory limit. 503 above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffered_bytes_max: Option<SizeText>,
}

/// Connections to the upstream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionSpec {
    /// Time to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<DurationText>,
    /// Recognised calls: time between two reads of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_idle_timeout: Option<DurationText>,
    /// Recognised calls: the largest answer that is read whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_bytes_max: Option<SizeText>,
    /// `Auto` finds out: inside TLS from the server's choice, in plain text with one probe once a caller speaks HTTP/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<Word<Http2>>,
    /// HTTP/1: a fresh connection for each batch, or kept ones, on which a late answer could reach the wrong call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<Word<Reuse>>,
}

/// The end of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainSpec {
    /// Time between the signal and being not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<DurationText>,
    /// Time to answer everything accepted; then the process ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<DurationText>,
}

/// The two other listeners.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdminSpec {
    /// Address for `/metrics`, `/livez`, `/readyz`; or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Address for the dashboard, `/api` and changes; loopback only; or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
}

/// Logs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogSpec {
    /// One JSON object a line, or for people. Default: `Pretty` on a terminal, `Json` elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Word<LogFormat>>,
    /// What is logged: a level, or directives such as `info,groupage::proxy=debug`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Share of calls in the access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<ShareText>,
}
