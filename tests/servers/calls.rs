//! Clients, each on its own connection, and the comparison of their answers. Every call is first
//! sent alone to the server. Then all clients call concurrently through the proxy, and the two
//! answers to each call are compared.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::support::client::{Answer, Client, Outgoing};
use super::support::proxy::Proxy;
use super::support::report::difference;
use super::support::upstream::now;
use super::support::wire::{End, Headers, values};

/// Number of concurrent clients.
pub(crate) const CALLERS: usize = 64;
/// Maximum time of a call, far above its duration on a busy machine.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Time within which the proxy releases the state of answered calls.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Maximum number of faults in a report.
const FAULTS_MAX: usize = 3;

/// A POST with a JSON body.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) target: &'static str,
    pub(crate) body: String,
}

/// The parts of an answer that are compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AnswerParts {
    pub(crate) status: u16,
    pub(crate) content_type: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Comparison of the direct and the proxied answers of all clients.
#[derive(Debug, Default)]
pub(crate) struct AnswerComparison {
    pub(crate) calls: usize,
    /// Number of calls with equal answers.
    pub(crate) equal: usize,
    /// Descriptions of the others.
    pub(crate) faults: Vec<String>,
    /// Number of distinct direct answers.
    pub(crate) unlike: usize,
    /// Executions of the model while the clients used the proxy, as counted by the server.
    pub(crate) runs: u64,
    /// Number of direct answers with status 200; `refused` counts the others.
    pub(crate) served: usize,
    pub(crate) refused: usize,
}

/// Location of a server's counter of executions: a path, and the text before the number in its
/// response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally(pub(crate) &'static str, pub(crate) &'static str);

/// Batch counters of the proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchCounters {
    /// Number of upstream calls.
    pub(crate) batches: u64,
    /// Number of items in them.
    pub(crate) items: u64,
    /// Number of upstream calls with items of more than one client.
    pub(crate) shared: u64,
}

// === impl Call ===

impl Call {
    async fn send(&self, client: &mut Client, address: SocketAddr) -> Result<AnswerParts, String> {
        let json = vec![("content-type".to_owned(), b"application/json".to_vec())];
        let request = Outgoing::new("POST", self.target, address, &json, Some(self.body.as_bytes()));
        AnswerParts::of(&fetch(client, &request).await?)
    }
}

// === impl AnswerParts ===

impl AnswerParts {
    fn of(answer: &Answer) -> Result<Self, String> {
        let content_type = values(&answer.headers, "content-type").concat();
        let status = answer.status.ok_or("an answer without a status")?;
        Ok(Self { status, content_type, body: answer.body.clone() })
    }
}

/// Opens a connection.
pub(crate) async fn connect(address: SocketAddr) -> Result<Client, String> {
    Client::connect(address).await.map_err(|e| format!("connect to {address}: {e}"))
}

/// Sends a request and reads its complete answer.
pub(crate) async fn fetch(client: &mut Client, request: &Outgoing) -> Result<Answer, String> {
    let what = format!("{} {}", request.method, request.target);
    let answer = tokio::time::timeout(ANSWER_MAX, client.fetch(request)).await;
    let answer = answer.map_err(|_| format!("{what}: no answer within {} s", ANSWER_MAX.as_secs()))?;
    // A server may refuse and then close the connection; that answer is complete.
    if answer.status.is_none() || !matches!(answer.end, Some(End::Proper)) {
        return Err(format!("{what}: the answer ended as {:?} after status {:?}", answer.end, answer.status));
    }
    Ok(answer)
}

