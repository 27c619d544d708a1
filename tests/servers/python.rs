//! The virtual environment and what runs in it: servers that announce their port, and clients that print what they
//! found, each as a line of JSON. A process ends with its handle; should this one be killed, it ends too, since the
//! other end of its standard input closes.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::support::client::{Client, Outgoing};
use super::support::upstream::now;
use super::support::wire::Headers;

/// The slowest start is that of kserve: seconds of imports, more on a busy machine or a cold disk.
const START_MAX: Duration = Duration::from_secs(60);
/// Between two looks whether a port answers.
const POLL: Duration = Duration::from_millis(30);
/// So many lines of a process are kept for a failure's report.
const TAIL_LINES: usize = 15;
/// A script prints one line of JSON; a few more are no harm.
const LINES_MAX: usize = 16;

/// An interpreter that has all of requirements.txt.
#[derive(Debug)]
pub(crate) struct Python {
    interpreter: PathBuf,
}

/// A running script; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    lines: mpsc::Receiver<Value>,
    tail: Tail,
}

/// A script that serves, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    process: Process,
}

#[derive(Debug, Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

/// The folder of the scripts.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers")
}

// === impl Python ===

impl Python {
    /// The interpreter of the virtual environment, or what is missing. It is never made here: that would download.
    pub(crate) async fn find() -> Result<Self, String> {
        let venv = std::env::var_os("GROUPAGE_SERVERS_VENV").filter(|venv| !venv.is_empty()).map_or_else(
            || Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("servers-venv"),
            |venv| Path::new(env!("CARGO_MANIFEST_DIR")).join(venv),
        );
        let python = Self { interpreter: venv.join("bin/python") };
        if !python.interpreter.exists() {
            return Err(format!("the virtual environment {} is", venv.display()));
        }
        // An environment that does not work is as good as none.
        let report = python.report("installed.py", &[], START_MAX).await.map_err(|e| format!("{e}: packages are"))?;
        let missing = report.get("missing").and_then(Value::as_array).into_iter().flatten();
        match missing.filter_map(Value::as_str).collect::<Vec<_>>().as_slice() {
            [] => Ok(python),
            [first] => Err(format!("{first} is")),
            [first, rest @ ..] => Err(format!("{first} and {} more packages are", rest.len())),
        }
    }

    /// Starts a script of this folder.
    pub(crate) fn start(&self, script: &str, args: &[OsString]) -> Result<Process, String> {
        let mut command = Command::new(&self.interpreter);
        // Scripts import each other, and leave no compiled files beside them.
        command.arg("-B").arg(folder().join(script)).args(args);
        // Proxies, keys and Python's own switches of whoever runs the tests are not for these.
        command.env_clear().env("PYTHONNOUSERSITE", "1").env("PYTHONUNBUFFERED", "1").env("OMP_NUM_THREADS", "1");
        let kept = |name: &OsStr| ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LANG"].iter().any(|k| name == *k);
        command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start {}: {e}", self.interpreter.display()))?;
        let (line, lines) = mpsc::channel(LINES_MAX);
        let tail = Tail::default();
        // Threads of their own drain the pipes, or a chatty process would block on them; they end with it.
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

    /// Runs a script to the line that it prints.
    pub(crate) async fn report(&self, script: &str, args: &[OsString], within: Duration) -> Result<Value, String> {
        let mut process = self.start(script, args)?;
        process.line(within).await.map_err(|e| format!("{script} {e}\n{}", process.tail.shown()))
    }

    /// Starts a server and waits until it answers this with 200.
    pub(crate) async fn serve(&self, script: &str, args: &[OsString], ready: &str) -> Result<Server, String> {
        let until = now() + START_MAX;
        let mut process = self.start(script, args)?;
        let told = |e: String, process: &Process| format!("{script} {e}\n{}", process.tail.shown());
        let line = process.line(START_MAX).await.map_err(|e| told(e, &process))?;
        let port = line.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let address =
            SocketAddr::from(([127, 0, 0, 1], port.ok_or_else(|| format!("{script} names no port: {line}"))?));
        let request = Outgoing::new("GET", ready, address, &Headers::new(), None);
        loop {
            if let Ok(mut client) = Client::connect(address).await
                && let Ok(answer) = tokio::time::timeout(START_MAX, client.ask(&request)).await
                && answer.status == Some(200)
            {
                return Ok(Server { address, process });
            }
            if let Ok(Some(status)) = process.child.try_wait() {
                return Err(told(format!("ended before it served ({status})"), &process));
            }
            if now() > until {
                return Err(told(format!("is not ready within {} s", START_MAX.as_secs()), &process));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

// === impl Process ===

impl Process {
    /// The next line of JSON.
    async fn line(&mut self, within: Duration) -> Result<Value, String> {
        match tokio::time::timeout(within, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err("ended without its report".to_owned()),
            Err(_) => Err(format!("says nothing within {} s", within.as_secs())),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only where the process is gone already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === impl Server ===

impl Server {
    /// What it wrote last.
    pub(crate) fn tail(&self) -> String {
        self.process.tail.shown()
    }
}

// === impl Tail ===

impl Tail {
    fn drain(&self, pipe: impl Read, report: Option<&mpsc::Sender<Value>>) {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if let (Some(report), Ok(value @ Value::Object(_))) = (report, serde_json::from_slice(&line)) {
                // Nobody reads a server's lines once it is up.
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
