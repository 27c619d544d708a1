//! The table of recipes: the servers that people run, and how each is moved off its ports.
//!
//! Flags and variables are those of the server's own documentation, which each row names.

/// A recipe: a server, how it is recognised, and where it listens.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a server")]
pub(super) struct Recipe {
    /// The name in reports, in the status and in `groupage.dev/recipe`.
    pub(super) name: &'static str,
    /// The server's documentation of its listeners.
    pub(super) source: &'static str,
    /// The calls that are merged without a route of a policy, in a sentence.
    pub(super) merges: &'static str,
    /// Programs, by the last part of their path.
    pub(super) programs: &'static [&'static str],
    /// Python modules (`python -m`).
    pub(super) modules: &'static [&'static str],
    /// Subcommands, of which one follows the program; empty: there is none.
    pub(super) verbs: &'static [&'static str],
    /// Repositories of images that start it with the container's arguments, by their end.
    pub(super) images: &'static [&'static str],
    /// It trusts the headers in which a peer on loopback names its caller (`X-Forwarded-For`),
    /// unless [`FORWARDED_IPS`] is set.
    pub(super) trusts_loopback: bool,
    /// It takes a flag and its value as two words alone, not as `--flag=value`.
    pub(super) takes_two_words: bool,
    /// It listens on loopback where nothing sets its address.
    pub(super) is_local: bool,
    /// Its images start it without arguments of their own, so that some can be added.
    pub(super) takes_arguments: bool,
    /// Flags with which it cannot be moved: it listens on a socket of the file system, or others
    /// reach it by the same address.
    pub(super) elsewhere: &'static [&'static str],
    /// A setting of the container without which the recipe does not fit.
    pub(super) needs: RecipeNeed,
    /// Its listeners.
    pub(super) listeners: &'static [ServerListener],
}

/// The variable, and the flag, of the addresses that uvicorn and gunicorn believe.
pub(super) const FORWARDED_IPS: (&str, &str) = ("FORWARDED_ALLOW_IPS", "--forwarded-allow-ips");

/// A setting without which a server is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecipeNeed {
    Nothing,
    /// One of these variables: where none is set its configuration does not read them.
    Variable(&'static [&'static str]),
    /// A flag with this value.
    Flag(&'static str, &'static str),
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
    /// Such a flag, or the variable where a container has neither command nor arguments.
    HostOrEnv(&'static [&'static str], &'static str),
    /// A flag with address and port, which may be repeated.
    Bind(&'static [&'static str]),
    /// A flag with the port: the address cannot be set.
    Port(&'static [&'static str]),
    /// A variable with the address.
    HostEnv(&'static str),
    /// A variable with address and port, after a scheme.
    BindEnv(&'static str, &'static str),
    /// A listener that the setting of the first one moves too, unless one of these flags gives it
    /// an address of its own.
    Along(&'static [&'static str]),
}

