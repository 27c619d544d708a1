//! Translation of a case into the policy of its proxy: the routes, the settings and the list of
//! supported adapters.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::case::{Fields, strings};
use crate::support::json::Json;

/// Decision about running a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaseSupport {
    /// The adapter is supported.
    Run,
    /// The adapter is not supported.
    Skip,
}

/// Adapters of the format, and whether they are supported.
const ADAPTERS: [(&str, bool); 25] = [
    ("core", true),
    ("faults", true),
    ("openai.embeddings", true),
    ("openai.completions", true),
    ("openai.chat", true),
    ("openai.moderations", true),
    ("kserve.v1", true),
    ("oip.v2", true),
    ("oip.grpc", true),
    ("tfserving", true),
    ("generic", true),
    ("tei", true),
    ("mlflow", true),
    ("ollama", true),
    ("vllm.score", true),
    ("vllm.pooling", true),
    ("rerank", true),
    ("infinity", true),
    ("cohere.v2", true),
    ("sagemaker", true),
    ("sagemaker.triton", true),
    ("torchserve", true),
    ("seldon.v0", true),
    ("bentoml", true),
    ("litserve", true),
];

/// Contents of `config` in a case.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    max_batch: Option<u64>,
    max_item_bytes: Option<u64>,
    isolate_threshold: Option<u64>,
    quarantine: Option<Duration>,
    upstream_timeout: Option<Duration>,
    idempotent: bool,
    merge_over: Vec<String>,
    flavour: Option<String>,
    opted_in: bool,
    /// No route names the protocol.
    is_automatic: bool,
    generic: Option<Value>,
    /// The upstream's answer to `GET /v2/models/{m}/config`.
    pub(crate) model_config: Option<Value>,
}

/// Decides whether a case is run. An adapter that the format does not list is an error of the case.
pub(crate) fn support_of(adapter: &str, config: Option<&Json>) -> Result<CaseSupport, String> {
    let supported = ADAPTERS.iter().find(|(name, _)| *name == adapter).map(|(_, supported)| supported);
    let supported = supported.ok_or_else(|| format!("adapter `{adapter}` is not named in the format"))?;
    // A generic declaration replaces the adapter. gRPC is excluded, because its bodies are no JSON.
    if adapter != "oip.grpc" && config.is_some_and(|config| config.get("adapter").is_some()) {
        return Ok(CaseSupport::Run);
    }
    Ok(if *supported { CaseSupport::Run } else { CaseSupport::Skip })
}

// === impl Settings ===

