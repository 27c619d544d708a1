//! The process under measurement, which is killed on drop, and figures of processes from `/proc`.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running proxy.
pub(crate) struct Process {
    pub(crate) listen: SocketAddr,
    /// The admin port, or `None` if it is off.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) pids: Vec<u32>,
    child: Child,
    policy: PathBuf,
}

// === impl Process ===

impl Process {
    /// Starts the binary of this build, or the one in `GROUPAGE_BINARY`, with this policy.
    pub(crate) fn groupage(upstream: &str, policy: &str) -> Self {
        Self::start(upstream, policy, "off")
    }

    /// Starts the binary like [`Self::groupage`], with its admin port open.
    pub(crate) fn with_admin(upstream: &str, policy: &str) -> Self {
        Self::start(upstream, policy, "127.0.0.1:0")
    }

    fn start(upstream: &str, policy: &str, admin: &str) -> Self {
        let path = std::env::temp_dir().join(format!("groupage-bench-{}-{}.yaml", std::process::id(), fresh()));
        std::fs::write(&path, if policy.is_empty() { "mode: Batch\n" } else { policy }).expect("a policy file");
        #[expect(clippy::disallowed_methods, reason = "what to measure is no setting of the proxy")]
        let binary = std::env::var("GROUPAGE_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_groupage").to_owned());
        let mut child = Command::new(binary)
            .args(["proxy", "--listen", "127.0.0.1:0", "--metrics", "off", "--admin", admin, "--log-format", "json"])
            .args(["--upstream", upstream, "--config"])
            .arg(&path)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let first = lines.next().expect("a first line").expect("text");
        std::thread::spawn(move || lines.for_each(drop));
        let first: serde_json::Value = serde_json::from_str(&first).expect("the first line is JSON");
        let listen = first["listen"][0].as_str().and_then(|address| address.parse().ok()).expect("a bound address");
        let admin = first["admin"].as_str().and_then(|address| address.parse().ok());
        Self { listen, admin, pids: vec![child.id()], child, policy: path }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_file(&self.policy).ok();
    }
}

/// Returns a number that is unique in this process, for names of files and folders.
pub(crate) fn fresh() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Returns the child processes of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns the user and system time of processes, in nanoseconds of the kernel's `schedstat` of
/// every thread.
pub(crate) fn cpu(pids: &[u32]) -> Duration {
    let nanos = pids
        .iter()
        .flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten())
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanos)
}

/// Returns the resident memory in bytes.
pub(crate) fn rss(pid: u32) -> u64 {
    status(pid, "VmRSS:").next().unwrap_or(0) * 1024
}

/// Returns the number of context switches of all threads, voluntary or not.
pub(crate) fn context_switches(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
        .flat_map(|text| numbers(&text, "ctxt_switches:").collect::<Vec<_>>())
        .sum()
}

fn status(pid: u32, name: &str) -> impl Iterator<Item = u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    numbers(&text, name).collect::<Vec<_>>().into_iter()
}

fn numbers(text: &str, name: &str) -> impl Iterator<Item = u64> {
    text.lines().filter(move |line| line.contains(name)).filter_map(|line| line.split_whitespace().nth(1)?.parse().ok())
}

/// Sends the head and 16 KiB of the body of a recognised call, and never the rest.
pub(crate) fn half_a_call(stream: &mut TcpStream) {
    let head =
        "POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 32768\r\n\r\n";
    // Errors are ignored: connections that are shed at the peak are part of the measurement.
    stream.write_all(head.as_bytes()).ok();
    stream.write_all(&[b' '; 16 << 10]).ok();
}
