//! Model servers, as their packages start them.

use super::ServerSpec;
use crate::environment::Environment;

/// Trains a random forest on handwritten digits, and writes rows that it was not trained with.
const TRAIN: &str = "tests/servers/train.py";

pub(super) const KSERVE: ServerSpec = ServerSpec {
    name: "kserve",
    package: "kserve",
    environment: Environment::Base,
    prepared_by: &[TRAIN],
    command: &["kserve_model.py", "MODEL/model.joblib"],
    ready: "/v2/health/ready",
    upstream: None,
};

pub(super) const FASTAPI: ServerSpec = ServerSpec {
    name: "fastapi",
    package: "fastapi",
    environment: Environment::Base,
    prepared_by: &[],
    command: &["fastapi_app.py"],
    ready: "/docs",
    upstream: None,
};

pub(super) const MLSERVER: ServerSpec = ServerSpec {
    name: "mlserver",
    package: "mlserver",
    environment: Environment::Venv("mlserver"),
    prepared_by: &[TRAIN, "e2e/python/mlserver_model.py"],
    command: &[
        "served.py",
        "HOME=MODEL",
        "MLSERVER_HOST=127.0.0.1",
        "MLSERVER_HTTP_PORT={port}",
        "MLSERVER_GRPC_PORT={grpc_port}",
        "MLSERVER_METRICS_PORT={spare_port}",
        "MLSERVER_METRICS_DIR=MODEL",
        "MLSERVER_PARALLEL_WORKERS=0",
        "mlserver",
        "start",
        "MODEL",
    ],
    ready: "/v2/health/ready",
    upstream: None,
};

pub(super) const MLFLOW: ServerSpec = ServerSpec {
    name: "mlflow",
    package: "mlflow",
    environment: Environment::Venv("mlflow"),
    prepared_by: &[TRAIN, "e2e/python/mlflow_model.py"],
    command: &[
        "served.py",
        "HOME=MODEL",
        "mlflow",
        "models",
        "serve",
        "-m",
        "MODEL/mlflow",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--env-manager",
        "local",
    ],
    ready: "/ping",
    upstream: None,
};

pub(super) const BENTOML: ServerSpec = ServerSpec {
    name: "bentoml",
    package: "bentoml",
    environment: Environment::Venv("bentoml"),
    prepared_by: &[],
    command: &[
        "served.py",
        "HOME=MODEL",
        "DO_NOT_TRACK=True",
        "bentoml",
        "serve",
        "bento_service:Sums",
        "--working-dir",
        "SCRIPTS",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    ],
    ready: "/readyz",
    upstream: None,
};

pub(super) const LITSERVE: ServerSpec = ServerSpec {
    name: "litserve",
    package: "litserve",
    environment: Environment::Venv("litserve"),
    prepared_by: &[],
    command: &["litserve_server.py"],
    ready: "/health",
    upstream: None,
};

pub(super) const INFINITY: ServerSpec = ServerSpec {
    name: "infinity",
    package: "infinity-emb",
    environment: Environment::Venv("infinity"),
    prepared_by: &[],
    command: &[
        "served.py",
        "HOME=MODEL",
        "DO_NOT_TRACK=1",
        "INFINITY_ANONYMOUS_USAGE_STATS=0",
        "HF_HUB_OFFLINE=1",
        "infinity_emb",
        "v2",
        "--engine",
        "debugengine",
        "--model-id",
        "tiny",
        "--url-prefix",
        "/v1",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    ],
    ready: "/health",
    upstream: None,
};

pub(super) const RAY: ServerSpec = ServerSpec {
    name: "ray",
    package: "ray",
    environment: Environment::Venv("ray"),
    prepared_by: &[],
    command: &["ray_server.py", "MODEL"],
    ready: "/docs",
    upstream: None,
};

pub(super) const TRANSFORMERS: ServerSpec = ServerSpec {
    name: "transformers",
    package: "transformers",
    environment: Environment::Venv("transformers"),
    prepared_by: &[],
    command: &["generate_server.py"],
    ready: "/runs",
    upstream: None,
};

/// The server of llama.cpp, which the package contains.
pub(super) const LLAMA: ServerSpec = ServerSpec {
    name: "llama",
    package: "xllamacpp",
    environment: Environment::Venv("llama"),
    prepared_by: &[],
    command: &["llama_server.py", "MODEL"],
    ready: "/health",
    upstream: None,
};

pub(super) const LITELLM: ServerSpec = ServerSpec {
    name: "litellm",
    package: "litellm",
    environment: Environment::Venv("litellm"),
    prepared_by: &[],
    command: &[
        "served.py",
        "HOME=MODEL",
        "UPSTREAM=http://UPSTREAM_ADDRESS/v1",
        "LITELLM_LOG=ERROR",
        // Prices are taken from the package, since the test downloads nothing.
        "LITELLM_LOCAL_MODEL_COST_MAP=True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true",
        "litellm",
        "--config",
        "SCRIPTS/litellm.yaml",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--telemetry",
        "False",
    ],
    ready: "/health/liveliness",
    upstream: Some(&TRANSFORMERS),
};