impl Settings {
    /// Reads a case's `config`.
    pub(crate) fn read(config: Option<&Json>) -> Result<Self, String> {
        let Some(config) = config else { return Ok(Self::default()) };
        let mut fields = Fields::new(config, "config")?;
        let word = |fields: &mut Fields<'_>, name: &str, only: &str| {
            fields.read(name, |v| (v.as_str()? == only).then_some(())).map(|word| word.is_some())
        };
        let mut settings = Self {
            max_batch: fields.read("max_batch", Json::as_u64)?,
            max_item_bytes: fields.read("max_item_bytes", Json::as_u64)?,
            isolate_threshold: fields.read("isolate_threshold", Json::as_u64)?,
            quarantine: fields.millis("quarantine_ms")?,
            upstream_timeout: fields.millis("upstream_timeout_ms")?,
            idempotent: fields.switch("idempotent")?,
            merge_over: fields.read("merge_over", strings)?.unwrap_or_default(),
            flavour: fields.read("flavour", |v| v.as_str().and_then(|name| flavour(&name)))?,
            opted_in: fields.switch("route_enabled")?,
            is_automatic: fields.switch("automatic")?,
            generic: None,
            model_config: fields.read("model_config", Json::value)?,
        };
        settings.opted_in |= word(&mut fields, "chat_batch", "vllm")?;
        word(&mut fields, "stream", "demux")?;
        word(&mut fields, "rerank", "pointwise")?;
        word(&mut fields, "info", "unavailable")?;
        let error_status = fields.read("per_item_error_status", Json::as_u64)?;
        match fields.take("adapter") {
            Some(adapter) => settings.generic = Some(settings.generic(adapter, error_status)?),
            None if error_status.is_some() => return Err("config: per_item_error_status without adapter".to_owned()),
            None => {}
        }
        fields.end()?;
        Ok(settings)
    }

    /// Converts a generic declaration. Keys become camelCase and enum values CamelCase, except for
    /// those that move to another object.
    fn generic(&mut self, adapter: &Json, error_status: Option<u64>) -> Result<Value, String> {
        const KEYS: [&str; 10] = [
            "upstream_path",
            "items",
            "results",
            "index",
            "result_key",
            "item_class",
            "result_wrap",
            "select",
            "lenient_numbers",
            "on_mismatch",
        ];
        let mut fields = Fields::new(adapter, "config.adapter")?;
        let mut generic = Map::new();
        for key in KEYS {
            if let Some(value) = fields.read(key, Json::value)? {
                let plain = matches!(key, "upstream_path" | "items" | "results" | "index" | "result_key");
                generic.insert(camel(key, false), if plain { value } else { to_enum_value(value) });
            }
        }
        if let Some(value) = fields.read("weight", Json::value)? {
            generic.insert("weight".to_owned(), to_enum_value(value));
        }
        if let Some(value) = fields.read("id", Json::value)? {
            generic.insert("id".to_owned(), to_list(value));
        }
        if let Some(value) = fields.read("too_large", Json::value)? {
            let patterns = to_list(value).as_array().cloned().unwrap_or_default();
            generic.insert("tooLarge".to_owned(), patterns.into_iter().map(camel_keys).collect());
        }
        let mut single = fields.read("single", |v| v.value().map(camel_keys))?.unwrap_or_else(|| json!({}));
        if let Some(form) = single.get_mut("itemIs") {
            *form = to_enum_value(form.take());
        }
        for (key, to) in [("single_items", "items"), ("unwrap_single", "results"), ("wrap_scalar", "wrapScalar")] {
            if let Some(value) = fields.read(key, Json::value)? {
                single[to] = value;
            }
        }
        if single != json!({}) {
            generic.insert("single".to_owned(), single);
        }
        let mut error = match fields.read("per_item_error", Json::value)? {
            Some(Value::String(field)) => json!({"field": field}),
            Some(object @ Value::Object(_)) => camel_keys(object),
            None => json!({}),
            Some(_) => return Err(fields.bad("per_item_error")),
        };
        if let Some(status) = error_status {
            error["status"] = json!(status);
        }
        if error != json!({}) {
            generic.insert("perItemError".to_owned(), error);
        }
        if let Some(cost) = fields.take("cost") {
            generic.insert("cost".to_owned(), cost_of(cost)?);
        }
        self.merge_over.extend(fields.read("drop", strings)?.unwrap_or_default());
        // Every field is part of the merge key unless dropped, so a list of key fields has no
        // effect.
        fields.read("key", strings)?;
        fields.end()?;
        Ok(Value::Object(generic))
    }

    /// Returns the policy in the form of a local file. `factor` stretches its times.
    pub(crate) fn policy(&self, adapter: &str, paths: &[String], factor: f64) -> Value {
        let time = |of: Duration| format!("{}us", of.mul_f64(factor).as_micros());
        let window = time(Duration::from_millis(20));
        let mut limits = json!({"queueDelayMax": window});
        let mut failure = json!({});
        if let Some(n) = self.max_batch {
            limits["batchItemsMax"] = json!(n);
        }
        if let Some(n) = self.max_item_bytes {
            limits["itemBytesMax"] = json!(n);
        }
        if let Some(n) = self.isolate_threshold {
            failure["isolateAbove"] = json!(n);
        }
        if let Some(of) = self.quarantine {
            failure["quarantine"] = json!(time(of));
        }
        let routes: Vec<_> = paths
            .iter()
            .filter_map(|path| {
                let mut route = json!({"path": path, "method": "POST", "protocol": self.protocol(adapter, path)?});
                if let Some(of) = self.upstream_timeout {
                    route["timeout"] = json!(time(of));
                }
                if self.idempotent {
                    route["idempotent"] = json!("Always");
                }
                if !self.merge_over.is_empty() {
                    route["mergeOver"] = json!({"fields": self.merge_over});
                }
                if let Some(generic) = &self.generic {
                    route["generic"] = generic.clone();
                }
                Some(route)
            })
            .collect();
        json!({
            "routes": routes,
            "scheduling": {"policy": "Window", "items": self.max_batch.unwrap_or(64), "delay": window, "slots": 1},
            "limits": limits,
            "failure": failure,
            "proxy": {"connection": {"http2": if adapter == "oip.grpc" { "Always" } else { "Never" }}},
        })
    }

    /// Returns the protocol of the route for a path, or `None` if the path has no route.
    fn protocol(&self, adapter: &str, path: &str) -> Option<String> {
        if self.generic.is_some() {
            return Some("Generic".to_owned());
        }
        let (protocol, needs_opt_in) = if path.ends_with(":explain") {
            ("KServeV1", true)
        } else {
            match adapter {
                "core" | "faults" if path.ends_with("/rerank") => ("VLLM", true),
                "core" | "faults" | "torchserve" | "litserve" => ("Auto", false),
                "openai.embeddings" | "openai.moderations" => ("OpenAI", false),
                "openai.completions" => ("OpenAI", true),
                "openai.chat" | "rerank" => ("VLLM", true),
                "kserve.v1" => ("KServeV1", false),
                "oip.v2" | "oip.grpc" => ("OpenInferenceV2", false),
                "tfserving" => ("TFServing", false),
                "tei" => ("TEI", path.ends_with("/rerank")),
                "infinity" => ("Infinity", path.ends_with("/rerank")),
                "ollama" => ("Ollama", false),
                "cohere.v2" => ("Cohere", path.ends_with("/rerank")),
                "mlflow" => ("MLflow", false),
                "seldon.v0" => ("Seldon", false),
                "generic" | "bentoml" => ("Generic", false),
                name if name.starts_with("vllm.") => ("VLLM", path.ends_with("/rerank")),
                _ => ("SageMaker", false),
            }
        };
        if self.is_automatic {
            return None;
        }
        let protocol = self.flavour.clone().unwrap_or_else(|| protocol.to_owned());
        (!needs_opt_in || self.opted_in).then_some(protocol)
    }
}

