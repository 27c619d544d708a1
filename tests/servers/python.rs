//! The Python environment and its scripts: servers that report their port, and clients that report
//! their results, each as a line of JSON. A script is killed when its handle is dropped. If this
//! process is killed, scripts exit as well, because their standard input is closed.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::mpsc;

use super::support::client::{Client, Outgoing};
use super::support::upstream::now;
use super::support::wire::Headers;

/// Maximum time until a server is ready. The slowest is `LiteLLM`, which imports for a quarter of a
/// minute, and longer on a busy machine or a cold disk.
const START_MAX: Duration = Duration::from_secs(150);
/// Interval between two readiness checks of a port.
const POLL: Duration = Duration::from_millis(30);
/// Number of output lines kept for the report of a failure.
const TAIL_LINES: usize = 15;
/// Capacity for lines of JSON. A script prints one; a few more do no harm.
const LINES_MAX: usize = 16;

/// An interpreter with its packages: Python, or Node.js for some clients.
#[derive(Debug, Clone)]
pub(crate) struct Python {
    interpreter: PathBuf,
    /// Arguments before the script.
    options: &'static [&'static str],
    /// Folder of the packages of Node.js, the first argument of its scripts.
    packages: Option<PathBuf>,
}

/// A running script. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<Value>,
    tail: Tail,
}

/// A script that serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Address of the server.
    pub(crate) address: SocketAddr,
    /// Address of its gRPC port, if it has one.
    pub(crate) grpc: Option<SocketAddr>,
    process: Process,
}

#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

/// Returns the folder of the scripts.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers")
}

/// Returns the processes that a process started, directly or not. Servers start processes, some of
/// which lead a session of their own.
fn descendants(root: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in parentheses may contain spaces.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<i32>().ok()?;
        Some((parent, id))
    });
    let parents: Vec<(i32, i32)> = parents.collect();
    let mut found = vec![i32::try_from(root).unwrap_or_default()];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(own, _)| *own == parent).map(|(_, id)| *id));
        next += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

// === impl Python ===

impl Python {
    /// Creates the interpreter of a virtual environment.
    pub(crate) const fn new(interpreter: PathBuf) -> Self {
        // Scripts import each other; `-B` avoids compiled files in their folder.
        Self { interpreter, options: &["-B"], packages: None }
    }

    /// Creates the Node.js of this machine, with packages in a folder.
    pub(crate) fn node(packages: PathBuf) -> Self {
        Self { interpreter: "node".into(), options: &[], packages: Some(packages) }
    }

    /// Returns the interpreter of the virtual environment, or a description of what is missing. The
    /// environment is never created here, because that would download packages.
    pub(crate) async fn find() -> Result<Self, String> {
        let venv = std::env::var_os("GROUPAGE_SERVERS_VENV").filter(|venv| !venv.is_empty()).map_or_else(
            || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("servers-venv"),
            |venv| Path::new(env!("CARGO_MANIFEST_DIR")).join(venv),
        );
        let python = Self::new(venv.join("bin/python"));
        if !python.interpreter.exists() {
            return Err(format!("the virtual environment {} is", venv.display()));
        }
        // A broken environment counts as missing.
        let report = python.report("installed.py", &[], START_MAX).await.map_err(|e| format!("{e}: packages are"))?;
        let missing = report.get("missing").and_then(Value::as_array).into_iter().flatten();
        match missing.filter_map(Value::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(python),
            [first] => Err(format!("{first} is")),
            [first, rest @ ..] => Err(format!("{first} and {} more packages are", rest.len())),
        }
    }

