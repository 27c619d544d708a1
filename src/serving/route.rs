//! Routes of the model server.

use http::{Method, StatusCode};

use crate::error::{CallError, ErrorKind};

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRoute {
    /// `POST /v1/embeddings` of OpenAI.
    Embeddings,
    /// `POST /embed` of TEI.
    Embed,
    /// `POST /embed_all` of TEI.
    EmbedAll,
    /// `POST /predict` of TEI.
    Predict,
    /// `POST /rerank` of TEI, or of Cohere and Jina, by the fields of the body.
    Rerank,
    /// `POST /similarity` of TEI.
    Similarity,
    /// `POST /tokenize` of TEI.
    Tokenize,
    /// `POST /decode` of TEI.
    Decode,
    /// `GET /info` of TEI.
    Info,
    /// `GET /health`, `/ping` and `/`.
    Health,
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`, with the id as written.
    Model(String),
}

/// Error of a call, with the methods of its path if it has none of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteError {
    /// The error for the caller.
    pub error: CallError,
    /// Value of `Allow`, for a path that exists for other methods.
    pub allow: Option<&'static str>,
}

const MODEL_PREFIX: &str = "/v1/models/";
/// `Allow` of routes that are read.
const READ: &str = "GET, HEAD";
/// `Allow` of routes that execute.
const EXECUTE: &str = "POST";

// === impl ModelRoute ===

impl ModelRoute {
    /// Finds the route of a call. `root` is that of `POST /`, which depends on the model.
    ///
    /// # Errors
    /// There is no such path, or it has other methods.
    pub fn find(method: &Method, path: &str, root: &Self) -> Result<Self, RouteError> {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let (read, execute) = (Self::of_read(path), Self::of_execution(path, root));
        let found = if is_read { &read } else { &execute };
        if let Some(route) = found.as_ref().filter(|_| is_read || *method == Method::POST) {
            return Ok(route.clone());
        }
        let allow = match (&read, &execute) {
            (None, None) => {
                let message = format!("there is no route {method} {path}");
                return Err(CallError::new(ErrorKind::NotFound, message).into());
            }
            (Some(_), None) => READ,
            (None, Some(_)) => EXECUTE,
            (Some(_), Some(_)) => "GET, HEAD, POST",
        };
        let message = format!("{path} has no method {method}: use {allow}");
        Err(RouteError { error: CallError::new(ErrorKind::WrongMethod, message), allow: Some(allow) })
    }

    fn of_read(path: &str) -> Option<Self> {
        Some(match path {
            "/" | "/health" | "/ping" => Self::Health,
            "/info" => Self::Info,
            "/v1/models" => Self::Models,
            _ => Self::Model(path.strip_prefix(MODEL_PREFIX)?.to_owned()),
        })
    }

    fn of_execution(path: &str, root: &Self) -> Option<Self> {
        Some(match path {
            "/" | "/invocations" => root.clone(),
            "/v1/embeddings" | "/embeddings" => Self::Embeddings,
            "/embed" => Self::Embed,
            "/embed_all" => Self::EmbedAll,
            "/predict" => Self::Predict,
            "/rerank" | "/v1/rerank" | "/v2/rerank" => Self::Rerank,
            "/similarity" => Self::Similarity,
            "/tokenize" => Self::Tokenize,
            "/decode" => Self::Decode,
            _ => return None,
        })
    }

    /// Returns `true` if calls have a body.
    #[must_use]
    pub fn has_body(&self) -> bool {
        !matches!(self, Self::Info | Self::Health | Self::Models | Self::Model(_))
    }
}

// === impl RouteError ===

impl RouteError {
    /// Returns the status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.error.kind.status()
    }
}

impl From<CallError> for RouteError {
    fn from(error: CallError) -> Self {
        Self { error, allow: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(method: &Method, path: &str) -> Result<ModelRoute, (u16, Option<&'static str>)> {
        ModelRoute::find(method, path, &ModelRoute::Predict).map_err(|error| (error.status().as_u16(), error.allow))
    }

    #[test]
    fn a_route_is_found_by_method_and_path() {
        assert_eq!(find(&Method::POST, "/v1/embeddings"), Ok(ModelRoute::Embeddings));
        assert_eq!(find(&Method::POST, "/"), Ok(ModelRoute::Predict), "`POST /` is that of the model");
        for path in ["/", "/health", "/ping"] {
            assert_eq!(find(&Method::GET, path), Ok(ModelRoute::Health), "{path}");
            assert_eq!(find(&Method::HEAD, path), Ok(ModelRoute::Health), "{path}");
        }
        assert_eq!(find(&Method::GET, "/v1/models/a/b"), Ok(ModelRoute::Model("a/b".to_owned())));
    }

    #[test]
    fn a_path_without_the_method_names_those_that_it_has() {
        assert_eq!(find(&Method::GET, "/embed"), Err((405, Some("POST"))));
        assert_eq!(find(&Method::PUT, "/info"), Err((405, Some("GET, HEAD"))));
        assert_eq!(find(&Method::DELETE, "/"), Err((405, Some("GET, HEAD, POST"))));
        assert_eq!(find(&Method::POST, "/embed/"), Err((404, None)), "paths are exact");
    }
}