fn flavour(name: &str) -> Option<String> {
    let protocol = match name {
        "vllm" => "VLLM",
        "sglang" => "SGLang",
        "ollama" => "Ollama",
        "tgi" => "OpenAI",
        "llama.cpp" => "PassThrough",
        _ => return None,
    };
    Some(protocol.to_owned())
}

fn cost_of(cost: &Json) -> Result<Value, String> {
    let mut fields = Fields::new(cost, "config.adapter.cost")?;
    let mut cost = Map::new();
    let (total, totals) = (fields.read("total", Json::value)?, fields.read("totals", Json::value)?);
    if let Some(total) = total.or(totals) {
        cost.insert("totals".to_owned(), to_list(total));
    }
    for key in ["weights", "share"] {
        if let Some(value) = fields.read(key, Json::value)? {
            cost.insert(key.to_owned(), to_enum_value(value));
        }
    }
    fields.end()?;
    Ok(Value::Object(cost))
}

/// Wraps a value in a list unless it is one.
fn to_list(value: Value) -> Value {
    if value.is_array() { value } else { json!([value]) }
}

/// Converts an enum value: `list_len` becomes `ListLen`. A JSON pointer is not changed.
fn to_enum_value(value: Value) -> Value {
    match value {
        Value::String(name) if !name.starts_with('/') => json!(camel(&name, true)),
        value => value,
    }
}

fn camel_keys(value: Value) -> Value {
    match value {
        Value::Object(members) => members.into_iter().map(|(key, value)| (camel(&key, false), value)).collect(),
        value => value,
    }
}

fn camel(name: &str, first: bool) -> String {
    let mut upper = first;
    let mut out = String::new();
    for c in name.chars() {
        if c == '_' || c == '-' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
    }
    out
}
