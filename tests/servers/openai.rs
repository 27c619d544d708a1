//! The unmodified OpenAI client for Python against an embeddings route with 80 ms per call and one
//! call at a time.

use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

use super::calls::{BatchCounters, listed};
use super::python::{Server, folder};
use super::support::proxy::Proxy;
use super::{Bench, Verdict};

/// Maximum time of the script, which takes six seconds directly and one through the proxy.
const CALLS_MAX: Duration = Duration::from_secs(120);
/// Number of clients with an input that the server refuses.
const BAD: u64 = 2;

/// Batches calls that mostly have one text in the client's default form, and some lists.
pub(crate) async fn batches(bench: &Bench, server: &Server) -> Verdict {
    let mut proxy = bench.proxy(server.address, Some(&folder().join("merging.yaml"))).await?;
    let (numbers, runs) = calls(bench, server, &proxy, 0).await?;
    Ok(format!("{numbers}, {}", BatchCounters::of(&mut proxy).await?.verdict(runs)?))
}

/// Sends two bad inputs: their clients raise the exception for 400, all others get their vectors.
pub(crate) async fn bad_item(bench: &Bench, server: &Server) -> Verdict {
    let mut proxy = bench.proxy(server.address, Some(&folder().join("merging.yaml"))).await?;
    let (numbers, runs) = calls(bench, server, &proxy, BAD).await?;
    let BatchCounters { shared, .. } = BatchCounters::of(&mut proxy).await?;
    if shared == 0 {
        return Err("nothing was shared".to_owned());
    }
    Ok(format!("{numbers}, {BAD} of them errors, {runs} calls of the model ({shared} shared)"))
}

/// Runs the script, in which the client builds the requests and parses the answers.
async fn calls(bench: &Bench, server: &Server, proxy: &Proxy, bad: u64) -> Result<(String, u64), String> {
    let [direct, through] = [server.address, proxy.listen].map(|address| format!("http://{address}"));
    let args: [OsString; 3] = [direct.into(), through.into(), bad.to_string().into()];
    let report = bench.python.report("openai_calls.py", &args, CALLS_MAX).await?;
    let number = |name| report.get(name).cloned().unwrap_or(Value::Null);
    let numbers = format!(
        "64 callers, {} calls, {} equal ({} with estimated usage), {} direct calls in {} s, all in {} s through the proxy",
        number("calls"),
        number("equal"),
        number("estimated"),
        number("alone"),
        number("direct_seconds"),
        number("proxy_seconds"),
    );
    let faults: Vec<_> = report.get("faults").and_then(Value::as_array).into_iter().flatten().collect();
    if !faults.is_empty() || number("calls") != number("equal") || number("calls").as_u64().unwrap_or(0) == 0 {
        return Err(listed(&numbers, &faults.iter().map(ToString::to_string).collect::<Vec<_>>()));
    }
    let runs = number("runs").as_u64().ok_or("the script does not report how often the model ran")?;
    Ok((numbers, runs))
}
