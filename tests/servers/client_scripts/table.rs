//! Table of the calls that are sent to each server.

use super::specs::{BENTOML, FASTAPI, INFINITY, KSERVE, LITELLM, LITSERVE, LLAMA, MLFLOW, MLSERVER, RAY, TRANSFORMERS};
use super::{ScriptScenario, ServerSpec, Treatment};
use crate::environment::Environment;

const ROWS: &str = "MODEL/rows.json";
/// Load script of the examples.
pub(super) const LOAD: &str = "../../examples/servers/load.py";
/// Longest text in characters that `generate_server.py` accepts, and more.
const LIMIT: &str = "200";

const CLIENTS: Environment = Environment::Venv("clients");
const TENSORS: Option<&str> = Some("examples/servers/mlserver/policy.yaml");
const TEXTS: Option<&str> = Some("tests/servers/texts.yaml");

/// Scenario of which the others differ in some fields.
const MERGED: ScriptScenario = ScriptScenario {
    name: "",
    server: &KSERVE,
    client: (Environment::Base, &[]),
    policy: None,
    treatment: Treatment::Merged,
    is_grpc: false,
    is_sample: false,
};

/// Returns a scenario with the client of `OpenAI` or `LangChain`.
const fn texts(
    name: &'static str,
    server: &'static ServerSpec,
    args: &'static [&'static str],
    treatment: Treatment,
) -> ScriptScenario {
    ScriptScenario { name, server, client: (CLIENTS, args), policy: TEXTS, treatment, ..MERGED }
}

/// Returns a scenario with the load script of an example.
const fn example(
    name: &'static str,
    server: &'static ServerSpec,
    args: &'static [&'static str],
    policy: &'static str,
) -> ScriptScenario {
    ScriptScenario { name, server, client: (Environment::Base, args), policy: Some(policy), ..MERGED }
}

