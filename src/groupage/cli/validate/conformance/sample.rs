//! Sample calls: given by the user, or generated for protocols with known items.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::config::{Mode, Policy, Route};
use crate::protocol::{PathPattern, RouteProtocol};

/// Maximum number of bytes of a sample: sixteen times the default limit of a call that is merged.
const SAMPLE_BYTES_MAX: u64 = 16 << 20;
/// Text of generated samples.
pub(super) const TEXT: &str = "groupage validate";

/// Sample call for one route.
#[derive(Debug)]
pub(super) struct SampleCall {
    pub(super) route: String,
    pub(super) method: Method,
    pub(super) path: String,
    /// The body, or the reason that none is available.
    pub(super) body: Result<Bytes, String>,
    /// The body of the other member of its batch, if it is not the same call again.
    pub(super) other: Option<Bytes>,
}

/// Command that tests a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TestCommand {
    /// `groupage validate --against`.
    #[default]
    Validate,
    /// `groupage check --local`, which also compares texts and looks for the limits of the server.
    Check,
}

/// Samples that the user gave.
#[derive(Debug, Default)]
pub(in super::super) struct SampleCalls {
    /// Sample for every route without a sample of its own.
    any: Option<Bytes>,
    by_path: Vec<(String, Bytes)>,
    /// The second call of a pair.
    other: Option<Bytes>,
    pub(super) command: TestCommand,
}

// === impl TestCommand ===

impl TestCommand {
    /// Returns the flag with which the user gives a call to a path.
    pub(super) fn sample_flag(self, path: &str) -> String {
        match self {
            Self::Validate => format!("--sample {path}=FILE"),
            Self::Check => "--sample FILE".to_owned(),
        }
    }
}

// === impl SampleCalls ===

impl SampleCalls {
    /// Reads arguments of the form `FILE` and `PATH=FILE`.
    ///
    /// # Errors
    /// A file cannot be read; the message contains its name.
    pub(in super::super) fn read(given: &[String]) -> Result<Self, String> {
        let mut samples = Self::default();
        for text in given {
            match text.split_once('=').filter(|(path, _)| path.starts_with('/')) {
                Some((path, file)) => samples.by_path.push((path.to_owned(), read_body(file)?)),
                None => samples.any = Some(read_body(text)?),
            }
        }
        Ok(samples)
    }

    /// Reads the files of one call or of a pair, for `groupage check --local`.
    ///
    /// # Errors
    /// A file cannot be read; the message contains its name.
    pub(in super::super) fn read_pair(files: &[String]) -> Result<Self, String> {
        let mut bodies = files.iter().map(|file| read_body(file));
        let (any, other) = (bodies.next().transpose()?, bodies.next().transpose()?);
        if bodies.next().is_some() {
            return Err("more than two samples: a pair has two calls".to_owned());
        }
        Ok(Self { any, other, by_path: Vec::new(), command: TestCommand::Check })
    }

    /// Returns a call for each path that a sample names, and for each other route of the policy
    /// that is merged.
    pub(super) fn calls(&self, policy: &Policy) -> Vec<SampleCall> {
        let named = self.by_path.iter().map(|(path, body)| {
            let route = policy.routes.iter().find(|route| is_match(route, path));
            SampleCall {
                route: route.map_or_else(|| "default".to_owned(), |route| route.path.clone()),
                method: route.map_or(Method::POST, |route| route.method.clone()),
                path: path.clone(),
                body: Ok(body.clone()),
                other: None,
            }
        });
        let is_named = |route: &Route| self.by_path.iter().any(|(path, _)| is_match(route, path));
        let is_merged = |route: &Route| {
            route.mode != Mode::Passthrough
                && !matches!(route.protocol, RouteProtocol::PassThrough | RouteProtocol::LlamaCpp)
        };
        let others = policy.routes.iter().filter(|route| is_merged(route) && !is_named(route));
        named.chain(others.map(|route| self.call_for_route(route))).collect()
    }

