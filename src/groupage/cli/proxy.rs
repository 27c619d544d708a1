//! `groupage proxy`: runs the proxy until it is stopped (`app::proxy_process`).

use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum, value_parser};

use super::refusal;
use crate::app::{EXIT_INTERNAL, ProxyProcess, SettingsSources};
use crate::config::{MachineLimits, Overrides, PodInfo, SourcedValue};

/// Settings that flags can override; the others are in the policy.
#[derive(Debug, Clone, Default, ClapArgs)]
pub(super) struct Args {
    /// URL of the model server: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`
    #[arg(long, value_name = "URL")]
    pub(super) upstream: Option<String>,
    /// Directory of a model that the process serves itself: config.json, tokenizer.json and
    /// safetensors, as published on Hugging Face (needs the feature engine)
    #[arg(long, value_name = "MODEL_DIR", conflicts_with_all = ["upstream", "capture"])]
    pub(super) engine: Option<String>,
    /// Device that executes the model: Auto, Cpu or Cuda [default: Auto]
    #[arg(long, value_name = "DEVICE", requires = "engine")]
    pub(super) engine_device: Option<String>,
    /// Address to listen on, port 0 for any free port; may be repeated [default: :15080]
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub(super) listen: Vec<String>,
    /// Capture a port of this pod's application. NAME may be empty, PORT is the port number in the
    /// pod, APPLICATION the port on which the application listens if it differs, LISTEN a port
    /// number, or `pod` for PORT at each address of `GROUPAGE_POD_IPS`; may be repeated. The
    /// injector sets it
    #[arg(long, value_name = "NAME:PORT[=APPLICATION]@LISTEN", conflicts_with_all = ["upstream", "listen"])]
    pub(super) capture: Vec<String>,
    /// Policy file: a `BatchPolicy` or its bare spec, as YAML
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<std::path::PathBuf>,
    /// Address of /metrics, /livez and /readyz, or off [default: 127.0.0.1:9190]
    #[arg(long, value_name = "ADDR")]
    pub(super) metrics: Option<String>,
    /// Address of /api, loopback only, or off [default: 127.0.0.1:9191]
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<String>,
    /// Format of log lines [default: pretty on a terminal]
    #[arg(long, value_enum, ignore_case = true)]
    pub(super) log_format: Option<LogFormat>,
    /// Log level, or a filter as in `RUST_LOG` [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// Share of calls in the access log on standard output, such as 1% [default: 0%]
    #[arg(long, value_name = "SHARE")]
    pub(super) log_access: Option<String>,
    /// Folder for state that outlives a restart: what was learned, and the last good settings
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<String>,
    /// Number of worker threads. One has the lowest latency, since a call that changes threads has
    /// to be woken; use more if one core is not enough for your load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=64))]
    pub(super) threads: u8,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Pretty,
}

// === impl Args ===

impl Args {
    /// Collects the sources of the policy: flags override the environment, which overrides the
    /// file, which overrides the defaults.
    pub(super) fn sources(self) -> SettingsSources {
        let listen = (!self.listen.is_empty()).then_some(self.listen);
        let capture = (!self.capture.is_empty()).then_some(self.capture);
        let flags = Overrides {
            listen: listen.map(|value| SourcedValue::flag("--listen", value)),
            upstream: self.upstream.map(|value| SourcedValue::flag("--upstream", value)),
            engine: self.engine.map(|value| SourcedValue::flag("--engine", value)),
            engine_device: self.engine_device.map(|value| SourcedValue::flag("--engine-device", value)),
            metrics: self.metrics.map(|value| SourcedValue::flag("--metrics", value)),
            admin: self.admin.map(|value| SourcedValue::flag("--admin", value)),
            log_format: self.log_format.map(|value| SourcedValue::flag("--log-format", format!("{value:?}"))),
            log_level: self.log_level.map(|value| SourcedValue::flag("--log-level", value)),
            log_access: self.log_access.map(|value| SourcedValue::flag("--log-access", value)),
            state: self.state.map(|value| SourcedValue::flag("--state", value)),
            capture: capture.map(|value| SourcedValue::flag("--capture", value)),
            ..Overrides::default()
        };
        SettingsSources {
            path: self.config,
            overrides: flags.or(Overrides::from_environment()),
            machine: MachineLimits::read(),
            pod: PodInfo::from_environment(),
        }
    }
}

pub(super) fn run(args: Args) -> ExitCode {
    let threads = args.threads;
    let process = match ProxyProcess::load(args.sources()) {
        Ok(process) => process,
        Err(error) => return refusal::refuse(&error),
    };
    match process.run(threads.into()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(EXIT_INTERNAL)
        }
    }
}
