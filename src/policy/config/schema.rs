//! The configuration schema as a table: every key with its type, range, default and availability.
//!
//! One table serves the validation of a file, the defaults, the list of effective values and the
//! reference page, so that the four cannot disagree. The names are those of
//! `tests/data/config/policy.yaml`; a key is documented at its field in `api::v1alpha1`.

use super::quantity::{CPU, MEMORY, QuantityRange};
use super::text::{
    ADDRESS, ADDRESS_OR_OFF, ANY, APP_LISTEN, CAPTURED_PORT, DEVICE_MEMORY, FIELD, FILE, HEADER, LEVEL, LOCAL_OR_OFF,
    METHOD, NAME, PATH, POINTER, RECIPE, RESULT_WEIGHT, ROUTE_PATH, TextRule, UPSTREAM, WEIGHT,
};

pub(super) struct SchemaKey {
    pub(super) name: &'static str,
    pub(super) value_type: ValueType,
    pub(super) default: KeyDefault,
    pub(super) availability: Availability,
    pub(super) required: bool,
}

/// Default of an absent key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyDefault {
    /// This value, written as in a file.
    Value(&'static str),
    /// No value. The text describes the effect.
    Absent(&'static str),
    /// The defaults of its own keys.
    Nested,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Availability {
    /// Supported.
    Stable,
    /// Planned for a later version: rejected unless it changes nothing (empty, or its default).
    Later,
    /// In a cluster only: ignored in a local file, with a notice.
    ClusterOnly,
}

pub(super) enum ValueType {
    /// A map with fixed keys.
    Map(&'static [SchemaKey]),
    /// A map with names chosen by the user: the type of its values, and the maximum number of
    /// names.
    Names(&'static Self, usize),
    /// A list: the type of its elements, and its maximum length.
    List(&'static Self, usize),
    /// One value or a list of such: the type of a value, and the maximum length of the list.
    OneOrList(&'static Self, usize),
    /// A whole number, with minimum and maximum.
    Int(u64, u64),
    /// A duration, with minimum and maximum in microseconds.
    Time(u64, u64),
    /// A size, with minimum and maximum in bytes.
    Size(u64, u64),
    /// A share from `0%` to `100%`.
    Share,
    /// A boolean, `true` or `false`.
    Switch,
    /// One of these words, and the words planned for later versions.
    Word(&'static [&'static str], &'static [&'static str]),
    /// A text that satisfies a rule.
    Text(&'static TextRule),
    /// A resource request or limit, as a Kubernetes quantity.
    Quantity(&'static QuantityRange),
    /// A whole number, with minimum and maximum, or a map.
    IntOrMap(u64, u64, &'static [SchemaKey]),
}

use KeyDefault::{Absent, Nested, Value};
use ValueType::{Int, IntOrMap, List, Map, Names, OneOrList, Share, Size, Switch, Time, Word};

// Units of time, in microseconds, and of sizes, in bytes.
const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const KI: u64 = 1 << 10;
const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

const MODE: ValueType = Word(&["Batch", "Observe", "Passthrough"], &[]);
const POINTERS: ValueType = List(&ValueType::Text(&POINTER), 64);
const HEADERS: ValueType = List(&ValueType::Text(&HEADER), 64);
/// An HTTP status of an error.
const STATUS: ValueType = Int(400, 599);
/// Maximum number of tenants with a weight: more than a user lists by hand, and about a hundred
/// kilobytes.
const TENANTS_MAX: usize = 4_096;
const TIMEOUT: ValueType = Time(MS, HOUR);

/// Creates a key that is supported and not required.
const fn key(name: &'static str, value_type: ValueType, default: KeyDefault) -> SchemaKey {
    SchemaKey { name, value_type, default, availability: Availability::Stable, required: false }
}

/// Creates a key with a map in which each key has its own default.
const fn group(name: &'static str, keys: &'static [SchemaKey]) -> SchemaKey {
    key(name, Map(keys), Nested)
}

/// Creates a key with a text that satisfies a rule.
const fn text(name: &'static str, rule: &'static TextRule, default: KeyDefault) -> SchemaKey {
    key(name, ValueType::Text(rule), default)
}

/// Creates a key with a map that is absent as a whole unless written.
const fn optional(name: &'static str, keys: &'static [SchemaKey], absent: &'static str) -> SchemaKey {
    key(name, Map(keys), Absent(absent))
}

const fn required(mut key: SchemaKey) -> SchemaKey {
    key.required = true;
    key
}

#[expect(dead_code, reason = "no key is planned at present")]
const fn later(mut key: SchemaKey) -> SchemaKey {
    key.availability = Availability::Later;
    key
}

const fn cluster_only(mut key: SchemaKey) -> SchemaKey {
    key.availability = Availability::ClusterOnly;
    key
}

/// Keys of `BatchPolicy.spec`, and of the top level of a bare file.
pub(super) static SPEC: &[SchemaKey] = &[
    cluster_only(key("targetRefs", List(&Map(TARGET_REF), 16), Absent("none"))),
    cluster_only(optional("selector", SELECTOR, "none")),
    key("mode", MODE, Value("Batch")),
    optional("slo", SLO, "no latency target"),
    key("verify", Share, Value("0%")),
    key("routes", List(&Map(ROUTE), 256), Absent("every route that an adapter supports")),
    group("limits", LIMITS),
    group("scheduling", SCHEDULING),
    group("deadline", &[key("headers", HEADERS, Value("[x-request-timeout-ms, x-envoy-expected-rq-timeout-ms]"))]),
    group("priority", PRIORITY),
    group(
        "tenants",
        &[
            text("header", &HEADER, Absent("all identity headers together")),
            key("weights", Names(&Int(1, 1_000), TENANTS_MAX), Value("{}")),
        ],
    ),
    group(
        "failure",
        &[
            key("isolateAbove", Int(1, 65_536), Value("4")),
            key("replayBudget", Share, Value("10%")),
            key("quarantine", Time(MS, HOUR), Value("30s")),
        ],
    ),
    cluster_only(optional("profileRef", &[required(text("name", &NAME, Absent("none")))], "none")),
    cluster_only(optional("tuning", TUNING, "see the custom resource")),
    cluster_only(optional("rollout", ROLLOUT, "see the custom resource")),
    cluster_only(optional("injection", INJECTION, "see the custom resource")),
    group("engine", ENGINE),
    group("proxy", PROXY),
];

/// Keys of `BatchProfile.spec`.
pub(super) static PROFILE: &[SchemaKey] = &[group("limits", LIMITS), group("scheduling", SCHEDULING)];

const SLO: &[SchemaKey] = &[
    key("latencyP99", Time(MS, HOUR), Absent("no latency target")),
    key("late", Word(&["Serve", "Refuse"], &[]), Absent("`Serve`; for a route, the policy's")),
];

const ROUTE: &[SchemaKey] = &[
    required(text("path", &ROUTE_PATH, Absent("required"))),
    text("method", &METHOD, Value("POST")),
    key("ports", List(&ValueType::Text(&CAPTURED_PORT), 64), Value("[]")),
    key(
        "protocol",
        Word(
            &[
                "Auto",
                "PassThrough",
                "Generic",
                "KServeV1",
                "OpenInferenceV2",
                "TFServing",
                "OpenAI",
                "TEI",
                "Infinity",
                "VLLM",
                "SGLang",
                "LlamaCpp",
                "Ollama",
                "Voyage",
                "Jina",
                "MLflow",
                "Seldon",
                "SageMaker",
                "Cohere",
                "TGI",
                "BentoML",
            ],
            &[],
        ),
        Value("Auto"),
    ),
    key("mode", MODE, Absent("the policy's")),
    optional("slo", SLO, "the policy's"),
    optional("limits", LIMITS, "the policy's"),
    group("mergeOn", &[key("headers", HEADERS, Value("[]")), key("fields", POINTERS, Value("[]"))]),
    group("mergeOver", &[key("headers", HEADERS, Value("[]")), key("fields", POINTERS, Value("[]"))]),
    group("respondWith", &[key("headers", HEADERS, Value("[]")), key("fields", POINTERS, Value("[]"))]),
    key("merge", Word(&["Auto", "Always", "Never"], &[]), Value("Auto")),
    key("idempotent", Word(&["Auto", "Always", "Never"], &[]), Value("Auto")),
    key("timeout", TIMEOUT, Absent("no limit")),
    text("tokenizer", &FILE, Absent("estimated from `usage`")),
    optional("generic", GENERIC, "none"),
];

const GENERIC: &[SchemaKey] = &[
    text("upstreamPath", &PATH, Absent("the path of the call")),
    required(key("items", OneOrList(&ValueType::Text(&POINTER), 16), Absent("required"))),
    group(
        "single",
        &[
            text("items", &POINTER, Absent("none")),
            text("results", &POINTER, Absent("none")),
            key("wrapScalar", Switch, Value("false")),
            key("itemIs", Word(&["Element", "ArrayOfNumbers"], &[]), Value("Element")),
        ],
    ),
    key("itemClass", Word(&["Strict", "Text", "None"], &[]), Value("Strict")),
    required(key("results", OneOrList(&ValueType::Text(&POINTER), 16), Absent("required"))),
    text("index", &POINTER, Absent("none")),
    text("resultKey", &FIELD, Absent("none")),
    key("resultWrap", Word(&["None", "List"], &[]), Value("None")),
    key("select", Word(&["None", "Sorted"], &[]), Value("None")),
    optional(
        "perItemError",
        &[required(text("field", &POINTER, Absent("required"))), key("status", STATUS, Value("422"))],
        "none",
    ),
    key("id", POINTERS, Value("[]")),
    group(
        "cost",
        &[
            key("totals", POINTERS, Value("[]")),
            text("weights", &RESULT_WEIGHT, Value("Bytes")),
            key("share", Word(&["Proportional", "Exact", "Drop"], &[]), Value("Proportional")),
        ],
    ),
    text("weight", &WEIGHT, Value("Items")),
    key("tooLarge", List(&IntOrMap(400, 599, TOO_LARGE), 16), Value("[]")),
    key("lenientNumbers", Switch, Value("false")),
    key("onMismatch", Word(&["Isolate", "Fail"], &[]), Value("Isolate")),
];

const TOO_LARGE: &[SchemaKey] =
    &[required(key("status", STATUS, Absent("required"))), text("bodyContains", &ANY, Absent("any body"))];

const LIMITS: &[SchemaKey] = &[
    key("batchItemsMax", Int(1, 65_536), Value("128")),
    key("batchWeightMax", Int(1, 1 << 40), Absent("no limit")),
    key("batchBytesMax", Size(1, GI), Value("8Mi")),
    key("itemBytesMax", Size(1, GI), Value("1Mi")),
    key("itemNestingMax", Int(1, 1_024), Value("64")),
    key("queueDelayMax", Time(0, MINUTE), Value("20ms")),
    key("queueItemsMax", Int(1, 1_000_000), Value("2048")),
    key("queueBytesMax", Size(1, 64 * GI), Value("32Mi")),
    key("slotsMax", Int(1, 1_024), Absent("no limit")),
    key("standAsideMax", Int(1, 65_536), Value("512")),
];

const SCHEDULING: &[SchemaKey] = &[
    key("policy", Word(&["Adaptive", "WorkConserving", "Window", "Static"], &[]), Value("Adaptive")),
    key("preset", Word(&["latency", "balanced", "throughput"], &[]), Value("latency")),
    key("order", Word(&["Deadline", "ShortFirst"], &[]), Value("Deadline")),
    // More buckets than a server has efficient lengths; each divides the calls that may share a batch.
    key("lengthBuckets", List(&Int(1, 1 << 40), 16), Value("[]")),
    key("slots", Int(1, 1_024), Value("1")),
    key("items", Int(1, 65_536), Value("32")),
    key("delay", Time(0, MINUTE), Value("5ms")),
];

const PRIORITY: &[SchemaKey] = &[
    text("header", &HEADER, Absent("every call belongs to the first class")),
    // More classes than a user needs; the batching core examines each of them for every decision.
    key("classes", List(&Map(CLASS), 8), Value("[{name: interactive, weight: 8}, {name: bulk, weight: 1}]")),
];

const CLASS: &[SchemaKey] = &[
    required(text("name", &NAME, Absent("required"))),
    key("weight", Int(1, 1_000), Value("1")),
    key("latencyP99", Time(MS, HOUR), Absent("the route's or the policy's")),
    key("strict", Switch, Value("false")),
    key("filler", Switch, Value("false")),
];

const ENGINE: &[SchemaKey] = &[
    text("model", &FILE, Absent("calls are sent to a model server")),
    key("device", Word(&["Auto", "Cpu", "Cuda"], &[]), Value("Auto")),
    text("memory", &DEVICE_MEMORY, Absent("85% of what is free on a GPU; what the process may use on a CPU")),
    key("batchInvariant", Switch, Value("false")),
    // From a few words with what a model adds, up to the longest published context.
    key("itemTokensMax", Int(8, 1 << 20), Absent("that of the model")),
];

const PROXY: &[SchemaKey] = &[
    key("listen", List(&ValueType::Text(&ADDRESS), 16), Value("[\":15080\"]")),
    text("upstream", &UPSTREAM, Absent("required, here or with --upstream")),
    optional(
        "tls",
        &[
            required(text("certFile", &FILE, Absent("required"))),
            required(text("keyFile", &FILE, Absent("required"))),
            text("clientCaFile", &FILE, Absent("none")),
        ],
        "plain",
    ),
    optional(
        "upstreamTls",
        &[
            text("caFile", &FILE, Absent("default roots")),
            text("serverName", &NAME, Absent("the host of `upstream`")),
            text("certFile", &FILE, Absent("none")),
            text("keyFile", &FILE, Absent("none")),
        ],
        "default roots",
    ),
    group("client", CLIENT),
    group(
        "process",
        &[
            key("connectionsMax", Int(1, 1_000_000), Value("10000")),
            key("bufferedBytesMax", Size(KI, 64 * GI), Value("64Mi")),
        ],
    ),
    group(
        "connection",
        &[
            key("connectTimeout", TIMEOUT, Value("5s")),
            key("bodyIdleTimeout", TIMEOUT, Value("5m")),
            key("answerBytesMax", Size(1, 64 * GI), Value("32Mi")),
            key("http2", Word(&["Auto", "Always", "Never"], &[]), Value("Auto")),
            key("reuse", Word(&["Never", "Always"], &[]), Value("Never")),
        ],
    ),
    group("drain", &[key("delay", Time(0, HOUR), Value("0s")), key("limit", TIMEOUT, Value("30s"))]),
    group(
        "admin",
        &[
            text("metrics", &ADDRESS_OR_OFF, Value("127.0.0.1:9190")),
            text("local", &LOCAL_OR_OFF, Value("127.0.0.1:9191")),
        ],
    ),
    group(
        "log",
        &[
            key("format", Word(&["Json", "Pretty"], &[]), Value("Json")),
            text("level", &LEVEL, Value("info")),
            key("access", Share, Value("0%")),
        ],
    ),
    text("state", &FILE, Absent("no state is saved")),
];

const CLIENT: &[SchemaKey] = &[
    // The HTTP/1 reader cannot work with less than 8 KiB.
    key("headBytesMax", Size(8 * KI, MI), Value("64Ki")),
    key("headersMax", Int(1, 4_096), Value("100")),
    key("headTimeout", TIMEOUT, Value("5s")),
    key("bodyIdleTimeout", TIMEOUT, Value("10s")),
    key("bodyTimeout", TIMEOUT, Value("60s")),
    key("passThroughIdleTimeout", Time(MS, 24 * HOUR), Value("5m")),
    key("keepAliveTimeout", TIMEOUT, Value("75s")),
    key("writeTimeout", TIMEOUT, Value("10s")),
    key("requestsPerConnectionMax", Int(1, 1_000_000_000), Value("1000")),
    group(
        "http2",
        &[
            key("streamsMax", Int(1, 65_536), Value("128")),
            // The limit of the protocol is 2 GiB - 1 (RFC 9113, section 6.9.1).
            key("streamWindow", Size(KI, GI), Value("64Ki")),
            key("connectionWindow", Size(64 * KI, GI), Value("1Mi")),
            key("pingInterval", TIMEOUT, Value("20s")),
            key("pingTimeout", TIMEOUT, Value("10s")),
            key("resetsMax", Int(1, 1_000_000), Value("256")),
            key("ageMax", Time(MS, 24 * HOUR), Value("1h")),
        ],
    ),
];

// ---- Cluster only: the form is validated, so that a file works in both places ----

const TARGET_REF: &[SchemaKey] = &[
    text("group", &ANY, Value("")),
    required(key(
        "kind",
        Word(&["Deployment", "StatefulSet", "DaemonSet", "Service", "InferenceService", "InferencePool"], &[]),
        Absent("required"),
    )),
    required(text("name", &NAME, Absent("required"))),
];

const SELECTOR: &[SchemaKey] = &[
    key("matchLabels", Names(&ValueType::Text(&ANY), 64), Value("{}")),
    key(
        "matchExpressions",
        List(
            &Map(&[
                required(text("key", &NAME, Absent("required"))),
                required(key("operator", Word(&["In", "NotIn", "Exists", "DoesNotExist"], &[]), Absent("required"))),
                key("values", List(&ValueType::Text(&ANY), 256), Value("[]")),
            ]),
            64,
        ),
        Value("[]"),
    ),
];

const NUMBER_BOUNDS: &[SchemaKey] =
    &[key("min", Int(1, 1 << 40), Absent("none")), key("max", Int(1, 1 << 40), Absent("`limits`"))];

const TUNING: &[SchemaKey] = &[
    key("mode", Word(&["Auto", "Recommend", "Manual"], &[]), Value("Auto")),
    key("granularity", Word(&["Pod", "NodeClass", "Workload"], &[]), Value("Pod")),
    group(
        "bounds",
        &[
            optional("slotsMax", NUMBER_BOUNDS, "from 1, up to `limits` if set"),
            optional("batchWeightMax", NUMBER_BOUNDS, "`limits`"),
            group("deadlineShift", &[key("max", Share, Value("60%"))]),
        ],
    ),
];

const ROLLOUT: &[SchemaKey] = &[
    key("strategy", Word(&["Immediate", "Canary", "Experiment"], &[]), Value("Immediate")),
    group(
        "canary",
        &[key(
            "steps",
            List(
                &Map(&[
                    required(key("percent", Int(1, 100), Absent("required"))),
                    required(key("hold", Time(MS, 24 * HOUR), Absent("required"))),
                ]),
                32,
            ),
            Value("[{percent: 10, hold: 5m}, {percent: 50, hold: 5m}]"),
        )],
    ),
    group(
        "experiment",
        &[
            key(
                "arms",
                List(
                    &Map(&[
                        required(key(
                            "profileRef",
                            Map(&[required(text("name", &NAME, Absent("required")))]),
                            Absent("required"),
                        )),
                        key("weight", Int(1, 1_000), Value("1")),
                    ]),
                    16,
                ),
                Value("[]"),
            ),
            key("assignment", Word(&["Pod", "Switchback"], &[]), Value("Pod")),
            key("period", Time(MS, 24 * HOUR), Value("60s")),
            key("minSamples", Int(1, 1_000_000_000), Value("2000")),
        ],
    ),
    group(
        "analysis",
        &[
            key("latencyP99Regression", Share, Value("5%")),
            key("errorRateRegression", Share, Value("0.5%")),
            key("interval", Time(MS, HOUR), Value("30s")),
        ],
    ),
    key("onFailure", Word(&["Rollback", "Pause"], &[]), Value("Rollback")),
    key("historyLimit", Int(1, 1_000), Value("10")),
];

const INJECTION: &[SchemaKey] = &[
    key("capture", Word(&["Auto", "Named", "Loopback", "Redirect"], &[]), Value("Auto")),
    key("ports", List(&ValueType::Text(&CAPTURED_PORT), 64), Value("[]")),
    text("appListen", &APP_LISTEN, Absent("none")),
    text("recipe", &RECIPE, Value("Auto")),
    key("cpuRequest", ValueType::Quantity(&CPU), Value("50m")),
    key("memoryRequest", ValueType::Quantity(&MEMORY), Value("48Mi")),
    key("memoryLimit", ValueType::Quantity(&MEMORY), Value("128Mi")),
    text("logLevel", &LEVEL, Value("info")),
    key("drainTimeout", Time(SECOND, HOUR), Absent("the pod's grace period less 5s")),
    key("nativeSidecar", Word(&["Auto", "Always", "Never"], &[]), Value("Auto")),
];

/// Returns the key at a path without indices, such as `proxy.listen`.
pub(super) fn find_key(path: &str) -> Option<&'static SchemaKey> {
    let mut keys = SPEC;
    let mut found = None;
    for name in path.split('.') {
        found = Some(keys.iter().find(|key| key.name == name)?);
        keys = match found?.value_type {
            Map(keys) => keys,
            _ => &[],
        };
    }
    found
}

/// Calls `visit` with every key below and its path, in which `[]` is any index of a list of maps.
pub(super) fn walk(keys: &'static [SchemaKey], prefix: &str, visit: &mut dyn FnMut(&str, &'static SchemaKey)) {
    for key in keys {
        let path = if prefix.is_empty() { key.name.to_owned() } else { format!("{prefix}.{}", key.name) };
        visit(&path, key);
        match &key.value_type {
            Map(keys) => walk(keys, &path, visit),
            List(Map(keys) | IntOrMap(_, _, keys), _) => walk(keys, &format!("{path}[]"), visit),
            _ => {}
        }
    }
}

// === impl ValueType ===

impl ValueType {
    /// Describes the allowed values.
    pub(super) fn allowed(&self) -> String {
        use super::units::{format_duration, format_size};
        let micros = std::time::Duration::from_micros;
        match self {
            Map(_) => "a map".to_owned(),
            Names(value, max) => format!("a map of at most {max} names to: {}", value.allowed()),
            List(element, max) => format!("a list of at most {max}: {}", element.allowed()),
            OneOrList(element, max) => format!("{}; or a list of at most {max}", element.allowed()),
            Int(min, max) => format!("a whole number from {min} to {max}"),
            Time(min, max) => {
                let (min, max) = (format_duration(micros(*min)), format_duration(micros(*max)));
                format!("a duration from {min} to {max} (units us ms s m h)")
            }
            Size(min, max) => {
                format!("a size from {} to {} (bytes, or Ki Mi Gi)", format_size(*min), format_size(*max))
            }
            Share => "a share from 0% to 100%".to_owned(),
            Switch => "true, false".to_owned(),
            Word(words, _) => words.join(", "),
            Self::Text(rule) => rule.allowed.to_owned(),
            Self::Quantity(range) => range.allowed(),
            IntOrMap(min, max, keys) => {
                let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
                format!("a whole number from {min} to {max}, or {{{}}}", names.join(", "))
            }
        }
    }
}