    /// Returns the call for a route that no sample names.
    fn call_for_route(&self, route: &Route) -> SampleCall {
        let path = concrete_path(route);
        let body = match &path {
            None => Err(self.describe_wildcard(&route.path)),
            Some(path) => self.any.clone().map_or_else(|| generate_body(route, path, self.command), Ok),
        };
        let path = path.unwrap_or_else(|| route.path.clone());
        let other = self.other.clone();
        SampleCall { route: route.path.clone(), method: route.method.clone(), path, body, other }
    }

    /// Returns the reason that a route which matches many paths has no call.
    fn describe_wildcard(&self, path: &str) -> String {
        let advice = match self.command {
            TestCommand::Validate => {
                "give a call with --sample PATH=FILE, such as --sample /v1/models/NAME:predict=call.json"
            }
            TestCommand::Check => {
                "name one of them and its protocol instead of a policy, such as --route /v1/models/NAME:predict \
                 --protocol KServeV1"
            }
        };
        format!("`{path}` matches many paths: {advice}")
    }
}

/// Generates a body for a protocol with known items.
fn generate_body(route: &Route, path: &str, command: TestCommand) -> Result<Bytes, String> {
    let value = match &route.generic {
        Some(spec) => match &spec.items[..] {
            [items] if !items.tokens().is_empty() => nest_in(items.tokens()),
            _ => return Err(format!("its items are in several lists: give a call with {}", command.sample_flag(path))),
        },
        None if path.ends_with("/embeddings") => json!({"model": "default", "input": TEXT}),
        None if path.ends_with("/completions") => {
            json!({"model": "default", "prompt": TEXT, "max_tokens": 4, "temperature": 0})
        }
        None if path.ends_with("/moderations") => json!({"input": TEXT}),
        None if route.protocol == RouteProtocol::Cohere => {
            json!({"model": "default", "texts": [TEXT], "input_type": "search_document"})
        }
        None if path.ends_with("/api/embed") => json!({"model": "default", "input": TEXT}),
        None if path.ends_with("/contextualizedembeddings") => json!({"model": "default", "inputs": [[TEXT]]}),
        None if path.ends_with("/embed") => json!({"inputs": TEXT}),
        None if route.protocol == RouteProtocol::Tei => match path.rsplit_once('/') {
            Some((_, "rerank")) => json!({"query": TEXT, "texts": [TEXT]}),
            Some((_, "similarity")) => json!({"inputs": {"source_sentence": TEXT, "sentences": [TEXT]}}),
            Some((_, "decode")) => json!({"ids": [[1]]}),
            _ => json!({"inputs": TEXT}),
        },
        None if path.ends_with("/classify") || path.ends_with("/pooling") => {
            json!({"model": "default", "input": [TEXT]})
        }
        None if path.ends_with("/rerank") => json!({"model": "default", "query": TEXT, "documents": [TEXT]}),
        None if path.ends_with("/score") && route.protocol == RouteProtocol::Vllm => {
            json!({"model": "default", "queries": [TEXT], "documents": [TEXT]})
        }
        None if route.protocol == RouteProtocol::MlFlow => json!({"inputs": [[1.0, 2.0, 3.0, 4.0]]}),
        None if route.protocol == RouteProtocol::Seldon => json!({"data": {"ndarray": [[1.0, 2.0, 3.0, 4.0]]}}),
        None if route.protocol == RouteProtocol::SageMaker => json!({"inputs": [TEXT]}),
        None if path.contains(':') => json!({"instances": [[1.0, 2.0, 3.0, 4.0]]}),
        None => {
            return Err(format!("no sample is built in for this path: give one with {}", command.sample_flag(path)));
        }
    };
    Ok(Bytes::from(value.to_string()))
}

/// Returns `true` for the path of a route that matches many paths.
pub(super) fn is_wildcard(path: &str) -> bool {
    path.ends_with("/*")
}

