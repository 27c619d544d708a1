//! The real binary as a child process. It listens on ports that the kernel chooses, reports them in
//! its first log line, and is killed when its handle is dropped. No internals of the proxy are
//! used.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::command::remove_settings;
use super::json;

/// Maximum time until the proxy listens. A debug build on a busy machine needs a fraction of it.
const START_MAX: Duration = Duration::from_secs(20);
/// Number of log lines kept for the report of a failure.
const TAIL_LINES: usize = 40;

/// Options of a proxy process.
#[derive(Debug, Clone)]
pub(crate) struct Start<'a> {
    /// Path of the binary.
    pub(crate) binary: PathBuf,
    /// Address that calls are forwarded to.
    pub(crate) upstream: SocketAddr,
    /// Policy file, or `None` for the defaults.
    pub(crate) config: Option<&'a Path>,
    /// `true` if the metrics port is opened.
    pub(crate) metrics: bool,
}

/// A running proxy. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    /// The data port.
    pub(crate) listen: SocketAddr,
    /// The metrics port, if it is open.
    pub(crate) metrics: Option<SocketAddr>,
    /// The admin port.
    pub(crate) admin: Option<SocketAddr>,
    tail: Arc<Mutex<VecDeque<String>>>,
}

// === impl Proxy ===

impl Proxy {
    /// Starts the process and waits for the log line with its addresses.
    pub(crate) async fn start(start: &Start<'_>) -> Result<Self, String> {
        let mut command = Command::new(&start.binary);
        command.arg("proxy").arg("--upstream").arg(format!("http://{}", start.upstream));
        command.args(["--metrics", if start.metrics { "127.0.0.1:0" } else { "off" }]);
        Self::spawn(command, start.config).await
    }

    /// Starts the process with the model of a folder in place of an upstream.
    pub(crate) async fn start_engine(binary: &Path, model: &Path, config: Option<&Path>) -> Result<Self, String> {
        let mut command = Command::new(binary);
        command.arg("proxy").arg("--engine").arg(model).args(["--engine-device", "Cpu", "--metrics", "off"]);
        Self::spawn(command, config).await
    }

    async fn spawn(mut command: Command, config: Option<&Path>) -> Result<Self, String> {
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json"]);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        remove_settings(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| format!("cannot start {}: {e}", command.get_program().display()))?;
        let log = child.stderr.take().ok_or("no stderr")?;
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let (first, named) = oneshot::channel();
        let kept = Arc::clone(&tail);
        // A dedicated thread drains the pipe, so that a verbose proxy does not block on it. The
        // thread ends with the process.
        std::thread::spawn(move || drain(BufReader::new(log), first, &kept));
        let unbound = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut proxy = Self { child, listen: unbound, metrics: None, admin: None, tail };
        let line = match tokio::time::timeout(START_MAX, named).await {
            Ok(Ok(line)) => line,
            Ok(Err(_)) => {
                let status = proxy.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                return Err(format!("the proxy ended before it listened ({status})\n{}", proxy.tail()));
            }
            Err(_) => return Err(format!("the proxy does not report its addresses\n{}", proxy.tail())),
        };
        proxy.read_addresses(&line).map_err(|e| format!("first log line: {e}: {line}"))?;
        Ok(proxy)
    }

    fn read_addresses(&mut self, line: &str) -> Result<(), String> {
        let line = json::parse(line.as_bytes())?;
        let address = |value: Option<&json::Json>, name: &str| {
            let text = value.and_then(json::Json::as_str).ok_or_else(|| format!("no {name}"))?;
            if text == "off" { Ok(None) } else { text.parse().map(Some).map_err(|_| format!("{name} is no address")) }
        };
        if line.get("msg").and_then(json::Json::as_str).as_deref() != Some("listening") {
            return Err("not the one that names the addresses".to_owned());
        }
        let listen = line.get("listen").and_then(json::Json::elements).and_then(<[json::Json]>::first);
        self.listen = address(listen, "listen")?.ok_or("listen is off")?;
        self.metrics = address(line.get("metrics"), "metrics")?;
        self.admin = address(line.get("admin"), "admin")?;
        Ok(())
    }

    /// Returns the last lines of the log.
    pub(crate) fn tail(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(|line| format!("    | {line}\n")).collect()
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the reason if the process has exited or logged a panic.
    pub(crate) fn fault(&mut self) -> Option<String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(format!("the proxy ended by itself ({status})"));
        }
        self.tail().contains("panicked at").then(|| "the proxy panicked".to_owned())
    }
}

fn drain(log: impl BufRead, first: oneshot::Sender<String>, tail: &Mutex<VecDeque<String>>) {
    let mut first = Some(first);
    for line in log.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).chars().take(500).collect::<String>();
        {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.len() >= TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(line.clone());
        }
        // A refused start also writes to the log, but not this line. It is detected by the exit of
        // the process.
        if line.contains("listening")
            && let Some(first) = first.take()
        {
            // Fails only if the start has timed out.
            first.send(line).ok();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both calls fail only if the process has already exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
