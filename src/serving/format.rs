//! Bodies of errors in the format of the API that a path belongs to.

use bytes::Bytes;
use serde_json::json;

use crate::error::{CallError, ErrorKind};

/// Format of the body of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFormat {
    /// `{"error": {"message", "type", "param", "code"}}` of OpenAI.
    OpenAi,
    /// `{"message"}` of Cohere.
    Cohere,
    /// `{"error", "error_type"}` of TEI.
    Tei,
}

// === impl ErrorFormat ===

impl ErrorFormat {
    /// Returns the format for a path.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        match path {
            "/v1/rerank" => Self::Cohere,
            "/embeddings" => Self::OpenAi,
            _ if path.starts_with("/v2/") => Self::Cohere,
            _ if ["/v1/", "/v3/", "/openai/"].into_iter().any(|prefix| path.starts_with(prefix)) => Self::OpenAi,
            _ => Self::Tei,
        }
    }

    /// Returns the body of an error, as JSON.
    #[must_use]
    pub fn body(self, error: &CallError) -> Bytes {
        let CallError { kind, message } = error;
        let body = match self {
            Self::OpenAi => {
                let kind = if kind.status().is_server_error() { "server_error" } else { "invalid_request_error" };
                let code = (error.kind == ErrorKind::NotFound).then_some("not_found");
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
            Self::Cohere => json!({"message": message}),
            Self::Tei => json!({"error": message, "error_type": kind.tei_type()}),
        };
        Bytes::from(body.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_format_of_its_path() {
        let error = CallError::new(ErrorKind::Empty, "`inputs` is empty");
        let body = |path| String::from_utf8(ErrorFormat::of_path(path).body(&error).to_vec()).unwrap();
        assert_eq!(body("/embed"), r#"{"error":"`inputs` is empty","error_type":"Empty"}"#);
        assert_eq!(body("/v2/rerank"), r#"{"message":"`inputs` is empty"}"#);
        assert_eq!(body("/v1/rerank"), body("/v2/rerank"));
        for path in [
            "/v1/embeddings",
            "/embeddings",
            "/v3/embeddings",
            "/openai/v1/embeddings",
            "/openai/v1/models/a",
            "/v1/chat/completions",
        ] {
            let error: serde_json::Value = serde_json::from_str(&body(path)).unwrap();
            assert_eq!(error["error"]["type"], "invalid_request_error", "{path}");
            assert!(error["error"].get("param").is_some_and(serde_json::Value::is_null));
        }
    }
}