fn is_match(route: &Route, path: &str) -> bool {
    PathPattern::parse(&route.path).is_ok_and(|pattern| pattern.matches(path))
}

/// Returns a path that the route matches: its own, or the path of a protocol that has only one.
fn concrete_path(route: &Route) -> Option<String> {
    if !is_wildcard(&route.path) {
        return Some(route.path.clone());
    }
    let known: &[&str] = match route.protocol {
        RouteProtocol::Auto | RouteProtocol::Tei => &["/v1/embeddings", "/embed"],
        RouteProtocol::OpenAi
        | RouteProtocol::Vllm
        | RouteProtocol::SgLang
        | RouteProtocol::Infinity
        | RouteProtocol::Ollama
        | RouteProtocol::Voyage
        | RouteProtocol::Jina => &["/v1/embeddings"],
        RouteProtocol::Tgi => &["/v1/completions"],
        RouteProtocol::Cohere => &["/v2/embed", "/v1/embed"],
        RouteProtocol::MlFlow | RouteProtocol::SageMaker => &["/invocations"],
        RouteProtocol::Seldon => &["/api/v1.0/predictions", "/api/v0.1/predictions"],
        RouteProtocol::PassThrough
        | RouteProtocol::Generic
        | RouteProtocol::KServeV1
        | RouteProtocol::OpenInferenceV2
        | RouteProtocol::TfServing
        | RouteProtocol::BentoMl
        | RouteProtocol::LlamaCpp => &[],
    };
    known.iter().find(|path| is_match(route, path)).map(|path| (*path).to_owned())
}

/// Returns a document with one text in the list at the JSON Pointer `tokens`.
fn nest_in(tokens: &[String]) -> Value {
    tokens.iter().rev().fold(json!([TEXT]), |inner, name| json!({name.as_str(): inner}))
}

fn read_body(file: &str) -> Result<Bytes, String> {
    let size = std::fs::metadata(file).map_err(|error| format!("{file}: {error}"))?.len();
    if size > SAMPLE_BYTES_MAX {
        return Err(format!("{file}: larger than {SAMPLE_BYTES_MAX} bytes"));
    }
    std::fs::read(file).map(Bytes::from).map_err(|error| format!("{file}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, MachineLimits, Overrides};

    #[test]
    fn each_declared_route_gets_a_call_of_its_protocol() {
        let text = "routes: [{path: /v1/embeddings/*}, {path: /v1/*, protocol: OpenAI}, {path: /g, protocol: Generic, \
                    generic: {items: /in/texts, results: /v}}, {path: '/v1/models/m:predict'}, {path: /x, protocol: \
                    PassThrough}, {path: /v1/models/*, protocol: KServeV1}]";
        let loaded = config::load(text, "p").unwrap();
        let policy = config::build(Some(&loaded), &Overrides::default(), &MachineLimits::default()).unwrap();
        let calls = SampleCalls::default().calls(&policy);
        let paths: Vec<&str> = calls.iter().map(|call| call.path.as_str()).collect();
        assert_eq!(paths, ["/v1/embeddings/*", "/v1/embeddings", "/g", "/v1/models/m:predict", "/v1/models/*"]);
        let body = |at: usize| calls[at].body.clone().map(|body| String::from_utf8(body.to_vec()).unwrap());
        assert_eq!(body(2).as_deref(), Ok(r#"{"in":{"texts":["groupage validate"]}}"#));
        assert!(body(3).unwrap().contains("instances"));
        assert!(body(4).unwrap_err().contains("--sample PATH=FILE"));
        let by_path = vec![("/v1/models/a:predict".to_owned(), Bytes::new())];
        let own = SampleCalls { by_path, ..SampleCalls::default() };
        let calls = own.calls(&policy);
        assert_eq!((calls[0].path.as_str(), calls[0].route.as_str()), ("/v1/models/a:predict", "/v1/*"));
        assert!(calls.iter().all(|call| call.path != "/v1/models/*"), "a sample names it");
    }
}
