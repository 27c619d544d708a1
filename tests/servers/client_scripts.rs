//! Model servers in environments of their own, each called by its own client. A script of the
//! client compares every call sent alone to the server with the same call sent through the proxy.

mod rate;
mod specs;
pub(crate) mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::calls::{BatchCounters, listed};
use super::environment::Environment;
use super::python::{Python, Server, folder};
use super::support::proxy::Proxy;
use super::{Bench, Verdict};

/// Maximum time of a client's script. The slowest takes half a minute on a busy machine.
const CALLS_MAX: Duration = Duration::from_secs(240);
/// Maximum time of a script that prepares a model.
const PREPARED_MAX: Duration = Duration::from_secs(120);

/// A model server that is installed from `PyPI`.
#[derive(Debug)]
pub(crate) struct ServerSpec {
    /// First part of the names of its scenarios.
    pub(crate) name: &'static str,
    /// Package, for the version in the report.
    pub(crate) package: &'static str,
    pub(crate) environment: Environment,
    /// Scripts that create the model, called with its folder. Paths are relative to the repository.
    pub(crate) prepared_by: &'static [&'static str],
    /// Script of `tests/servers` and its arguments. `MODEL` is replaced by the model's folder,
    /// `SCRIPTS` by `tests/servers`, and `UPSTREAM` by the address of `upstream`.
    pub(crate) command: &'static [&'static str],
    /// Path that is answered with 200 once the server is ready.
    pub(crate) ready: &'static str,
    /// Server to which it forwards calls.
    pub(crate) upstream: Option<&'static Self>,
}

/// What the proxy must do with the calls of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Calls of several callers share batches.
    Merged,
    /// Calls wait in the queue and are sent one by one.
    Queued,
    /// No batch has calls of several callers, because their keys differ.
    Apart,
    /// Batches are tried, cannot be divided among their callers, and are given up.
    Retracted,
    /// Calls pass through.
    Passed,
}

/// Calls of a client to a server.
#[derive(Debug)]
pub(crate) struct ScriptScenario {
    pub(crate) name: &'static str,
    pub(crate) server: &'static ServerSpec,
    /// Environment, script and arguments of the client, after the addresses of server and proxy.
    /// `MODEL` is replaced as in [`ServerSpec::command`].
    pub(crate) client: (Environment, &'static [&'static str]),
    /// Policy file, relative to the repository.
    pub(crate) policy: Option<&'static str>,
    pub(crate) treatment: Treatment,
    /// `true` if the calls go to the gRPC port of the server.
    pub(crate) is_grpc: bool,
    /// `true` if the scenario runs without `--all`. Its packages are those of `setup.sh`.
    pub(crate) is_sample: bool,
}

/// A server that is running, for the scenarios that follow each other.
#[derive(Debug)]
pub(crate) struct RunningServer {
    name: &'static str,
    server: Server,
    model: tempfile::TempDir,
    _upstream: Option<Server>,
}

/// Result of a scenario that could be run, or the dependency that is missing.
pub(crate) type Attempt = Result<Verdict, String>;

// === impl RunningServer ===

impl RunningServer {
    /// Starts a server.
    ///
    /// # Errors
    /// The outer one describes a package that cannot be installed, the inner one a server that does
    /// not start.
    async fn start(bench: &Bench, spec: &'static ServerSpec) -> Result<Result<Self, String>, String> {
        let python = spec.environment.open(bench)?;
        let upstream = match spec.upstream {
            Some(spec) => match serve(spec, &spec.environment.open(bench)?, Path::new(""), "").await {
                Ok(server) => Some(server),
                Err(fault) => return Ok(Err(fault)),
            },
            None => None,
        };
        let started = async {
            let model = tempfile::tempdir().map_err(|e| e.to_string())?;
            for script in spec.prepared_by {
                python.prepare(script, model.path(), PREPARED_MAX).await?;
            }
            let address = upstream.as_ref().map(|server| server.address.to_string()).unwrap_or_default();
            let server = serve(spec, &python, model.path(), &address).await?;
            Ok(Self { name: spec.name, server, model, _upstream: upstream })
        };
        Ok(started.await)
    }
}

async fn serve(spec: &ServerSpec, python: &Python, model: &Path, upstream: &str) -> Result<Server, String> {
    let (script, args) = spec.command.split_first().ok_or("no command")?;
    let args: Vec<OsString> = args.iter().map(|arg| replaced(arg, model, upstream)).collect();
    python.serve(script, &args, spec.ready).await
}

fn replaced(arg: &str, model: &Path, upstream: &str) -> OsString {
    let scripts = folder();
    let arg = arg.replace("MODEL", &model.to_string_lossy()).replace("SCRIPTS", &scripts.to_string_lossy());
    arg.replace("UPSTREAM_ADDRESS", upstream).into()
}

// === impl ScriptScenario ===

