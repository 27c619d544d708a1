//! Table of model servers: the command from each one's documentation, a call, and the expected
//! capture.

/// A server as deployed by its documentation.
#[derive(Debug)]
pub(super) struct ServerSpec {
    /// Virtual environment with its packages; `None` for that of `tests/servers`.
    pub(super) venv: Option<&'static str>,
    /// Scripts that create the model, in order. Each is called with the model's folder.
    pub(super) scripts: &'static [&'static str],
    /// Command of the container, as YAML. `MODEL` is replaced by the model's folder.
    pub(super) command: &'static str,
    /// Working directory. `SCRIPTS` is replaced by `e2e/python`, which is read-only.
    pub(super) folder: &'static str,
    /// Environment variables of the container, as YAML that continues a list.
    pub(super) env: &'static str,
    /// Declared ports of the container, none of them with a name. The first is that of the Service.
    pub(super) ports: &'static [u16],
    /// Path of its readiness probe.
    pub(super) ready: &'static str,
    /// Path of the calls.
    pub(super) path: &'static str,
    /// Returns the body of the call with this number, for this row of the data.
    pub(super) body: fn(usize, &str) -> String,
    /// API key sent with every call.
    pub(super) key: Option<&'static str>,
    /// `true` if it forwards calls to the simulated model server, the Service `model`.
    pub(super) has_upstream: bool,
    /// Recipe that moves it off its port; `None` if connections are redirected by the kernel.
    pub(super) recipe: Option<&'static str>,
    /// Mode in which its port is captured.
    pub(super) mode: &'static str,
    /// Routes declared by its policy, as YAML, if no adapter recognizes them.
    pub(super) routes: &'static str,
    /// Adapter that merges its calls; `None` if they are passed through.
    pub(super) adapter: Option<&'static str>,
}

/// Trains a digit classifier.
const TRAIN: &str = "tests/servers/train.py";
/// Key of `LiteLLM`, in a form that it accepts as strong.
const KEY: &str = "sk-0123456789abcdef0123456789abcdef";

const FASTAPI: ServerSpec = ServerSpec {
    venv: None,
    scripts: &[],
    command: "",
    folder: "SCRIPTS",
    env: "",
    ports: &[8000],
    ready: "/health",
    path: "/v1/embeddings",
    body: embeddings,
    key: None,
    has_upstream: false,
    recipe: None,
    mode: "Loopback",
    routes: "[]",
    adapter: Some("openai"),
};

/// <https://fastapi.tiangolo.com/deployment/docker/>
pub(super) const UVICORN: ServerSpec = ServerSpec {
    command: "[uvicorn, 'webapp:app', --host, 0.0.0.0, --port, '8000']",
    recipe: Some("uvicorn"),
    ..FASTAPI
};

/// Variant of [`UVICORN`] with an application that exits if its address is loopback.
pub(super) const LOOPBACK_REJECTING: ServerSpec =
    ServerSpec { command: "[uvicorn, 'stubborn:app', --host, 0.0.0.0, --port, '8000']", ..UVICORN };

/// <https://www.uvicorn.org/deployment/#gunicorn>
pub(super) const GUNICORN: ServerSpec = ServerSpec {
    command: "[gunicorn, -k, uvicorn.workers.UvicornWorker, -b, '0.0.0.0:8000', 'webapp:app']",
    recipe: Some("gunicorn"),
    ..FASTAPI
};

/// <https://github.com/kserve/kserve/blob/master/config/runtimes/kserve-sklearnserver.yaml>, with
/// the entry point of its image.
pub(super) const KSERVE: ServerSpec = ServerSpec {
    scripts: &[TRAIN],
    command: "[python, -m, sklearnserver, --model_name=digits, --model_dir=MODEL, --http_port=8080]",
    ports: &[8080],
    ready: "/v2/health/ready",
    path: "/v1/models/digits:predict",
    body: |_, row| format!(r#"{{"instances": [{row}]}}"#),
    recipe: Some("kserve"),
    mode: "Moved",
    adapter: Some("kserve_v1"),
    ..FASTAPI
};

/// <https://mlserver.readthedocs.io/en/stable/user-guide/deployment/index.html>, with the command
/// of the image that `mlserver build` creates.
pub(super) const MLSERVER: ServerSpec = ServerSpec {
    venv: Some("mlserver"),
    scripts: &[TRAIN, "e2e/python/mlserver_model.py"],
    command: "[mlserver, start, MODEL]",
    // The server writes its metrics to this folder.
    folder: "/tmp",
    ports: &[8080, 8081],
    ready: "/v2/health/ready",
    path: "/v2/models/digits/infer",
    // The client sets the identifier. One chosen by the server would differ in each answer.
    body: |at, row| {
        let inputs = format!(r#"{{"name": "x", "shape": [1, 64], "datatype": "FP64", "data": {row}}}"#);
        format!(r#"{{"id": "call-{at}", "inputs": [{inputs}]}}"#)
    },
    recipe: Some("mlserver"),
    adapter: None,
    ..FASTAPI
};

/// <https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally/>
pub(super) const MLFLOW: ServerSpec = ServerSpec {
    venv: Some("mlflow"),
    scripts: &[TRAIN, "e2e/python/mlflow_model.py"],
    command: "[mlflow, models, serve, -m, MODEL/mlflow, --host, 0.0.0.0, --port, '5000', --env-manager, local]",
    ports: &[5000],
    ready: "/health",
    path: "/invocations",
    body: |_, row| format!(r#"{{"inputs": [{row}]}}"#),
    recipe: Some("mlflow"),
    routes: "[{path: /invocations, protocol: Generic, generic: {items: /inputs, results: /predictions}}]",
    adapter: Some("generic"),
    ..FASTAPI
};

/// <https://docs.bentoml.com/en/latest/get-started/hello-world.html>: a production server listens
/// on all addresses.
pub(super) const BENTOML: ServerSpec = ServerSpec {
    venv: Some("bentoml"),
    command: "[bentoml, serve, 'service:Sums']",
    env: ", {name: DO_NOT_TRACK, value: 'True'}",
    ports: &[3000],
    ready: "/readyz",
    path: "/sums",
    body: |at, _| format!(r#"{{"rows": [[{at}, 1.5]]}}"#),
    recipe: Some("bentoml"),
    routes: "[{path: /sums, protocol: Generic, generic: {items: /rows, results: ''}}]",
    adapter: Some("generic"),
    ..FASTAPI
};

/// <https://docs.litellm.ai/docs/proxy/deploy>, in front of the simulated model server. Prices are
/// taken from the package, since there is no network.
pub(super) const LITELLM: ServerSpec = ServerSpec {
    venv: Some("litellm"),
    command: "[litellm, --config, litellm.yaml, --port, '4000']",
    env: ", {name: LITELLM_MASTER_KEY, value: sk-0123456789abcdef0123456789abcdef}, {name: LITELLM_LOCAL_MODEL_COST_MAP, value: 'True'}",
    ports: &[4000],
    ready: "/health/liveliness",
    key: Some(KEY),
    has_upstream: true,
    recipe: Some("litellm"),
    ..FASTAPI
};

/// <https://github.com/Lightning-AI/LitServe>: its address is only set in the script.
pub(super) const LITSERVE: ServerSpec = ServerSpec {
    venv: Some("litserve"),
    command: "[python, server.py]",
    path: "/predict",
    body: |at, _| format!(r#"{{"input": {at}.5}}"#),
    mode: "Redirect",
    adapter: None,
    ..FASTAPI
};

fn embeddings(at: usize, _: &str) -> String {
    format!(r#"{{"model": "embed", "input": "text number {at}"}}"#)
}
