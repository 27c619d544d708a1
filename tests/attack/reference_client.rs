//! A well-behaved client that makes 20 calls per second and polls the probes.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::server::PREDICT;
use super::support::upstream::now;

/// Pause between two calls; 20 calls per second.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of calls between two polls of the probes.
const PROBE_INTERVAL: usize = 20;
/// Capacity of the channel for results. It is above the number of calls of the longest run, so that
/// no call waits to be counted.
const RESULTS_MAX: usize = 20_000;
/// Number of calls of which one has a body of 100 KiB.
const LARGE_INTERVAL: usize = 5;
/// Time after which a call without an answer counts as failed.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A client of the data port and of the port with the probes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HonestClient {
    pub(crate) calls: SocketAddr,
    pub(crate) probes: SocketAddr,
}

/// Results of the calls of one run.
#[derive(Debug, Default)]
pub(crate) struct CallResults {
    /// The served calls, the fastest first.
    times: Vec<CallTime>,
    /// Reasons of the failed calls.
    failed: Vec<String>,
    pub(crate) probes_failed: usize,
}

/// Latency of a call, with its second and number, by which reports show whether slow calls have
/// something in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CallTime {
    took: Duration,
    /// Second of the run in which the call began.
    second: u64,
    /// Number of the call, which determines its path and size.
    number: usize,
}

/// Memory and file descriptors of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessUsage {
    /// Resident memory in bytes.
    resident: u64,
    /// Anonymous resident memory in bytes, without pages of the binary.
    own: u64,
    descriptors: usize,
}

// === impl HonestClient ===

impl HonestClient {
    /// Makes calls for `time`, alternately on a merged path and on one that is passed through. Each
    /// call uses a new connection, like a client without a pool.
    pub(crate) async fn run(self, time: Duration) -> CallResults {
        let (start, until) = (now(), now() + time);
        let mut calls = CallResults::default();
        let (done, mut results) = tokio::sync::mpsc::channel(RESULTS_MAX);
        let mut count = 0;
        while now() < until {
            count += 1;
            let done = done.clone();
            let second = start.elapsed().as_secs();
            tokio::spawn(async move {
                let took = self.call(count).await;
                done.send(took.map(|took| CallTime { took, second, number: count })).await.ok()
            });
            if count.is_multiple_of(PROBE_INTERVAL) {
                for path in ["/livez", "/metrics"] {
                    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
                    let answer = exchange(self.probes, &head, "").await;
                    calls.probes_failed += usize::from(!answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200")));
                }
            }
            sleep(PAUSE).await;
        }
        drop(done);
        while let Some(result) = results.recv().await {
            match result {
                Ok(time) => calls.times.push(time),
                Err(why) => calls.failed.push(why),
            }
        }
        calls.times.sort_unstable();
        calls
    }

    async fn call(self, number: usize) -> Result<Duration, String> {
        let (path, body) = if is_merged(number) { (PREDICT, "{\"instances\":[5]}") } else { ("/other", "{}") };
        // Some bodies exceed 64 KiB: larger bodies may use only a part of the buffer budget
        // (`src/runtime/memory/budget.rs`).
        let body = if is_large(number) { format!("{body}{}", " ".repeat(100 << 10)) } else { body.to_owned() };
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        let begun = now();
        let answer = exchange(self.calls, &head, &body).await?;
        let fits =
            answer.starts_with("HTTP/1.1 200") && answer.contains(if is_merged(number) { "aaaaa" } else { "ok" });
        if fits { Ok(begun.elapsed()) } else { Err(answer.lines().take(3).collect::<Vec<_>>().join(" | ")) }
    }
}

/// Returns `true` for a call on the merged path; the others are passed through.
const fn is_merged(number: usize) -> bool {
    number.is_multiple_of(2)
}

const fn is_large(number: usize) -> bool {
    number.is_multiple_of(LARGE_INTERVAL)
}

async fn exchange(address: SocketAddr, head: &str, body: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match timeout(ANSWER_MAX, exchange).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

// === impl CallResults ===

impl CallResults {
    /// Returns the fraction of calls that were served.
    pub(crate) fn share(&self) -> f64 {
        let (served, all) = (self.times.len(), self.times.len() + self.failed.len());
        f64::from(u32::try_from(served).unwrap_or(0)) / f64::from(u32::try_from(all.max(1)).unwrap_or(1))
    }

    /// Returns the latency at a percentile of the served calls.
    pub(crate) fn at(&self, percent: usize) -> Duration {
        self.at_since(percent, 0)
    }

    /// Returns the latency at a percentile of the calls that began in this second of the run or
    /// later.
    pub(crate) fn at_since(&self, percent: usize, second: u64) -> Duration {
        let times: Vec<Duration> =
            self.times.iter().filter(|time| time.second >= second).map(|time| time.took).collect();
        times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
    }
}

impl fmt::Display for CallResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, p99) = (self.at(50), self.at(99));
        write!(f, "{} served, {} failed, median {median:.1?}, p99 {p99:.1?}", self.times.len(), self.failed.len())?;
        write!(f, ", {} probes failed", self.probes_failed)?;
        let slowest = self.times.get(self.times.len() * 99 / 100..).unwrap_or_default();
        let mut seconds: Vec<u64> = slowest.iter().map(|time| time.second).collect();
        seconds.sort_unstable();
        let merged = slowest.iter().filter(|time| is_merged(time.number)).count();
        let large = slowest.iter().filter(|time| is_large(time.number)).count();
        write!(f, ", the slowest hundredth in seconds {seconds:?}, {merged} merged, {large} large")?;
        match self.failed.first() {
            Some(why) => write!(f, ", first: {why}"),
            None => Ok(()),
        }
    }
}

// === impl ProcessUsage ===

impl ProcessUsage {
    /// Reads the usage of a process from `/proc`. All values are 0 if the process has exited.
    pub(crate) fn of(process: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
        };
        let (resident, own) = (bytes("VmRSS:").unwrap_or(0), bytes("RssAnon:").unwrap_or(0));
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        Self { resident, own, descriptors }
    }

    /// Returns the anonymous resident memory in bytes.
    pub(crate) const fn own(self) -> u64 {
        self.own
    }

    /// Returns the maximum of each value.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            own: self.own.max(other.own),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }

    /// Returns `true` if resident memory and descriptors are at most 1.5 times those of `before`.
    pub(crate) const fn is_back_to(self, before: Self) -> bool {
        self.resident <= before.resident / 2 * 3 && self.descriptors <= before.descriptors / 2 * 3
    }
}

impl fmt::Display for ProcessUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB ({} of its own), {} descriptors", self.resident >> 20, self.own >> 20, self.descriptors)
    }
}
