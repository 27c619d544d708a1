//! Proptest strategies for pods, contexts and foreign changes, drawn from small alphabets so that
//! collisions are frequent.

use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::super::{InjectionContext, NamedPolicy, RedirectUse};

/// Draws one of a few strings.
fn word(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    select(words).prop_map(Value::from)
}

/// Draws an object; each field may be present, absent or null.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    let values: Vec<_> = values
        .into_iter()
        .map(|value| prop_oneof![4 => value.prop_map(Some), 3 => Just(None), 1 => Just(Some(Value::Null))])
        .collect();
    values
        .prop_map(move |values| {
            let fields = names.iter().zip(values).filter_map(|(name, value)| Some(((*name).to_owned(), value?)));
            Value::Object(fields.collect())
        })
        .boxed()
}

fn list(item: impl Strategy<Value = Value> + 'static, most: usize) -> BoxedStrategy<Value> {
    vec(item, 0..=most).prop_map(Value::from).boxed()
}

fn port() -> BoxedStrategy<Value> {
    let number = select(vec![80_u16, 8080, 8081, 9190, 15080, 15090]).prop_map(Value::from);
    let names = word(&["http", "grpc", "metrics", "gpg-8080", "gpg-metrics"]);
    let port = object(vec![
        ("name", names.boxed()),
        ("protocol", word(&["TCP", "TCP", "UDP"]).boxed()),
        ("hostPort", Just(json!(80)).boxed()),
        ("future", Just(json!({"x": 1})).boxed()),
    ]);
    (number, port)
        .prop_map(|(number, mut port)| {
            port["containerPort"] = number;
            port
        })
        .boxed()
}

/// Draws a reference to a container port, by name or number.
fn reference() -> impl Strategy<Value = Value> {
    prop_oneof![word(&["http", "grpc", "other"]), Just(json!(8080))]
}

fn handler() -> BoxedStrategy<Value> {
    prop_oneof![
        reference().prop_map(|port| json!({"httpGet": {"path": "/", "port": port}, "periodSeconds": 3})),
        reference().prop_map(|port| json!({"tcpSocket": {"port": port}})),
        reference().prop_map(|port| json!({"tcpSocket": {"port": port}, "httpGet": null, "periodSeconds": 3})),
        Just(json!({"tcpSocket": {"port": 8080, "host": "elsewhere"}})),
        Just(json!({"exec": {"command": ["true"]}})),
        Just(json!({"grpc": {"port": 8080}})),
        Just(json!({"grpc": {"port": 9191}})),
        Just(json!({"httpGet": {"path": "/", "port": 7000.0}})),
    ]
    .boxed()
}

fn resources() -> BoxedStrategy<Value> {
    let amounts = || object(vec![("cpu", word(&["1", "500m"]).boxed()), ("memory", word(&["1Gi", "64Mi"]).boxed())]);
    object(vec![("requests", amounts()), ("limits", amounts())])
}

fn container(name: &'static str) -> BoxedStrategy<Value> {
    let variable = prop_oneof![
        word(&["", "0.0.0.0", "127.0.0.1"]).prop_map(|value| json!({"name": "HOST", "value": value})),
        Just(json!({"name": "OTHER", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})),
    ];
    let argument = || {
        let hosts = &["--host", "--host=0.0.0.0", "127.0.0.1", "0.0.0.0", "-c", "serve"];
        let ports = &["--port", "8080", "--port=9190", "--http_port=8080", "--grpc_port=15080", "--bind=0.0.0.0:15081"];
        prop_oneof![3 => word(hosts), 1 => word(ports)]
    };
    let command = prop_oneof![
        3 => list(argument(), 2),
        1 => list(word(&["uvicorn", "tritonserver", "tensorflow_model_server", "gunicorn"]), 1),
        1 => word(&[
            "vllm serve m",
            "exec gunicorn -b 0.0.0.0:8080 a:a",
            "mlserver start . # $(X)",
            "tensorflow_model_server --rest_api_port 15080",
            "OLLAMA_HOST=0.0.0.0 ollama serve",
            "uvicorn a:a $HOST --port 9191",
        ])
            .prop_map(|script| json!(["sh", "-c", script])),
    ];
    let fields = vec![
        ("ports", list(port(), 4)),
        ("env", list(variable, 3)),
        ("args", list(argument(), 4)),
        ("command", command.boxed()),
        ("image", word(&["kserve/sklearnserver:v1", "ollama/ollama", "own"]).boxed()),
        ("livenessProbe", handler()),
        ("readinessProbe", handler()),
        ("startupProbe", handler()),
        ("lifecycle", object(vec![("preStop", handler()), ("postStart", handler())])),
        ("resources", resources()),
        ("restartPolicy", word(&["Always"]).boxed()),
        ("future", Just(json!([1, 2.5, {"deep": null}])).boxed()),
    ];
    object(fields)
        .prop_map(move |mut container| {
            container["name"] = json!(name);
            container
        })
        .boxed()
}

