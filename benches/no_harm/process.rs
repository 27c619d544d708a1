//! Mock servers as separate processes, so that their CPU time is not that of the load, and requests
//! to control and admin ports.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use groupage::testkit::ListResponse;
use groupage::testkit::remote::ModelUpdate;
use groupage::testkit::server::ServerStats;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Queue capacity of a mock server, above the number of calls of any load here.
const QUEUE: &str = "4096";

/// Performance model of a mock server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) base: Duration,
    pub(crate) per_item: Duration,
    pub(crate) slots: usize,
    /// Maximum number of items in an iteration, if the server forms batches itself.
    pub(crate) inner: Option<usize>,
    /// Base time of a call with [`SLOW`] in its body.
    pub(crate) slow: Option<Duration>,
    pub(crate) lists: Option<ListResponse>,
}

/// Text that marks a slow call.
pub(crate) const SLOW: &str = "slow";

/// A running mock server, which is killed on drop.
pub(crate) struct StandIn {
    pub(crate) listen: SocketAddr,
    control: SocketAddr,
    child: Child,
}

// === impl Model ===

impl Model {
    /// Creates a model with `slots` concurrent calls, each of which takes `base` for any number of
    /// items.
    pub(crate) const fn flat(base: Duration, slots: usize) -> Self {
        Self { base, per_item: Duration::ZERO, slots, inner: None, slow: None, lists: None }
    }

    /// Creates a model with an additional time for each item.
    pub(crate) const fn linear(base: Duration, per_item: Duration, slots: usize) -> Self {
        Self { per_item, ..Self::flat(base, slots) }
    }

    /// Returns the time of a call with one item.
    pub(crate) fn lone(&self) -> Duration {
        self.base + self.per_item
    }
}

// === impl StandIn ===

impl StandIn {
    pub(crate) fn start(model: &Model) -> Self {
        let micros = |time: Duration| format!("{}us", time.as_micros());
        let mut command = Command::new(env!("CARGO_BIN_EXE_stand-in"));
        command
            .args(["model", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--items-max", "0"])
            .args(["--base", &micros(model.base), "--per-item", &micros(model.per_item)])
            .args(["--slots", &model.slots.to_string(), "--queue", QUEUE]);
        if let Some(items) = model.inner {
            command.args(["--inner", &items.to_string()]);
        }
        if let Some(base) = model.slow {
            command.args(["--slow", &format!("{SLOW}={}", micros(base))]);
        }
        if let Some(lists) = model.lists {
            command.args(["--lists", &lists.as_arg()]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut first = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut first).expect("a first line");
        // The line is "stand-in model serving on ADDR, commands on ADDR".
        let mut addresses = first.split([' ', ',']).filter_map(|word| word.trim().parse().ok());
        let listen = addresses.next().expect("where it serves");
        let control = addresses.next().expect("where it is controlled");
        Self { listen, control, child }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub(crate) async fn stats(&self) -> ServerStats {
        serde_json::from_value(exchange(self.control, "GET", "/stats", "").await).expect("statistics")
    }

    pub(crate) async fn change(&self, change: &ModelUpdate) {
        let body = serde_json::to_string(change).expect("plain numbers");
        exchange(self.control, "POST", "/model", &body).await;
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a request to an admin or control port and returns the JSON of its answer, or null if it is
/// not JSON.
pub(crate) async fn exchange(to: SocketAddr, method: &str, path: &str, body: &str) -> Value {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(to).await.expect("a port of ours");
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    // If the connection ends with an error, the part that has arrived is sufficient.
    stream.read_to_end(&mut answer).await.ok();
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body.trim()).unwrap_or(Value::Null)
}
