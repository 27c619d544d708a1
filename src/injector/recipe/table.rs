//! The table of recipes: the servers that people run, and how each is moved off its ports.
//!
//! Flags and variables are those of the server's own documentation, which each row names.

/// A recipe: a server, how it is recognised, and where it listens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recipe {
    /// The name in reports, in the status and in `groupage.dev/recipe`.
    pub(super) name: &'static str,
    /// The server's documentation of its listeners.
    pub(super) source: &'static str,
    /// Programs, by the last part of their path.
    pub(super) programs: &'static [&'static str],
    /// Python modules (`python -m`).
    pub(super) modules: &'static [&'static str],
    /// Subcommands, of which one follows the program; empty: there is none.
    pub(super) verbs: &'static [&'static str],
    /// Repositories of images that start it with the container's arguments, by their end.
    pub(super) images: &'static [&'static str],
    /// Flags with which it listens elsewhere, on a socket of the file system.
    pub(super) elsewhere: &'static [&'static str],
    /// Its listeners.
    pub(super) listeners: &'static [ServerListener],
}

/// A listener of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerListener {
    /// The way in which it is moved.
    pub(super) setting: MoveSetting,
    /// Flags that set its port.
    pub(super) port_flags: &'static [&'static str],
    /// The variable that sets its port.
    pub(super) port_env: Option<&'static str>,
    /// The port that it has by default, or [`ON_REQUEST`].
    pub(super) port: u16,
}

/// In place of a default port: the server has the listener only where its port is set.
pub(super) const ON_REQUEST: u16 = 0;

/// A setting that moves a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveSetting {
    /// A flag with the address to listen on.
    Host(&'static [&'static str]),
    /// A flag with address and port, which may be repeated.
    Bind(&'static [&'static str]),
    /// A flag with the port: the address cannot be set.
    Port(&'static [&'static str]),
    /// A variable with the address.
    HostEnv(&'static str),
    /// A variable with address and port, after a scheme.
    BindEnv(&'static str, &'static str),
    /// A listener that another setting of the same server moves.
    Along,
}

const NONE: Recipe = Recipe {
    name: "",
    source: "",
    programs: &[],
    modules: &[],
    verbs: &[],
    images: &[],
    elsewhere: &[],
    listeners: &[],
};

const fn listener(setting: MoveSetting, port_flags: &'static [&'static str], port: u16) -> ServerListener {
    ServerListener { setting, port_flags, port_env: None, port }
}

const fn with_env(
    setting: MoveSetting,
    port_flags: &'static [&'static str],
    port_env: &'static str,
    port: u16,
) -> ServerListener {
    ServerListener { setting, port_flags, port_env: Some(port_env), port }
}

