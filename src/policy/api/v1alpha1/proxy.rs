//! Keys of the proxy process: `proxy`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConnectionReuse, DurationText, Http2Mode, LogFormat, OpenEnum, ShareText, SizeText};

optional_keys! {
    /// Settings of the proxy process.
    pub struct ProxySpec {
        /// Listen addresses. Port 0 selects a free port.
        pub listen: Option<Vec<String>>,
        /// Address of the model server: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.
        pub upstream: Option<String>,
        /// TLS for downstream connections. If absent, they are plain text. The files are watched
        /// and reloaded when they change.
        pub tls: Option<TlsSpec>,
        /// TLS for upstream connections, if `upstream` is an `https://` address. The files are
        /// watched and reloaded when they change.
        pub upstream_tls: Option<UpstreamTlsSpec>,
        /// Limits on clients.
        pub client: Option<ClientSpec>,
        /// Limits of the process.
        pub process: Option<ProcessSpec>,
        /// Upstream connections.
        pub connection: Option<ConnectionSpec>,
        /// Graceful shutdown of the process.
        pub drain: Option<DrainSpec>,
        /// Listeners for metrics and administration.
        pub admin: Option<AdminSpec>,
        /// Logging.
        pub log: Option<LogSpec>,
        /// Directory for learned values and the last valid settings. If absent, nothing is kept
        /// across restarts.
        pub state: Option<String>,
    }

    /// TLS for downstream connections.
    pub struct TlsSpec {
        /// Path of the certificate chain in PEM format, with the server certificate first.
        pub cert_file: Option<String>,
        /// Path of the private key in PEM format. It must not be encrypted.
        pub key_file: Option<String>,
        /// Path of the certificate authorities in PEM format. If set, clients must present a
        /// certificate of one of them, and calls with different client certificates never share a
        /// batch.
        pub client_ca_file: Option<String>,
    }

    /// TLS for upstream connections.
    pub struct UpstreamTlsSpec {
        /// Path of the trusted certificate authorities in PEM format. If absent, the authorities of
        /// the operating system are trusted.
        pub ca_file: Option<String>,
        /// Name for which the server certificate must be valid. If absent, it is the host of
        /// `upstream`.
        pub server_name: Option<String>,
        /// Path of the client certificate chain in PEM format. Requires `keyFile`.
        pub cert_file: Option<String>,
        /// Path of the private key of the client certificate in PEM format.
        pub key_file: Option<String>,
    }

    /// Limits on clients.
    pub struct ClientSpec {
        /// Maximum size of the request line and headers. Larger requests are answered with 431.
        pub head_bytes_max: Option<SizeText>,
        /// Maximum number of request headers. Requests with more headers are answered with 431.
        pub headers_max: Option<u32>,
        /// Maximum time to receive the request line and headers.
        pub head_timeout: Option<DurationText>,
        /// Maximum time between two reads of the body of a recognised call. Slower calls are
        /// answered with 408.
        pub body_idle_timeout: Option<DurationText>,
        /// Maximum time to receive the body of a recognised call. Slower calls are answered with
        /// 408.
        pub body_timeout: Option<DurationText>,
        /// Maximum time without data in either direction, for all traffic other than recognised
        /// calls.
        pub pass_through_idle_timeout: Option<DurationText>,
        /// Maximum idle time of a connection between two calls.
        pub keep_alive_timeout: Option<DurationText>,
        /// Maximum time without progress while a response is written to a client.
        pub write_timeout: Option<DurationText>,
        /// Maximum number of calls on an HTTP/1 connection, after which it is closed.
        pub requests_per_connection_max: Option<u32>,
        /// Limits on HTTP/2 connections from clients.
        pub http2: Option<ClientHttp2Spec>,
    }

    /// Limits on HTTP/2 connections from clients.
    pub struct ClientHttp2Spec {
        /// Maximum number of concurrent calls on a connection.
        pub streams_max: Option<u32>,
        /// Size of the flow-control window of a stream.
        pub stream_window: Option<SizeText>,
        /// Size of the flow-control window of a connection.
        pub connection_window: Option<SizeText>,
        /// Interval between two pings on an idle connection.
        pub ping_interval: Option<DurationText>,
        /// Maximum time to wait for the response to a ping.
        pub ping_timeout: Option<DurationText>,
        /// Maximum number of reset streams, after which the connection is closed.
        pub resets_max: Option<u32>,
        /// Maximum age of a connection, after which it is drained. Each connection varies it by up
        /// to a tenth.
        pub age_max: Option<DurationText>,
    }

    /// Limits of the process.
    pub struct ProcessSpec {
        /// Maximum number of client connections. It is reduced to two fifths of the open files
        /// above 128, and to what fits into the memory limit.
        pub connections_max: Option<u32>,
        /// Maximum size of all buffered heads, requests, streams and responses together. It is
        /// reduced to 25 % of the memory limit. Calls that exceed it are answered with 503.
        pub buffered_bytes_max: Option<SizeText>,
    }

    /// Upstream connections.
    pub struct ConnectionSpec {
        /// Maximum time to establish a connection. A server whose listen queue is full drops the
        /// first packet of a connection, which the kernel sends again after 1 s and 3 s.
        pub connect_timeout: Option<DurationText>,
        /// Maximum time between two reads of the response to a recognised call.
        pub body_idle_timeout: Option<DurationText>,
        /// Maximum size of a buffered response to a recognised call.
        pub answer_bytes_max: Option<SizeText>,
        /// Use of HTTP/2. `Auto` detects it: with TLS, the server selects the protocol. In plain
        /// text, the server is probed once after a client has used HTTP/2.
        pub http2: Option<OpenEnum<Http2Mode>>,
        /// Reuse of HTTP/1 connections for batches. `Never` opens a new connection for each batch.
        /// `Always` reuses connections, on which a late response could reach the wrong call.
        pub reuse: Option<OpenEnum<ConnectionReuse>>,
    }

    /// Graceful shutdown of the process.
    pub struct DrainSpec {
        /// Time from the termination signal until the process reports that it is not ready.
        pub delay: Option<DurationText>,
        /// Maximum time to answer all accepted calls, after which the process exits.
        pub limit: Option<DurationText>,
    }

    /// Listeners for metrics and administration.
    pub struct AdminSpec {
        /// Address of `/metrics`, `/livez` and `/readyz`, or `off`.
        pub metrics: Option<String>,
        /// Address of `/api` and administrative changes, or `off`. Only a loopback address is
        /// allowed.
        pub local: Option<String>,
    }

    /// Logging.
    pub struct LogSpec {
        /// Format of the log: one JSON object per line (`Json`), or human-readable text (`Pretty`),
        /// which a process that is started on a terminal uses unless a format is set.
        pub format: Option<OpenEnum<LogFormat>>,
        /// Log filter: a level, or directives such as `info,groupage_proxy=debug`.
        pub level: Option<String>,
        /// Share of calls that are written to the access log.
        pub access: Option<ShareText>,
    }
}