/// Sends the calls of one client one after the other on one connection.
async fn run_client(address: SocketAddr, calls: Vec<Call>) -> Result<Vec<AnswerParts>, String> {
    let mut client = connect(address).await?;
    let mut answers = Vec::with_capacity(calls.len());
    for call in &calls {
        let answer = call.send(&mut client, address).await?;
        if answer.status != 200 {
            // After an exception in the application, uvicorn closes the connection without a
            // `Connection: close` in its answer.
            client = connect(address).await?;
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// Sends the calls of every client, first alone to the server and then concurrently through the
/// proxy.
pub(crate) async fn compare(
    server: SocketAddr,
    proxy: SocketAddr,
    tally: Tally,
    callers: &[Vec<Call>],
) -> Result<AnswerComparison, String> {
    let mut direct = Vec::new();
    for calls in callers {
        direct.push(run_client(server, calls.clone()).await.map_err(|e| format!("direct: {e}"))?);
    }
    let before = tally.read(server).await?;
    let mut running = JoinSet::new();
    for (at, calls) in callers.iter().enumerate() {
        let calls = calls.clone();
        running.spawn(async move { (at, run_client(proxy, calls).await) });
    }
    let mut proxied = vec![Vec::new(); callers.len()];
    while let Some(done) = running.join_next().await {
        let (at, answers) = done.map_err(|e| e.to_string())?;
        if let Some(place) = proxied.get_mut(at) {
            *place = answers.map_err(|e| format!("caller {at} through the proxy: {e}"))?;
        }
    }
    let runs = tally.read(server).await? - before;
    let mut compared = AnswerComparison { runs, ..AnswerComparison::default() };
    for ((at, calls), (direct, proxied)) in callers.iter().enumerate().zip(direct.iter().zip(&proxied)) {
        for (call, (expected, actual)) in calls.iter().zip(direct.iter().zip(proxied)) {
            compared.add(at, call, expected, actual);
        }
    }
    compared.unlike = direct.iter().flatten().collect::<HashSet<_>>().len();
    Ok(compared)
}

// === impl Tally ===

impl Tally {
    async fn read(self, server: SocketAddr) -> Result<u64, String> {
        let request = Outgoing::new("GET", self.0, server, &Headers::new(), None);
        let answer = fetch(&mut connect(server).await?, &request).await?;
        let text = String::from_utf8_lossy(&answer.body);
        // The counter is absent before the first call. KServe writes it as a float.
        let after = text.split(self.1).nth(1).unwrap_or("0");
        let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().map_err(|_| format!("{} does not count: {}", self.0, text.chars().take(200).collect::<String>()))
    }
}

// === impl AnswerComparison ===

impl AnswerComparison {
    /// Compares the answers to a call of the client with this index.
    fn add(&mut self, at: usize, call: &Call, expected: &AnswerParts, actual: &AnswerParts) {
        self.calls += 1;
        let count = if expected.status == 200 { &mut self.served } else { &mut self.refused };
        *count += 1;
        if expected == actual {
            self.equal += 1;
            return;
        }
        let kinds = [&expected.content_type, &actual.content_type].map(|kind| kind.escape_ascii().to_string());
        self.faults.push(format!(
            "caller {at}, {} {}: status {} and {}, {} and {}, bodies {}",
            call.target,
            call.body.chars().take(120).collect::<String>(),
            expected.status,
            actual.status,
            kinds[0],
            kinds[1],
            difference(&expected.body, &actual.body)
        ));
    }

    /// Returns the numbers if all answers are equal, and the faults otherwise.
    pub(crate) fn verdict(&self) -> Result<String, String> {
        let numbers = format!("{} callers, {} calls, {} equal", CALLERS, self.calls, self.equal);
        if self.equal == self.calls { Ok(numbers) } else { Err(listed(&numbers, &self.faults)) }
    }

    /// Verifies how many calls the server itself served and refused.
    pub(crate) fn statuses(&self, served: usize, refused: usize) -> Result<(), String> {
        let Self { served: actual_served, refused: actual_refused, .. } = self;
        if (*actual_served, *actual_refused) == (served, refused) {
            return Ok(());
        }
        Err(format!("the server serves {actual_served} and refuses {actual_refused}, not {served} and {refused}"))
    }

    /// Verifies that an answer to the wrong client would be detected: at least nine tenths of the
    /// answers must be distinct.
    pub(crate) fn verify_distinct(&self) -> Result<(), String> {
        if self.unlike * 10 >= self.calls * 9 { Ok(()) } else { Err(format!("only {} different answers", self.unlike)) }
    }
}

/// Formats a heading and the first few faults.
pub(crate) fn listed(heading: &str, faults: &[String]) -> String {
    let shown: String = faults.iter().take(FAULTS_MAX).map(|fault| format!("\n  {fault}")).collect();
    format!("{heading}; {} faults:{shown}", faults.len())
}

// === impl BatchCounters ===

impl BatchCounters {
    /// Reads the counters of the proxy once no call is in flight.
    pub(crate) async fn of(proxy: &mut Proxy) -> Result<Self, String> {
        let admin = proxy.admin.ok_or("no admin port")?;
        let request = Outgoing::new("GET", "/api/stats", admin, &Headers::new(), None);
        let until = now() + SETTLED_MAX;
        loop {
            let answer = fetch(&mut connect(admin).await?, &request).await?;
            let stats: Value = serde_json::from_slice(&answer.body).map_err(|e| format!("/api/stats: {e}"))?;
            let count = |path| stats.pointer(path).and_then(Value::as_u64).ok_or_else(|| format!("no {path}: {stats}"));
            let held = [count("/batches/in_flight")?, count("/items/queued")?, count("/buffered_bytes")?];
            if held == [0, 0, 0] {
                if let Some(fault) = proxy.fault() {
                    return Err(format!("{fault}\n{}", proxy.tail()));
                }
                let (batches, items) = (count("/batches/count")?, count("/batches/items")?);
                return Ok(Self { batches, items, shared: count("/batches/shared")? });
            }
            if now() > until {
                return Err(format!("not back to nothing in flight, queued and buffered: {stats}"));
            }
        }
    }

    /// Returns the numbers if the mean batch has more than 8 items and the server counted the same
    /// number of batches.
    pub(crate) fn verdict(self, runs: u64) -> Result<String, String> {
        let Self { batches, items, shared } = self;
        if batches != runs {
            return Err(format!("the proxy counted {batches} batches, the server {runs} calls"));
        }
        let tenths = (items * 10).checked_div(batches).unwrap_or(0);
        let numbers =
            format!("{items} items in {batches} batches ({shared} shared), mean batch {}.{}", tenths / 10, tenths % 10);
        if items > 8 * batches { Ok(numbers) } else { Err(format!("{numbers}, which is not above 8")) }
    }
}