/// Draws containers with some of these names.
fn containers(names: &'static [&'static str]) -> BoxedStrategy<Value> {
    let each: Vec<_> = names.iter().map(|name| option::weighted(0.6, container(name))).collect();
    each.prop_map(|all| Value::Array(all.into_iter().flatten().collect())).boxed()
}

fn annotations() -> BoxedStrategy<Value> {
    object(vec![
        ("groupage.dev/inject", word(&["enabled", "TRUE", "enabled", "disabled"]).boxed()),
        ("groupage.dev/capture", word(&["Auto", "named", "Loopback", "redirect"]).boxed()),
        ("groupage.dev/ports", word(&["http", "8080,9999", "grpc, http"]).boxed()),
        (
            "groupage.dev/app-listen",
            word(&[
                "env:HOST=127.0.0.1",
                "arg:--host=127.0.0.1",
                "arg:--host 127.0.0.1",
                "env:NEW=x",
                "env:HOST=127.0.0.1:8080",
                "c/arg:--host=0.0.0.0:15080",
                "arg:--host=::1,env:HOST=::1",
            ])
            .boxed(),
        ),
        ("groupage.dev/recipe", word(&["Auto", "none", "kserve"]).boxed()),
        ("groupage.dev/memory-limit", word(&["32Mi", "1Gi"]).boxed()),
        ("groupage.dev/native-sidecar", word(&["Auto", "never", "always"]).boxed()),
        ("groupage.dev/status", word(&["{}", "not ours"]).boxed()),
        ("kubectl.kubernetes.io/default-container", word(&["b"]).boxed()),
        ("config.linkerd.io/opaque-ports", word(&["8000-8080"]).boxed()),
        ("of.others/x", word(&["", "y"]).boxed()),
    ])
}

/// Draws the annotations of a sidecar that executes a model itself.
fn engine_annotations() -> BoxedStrategy<Value> {
    let more = object(vec![("groupage.dev/engine-device", word(&["Auto", "cuda"]).boxed())]);
    (more, word(&["m", "/models/m", "/a/b/c"]))
        .prop_map(|(mut annotations, model)| {
            annotations["groupage.dev/engine"] = model;
            annotations["groupage.dev/engine-volume"] = json!("v");
            annotations
        })
        .boxed()
}

/// Draws a pod that can usually be injected.
pub(super) fn pod() -> BoxedStrategy<Value> {
    let labels = object(vec![
        ("app", word(&["x", "y"]).boxed()),
        ("groupage.dev/injected", word(&["false", "true"]).boxed()),
        ("istio.io/rev", word(&["a"]).boxed()),
    ]);
    let sysctl = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "1"});
    let spec = object(vec![
        ("initContainers", containers(&["init", "istio-proxy"])),
        ("volumes", list(word(&["v"]).prop_map(|name| json!({"name": name, "emptyDir": {}})), 1)),
        ("imagePullSecrets", list(word(&["pull", "own"]).prop_map(|name| json!({"name": name})), 2)),
        ("securityContext", object(vec![("runAsUser", Just(json!(0)).boxed()), ("sysctls", list(Just(sysctl), 1))])),
        ("resources", resources()),
        ("restartPolicy", word(&["Always", "Always", "Never"]).boxed()),
        ("terminationGracePeriodSeconds", select(vec![0, 5, 600]).prop_map(Value::from).boxed()),
        ("future", Just(json!({"kept": true})).boxed()),
    ]);
    let metadata = object(vec![("labels", labels), ("annotations", annotations()), ("name", word(&["p"]).boxed())]);
    let engine = option::weighted(0.15, engine_annotations());
    (metadata, spec, containers(&["a", "b", "linkerd-proxy"]), container("c"), prop::bool::weighted(0.9), engine)
        .prop_map(|(mut metadata, mut spec, mut all, more, has_metadata, engine)| {
            let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            if let (Some(annotations), Some(Value::Object(engine))) = (annotations, engine) {
                annotations.extend(engine);
            }
            all.as_array_mut().unwrap().push(more);
            spec["containers"] = all;
            let mut pod = Map::from_iter([("spec".to_owned(), spec)]);
            if has_metadata {
                pod.insert("metadata".to_owned(), metadata);
            }
            Value::Object(pod)
        })
        .boxed()
}

