//! The process under test, and calls to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::TcpStream;

use super::command::proxy_command;
/// Bound of every wait. A wait that exceeds it fails its test; none waits this long otherwise.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Status and body of a response.
pub(super) type Answer = (u16, Bytes);

/// A running process. Dropping it kills the process.
pub(super) struct EngineProcess {
    child: Child,
    pub(super) listen: SocketAddr,
    metrics: SocketAddr,
    admin: SocketAddr,
    log: Arc<Mutex<Vec<u8>>>,
    /// Keeps the file until this is dropped.
    _policy: Option<tempfile::NamedTempFile>,
}

// === impl EngineProcess ===

impl EngineProcess {
    /// Starts the process with a model of the tests, and waits until it is ready.
    pub(super) async fn start(model: &str, policy: Option<&str>) -> Self {
        Self::start_in(&model_folder(model), policy).await
    }

    /// Starts the process with the model of a folder, and waits until it is ready.
    pub(super) async fn start_in(model: &Path, policy: Option<&str>) -> Self {
        let mut command = proxy_command();
        command.arg("--engine").arg(model);
        Self::spawn(command, policy).await
    }

    /// Starts the process with the model that a policy names, and waits until it is ready.
    pub(super) async fn start_by_policy(policy: &str) -> Self {
        Self::spawn(proxy_command(), Some(policy)).await
    }

    async fn spawn(mut command: Command, policy: Option<&str>) -> Self {
        let file = policy.map(|text| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            file
        });
        if let Some(file) = &file {
            command.arg("--config").arg(file.path());
        }
        command.args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = read_in_background(child.stderr.take().unwrap());
        let bound = wait(|| {
            let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
            let (whole, _) = text.rsplit_once('\n')?;
            whole
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .find(|line| line["msg"] == "listening")
        })
        .await;
        let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
        let process = Self {
            child,
            listen: address(&bound["listen"][0]),
            metrics: address(&bound["metrics"]),
            admin: address(&bound["admin"]),
            log,
            _policy: file,
        };
        process.until_ready().await;
        process
    }

    async fn until_ready(&self) {
        within(async {
            while send(self.metrics, get_request("/readyz")).await.0 != 200 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        post(self.listen, path, body).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        send(self.listen, get_request(path)).await
    }

    /// Returns the value of a metric, whose name includes its labels; `None` if it does not exist.
    pub(super) async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = send(self.metrics, get_request("/metrics")).await;
        let text = String::from_utf8(text.to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    pub(super) async fn until_metric(&self, name: &str, value: f64) {
        within(async {
            while self.metric(name).await != Some(value) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(super) async fn until_queued(&self, items: u64) {
        within(async {
            loop {
                let (_, stats) = send(self.admin, get_request("/api/stats")).await;
                if serde_json::from_slice::<Value>(&stats).unwrap()["items"]["queued"] == items {
                    return;
                }
            }
        })
        .await;
    }

    pub(super) async fn scheduler_report(&self) -> Value {
        serde_json::from_slice(&send(self.admin, get_request("/api/scheduler")).await.1).unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process, and returns its exit code.
    pub(super) async fn end(&mut self) -> Option<i32> {
        let child = &mut self.child;
        wait(|| child.try_wait().unwrap()).await.code()
    }

    pub(super) fn has_logged(&self, message: &str) -> bool {
        let text = String::from_utf8(self.log.lock().unwrap().clone()).unwrap();
        text.contains(&format!("\"msg\":\"{message}\""))
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a call on a connection of its own.
pub(super) async fn post(to: SocketAddr, path: &str, body: &Value) -> Answer {
    let request = Request::post(path).header("host", "test").header("content-type", "application/json");
    send(to, request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

/// Runs the command until it ends by itself, and returns its exit code and what it wrote.
pub(super) fn run_to_end(arguments: &[&str]) -> (Option<i32>, String) {
    let output = proxy_command().args(arguments).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn get_request(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "127.0.0.1").body(Full::default()).unwrap()
}

async fn send(to: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    within(async {
        let stream = TcpStream::connect(to).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let exchange = async {
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        };
        // The connection is driven here, so that it is closed if the call is dropped.
        tokio::pin!(connection);
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    })
    .await
}

/// Copies a model of the tests.
pub(super) fn copy_model(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model_folder(name), folder.path());
    folder
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Truncates the files of weights in place.
pub(super) fn truncate_weights(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            std::fs::File::options().write(true).open(path).unwrap().set_len(100).unwrap();
        }
    }
}

pub(super) fn model_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/tests/goldens").join(name)
}

fn read_in_background(mut pipe: impl std::io::Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let text = Arc::new(Mutex::new(Vec::new()));
    let kept = text.clone();
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut chunk) {
            kept.lock().unwrap().extend_from_slice(&chunk[..length]);
        }
    });
    text
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, work).await.expect("the process answers in time")
}

/// Waits until there is a value.
async fn wait<T>(mut value: impl FnMut() -> Option<T>) -> T {
    within(async {
        loop {
            if let Some(value) = value() {
                return value;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}
