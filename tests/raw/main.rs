//! `raw [FILE]... [PART-OF-NAME]... [--bin PATH]`: raw HTTP/1.1 byte strings sent to the proxy,
//! with a recorder as its upstream. Both sides must agree on the number of requests: no refused
//! request reaches the upstream, and none reaches it without an answer to the client (request
//! smuggling).
//!
//! `refuse`: a 4xx, a 5xx or a close within 7 s, and no complete request upstream. `serve`: at
//! least one final answer, of which the first is no refusal (except 405 to CONNECT, which is the
//! answer to it), and no more complete requests upstream than final answers. `later`: not run.
//!
//! Every case has its own proxy and recorder, so that a request upstream can only belong to it.
//! Several cases run concurrently, because some wait for a timeout. The last line has the totals;
//! the exit status is 0 if no case failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

#[path = "../support/all.rs"]
#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use support::client::{Answer, Client};
use support::json::{self, Json};
use support::proxy::{Proxy, Start};
use support::report::{Options, Totals, shown};
use support::upstream::{Reply, Request, Script, Upstream, now};
use support::wire::End;

/// Maximum time until a refusal. The longest timeout that a case waits for is the head timeout of 5
/// s.
const REFUSED_MAX: Duration = Duration::from_secs(7);
/// Duration of silence after which no further answer is expected.
const SILENCE: Duration = Duration::from_millis(300);
/// Number of proxies that run concurrently.
const AT_ONCE: usize = 8;

/// A test case, which is one line of the file. Its other members are results of other programs.
#[derive(Debug)]
struct Case {
    name: String,
    payload: Vec<u8>,
    expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Refuse,
    Serve,
    Later,
}

/// Counts the complete requests that reach the upstream, and answers each.
#[derive(Debug)]
struct Recorder {
    payload: Vec<u8>,
    requests: Mutex<Vec<String>>,
}

// === impl Case ===

impl Case {
    fn read(line: &[u8]) -> Result<Self, String> {
        let line = json::parse(line)?;
        let text = |name| line.get(name).and_then(Json::as_str).ok_or_else(|| format!("no `{name}`"));
        let name = text("name")?;
        let expect = match text("expect")?.as_str() {
            "refuse" => Expect::Refuse,
            "serve" => Expect::Serve,
            "later" => Expect::Later,
            other => return Err(format!("{name}: expect `{other}` is not named in the format")),
        };
        let latin1 = |text: String| text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<Vec<u8>>>();
        let mut payload = latin1(text("payload_latin1")?).ok_or_else(|| format!("{name}: payload is not latin-1"))?;
        if let Some(fill) = line.get("fill") {
            let byte = fill.get("byte").and_then(Json::as_str).and_then(latin1).filter(|b| b.len() == 1);
            let count = fill.get("count").and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
            let (Some(byte), Some(count)) = (byte, count) else {
                return Err(format!("{name}: fill needs byte and count"));
            };
            payload = filled(&payload, &byte.repeat(count));
        }
        Ok(Self { name, payload, expect })
    }

    fn method(&self) -> String {
        let word: Vec<u8> = self.payload.trim_ascii_start().iter().take_while(|b| **b != b' ').copied().collect();
        String::from_utf8_lossy(&word).into_owned()
    }
}

fn filled(payload: &[u8], fill: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = b"{FILL}";
    let mut out = Vec::with_capacity(payload.len() + fill.len());
    let mut rest = payload;
    while let Some(at) = rest.windows(MARK.len()).position(|w| w == MARK) {
        out.extend_from_slice(rest.get(..at).unwrap_or_default());
        out.extend_from_slice(fill);
        rest = rest.get(at + MARK.len()..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out
}

// === impl Recorder ===

impl Recorder {
    fn requests(&self) -> MutexGuard<'_, Vec<String>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.requests().len()
    }
}

impl Script for Recorder {
    fn reply(&self, request: Request) -> Reply {
        let target = request.target.as_bytes();
        // The proxy itself looks up limits that servers publish. The targets of these requests
        // occur in no payload.
        let own = request.method == "GET" && !self.payload.windows(target.len()).any(|w| w == target);
        if !own {
            self.requests().push(format!("{} {}", request.method, shown(target, 0)));
        }
        Reply::plain(200, "text/plain", "recorded")
    }

    fn unreadable(&self, _why: &End) {
        // An incomplete request is allowed: the proxy may refuse a request half way.
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), Path::new(env!("CARGO_BIN_EXE_groupage"))) {
        Ok(options) => options,
        Err(e) => {
            eprintln!("raw: {e}");
            return ExitCode::from(2);
        }
    };
    if options.nothing {
        return ExitCode::SUCCESS;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("raw: {e}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(all(options)).code()
}

async fn all(options: Options) -> Totals {
    let mut files = options.files.clone();
    if files.is_empty() {
        files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/raw_http1_cases.jsonl"));
    }
    let options = Arc::new(options);
    let mut totals = Totals::default();
    let mut later = 0;
    let mut running = JoinSet::new();
    let fail = |totals: &mut Totals, name: &str, faults: &[String]| {
        totals.failed += 1;
        println!("FAIL {name}");
        for fault in faults {
            println!("  {fault}");
        }
    };
    for file in files {
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(e) => {
                fail(&mut totals, &file.display().to_string(), &[e.to_string()]);
                continue;
            }
        };
        for (at, line) in text.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty()) {
            let case = match Case::read(line.trim_ascii()) {
                Ok(case) if options.is_selected(&case.name) => case,
                Ok(_) => continue,
                Err(e) => {
                    fail(&mut totals, &format!("{}:{}", file.display(), at + 1), &[e]);
                    continue;
                }
            };
            if case.expect == Expect::Later {
                totals.skipped += 1;
                later += 1;
                continue;
            }
            if running.len() >= AT_ONCE {
                finish(&mut totals, running.join_next().await, fail);
            }
            let options = Arc::clone(&options);
            running.spawn(async move {
                let faults = run(&case, &options).await.unwrap_or_else(|e| vec![e]);
                (case.name, faults)
            });
        }
    }
    while let Some(done) = running.join_next().await {
        finish(&mut totals, Some(done), fail);
    }
    if later > 0 {
        println!("skipped later: {later}");
    }
    println!("{}", totals.line());
    totals
}