/// All recipes.
pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "uvicorn",
        source: "https://www.uvicorn.org/settings/#socket-binding",
        programs: &["uvicorn"],
        modules: &["uvicorn"],
        elsewhere: &["--uds", "--fd"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port"], "UVICORN_PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "fastapi",
        source: "https://fastapi.tiangolo.com/fastapi-cli/",
        programs: &["fastapi"],
        verbs: &["run", "dev"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "gunicorn",
        source: "https://docs.gunicorn.org/en/stable/settings.html#bind",
        programs: &["gunicorn"],
        modules: &["gunicorn"],
        listeners: &[with_env(MoveSetting::Bind(&["-b", "--bind"]), &[], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "hypercorn",
        source: "https://hypercorn.readthedocs.io/en/latest/how_to_guides/binds.html",
        programs: &["hypercorn"],
        modules: &["hypercorn"],
        elsewhere: &["--insecure-bind", "--quic-bind"],
        listeners: &[listener(MoveSetting::Bind(&["-b", "--bind"]), &[], 8000)],
        ..NONE
    },
    Recipe {
        name: "vllm",
        source: "https://docs.vllm.ai/en/latest/cli/serve.html",
        programs: &["vllm"],
        modules: &["vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"],
        verbs: &["serve"],
        images: &["vllm/vllm-openai"],
        elsewhere: &["--uds"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 8000)],
    },
    Recipe {
        name: "sglang",
        source: "https://docs.sglang.ai/advanced_features/server_arguments.html",
        modules: &["sglang.launch_server"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 30_000)],
        ..NONE
    },
    Recipe {
        name: "tgi",
        source: "https://huggingface.co/docs/text-generation-inference/reference/launcher",
        programs: &["text-generation-launcher"],
        images: &["huggingface/text-generation-inference"],
        listeners: &[with_env(MoveSetting::Host(&["--hostname"]), &["--port", "-p"], "PORT", 80)],
        ..NONE
    },
    Recipe {
        name: "tei",
        source: "https://huggingface.co/docs/text-embeddings-inference/cli_arguments",
        programs: &["text-embeddings-router"],
        images: &["huggingface/text-embeddings-inference"],
        listeners: &[with_env(MoveSetting::Host(&["--hostname"]), &["--port", "-p"], "PORT", 80)],
        ..NONE
    },
    Recipe {
        name: "llama.cpp",
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        programs: &["llama-server"],
        images: &["ggml-org/llama.cpp", "ggerganov/llama.cpp"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port"], "LLAMA_ARG_PORT", 8080)],
        ..NONE
    },
    Recipe {
        name: "mlserver",
        source: "https://mlserver.readthedocs.io/en/latest/reference/settings.html",
        programs: &["mlserver"],
        verbs: &["start"],
        images: &["seldonio/mlserver"],
        listeners: &[
            with_env(MoveSetting::HostEnv("MLSERVER_HOST"), &[], "MLSERVER_HTTP_PORT", 8080),
            with_env(MoveSetting::Along, &[], "MLSERVER_GRPC_PORT", 8081),
            with_env(MoveSetting::Along, &[], "MLSERVER_METRICS_PORT", 8082),
        ],
        ..NONE
    },
    Recipe {
        name: "mlflow",
        source: "https://mlflow.org/docs/latest/api_reference/cli.html#mlflow-models-serve",
        programs: &["mlflow"],
        modules: &["mlflow"],
        verbs: &["models serve"],
        listeners: &[with_env(MoveSetting::Host(&["--host", "-h"]), &["--port", "-p"], "MLFLOW_PORT", 5000)],
        ..NONE
    },
    Recipe {
        name: "bentoml",
        source: "https://docs.bentoml.com/en/latest/reference/bentoml/cli.html#bentoml-serve",
        programs: &["bentoml"],
        modules: &["bentoml"],
        verbs: &["serve", "serve-http", "serve-grpc"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port", "-p"], "BENTOML_PORT", 3000)],
        ..NONE
    },
    Recipe {
        name: "litellm",
        source: "https://docs.litellm.ai/docs/proxy/cli",
        programs: &["litellm"],
        images: &["berriai/litellm", "berriai/litellm-database"],
        listeners: &[
            with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 4000),
            listener(MoveSetting::Along, &["--prometheus_metrics_port"], ON_REQUEST),
        ],
        ..NONE
    },
    Recipe {
        name: "triton",
        source: "https://github.com/triton-inference-server/server/blob/main/src/command_line_parser.cc",
        programs: &["tritonserver"],
        elsewhere: &["--reuse-http-port", "--reuse-grpc-port"],
        listeners: &[
            listener(MoveSetting::Host(&["--http-address"]), &["--http-port"], 8000),
            listener(MoveSetting::Host(&["--grpc-address"]), &["--grpc-port"], 8001),
            // Its address is that of HTTP where it has none of its own.
            listener(MoveSetting::Along, &["--metrics-port"], 8002),
        ],
        ..NONE
    },
    Recipe {
        name: "tensorflow-serving",
        source: "https://github.com/tensorflow/serving/blob/master/tensorflow_serving/model_servers/main.cc",
        programs: &["tensorflow_model_server"],
        images: &["tensorflow/serving"],
        listeners: &[
            listener(MoveSetting::Port(&["--rest_api_port"]), &["--rest_api_port"], 8501),
            listener(MoveSetting::Port(&["--port"]), &["--port"], 8500),
        ],
        ..NONE
    },
    Recipe {
        name: "kserve",
        source: "https://github.com/kserve/kserve/blob/master/python/kserve/kserve/model_server.py",
        modules: &["sklearnserver", "xgbserver", "lgbserver", "pmmlserver", "paddleserver", "huggingfaceserver"],
        images: &[
            "kserve/sklearnserver",
            "kserve/xgbserver",
            "kserve/lgbserver",
            "kserve/pmmlserver",
            "kserve/paddleserver",
            "kserve/huggingfaceserver",
        ],
        listeners: &[
            listener(MoveSetting::Port(&["--http_port"]), &["--http_port"], 8080),
            listener(MoveSetting::Port(&["--grpc_port"]), &["--grpc_port"], 8081),
        ],
        ..NONE
    },
    Recipe {
        name: "ray-serve",
        source: "https://docs.ray.io/en/latest/serve/api/index.html",
        programs: &["serve"],
        verbs: &["start"],
        listeners: &[listener(MoveSetting::Host(&["--http-host"]), &["--http-port"], 8000)],
        ..NONE
    },
    Recipe {
        name: "torchserve",
        source: "https://pytorch.org/serve/configuration.html#configure-torchserve-listening-address-and-port",
        programs: &["torchserve"],
        images: &["pytorch/torchserve"],
        listeners: &[
            listener(MoveSetting::BindEnv("TS_INFERENCE_ADDRESS", "http://"), &[], 8080),
            listener(MoveSetting::BindEnv("TS_MANAGEMENT_ADDRESS", "http://"), &[], 8081),
            listener(MoveSetting::BindEnv("TS_METRICS_ADDRESS", "http://"), &[], 8082),
        ],
        ..NONE
    },
    Recipe {
        name: "ollama",
        source: "https://github.com/ollama/ollama/blob/main/docs/faq.mdx",
        programs: &["ollama"],
        verbs: &["serve"],
        images: &["ollama/ollama"],
        listeners: &[listener(MoveSetting::BindEnv("OLLAMA_HOST", ""), &[], 11_434)],
        ..NONE
    },
];
