//! Error responses of the proxy in the format that the client expects: status, headers and body.
//!
//! Bodies consist of constants and numbers, so they never contain data of a client or of the
//! upstream.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::Reply;
use crate::call::is_overload;
use crate::error::{Failure, FailureKind};
use crate::headers;
use crate::v2::grpc;

/// Error format expected by the clients of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error":{"message","type","param","code"}}`, the format of OpenAI.
    OpenAi,
    /// `{"error": message}`, the format of KServe and TF Serving.
    Error,
    /// `{"error": message, "error_type": type}`, the format of TEI's own routes.
    Tei,
    /// `{"error_code": code, "message": message}`, the format of MLflow.
    MlFlow,
    /// `{"type":"error","error":{"type","message"}}`, the format of Anthropic.
    Anthropic,
    /// `{"message": message}`, the format of Cohere.
    Cohere,
    /// Problem details of RFC 9457, for all routes without a format of their own.
    Problem,
    /// Status 200 and a `grpc-status` in a head without a body, the format of gRPC.
    Grpc,
}

// === impl Dialect ===

impl Dialect {
    /// Returns the response to a failed call. `limit` is the name of the policy key or request
    /// header that ended the call. It is sent as a header, since clients match on messages.
    #[must_use]
    pub fn failure_response(self, failure: &Failure, limit: Option<&str>) -> Reply {
        let kind = failure.kind;
        let status = StatusCode::from_u16(kind.status()).unwrap_or(StatusCode::BAD_GATEWAY);
        let mut reply = self.write(kind, status);
        if let Some(limit) = limit.and_then(|limit| HeaderValue::from_str(limit).ok()) {
            reply.headers.insert(headers::LIMIT, limit);
        }
        if let Some(after) = failure.retry_after.filter(|_| is_overload(status)) {
            let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            reply.headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
            reply.headers.insert(headers::RETRY_AFTER_MS, HeaderValue::from(ms));
        }
        reply
    }

    /// Returns `true` if servers with this format report their load, and not a quota of the caller,
    /// with 429 in responses with generated text.
    #[must_use]
    pub const fn reports_load_with_429(self) -> bool {
        matches!(self, Self::Tei)
    }

    /// Returns the response to a member of a batch that the upstream refused with `status`, which
    /// is 429 or 503. The caller adds the upstream's `Retry-After`. There is no hint without it,
    /// because only the upstream knows its load.
    #[must_use]
    pub fn overload_response(self, status: StatusCode) -> Reply {
        self.write(FailureKind::UpstreamOverloaded, status)
    }

    fn write(self, kind: FailureKind, status: StatusCode) -> Reply {
        let content_type = match self {
            Self::Problem => "application/problem+json",
            Self::Grpc => "application/grpc",
            Self::OpenAi | Self::Error | Self::Tei | Self::MlFlow | Self::Anthropic | Self::Cohere => {
                "application/json"
            }
        };
        let mut headers = HeaderMap::with_capacity(7);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(headers::ERROR, HeaderValue::from_static(kind.code()));
        headers.insert(headers::REASON, HeaderValue::from_static(kind.reason()));
        if self == Self::Grpc {
            grpc::status::write_failure(status, kind.message(), &mut headers);
            return Reply { status: StatusCode::OK, headers, body: Bytes::new(), trailers: None };
        }
        let body = Bytes::from(self.body(kind, status));
        Reply { status, headers, body, trailers: None }
    }

