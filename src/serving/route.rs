//! Routes of the model server.

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::error::{CallError, ErrorKind};

/// A route of the model server and its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRoute {
    /// `POST /v1/embeddings` of OpenAI, and the same behind other prefixes.
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
    /// `GET /v1/models` of OpenAI, and the same behind other prefixes.
    Models,
    /// `GET /v1/models/{id}`, with the decoded id.
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

/// Lists of models, one for each prefix of a path for embeddings: a client of OpenAI has one base
/// address for both. The prefix `/v3` is that of OVMS, and `/openai/v1` that of KServe's runtime of
/// Hugging Face models.
const MODEL_LISTS: [&str; 3] = ["/v1/models", "/v3/models", "/openai/v1/models"];
/// `Allow` of routes for `GET`.
const ALLOW_GET: &str = "GET, HEAD";
/// `Allow` of routes for `POST`.
const ALLOW_POST: &str = "POST";

// === impl ModelRoute ===

impl ModelRoute {
    /// Finds the route of a call. `root` is that of `POST /`, which depends on the model.
    ///
    /// # Errors
    /// There is no such path, or it has other methods.
    pub fn find(method: &Method, path: &str, root: &Self) -> Result<Self, RouteError> {
        let is_get = matches!(*method, Method::GET | Method::HEAD);
        let (get, post) = (Self::find_get(path), Self::find_post(path, root));
        let found = if is_get { &get } else { &post };
        if let Some(route) = found.as_ref().filter(|_| is_get || *method == Method::POST) {
            return Ok(route.clone());
        }
        let allow = match (&get, &post) {
            (None, None) => {
                let message = format!("there is no route {method} {path}");
                return Err(CallError::new(ErrorKind::NotFound, message).into());
            }
            (Some(_), None) => ALLOW_GET,
            (None, Some(_)) => ALLOW_POST,
            (Some(_), Some(_)) => "GET, HEAD, POST",
        };
        let message = format!("method {method} is not allowed on {path}: use {allow}");
        Err(RouteError { error: CallError::new(ErrorKind::WrongMethod, message), allow: Some(allow) })
    }

    fn find_get(path: &str) -> Option<Self> {
        Some(match path {
            "/" | "/health" | "/ping" => Self::Health,
            "/info" => Self::Info,
            _ => match MODEL_LISTS.iter().find_map(|list| path.strip_prefix(*list))? {
                "" => Self::Models,
                // The client of OpenAI encodes the slash of an id such as `owner/name`.
                rest => {
                    let id = percent_decode_str(rest.strip_prefix('/')?).decode_utf8_lossy();
                    Self::Model(id.into_owned())
                }
            },
        })
    }

    fn find_post(path: &str, root: &Self) -> Option<Self> {
        Some(match path {
            "/" | "/invocations" => root.clone(),
            "/v1/embeddings" | "/embeddings" | "/v3/embeddings" | "/openai/v1/embeddings" => Self::Embeddings,
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
        for prefix in ["/v1", "/v3", "/openai/v1"] {
            assert_eq!(find(&Method::POST, &format!("{prefix}/embeddings")), Ok(ModelRoute::Embeddings), "{prefix}");
            assert_eq!(find(&Method::GET, &format!("{prefix}/models")), Ok(ModelRoute::Models), "{prefix}");
            let one = find(&Method::GET, &format!("{prefix}/models/a"));
            assert_eq!(one, Ok(ModelRoute::Model("a".to_owned())), "{prefix}");
        }
        assert_eq!(find(&Method::GET, "/v1/modelsa"), Err((404, None)));
    }

    #[test]
    fn the_id_of_a_model_is_decoded() {
        for (path, id) in [
            ("/v1/models/a/b", "a/b"),
            ("/v1/models/a%2Fb", "a/b"),
            ("/v1/models/a%2fb%C3%A9", "a/bé"),
            ("/v1/models/a%252Fb", "a%2Fb"),
            ("/v1/models/100%", "100%"),
            ("/v1/models/%+1%zz", "%+1%zz"),
        ] {
            assert_eq!(find(&Method::GET, path), Ok(ModelRoute::Model(id.to_owned())), "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_405_with_the_allowed_methods() {
        assert_eq!(find(&Method::GET, "/embed"), Err((405, Some("POST"))));
        assert_eq!(find(&Method::PUT, "/info"), Err((405, Some("GET, HEAD"))));
        assert_eq!(find(&Method::DELETE, "/"), Err((405, Some("GET, HEAD, POST"))));
        assert_eq!(find(&Method::POST, "/embed/"), Err((404, None)), "paths are exact");
    }
}