type CaseResult = Option<Result<(String, Vec<String>), tokio::task::JoinError>>;

fn finish(totals: &mut Totals, done: CaseResult, fail: impl Fn(&mut Totals, &str, &[String])) {
    match done {
        Some(Ok((_, faults))) if faults.is_empty() => totals.passed += 1,
        Some(Ok((name, faults))) => fail(totals, &name, &faults),
        Some(Err(e)) => fail(totals, "a case", &[e.to_string()]),
        None => {}
    }
}

/// Final statuses and the end of the connection at the client.
#[derive(Debug, Default)]
struct ClientExchange {
    finals: Vec<u16>,
    end: Option<End>,
}

async fn run(case: &Case, options: &Options) -> Result<Vec<String>, String> {
    let recorder = Arc::new(Recorder { payload: case.payload.clone(), requests: Mutex::default() });
    let upstream = Upstream::start(Arc::clone(&recorder) as Arc<_>).await.map_err(|e| format!("upstream: {e}"))?;
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(|e| e.to_string())?;
    file.write_all(b"{\"proxy\": {\"connection\": {\"http2\": \"Never\"}}}\n").map_err(|e| e.to_string())?;
    let binary = options.binary.clone();
    let start = Start { binary, upstream: upstream.address, config: Some(file.path()), metrics: false };
    let mut proxy = Proxy::start(&start).await?;

    let seen = exchange(case, &proxy, &recorder).await?;
    let mut faults = judge(case, &seen, &recorder);
    faults.extend(proxy.fault());
    if !faults.is_empty() && !proxy.tail().is_empty() {
        faults.push(format!("the proxy's log ends with\n{}", proxy.tail().trim_end()));
    }
    Ok(faults)
}

/// Sends the payload and reads answers until the connection ends or no further answer is expected.
async fn exchange(case: &Case, proxy: &Proxy, recorder: &Recorder) -> Result<ClientExchange, String> {
    let mut client = Client::connect(proxy.listen).await.map_err(|e| format!("connect: {e}"))?;
    let (method, until) = (case.method(), now() + REFUSED_MAX);
    let mut seen = ClientExchange::default();
    // A proxy that refuses early does not read the rest of the payload.
    tokio::time::timeout(REFUSED_MAX, client.write_raw(&case.payload)).await.ok();
    while seen.end.is_none() && now() < until {
        let mut answer = Answer::default();
        let open = !seen.finals.is_empty() && recorder.count() <= seen.finals.len();
        let wait = if open { SILENCE } else { until.saturating_duration_since(now()) };
        let whole = tokio::time::timeout(wait, client.receive(&method, &mut answer)).await.is_ok();
        seen.finals.extend(answer.status);
        match answer.end {
            Some(End::Proper) if answer.status != Some(101) => {}
            Some(end) => seen.end = Some(end),
            // If all requests are answered, silence ends the exchange. In every other case the full
            // time is waited.
            None if !whole && (open || now() >= until) => break,
            None => {}
        }
    }
    // A request that the proxy forwards late arrives in this pause.
    tokio::time::sleep(SILENCE / 6).await;
    Ok(seen)
}

fn judge(case: &Case, seen: &ClientExchange, recorder: &Recorder) -> Vec<String> {
    let mut faults = Vec::new();
    let upstream = recorder.count();
    let closed = matches!(seen.end, Some(End::Closed | End::Reset));
    let first = seen.finals.first().copied();
    let refused = first.is_some_and(|status| status >= 400);
    match case.expect {
        Expect::Refuse => {
            if upstream > 0 {
                faults.push(format!("expected no complete request upstream, actual {:?}", recorder.requests()));
            }
            if !(refused || first.is_none() && closed) {
                let within = REFUSED_MAX.as_secs();
                faults.push(format!("expected a 4xx, a 5xx or a close within {within} s, actual {seen:?}"));
            }
        }
        Expect::Serve => {
            if first.is_none() || (refused && !(case.method() == "CONNECT" && first == Some(405))) {
                faults.push(format!("expected to be served, actual {seen:?}"));
            }
            if upstream > seen.finals.len() {
                let requests = recorder.requests();
                faults.push(format!(
                    "expected no more requests upstream than final answers, actual {requests:?} and {seen:?}"
                ));
            }
        }
        Expect::Later => {}
    }
    if let Some(End::Garbled(what)) = &seen.end {
        faults.push(format!("an answer that is not HTTP/1.1: {what}"));
    }
    faults
}