    /// Returns the body, which is empty in the format of gRPC.
    fn body(self, kind: FailureKind, status: StatusCode) -> String {
        let (message, reason, number) = (kind.message(), kind.reason(), status.as_u16());
        match self {
            Self::Grpc => String::new(),
            Self::OpenAi => {
                format!(r#"{{"error":{{"message":"{message}","type":"{reason}","param":null,"code":{number}}}}}"#)
            }
            Self::Error => format!(r#"{{"error":"{message}"}}"#),
            Self::Tei => {
                let kind = if is_overload(status) { "Overloaded" } else { "Backend" };
                format!(r#"{{"error":"{message}","error_type":"{kind}"}}"#)
            }
            Self::MlFlow => {
                let code = match status {
                    StatusCode::TOO_MANY_REQUESTS => "REQUEST_LIMIT_EXCEEDED",
                    StatusCode::SERVICE_UNAVAILABLE => "TEMPORARILY_UNAVAILABLE",
                    StatusCode::GATEWAY_TIMEOUT => "DEADLINE_EXCEEDED",
                    _ => "INTERNAL_ERROR",
                };
                format!(r#"{{"error_code":"{code}","message":"{message}"}}"#)
            }
            Self::Anthropic => {
                let kind = anthropic_type(status);
                format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}"#)
            }
            Self::Cohere => format!(r#"{{"message":"{message}"}}"#),
            Self::Problem => {
                let code = kind.code();
                format!(
                    r#"{{"type":"about:blank","title":"{message}","status":{number},"detail":"{message}","code":"{code}","reason":"{reason}"}}"#
                )
            }
        }
    }
}

/// Returns the type that an error with a status has in the format of Anthropic.
fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        // Anthropic itself reports overload with the status 529.
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strum::VariantArray as _;

    use super::*;

    fn check(dialect: Dialect, kind: FailureKind, body: &str) {
        let reply = dialect.failure_response(&kind.into(), None);
        assert_eq!(reply.body, body);
        assert_eq!(reply.status, kind.status());
        assert_eq!(reply.headers["x-groupage-error"], kind.code());
        assert_eq!(reply.headers["x-groupage-reason"], kind.reason());
        assert!(!reply.headers.contains_key("retry-after"));
    }

    #[test]
    fn each_dialect_has_its_own_error_body() {
        let timeout = FailureKind::UpstreamTimeout;
        check(
            Dialect::OpenAi,
            timeout,
            r#"{"error":{"message":"upstream timeout","type":"upstream_timeout","param":null,"code":504}}"#,
        );
        check(Dialect::Error, timeout, r#"{"error":"upstream timeout"}"#);
        check(Dialect::Tei, timeout, r#"{"error":"upstream timeout","error_type":"Backend"}"#);
        check(
            Dialect::Tei,
            FailureKind::TenantShare,
            r#"{"error":"tenant's share of the queue is used up","error_type":"Overloaded"}"#,
        );
        for (kind, code) in [
            (timeout, "DEADLINE_EXCEEDED"),
            (FailureKind::TenantShare, "REQUEST_LIMIT_EXCEEDED"),
            (FailureKind::QueueFull, "TEMPORARILY_UNAVAILABLE"),
            (FailureKind::Mismatch, "INTERNAL_ERROR"),
        ] {
            check(Dialect::MlFlow, kind, &format!(r#"{{"error_code":"{code}","message":"{}"}}"#, kind.message()));
        }
        check(Dialect::Cohere, timeout, r#"{"message":"upstream timeout"}"#);
        check(
            Dialect::Problem,
            FailureKind::Mismatch,
            r#"{"type":"about:blank","title":"upstream response cannot be split","status":502,"detail":"upstream response cannot be split","code":"GRP3304","reason":"mismatch"}"#,
        );
    }

    #[test]
    fn an_error_in_the_format_of_anthropic_has_the_type_of_its_status() {
        for (kind, name) in [
            (FailureKind::TenantShare, "rate_limit_error"),
            (FailureKind::QueueFull, "overloaded_error"),
            (FailureKind::SlowBody, "invalid_request_error"),
            (FailureKind::Deadline, "timeout_error"),
            (FailureKind::UpstreamBroken, "api_error"),
        ] {
            let body = format!(r#"{{"type":"error","error":{{"type":"{name}","message":"{}"}}}}"#, kind.message());
            check(Dialect::Anthropic, kind, &body);
        }
        for (status, name) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (413, "request_too_large"),
            (500, "api_error"),
            (529, "overloaded_error"),
        ] {
            assert_eq!(anthropic_type(StatusCode::from_u16(status).unwrap()), name, "{status}");
        }
    }

    #[test]
    fn a_failure_of_a_grpc_call_is_in_the_head_of_a_response_without_a_body() {
        let after = Duration::from_millis(1200);
        let reply = Dialect::Grpc.failure_response(&Failure::retry(FailureKind::QueueFull, after), None);
        assert_eq!((reply.status, reply.body.len()), (StatusCode::OK, 0));
        for (name, value) in [
            ("content-type", "application/grpc"),
            ("grpc-status", "14"),
            ("grpc-message", "queue full"),
            ("x-groupage-error", "GRP3101"),
            ("retry-after-ms", "1200"),
        ] {
            assert_eq!(reply.headers[name], value);
        }
        let overload = Dialect::Grpc.overload_response(StatusCode::TOO_MANY_REQUESTS);
        assert_eq!((overload.status, &overload.headers["grpc-status"]), (StatusCode::OK, &"8".parse().unwrap()));
    }

    #[test]
    fn a_limit_that_ended_the_call_is_named_in_a_header() {
        let reply = Dialect::Error.failure_response(&FailureKind::UpstreamTimeout.into(), Some("routes[0].timeout"));
        assert_eq!(reply.body, r#"{"error":"upstream timeout"}"#);
        assert_eq!(reply.headers[headers::LIMIT], "routes[0].timeout");
    }

    #[test]
    fn every_error_body_is_json() {
        for &kind in FailureKind::VARIANTS {
            assert!(Dialect::Grpc.failure_response(&kind.into(), None).body.is_empty());
            for dialect in [
                Dialect::OpenAi,
                Dialect::Error,
                Dialect::Tei,
                Dialect::MlFlow,
                Dialect::Anthropic,
                Dialect::Cohere,
                Dialect::Problem,
            ] {
                let reply = dialect.failure_response(&kind.into(), Some("routes[0].timeout"));
                assert!(serde_json::from_slice::<serde_json::Value>(&reply.body).is_ok());
            }
        }
    }

    #[test]
    fn a_hint_is_sent_in_whole_seconds_and_in_milliseconds_on_overload_only() {
        let after = Duration::from_millis(1200);
        let reply = Dialect::OpenAi.failure_response(&Failure::retry(FailureKind::QueueFull, after), None);
        assert_eq!(
            (&reply.headers["retry-after"], &reply.headers["retry-after-ms"]),
            (&"2".parse().unwrap(), &"1200".parse().unwrap())
        );
        let reply = Dialect::OpenAi.failure_response(&Failure::retry(FailureKind::Mismatch, after), None);
        assert!(!reply.headers.contains_key("retry-after"));
    }
}