/// Draws the environment of a pod.
pub(super) fn context() -> BoxedStrategy<InjectionContext> {
    let service = |target: Value| json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": target}]}});
    let referrers = prop_oneof![
        reference().prop_map(service),
        Just(
            json!({"kind": "InferencePool", "metadata": {"name": "p"}, "spec": {"selector": {"app": "x"}, "targetPortNumber": 8080}})
        ),
        Just(
            json!({"kind": "NetworkPolicy", "metadata": {"name": "n"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 8080}]}]}})
        ),
    ];
    let policy =
        word(&["{}", "{\"mode\":\"Observe\",\"injection\":{\"capture\":\"Loopback\",\"appListen\":\"env:HOST=::1\"}}"]);
    let redirect = select(vec![RedirectUse::Never, RedirectUse::WhenNeeded, RedirectUse::Always]);
    (any::<[bool; 2]>(), redirect, vec(referrers, 0..3), option::of(policy), any::<bool>())
        .prop_map(|([native, inject_by_default], redirect, referrers, policy, secrets)| {
            let spec = policy.map(|text| serde_json::from_str(text.as_str().unwrap()).unwrap());
            let policies: Vec<NamedPolicy> = spec
                .into_iter()
                .map(|spec| NamedPolicy { name: "p".to_owned(), spec, ..NamedPolicy::default() })
                .collect();
            let mut context = InjectionContext {
                supports_native_sidecars: native,
                redirect,
                inject_by_default,
                ..InjectionContext::default()
            };
            context.policies = policies.into();
            context.referrers = Arc::from(referrers);
            if secrets {
                context.sidecar.pull_secrets = vec!["pull".to_owned(), "ours".to_owned()];
            }
            context
        })
        .boxed()
}

/// A change by another webhook, to a pod with or without the sidecar.
#[derive(Debug, Clone)]
pub(super) enum ForeignChange {
    Container(bool),
    Volume,
    Label,
    Annotation,
    Variable,
    Field,
}

pub(super) fn foreign() -> impl Strategy<Value = Vec<ForeignChange>> {
    let one = prop_oneof![
        any::<bool>().prop_map(ForeignChange::Container),
        Just(ForeignChange::Volume),
        Just(ForeignChange::Label),
        Just(ForeignChange::Annotation),
        Just(ForeignChange::Variable),
        Just(ForeignChange::Field),
    ];
    vec(one, 0..6)
}

// === impl ForeignChange ===

impl ForeignChange {
    /// Applies the change; `index` distinguishes it from others of its kind.
    pub(super) fn apply(&self, pod: &mut Value, index: usize) {
        let name = format!("foreign-{index}");
        let app = pod["spec"]["containers"].as_array().unwrap().iter().position(|one| one["name"] == "c").unwrap();
        match self {
            Self::Container(first) => {
                let all = pod["spec"]["containers"].as_array_mut().unwrap();
                let own = json!({"name": name, "image": "x"});
                if *first { all.insert(0, own) } else { all.push(own) }
            }
            Self::Volume => push(&mut pod["spec"]["volumes"], json!({"name": name, "emptyDir": {}})),
            Self::Label => pod["metadata"]["labels"][name] = json!("1"),
            Self::Annotation => pod["metadata"]["annotations"][name] = json!("1"),
            Self::Variable => push(&mut pod["spec"]["containers"][app]["env"], json!({"name": name, "value": "1"})),
            Self::Field => pod["spec"]["containers"][app][name] = json!({"a": [1]}),
        }
    }
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}

/// Draws a small JSON value.
pub(super) fn any_json() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        word(&["groupage", "http", "TCP", "Always", "groupage-token", "enabled"]),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let key = prop_oneof![
            select(vec!["name", "ports", "containerPort", "spec", "containers"]).prop_map(str::to_owned),
            "\\PC{0,6}"
        ];
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key, inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
    .boxed()
}