impl ScriptScenario {
    /// Runs the scenario. `running` is the server of the previous one, and is used again if it is
    /// the same.
    pub(crate) async fn run(&self, bench: &Bench, running: &mut Option<RunningServer>) -> Attempt {
        let client = self.client.0.open(bench)?;
        if running.as_ref().is_none_or(|running| running.name != self.server.name) {
            *running = None;
            match RunningServer::start(bench, self.server).await? {
                Ok(started) => *running = Some(started),
                Err(fault) => return Ok(Err(fault)),
            }
        }
        let Some(running) = running.as_ref() else { return Ok(Err("not started".to_owned())) };
        let verdict = self.calls(bench, &client, running).await;
        Ok(verdict.map_err(|e| format!("{e}\n  the server's output ends with\n{}", running.server.tail())))
    }

    async fn calls(&self, bench: &Bench, client: &Python, running: &RunningServer) -> Verdict {
        let server = &running.server;
        let address = if self.is_grpc { server.grpc.ok_or("the server names no gRPC port")? } else { server.address };
        let policy = self.policy_file(running.model.path(), bench.measures_rates)?;
        let mut proxy = bench.proxy(address, Some(&policy)).await?;
        let (script, more) = self.client.1.split_first().ok_or("no script")?;
        let mut args: Vec<OsString> =
            vec![format!("http://{address}").into(), format!("http://{}", proxy.listen).into()];
        args.extend(more.iter().map(|arg| replaced(arg, running.model.path(), "")));
        if bench.measures_rates {
            args.extend(rate::ARGS.map(OsString::from));
        }
        let report =
            client.report(script, &args, if bench.measures_rates { rate::TIME_MAX } else { CALLS_MAX }).await?;
        let numbers = Self::judge(&report)?;
        let treatment = if bench.measures_rates { rate::judge(&report) } else { self.treated(&mut proxy).await };
        Ok(format!("{}, {numbers}, {}", self.versions(&report), treatment?))
    }

    /// Returns `true` if the client is the load script of an example, with which rates are measured.
    pub(crate) fn is_example(&self) -> bool {
        self.client.1.first() == Some(&table::LOAD)
    }

    /// Writes the policy. Batches are wanted here although these few calls do not saturate the
    /// server: the adaptive policy would forward them alone. Rates are measured with the policy as
    /// it is.
    fn policy_file(&self, model: &Path, is_unchanged: bool) -> Result<PathBuf, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut text = match self.policy {
            Some(policy) => std::fs::read_to_string(root.join(policy)).map_err(|e| format!("{policy}: {e}"))?,
            None => String::new(),
        };
        if self.treatment != Treatment::Queued && !is_unchanged {
            text.push_str("\nscheduling: {policy: WorkConserving}\n");
        }
        let path = model.join(format!("{}.yaml", self.name));
        // An empty document is a valid policy only with a key.
        let text = if text.trim().is_empty() { "mode: Batch\n".to_owned() } else { text };
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Returns the numbers of a script's report if all answers are as expected.
    fn judge(report: &Value) -> Result<String, String> {
        let number = |name: &str| report.get(name).cloned().unwrap_or(Value::Null);
        let numbers = format!(
            "{} calls, {} equal, {} of them errors, {} s directly and {} s through the proxy",
            number("calls"),
            number("equal"),
            number("refused"),
            number("direct_seconds"),
            number("proxy_seconds"),
        );
        let faults: Vec<_> = report.get("faults").and_then(Value::as_array).into_iter().flatten().collect();
        let calls = number("calls").as_u64().unwrap_or(0);
        if !faults.is_empty() || number("equal").as_u64() != Some(calls) || calls == 0 {
            return Err(listed(&numbers, &faults.iter().map(ToString::to_string).collect::<Vec<_>>()));
        }
        // An answer to the wrong caller must be detectable. The load scripts do not report this.
        match number("unlike").as_u64() {
            Some(unlike) if unlike * 2 < calls => Err(format!("{numbers}; only {unlike} different answers")),
            _ => Ok(numbers),
        }
    }

    /// Verifies by the counters of the proxy what it did with the calls.
    async fn treated(&self, proxy: &mut Proxy) -> Result<String, String> {
        let BatchCounters { batches, items, shared } = BatchCounters::of(proxy).await?;
        let numbers = format!("{items} items in {batches} upstream calls ({shared} shared)");
        let is_met = match self.treatment {
            Treatment::Merged => shared > 0 && batches < items,
            Treatment::Queued | Treatment::Apart => shared == 0 && batches > 0,
            // Two failed batches in a row suspend merging for longer than the calls take; a third and
            // a fourth may be on their way by then.
            Treatment::Retracted => (1..=4).contains(&shared),
            Treatment::Passed => batches == 0,
        };
        let treatment = format!("{:?}", self.treatment).to_lowercase();
        if is_met { Ok(format!("{treatment}: {numbers}")) } else { Err(format!("not {treatment}: {numbers}")) }
    }

    /// Returns the names and versions of server and client.
    fn versions(&self, report: &Value) -> String {
        let spec = self.server;
        let version = spec.environment.version(spec.package).unwrap_or_default();
        let client = report.get("client").and_then(Value::as_str).unwrap_or_default();
        format!("{} {version} with {client}", spec.package)
    }
}
