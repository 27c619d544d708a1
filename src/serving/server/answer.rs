//! Answers to calls: status, headers and body, for a forwarded call and for a member of a batch
//! alike.

use groupage_protocol::Reply;
use groupage_proxy::backend::BufferedReply;
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::EngineInner;
use super::measures::CallResponse;
use crate::error::{CallError, ErrorKind};
use crate::format::ErrorFormat;
use crate::route::RouteError;
use crate::worker::{ExecutionFailure, WorkerState};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

// === impl EngineInner ===

impl EngineInner {
    /// Returns the answer with a result or an error, in the format of the path. A result has the
    /// headers of TEI with the sizes and times of the call.
    pub(super) fn reply(&self, path: &str, result: Result<CallResponse, RouteError>) -> BufferedReply {
        let mut headers = HeaderMap::new();
        let (status, body, reserved) = match result {
            Ok(CallResponse { body, measures, reserved }) => {
                if let Some(measures) = measures {
                    measures.add_headers(&mut headers, self.parts.clock.now(), self.compute_type());
                }
                (StatusCode::OK, body, reserved)
            }
            Err(RouteError { error, allow }) => {
                if let Some(allow) = allow {
                    headers.insert(ALLOW, HeaderValue::from_static(allow));
                }
                (error.kind.status(), ErrorFormat::of_path(path).body(&error), None)
            }
        };
        if !body.is_empty() {
            headers.insert(CONTENT_TYPE, JSON);
        }
        let reply = Reply { status, headers, body, trailers: None };
        match reserved {
            Some(mut reserved) => BufferedReply::from_reserved(reply, &mut reserved),
            None => BufferedReply::new(reply, &self.parts.buffers),
        }
    }

    /// Value of `x-compute-type`: the device of the executor, without the name of its kernels.
    fn compute_type(&self) -> Option<HeaderValue> {
        let WorkerState::Ready(executor) = self.worker.state() else { return None };
        let device = executor.report.kernels.split(',').next().unwrap_or_default();
        HeaderValue::from_str(&device.to_ascii_lowercase()).ok()
    }
}

/// Checks that a body is JSON without a content coding.
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let media_type = text(CONTENT_TYPE).and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = format!("the content type is {media_type:?}: send application/json");
        return Err(CallError::new(ErrorKind::MediaType, message));
    }
    match text(CONTENT_ENCODING) {
        None | Some("identity") => Ok(()),
        Some(coding) => {
            let message = format!("the content coding {coding:?} is not supported: send the body uncompressed");
            Err(CallError::new(ErrorKind::MediaType, message))
        }
    }
}

/// Converts the failure of an execution to the error of its callers.
pub(super) fn execution_error(failure: &ExecutionFailure) -> CallError {
    let kind = match failure {
        ExecutionFailure::Stopped => ErrorKind::Unhealthy,
        ExecutionFailure::Refused(error) if error.is_fatal() => ErrorKind::Unhealthy,
        ExecutionFailure::Refused(_) => ErrorKind::Backend,
        ExecutionFailure::WrongCount { .. } => ErrorKind::Internal,
    };
    CallError::new(kind, failure.to_string())
}

/// The error of a call after a panic while it was parsed or rendered.
pub(super) fn panic_error() -> CallError {
    CallError::new(ErrorKind::Internal, "an internal error occurred while the call was processed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_json_is_read() {
        let check = |content_type: Option<&'static str>, coding: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            for (name, value) in [(CONTENT_TYPE, content_type), (CONTENT_ENCODING, coding)] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            check_media_type(&headers).map_err(|error| error.kind)
        };
        for accepted in ["application/json", "Application/JSON; charset=utf-8"] {
            assert_eq!(check(Some(accepted), None), Ok(()));
        }
        assert_eq!(check(Some("application/json"), Some("identity")), Ok(()));
        for (content_type, coding) in
            [(None, None), (Some("text/plain"), None), (Some("application/json"), Some("gzip"))]
        {
            assert_eq!(check(content_type, coding), Err(ErrorKind::MediaType));
        }
    }
}