/// The scenarios. Those of a server follow each other, so that it is started once.
pub(crate) const SCENARIOS: &[ScriptScenario] = &[
    ScriptScenario {
        name: "kserve.v1_client",
        client: (Environment::Base, &["kserve_calls.py", "v1", ROWS]),
        policy: Some("examples/servers/kserve-sklearn/policy.yaml"),
        is_sample: true,
        ..MERGED
    },
    ScriptScenario {
        name: "kserve.v2_client",
        client: (Environment::Base, &["kserve_calls.py", "v2", ROWS]),
        policy: Some("examples/servers/kserve-sklearn/policy.yaml"),
        is_sample: true,
        ..MERGED
    },
    ScriptScenario {
        name: "kserve.grpc_client",
        client: (Environment::Base, &["kserve_calls.py", "grpc", ROWS]),
        policy: Some("examples/servers/kserve-sklearn/policy.yaml"),
        is_grpc: true,
        is_sample: true,
        ..MERGED
    },
    ScriptScenario {
        name: "kserve.triton_client_binary",
        client: (CLIENTS, &["triton_calls.py", "binary", ROWS, "output-0"]),
        policy: TENSORS,
        ..MERGED
    },
    example(
        "kserve.example",
        &KSERVE,
        &[LOAD, "kserve-sklearn", "--json", "--model=digits", "--columns=64"],
        "examples/servers/kserve-sklearn/policy.yaml",
    ),
    example("fastapi.example", &FASTAPI, &[LOAD, "fastapi", "--json"], "examples/servers/fastapi/policy.yaml"),
    ScriptScenario {
        name: "mlserver.triton_client_http",
        server: &MLSERVER,
        client: (CLIENTS, &["triton_calls.py", "http", ROWS, "predict_proba"]),
        policy: TENSORS,
        ..MERGED
    },
    ScriptScenario {
        name: "mlserver.triton_client_grpc",
        server: &MLSERVER,
        client: (CLIENTS, &["triton_calls.py", "grpc", ROWS, "predict_proba"]),
        policy: TENSORS,
        is_grpc: true,
        ..MERGED
    },
    example(
        "mlserver.example",
        &MLSERVER,
        &[LOAD, "mlserver", "--json", "--model=digits", "--columns=64", "--datatype=FP64"],
        "examples/servers/mlserver/policy.yaml",
    ),
    ScriptScenario {
        name: "mlflow.client",
        server: &MLFLOW,
        client: (Environment::Venv("mlflow"), &["mlflow_calls.py", ROWS]),
        policy: Some("examples/servers/mlflow/policy.yaml"),
        ..MERGED
    },
    example(
        "mlflow.example",
        &MLFLOW,
        &[LOAD, "mlflow", "--json", "--columns=64"],
        "examples/servers/mlflow/policy.yaml",
    ),
    ScriptScenario {
        name: "bentoml.client",
        server: &BENTOML,
        client: (Environment::Venv("bentoml"), &["bento_calls.py"]),
        policy: Some("examples/servers/bentoml/policy.yaml"),
        ..MERGED
    },
    ScriptScenario {
        name: "bentoml.batchable_api",
        server: &BENTOML,
        client: (Environment::Venv("bentoml"), &["bento_calls.py"]),
        policy: Some("tests/servers/bentoml.yaml"),
        ..MERGED
    },
    example("bentoml.example", &BENTOML, &[LOAD, "bentoml", "--json"], "examples/servers/bentoml/policy.yaml"),
    ScriptScenario {
        name: "litserve.requests",
        server: &LITSERVE,
        client: (CLIENTS, &["requests_calls.py", "litserve"]),
        treatment: Treatment::Passed,
        ..MERGED
    },
    texts("litserve.openai_embeddings", &LITSERVE, &["text_calls.py", "embeddings", "any"], Treatment::Merged),
    ScriptScenario {
        policy: Some("examples/servers/infinity/policy.yaml"),
        ..texts(
            "infinity.openai_embeddings",
            &INFINITY,
            &["text_calls.py", "embeddings", "tiny", "130000", "422"],
            Treatment::Merged,
        )
    },
    example(
        "infinity.example",
        &INFINITY,
        &[LOAD, "infinity", "--json", "--model=tiny"],
        "examples/servers/infinity/policy.yaml",
    ),
    ScriptScenario {
        name: "ray.requests",
        server: &RAY,
        client: (CLIENTS, &["requests_calls.py", "ray"]),
        policy: Some("examples/servers/fastapi/policy.yaml"),
        ..MERGED
    },
    example("ray.fastapi_example", &RAY, &[LOAD, "fastapi", "--json"], "examples/servers/fastapi/policy.yaml"),
    texts("transformers.embeddings", &TRANSFORMERS, &["text_calls.py", "embeddings", "tiny", LIMIT], Treatment::Merged),
    texts("transformers.langchain", &TRANSFORMERS, &["text_calls.py", "langchain", "tiny", LIMIT], Treatment::Merged),
    texts(
        "transformers.completions",
        &TRANSFORMERS,
        &["text_calls.py", "completions", "tiny", LIMIT],
        Treatment::Merged,
    ),
    texts(
        "transformers.completion_streams",
        &TRANSFORMERS,
        &["text_calls.py", "completion_streams", "tiny", LIMIT],
        Treatment::Merged,
    ),
    texts("transformers.chat", &TRANSFORMERS, &["text_calls.py", "chat", "tiny", LIMIT], Treatment::Queued),
    texts(
        "transformers.chat_streams",
        &TRANSFORMERS,
        &["text_calls.py", "chat_streams", "tiny", LIMIT],
        Treatment::Queued,
    ),
    ScriptScenario {
        treatment: Treatment::Queued,
        ..example(
            "transformers.vllm_example",
            &TRANSFORMERS,
            &[LOAD, "vllm", "--json", "--model=tiny", "--calls=100"],
            "examples/servers/vllm/policy.yaml",
        )
    },
    ScriptScenario {
        name: "transformers.openai_for_node",
        server: &TRANSFORMERS,
        client: (Environment::Node, &["openai_calls.mjs", "tiny", LIMIT]),
        policy: TEXTS,
        ..MERGED
    },
    ScriptScenario {
        policy: Some("tests/servers/llama.yaml"),
        ..texts("llama.completions", &LLAMA, &["text_calls.py", "completions", "tiny"], Treatment::Queued)
    },
    ScriptScenario {
        policy: Some("tests/servers/llama.yaml"),
        ..texts("llama.chat_streams", &LLAMA, &["text_calls.py", "chat_streams", "tiny"], Treatment::Queued)
    },
    // Its `usage` counts the first prompt of a list alone.
    texts("llama.on_route_of_openai", &LLAMA, &["text_calls.py", "completions", "tiny"], Treatment::Retracted),
    texts("litellm.embeddings", &LITELLM, &["text_calls.py", "embeddings", "tiny", LIMIT], Treatment::Merged),
    texts(
        "litellm.embeddings_with_own_keys",
        &LITELLM,
        &["text_calls.py", "embeddings+keys", "tiny", LIMIT],
        Treatment::Apart,
    ),
    texts("litellm.completions", &LITELLM, &["text_calls.py", "completions", "tiny", LIMIT], Treatment::Merged),
    texts("litellm.chat_with_own_keys", &LITELLM, &["text_calls.py", "chat+keys", "tiny", LIMIT], Treatment::Queued),
    texts("litellm.chat_streams", &LITELLM, &["text_calls.py", "chat_streams", "tiny", LIMIT], Treatment::Queued),
    example(
        "litellm.example",
        &LITELLM,
        &[LOAD, "litellm", "--json", "--model=tiny", "--key=sk-caller-1", "--calls=100"],
        "examples/servers/litellm/policy.yaml",
    ),
];