    /// Runs a script of the repository, which prepares a folder and exits.
    pub(crate) async fn prepare(&self, script: &str, model: &Path, within: Duration) -> Result<(), String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        let mut process = self.start(&path.to_string_lossy(), &[model.into()])?;
        let until = now() + within;
        loop {
            match process.child.try_wait().map_err(|e| format!("{script}: {e}"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{script} failed ({status})\n{}", process.tail.shown())),
                None if now() > until => return Err(format!("{script} runs for more than {} s", within.as_secs())),
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Starts a script of `tests/servers`, or of an absolute path.
    pub(crate) fn start(&self, script: &str, args: &[OsString]) -> Result<Process, String> {
        let mut command = Command::new(&self.interpreter);
        command.args(self.options).arg(folder().join(script)).args(&self.packages).args(args);
        // Proxy settings, API keys and Python variables of the calling environment must not apply
        // to scripts.
        command.env_clear().env("PYTHONNOUSERSITE", "1").env("PYTHONUNBUFFERED", "1").env("OMP_NUM_THREADS", "1");
        let kept = |name: &OsStr| ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG"].iter().any(|k| name == *k);
        command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start {}: {e}", self.interpreter.display()))?;
        let (line, lines) = mpsc::channel(LINES_MAX);
        let tail = Tail::default();
        // Dedicated threads drain the pipes, so that a verbose process does not block on them. They
        // end with the process.
        if let Some(stdout) = child.stdout.take() {
            let tail = tail.clone();
            std::thread::spawn(move || tail.drain(stdout, Some(&line)));
        }
        if let Some(stderr) = child.stderr.take() {
            let tail = tail.clone();
            std::thread::spawn(move || tail.drain(stderr, None));
        }
        Ok(Process { child, lines, tail })
    }

    /// Runs a script and returns the line of JSON that it prints.
    pub(crate) async fn report(&self, script: &str, args: &[OsString], within: Duration) -> Result<Value, String> {
        let mut process = self.start(script, args)?;
        process.line(within).await.map_err(|e| format!("{script} {e}\n{}", process.tail.shown()))
    }

    /// Starts a server and waits until it answers a GET of `ready` with 200.
    pub(crate) async fn serve(&self, script: &str, args: &[OsString], ready: &str) -> Result<Server, String> {
        let until = now() + START_MAX;
        let mut process = self.start(script, args)?;
        let describe = |e: String, process: &Process| format!("{script} {e}\n{}", process.tail.shown());
        let line = process.line(START_MAX).await.map_err(|e| describe(e, &process))?;
        let port = line.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let address =
            SocketAddr::from(([127, 0, 0, 1], port.ok_or_else(|| format!("{script} names no port: {line}"))?));
        let grpc = line.get("grpc_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let grpc = grpc.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let request = Outgoing::new("GET", ready, address, &Headers::new(), None);
        loop {
            if let Ok(mut client) = Client::connect(address).await
                && let Ok(answer) = tokio::time::timeout(START_MAX, client.fetch(&request)).await
                && answer.status == Some(200)
            {
                return Ok(Server { address, grpc, process });
            }
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(describe(format!("ended before it served ({status})"), &process));
            }
            if now() > until {
                return Err(describe(format!("is not ready within {} s", START_MAX.as_secs()), &process));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

// === impl Process ===

impl Process {
    /// Waits for the next line of JSON.
    async fn line(&mut self, within: Duration) -> Result<Value, String> {
        match tokio::time::timeout(within, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err("ended without its report".to_owned()),
            Err(_) => Err(format!("prints nothing within {} s", within.as_secs())),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // All calls fail only if the processes have already exited.
        for pid in descendants(self.child.id()) {
            kill_process(pid, Signal::KILL).ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === impl Server ===

impl Server {
    /// Returns the last lines of its output.
    pub(crate) fn tail(&self) -> String {
        self.process.tail.shown()
    }
}

// === impl Tail ===

impl Tail {
    fn drain(&self, pipe: impl Read, report: Option<&mpsc::Sender<Value>>) {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if let (Some(report), Ok(value @ Value::Object(_))) = (report, serde_json::from_slice(&line)) {
                // Fails if the channel is full or closed: the lines of a server that is ready are
                // not read.
                report.try_send(value).ok();
                continue;
            }
            let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.len() >= TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(String::from_utf8_lossy(&line).chars().take(500).collect());
        }
    }

    fn shown(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(|line| format!("    | {line}\n")).collect()
    }
}