const NONE: Recipe = Recipe {
    name: "",
    source: "",
    merges: "",
    programs: &[],
    modules: &[],
    verbs: &[],
    images: &[],
    trusts_loopback: false,
    takes_two_words: false,
    is_local: false,
    takes_arguments: false,
    elsewhere: &[],
    needs: RecipeNeed::Nothing,
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

/// The listeners of the Hugging Face servers: metrics have the address of the calls
/// (`router/src/server.rs` of text-generation-inference, `router/src/lib.rs` of
/// text-embeddings-inference).
const HUGGING_FACE: &[ServerListener] = &[
    with_env(MoveSetting::HostOrEnv(&["--hostname"], "HOSTNAME"), &["--port", "-p"], "PORT", 80),
    with_env(MoveSetting::Along(&[]), &["--prometheus-port"], "PROMETHEUS_PORT", 9000),
];

/// All recipes.
pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "uvicorn",
        source: "https://www.uvicorn.org/settings/#socket-binding",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; a route of a policy names others",
        trusts_loopback: true,
        is_local: true,
        programs: &["uvicorn"],
        modules: &["uvicorn"],
        elsewhere: &["--uds", "--fd"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port"], "UVICORN_PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "fastapi",
        source: "https://fastapi.tiangolo.com/fastapi-cli/",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; a route of a policy names others",
        trusts_loopback: true,
        programs: &["fastapi"],
        modules: &["fastapi"],
        verbs: &["run", "dev"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "gunicorn",
        source: "https://docs.gunicorn.org/en/stable/settings.html#bind",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; a route of a policy names others",
        trusts_loopback: true,
        is_local: true,
        programs: &["gunicorn"],
        modules: &["gunicorn"],
        listeners: &[with_env(MoveSetting::Bind(&["-b", "--bind"]), &[], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "hypercorn",
        source: "https://hypercorn.readthedocs.io/en/latest/how_to_guides/binds.html",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; a route of a policy names others",
        is_local: true,
        programs: &["hypercorn"],
        modules: &["hypercorn"],
        elsewhere: &["--insecure-bind", "--quic-bind"],
        listeners: &[listener(MoveSetting::Bind(&["-b", "--bind"]), &[], 8000)],
        ..NONE
    },
    Recipe {
        name: "vllm",
        source: "https://docs.vllm.ai/en/latest/cli/serve.html",
        merges: "/v1/embeddings is merged; chat, completions and all others pass through",
        programs: &["vllm"],
        modules: &["vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"],
        verbs: &["serve"],
        images: &["vllm/vllm-openai", "vllm/vllm-openai-cpu"],
        elsewhere: &["--uds"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 8000)],
        ..NONE
    },
    Recipe {
        name: "sglang",
        source: "https://docs.sglang.ai/advanced_features/server_arguments.html",
        merges: "/v1/embeddings is merged; chat, completions and all others pass through",
        is_local: true,
        programs: &["sglang"],
        modules: &["sglang.launch_server"],
        verbs: &["serve"],
        // The server of a prefill instance, which the decoding ones call, has the same address.
        elsewhere: &["--disaggregation-mode"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 30_000)],
        ..NONE
    },
    Recipe {
        name: "tgi",
        source: "https://huggingface.co/docs/text-generation-inference/reference/launcher",
        merges: "calls pass through: it batches by itself",
        programs: &["text-generation-launcher"],
        images: &["huggingface/text-generation-inference"],
        listeners: HUGGING_FACE,
        ..NONE
    },
    Recipe {
        name: "tei",
        source: "https://huggingface.co/docs/text-embeddings-inference/cli_arguments",
        merges: "/v1/embeddings and /embed are merged where that is faster: it batches by itself",
        programs: &["text-embeddings-router"],
        images: &["huggingface/text-embeddings-inference"],
        listeners: HUGGING_FACE,
        ..NONE
    },
    Recipe {
        name: "llama.cpp",
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        merges: "/v1/embeddings is merged; chat, completions and all others pass through",
        programs: &["llama-server"],
        images: &["ggml-org/llama.cpp", "ggerganov/llama.cpp"],
        // `common/arg.cpp` looks a whole word up.
        takes_two_words: true,
        listeners: &[with_env(
            MoveSetting::HostOrEnv(&["--host"], "LLAMA_ARG_HOST"),
            &["--port"],
            "LLAMA_ARG_PORT",
            8080,
        )],
        ..NONE
    },
    Recipe {
        name: "mlserver",
        source: "https://mlserver.readthedocs.io/en/latest/reference/settings.html",
        merges: "V2 calls pass through; a route of a policy names what is merged",
        programs: &["mlserver"],
        verbs: &["start"],
        images: &["seldonio/mlserver"],
        listeners: &[
            with_env(MoveSetting::HostEnv("MLSERVER_HOST"), &[], "MLSERVER_HTTP_PORT", 8080),
            with_env(MoveSetting::Along(&[]), &[], "MLSERVER_GRPC_PORT", 8081),
            with_env(MoveSetting::Along(&[]), &[], "MLSERVER_METRICS_PORT", 8082),
        ],
        ..NONE
    },
    Recipe {
        name: "mlflow",
        source: "https://mlflow.org/docs/latest/api_reference/cli.html#mlflow-models-serve",
        merges: "/invocations passes through; a route of a policy names what is merged",
        is_local: true,
        programs: &["mlflow"],
        modules: &["mlflow"],
        verbs: &["models serve"],
        listeners: &[with_env(MoveSetting::Host(&["--host", "-h"]), &["--port", "-p"], "MLFLOW_PORT", 5000)],
        ..NONE
    },
    Recipe {
        name: "bentoml",
        source: "https://docs.bentoml.com/en/latest/reference/bentoml/cli.html#bentoml-serve",
        merges: "calls pass through; a route of a policy names what is merged",
        programs: &["bentoml"],
        modules: &["bentoml"],
        verbs: &["serve", "serve-http", "serve-grpc"],
        listeners: &[with_env(MoveSetting::Host(&["--host"]), &["--port", "-p"], "BENTOML_PORT", 3000)],
        ..NONE
    },
    Recipe {
        name: "litellm",
        source: "https://docs.litellm.ai/docs/proxy/cli",
        merges: "/v1/embeddings is merged; chat, completions and all others pass through",
        trusts_loopback: true,
        programs: &["litellm"],
        images: &["berriai/litellm", "berriai/litellm-database", "berriai/litellm-non_root"],
        listeners: &[
            with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 4000),
            listener(MoveSetting::Along(&[]), &["--prometheus_metrics_port"], ON_REQUEST),
        ],
        ..NONE
    },
    Recipe {
        name: "triton",
        source: "https://github.com/triton-inference-server/server/blob/main/src/command_line_parser.cc",
        merges: "V2 calls pass through; a route of a policy names what is merged",
        programs: &["tritonserver"],
        elsewhere: &["--reuse-http-port", "--reuse-grpc-port"],
        listeners: &[
            listener(MoveSetting::Host(&["--http-address"]), &["--http-port"], 8000),
            listener(MoveSetting::Host(&["--grpc-address"]), &["--grpc-port"], 8001),
            listener(MoveSetting::Along(&["--metrics-address"]), &["--metrics-port"], 8002),
        ],
        ..NONE
    },
    Recipe {
        name: "tensorflow-serving",
        source: "https://github.com/tensorflow/serving/blob/master/tensorflow_serving/model_servers/main.cc",
        merges: "predict, classify and regress over REST are merged; gRPC passes through",
        programs: &["tensorflow_model_server"],
        images: &["tensorflow/serving"],
        // Its entry point is a script that hands them on, and the last of a flag counts.
        takes_arguments: true,
        listeners: &[
            listener(MoveSetting::Port(&["--rest_api_port"]), &["--rest_api_port"], 8501),
            listener(MoveSetting::Port(&["--port"]), &["--port"], 8500),
        ],
        ..NONE
    },
    Recipe {
        name: "kserve",
        source: "https://github.com/kserve/kserve/blob/master/python/kserve/kserve/model_server.py",
        merges: "V1 predict and explain are merged; V2 and gRPC pass through",
        modules: &[
            "sklearnserver",
            "xgbserver",
            "lgbserver",
            "pmmlserver",
            "paddleserver",
            "predictiveserver",
            "huggingfaceserver",
        ],
        images: &[
            "kserve/sklearnserver",
            "kserve/xgbserver",
            "kserve/lgbserver",
            "kserve/pmmlserver",
            "kserve/paddleserver",
            "kserve/predictiveserver",
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
        merges: "calls pass through; a route of a policy names what is merged",
        is_local: true,
        programs: &["serve"],
        verbs: &["start"],
        // Each node of the cluster has a proxy otherwise, all with this address.
        needs: RecipeNeed::Flag("--proxy-location", "HeadOnly"),
        listeners: &[listener(MoveSetting::Host(&["--http-host"]), &["--http-port"], 8000)],
        ..NONE
    },
    Recipe {
        name: "torchserve",
        source: "https://pytorch.org/serve/configuration.html#configure-torchserve-listening-address-and-port",
        merges: "calls pass through; a route of a policy names what is merged",
        is_local: true,
        programs: &["torchserve"],
        images: &["pytorch/torchserve"],
        // Read with `enable_envvars_config=true` alone, which its image does not set.
        needs: RecipeNeed::Variable(&["TS_INFERENCE_ADDRESS", "TS_MANAGEMENT_ADDRESS", "TS_METRICS_ADDRESS"]),
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
        merges: "/v1/embeddings is merged; chat, completions and all others pass through",
        programs: &["ollama"],
        verbs: &["serve"],
        images: &["ollama/ollama"],
        listeners: &[listener(MoveSetting::BindEnv("OLLAMA_HOST", ""), &[], 11_434)],
        ..NONE
    },
];
