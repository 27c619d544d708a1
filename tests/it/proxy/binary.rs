//! The real binary as a process, with everything that it writes.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::setup::{PREDICT, instances, policy_text, within_timeout};
use super::support::client::{Answer, Client, Outgoing};
use super::support::command::proxy_command;
use super::support::wire::Headers;

/// A running `groupage proxy` process. Dropping it kills the process.
pub(super) struct Binary {
    child: Child,
    pub(super) listen: SocketAddr,
    pub(super) metrics: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) log: PipeOutput,
    pub(super) access: PipeOutput,
    /// Keeps the temporary file until this is dropped.
    policy: Option<tempfile::NamedTempFile>,
}

/// The output of a pipe.
pub(super) struct PipeOutput {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

// === impl PipeOutput ===

impl PipeOutput {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let kept = text.clone();
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read) = pipe.read(&mut chunk) {
                let Some(bytes @ [_, ..]) = chunk.get(..read) else { return };
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            }
        });
        Self { text, reader: Some(reader) }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }

    /// Returns every complete line that was written, as JSON.
    pub(super) fn lines(&self) -> Vec<Value> {
        let text = self.text();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
    }

    pub(super) async fn until(&self, holds: impl Fn(&Value) -> bool) -> Value {
        within_timeout(async {
            loop {
                if let Some(line) = self.lines().into_iter().find(|line| holds(line)) {
                    return line;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    pub(super) fn end(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

// === impl Binary ===

impl Binary {
    pub(super) async fn start(upstream: &str, spec: &Value, args: &[&str]) -> Self {
        let policy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(policy.path(), policy_text(spec)).unwrap();
        let path = policy.path().to_owned();
        let mut binary = Self::with(upstream, Some(&path), args).await;
        binary.policy = Some(policy);
        binary
    }

    /// Starts it with a file of the test's own, or without one.
    pub(super) async fn with(upstream: &str, config: Option<&Path>, args: &[&str]) -> Self {
        let mut command = proxy_command();
        command.args(["--upstream", upstream]);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command.args(args);
        Self::run(command).await
    }

    /// Starts it as a sidecar that captures these ports, with the environment that the injector
    /// sets.
    pub(super) async fn in_a_pod(captures: &[String], env: &[(&str, &str)], args: &[&str]) -> Self {
        let mut command = proxy_command();
        command.args(captures.iter().flat_map(|capture| ["--capture", capture]));
        command.args(["--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(args).envs(env.iter().copied());
        Self::run(command).await
    }

    async fn run(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (access, log) =
            (PipeOutput::new(child.stdout.take().unwrap()), PipeOutput::new(child.stderr.take().unwrap()));
        log.until(|line| line["msg"] == "listening").await;
        let first = log.lines().remove(0);
        let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
        assert_eq!(first["msg"], "listening", "the first line names the addresses");
        let (listen, metrics, admin) =
            (address(&first["listen"][0]), address(&first["metrics"]), address(&first["admin"]));
        let binary = Self { child, listen, metrics, admin, log, access, policy: None };
        binary.until_it_listens_for_signals().await;
        binary
    }

    /// Waits until its signal handlers are installed. An earlier signal ends a process that is
    /// still starting.
    pub(super) async fn until_it_listens_for_signals(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        within_timeout(async {
            loop {
                let status = std::fs::read_to_string(&status).unwrap();
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
                let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
                if [Signal::TERM, Signal::INT, Signal::HUP]
                    .iter()
                    .all(|signal| caught >> (signal.as_raw() - 1) & 1 == 1)
                {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process. Its output is complete afterwards.
    pub(super) async fn end(&mut self) -> ExitStatus {
        let status = within_timeout(async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        self.log.end();
        self.access.end();
        status
    }

    pub(super) fn predict(&self, item: u64) -> Outgoing {
        self.post(PREDICT, &instances(&[item]))
    }

    pub(super) fn post(&self, path: &str, body: &str) -> Outgoing {
        let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
        Outgoing::new("POST", path, self.listen, &json, Some(body.as_bytes()))
    }

    pub(super) async fn client(&self) -> Client {
        within_timeout(Client::connect(self.listen)).await.unwrap()
    }

    pub(super) async fn get(&self, port: SocketAddr, path: &str) -> Answer {
        let mut client = within_timeout(Client::connect(port)).await.unwrap();
        within_timeout(client.fetch(&Outgoing::new("GET", path, port, &Headers::new(), None))).await
    }

    pub(super) async fn until_queued(&self, items: u64) {
        within_timeout(async {
            loop {
                let stats: Value = serde_json::from_slice(&self.get(self.admin, "/api/stats").await.body).unwrap();
                if stats["items"]["queued"] == items {
                    return;
                }
            }
        })
        .await;
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
