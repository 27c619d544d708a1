//! Recipe table: common model servers, and the settings that move each one off its ports.
//!
//! Flags and variables are taken from the server's own documentation, which each row links.

/// A recipe: recognition of a server, its listeners, and the settings that move them.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each flag is an independent property of a server")]
pub(super) struct Recipe {
    /// Name in reports, in the status and in `groupage.dev/recipe`.
    pub(super) name: &'static str,
    /// URL of the server's documentation of its listeners.
    pub(super) source: &'static str,
    /// Sentence about the calls that are merged without a route of a policy.
    pub(super) merges: &'static str,
    /// Programs, by the last component of their path.
    pub(super) programs: &'static [&'static str],
    /// Python modules (`python -m`).
    pub(super) modules: &'static [&'static str],
    /// Subcommands, one of which follows the program; empty if it has none.
    pub(super) verbs: &'static [&'static str],
    /// Suffixes of image repositories that start the server with the container's arguments.
    pub(super) images: &'static [&'static str],
    /// `true` if the server trusts forwarding headers (`X-Forwarded-For`) of peers on loopback,
    /// unless [`FORWARDED_IPS`] is set.
    pub(super) trusts_loopback: bool,
    /// `true` if a flag and its value must be two words, not `--flag=value`.
    pub(super) takes_two_words: bool,
    /// `true` if the server listens on loopback by default.
    pub(super) is_local: bool,
    /// `true` if its images start it without arguments of their own, so that arguments can be
    /// added.
    pub(super) takes_arguments: bool,
    /// Flags that prevent a move: the server listens on a Unix domain socket, or peers reach it at
    /// the same address.
    pub(super) unmovable_flags: &'static [&'static str],
    /// Container setting that the recipe requires.
    pub(super) needs: RecipeNeed,
    pub(super) listeners: &'static [ServerListener],
}

/// Variable and flag with the proxy addresses that uvicorn and gunicorn trust.
pub(super) const FORWARDED_IPS: (&str, &str) = ("FORWARDED_ALLOW_IPS", "--forwarded-allow-ips");

/// A setting that a recipe requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecipeNeed {
    Nothing,
    /// One of these variables: if none is set, the server's configuration does not read them.
    Variable(&'static [&'static str]),
    /// A flag with this value.
    Flag(&'static str, &'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerListener {
    pub(super) setting: MoveSetting,
    pub(super) port_flags: &'static [&'static str],
    pub(super) port_env: Option<&'static str>,
    /// Default port, or [`PORT_IF_SET`].
    pub(super) port: u16,
}

/// Placeholder for a default port: the listener exists only if its port is set.
pub(super) const PORT_IF_SET: u16 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveSetting {
    /// A flag with the listen address.
    Host(&'static [&'static str]),
    /// Such a flag, or the variable if the container has neither command nor arguments.
    HostOrEnv(&'static [&'static str], &'static str),
    /// A flag with address and port, which may be repeated.
    Bind(&'static [&'static str]),
    /// A flag with the port, for a server without a setting for its address.
    Port(&'static [&'static str]),
    /// A variable with the address.
    HostEnv(&'static str),
    /// A variable with address and port, prefixed by a scheme.
    BindEnv(&'static str, &'static str),
    /// A listener that moves with the setting of the first listener, unless one of these flags sets
    /// its own address.
    WithFirst(&'static [&'static str]),
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
    unmovable_flags: &[],
    needs: RecipeNeed::Nothing,
    listeners: &[],
};

const fn listener(setting: MoveSetting, port_flags: &'static [&'static str], port: u16) -> ServerListener {
    ServerListener { setting, port_flags, port_env: None, port }
}

const fn listener_with_env(
    setting: MoveSetting,
    port_flags: &'static [&'static str],
    port_env: &'static str,
    port: u16,
) -> ServerListener {
    ServerListener { setting, port_flags, port_env: Some(port_env), port }
}

/// Listeners of the Hugging Face servers. The metrics listener shares the address of the main one
/// (`router/src/server.rs` of text-generation-inference, `router/src/lib.rs` of
/// text-embeddings-inference).
const HUGGING_FACE: &[ServerListener] = &[
    listener_with_env(MoveSetting::HostOrEnv(&["--hostname"], "HOSTNAME"), &["--port", "-p"], "PORT", 80),
    listener_with_env(MoveSetting::WithFirst(&[]), &["--prometheus-port"], "PROMETHEUS_PORT", 9000),
];

pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "uvicorn",
        source: "https://www.uvicorn.org/settings/#socket-binding",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; add others as routes of a policy",
        trusts_loopback: true,
        is_local: true,
        programs: &["uvicorn"],
        modules: &["uvicorn"],
        unmovable_flags: &["--uds", "--fd"],
        listeners: &[listener_with_env(MoveSetting::Host(&["--host"]), &["--port"], "UVICORN_PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "fastapi",
        source: "https://fastapi.tiangolo.com/fastapi-cli/",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; add others as routes of a policy",
        trusts_loopback: true,
        programs: &["fastapi"],
        modules: &["fastapi"],
        verbs: &["run", "dev"],
        listeners: &[listener_with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "gunicorn",
        source: "https://docs.gunicorn.org/en/stable/settings.html#bind",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; add others as routes of a policy",
        trusts_loopback: true,
        is_local: true,
        programs: &["gunicorn"],
        modules: &["gunicorn"],
        listeners: &[listener_with_env(MoveSetting::Bind(&["-b", "--bind"]), &[], "PORT", 8000)],
        ..NONE
    },
    Recipe {
        name: "hypercorn",
        source: "https://hypercorn.readthedocs.io/en/latest/how_to_guides/binds.html",
        merges: "calls of KServe V1 and OpenAI embeddings are merged; add others as routes of a policy",
        is_local: true,
        programs: &["hypercorn"],
        modules: &["hypercorn"],
        unmovable_flags: &["--insecure-bind", "--quic-bind"],
        listeners: &[listener(MoveSetting::Bind(&["-b", "--bind"]), &[], 8000)],
        ..NONE
    },
    Recipe {
        name: "vllm",
        source: "https://docs.vllm.ai/en/latest/cli/serve.html",
        merges: "/v1/embeddings is merged; chat and completions are sent one by one; all others pass through",
        programs: &["vllm"],
        modules: &["vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"],
        verbs: &["serve"],
        images: &["vllm/vllm-openai", "vllm/vllm-openai-cpu"],
        unmovable_flags: &["--uds"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 8000)],
        ..NONE
    },
    Recipe {
        name: "sglang",
        source: "https://docs.sglang.ai/advanced_features/server_arguments.html",
        merges: "/v1/embeddings is merged; chat and completions are sent one by one; all others pass through",
        is_local: true,
        programs: &["sglang"],
        modules: &["sglang.launch_server"],
        verbs: &["serve"],
        // The bootstrap server of a prefill instance, which the decode instances call, listens on
        // the same address.
        unmovable_flags: &["--disaggregation-mode"],
        listeners: &[listener(MoveSetting::Host(&["--host"]), &["--port"], 30_000)],
        ..NONE
    },
    Recipe {
        name: "tgi",
        source: "https://huggingface.co/docs/text-generation-inference/reference/launcher",
        merges: "text is sent one by one: the server batches by itself; all others pass through",
        programs: &["text-generation-launcher"],
        images: &["huggingface/text-generation-inference"],
        listeners: HUGGING_FACE,
        ..NONE
    },
    Recipe {
        name: "tei",
        source: "https://huggingface.co/docs/text-embeddings-inference/cli_arguments",
        merges: "calls are forwarded: the server batches by itself; a route with protocol TEI merges them",
        programs: &["text-embeddings-router"],
        images: &["huggingface/text-embeddings-inference"],
        listeners: HUGGING_FACE,
        ..NONE
    },
    Recipe {
        name: "llama.cpp",
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        merges: "chat and completions are sent one by one; all others pass through, embeddings after two batches are tried",
        programs: &["llama-server"],
        images: &["ggml-org/llama.cpp", "ggerganov/llama.cpp"],
        // `common/arg.cpp` matches whole words only.
        takes_two_words: true,
        listeners: &[listener_with_env(
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
        merges: "V2 calls pass through unless a route of a policy enables merging",
        programs: &["mlserver"],
        verbs: &["start"],
        images: &["seldonio/mlserver"],
        listeners: &[
            listener_with_env(MoveSetting::HostEnv("MLSERVER_HOST"), &[], "MLSERVER_HTTP_PORT", 8080),
            listener_with_env(MoveSetting::WithFirst(&[]), &[], "MLSERVER_GRPC_PORT", 8081),
            listener_with_env(MoveSetting::WithFirst(&[]), &[], "MLSERVER_METRICS_PORT", 8082),
        ],
        ..NONE
    },
    Recipe {
        name: "mlflow",
        source: "https://mlflow.org/docs/latest/api_reference/cli.html#mlflow-models-serve",
        merges: "/invocations passes through unless a route of a policy enables merging",
        is_local: true,
        programs: &["mlflow"],
        modules: &["mlflow"],
        verbs: &["models serve"],
        listeners: &[listener_with_env(MoveSetting::Host(&["--host", "-h"]), &["--port", "-p"], "MLFLOW_PORT", 5000)],
        ..NONE
    },
    Recipe {
        name: "bentoml",
        source: "https://docs.bentoml.com/en/latest/reference/bentoml/cli.html#bentoml-serve",
        merges: "calls pass through unless a route of a policy enables merging",
        programs: &["bentoml"],
        modules: &["bentoml"],
        verbs: &["serve", "serve-http", "serve-grpc"],
        listeners: &[listener_with_env(MoveSetting::Host(&["--host"]), &["--port", "-p"], "BENTOML_PORT", 3000)],
        ..NONE
    },
    Recipe {
        name: "litellm",
        source: "https://docs.litellm.ai/docs/proxy/cli",
        merges: "/v1/embeddings is merged; chat and completions are sent one by one; all others pass through",
        trusts_loopback: true,
        programs: &["litellm"],
        images: &["berriai/litellm", "berriai/litellm-database", "berriai/litellm-non_root"],
        listeners: &[
            listener_with_env(MoveSetting::Host(&["--host"]), &["--port"], "PORT", 4000),
            listener(MoveSetting::WithFirst(&[]), &["--prometheus_metrics_port"], PORT_IF_SET),
        ],
        ..NONE
    },
    Recipe {
        name: "triton",
        source: "https://github.com/triton-inference-server/server/blob/main/src/command_line_parser.cc",
        merges: "V2 calls are merged up to the max_batch_size of their model, unless it has dynamic_batching",
        programs: &["tritonserver"],
        unmovable_flags: &["--reuse-http-port", "--reuse-grpc-port"],
        listeners: &[
            listener(MoveSetting::Host(&["--http-address"]), &["--http-port"], 8000),
            listener(MoveSetting::Host(&["--grpc-address"]), &["--grpc-port"], 8001),
            listener(MoveSetting::WithFirst(&["--metrics-address"]), &["--metrics-port"], 8002),
        ],
        ..NONE
    },
    Recipe {
        name: "tensorflow-serving",
        source: "https://github.com/tensorflow/serving/blob/master/tensorflow_serving/model_servers/main.cc",
        merges: "predict over REST is merged; all others pass through unless a route of a policy enables merging",
        programs: &["tensorflow_model_server"],
        images: &["tensorflow/serving"],
        // The entry point of the image is a script that passes them on, and the last occurrence of
        // a flag takes effect.
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
        merges: "V1 predict and embeddings are merged; text is sent one by one; all others pass through unless a route of a policy enables merging",
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
        merges: "calls pass through unless a route of a policy enables merging",
        is_local: true,
        programs: &["serve"],
        verbs: &["start"],
        // With another location every node of the cluster runs a proxy with this address.
        needs: RecipeNeed::Flag("--proxy-location", "HeadOnly"),
        listeners: &[listener(MoveSetting::Host(&["--http-host"]), &["--http-port"], 8000)],
        ..NONE
    },
    Recipe {
        name: "torchserve",
        source: "https://pytorch.org/serve/configuration.html#configure-torchserve-listening-address-and-port",
        merges: "calls pass through unless a route of a policy enables merging",
        is_local: true,
        programs: &["torchserve"],
        images: &["pytorch/torchserve"],
        // The variables are read only with `enable_envvars_config=true`, which the image does not
        // set.
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
        merges: "/v1/embeddings is merged; chat and completions are sent one by one; all others pass through",
        programs: &["ollama"],
        verbs: &["serve"],
        images: &["ollama/ollama"],
        listeners: &[listener(MoveSetting::BindEnv("OLLAMA_HOST", ""), &[], 11_434)],
        ..NONE
    },
];
