//! A FastAPI application on uvicorn, batched by the generic adapter as declared in `fastapi.yaml`.

use std::time::Duration;

use serde_json::Value;

use super::calls::{BatchCounters, CALLERS, Call, Tally, compare, listed};
use super::pass_through::{self, PassedRequest};
use super::python::{Python, Server, folder};
use super::{Bench, Verdict};

/// Counter of executions in the application.
const RUNS: Tally = Tally("/runs", "\"runs\":");
/// Number of calls per client.
const CALLS: usize = 5;
/// Size of an upload and a download, far above `itemBytesMax` and every buffer on the path.
const LARGE: usize = 20 * 1024 * 1024;
/// Maximum time for a stream, a WebSocket and a compressed answer, which take about a second.
const PASSED_MAX: Duration = Duration::from_secs(60);

/// Starts the application.
pub(crate) async fn start(python: &Python) -> Result<Server, String> {
    python.serve("fastapi_app.py", &[], "/docs").await
}

/// Returns a call with one or three texts, all distinct.
fn score(at: usize, turn: usize, language: &str) -> Call {
    let count = if at % 16 == 5 { 3 } else { 1 };
    let texts: Vec<_> = (0..count).map(|n| format!(r#""text {at}.{turn}.{n} \u00e5 å \"""#)).collect();
    Call { target: "/score", body: format!(r#"{{"texts": [{}], "language": "{language}"}}"#, texts.join(",")) }
}

fn vector(at: usize, turn: usize) -> Call {
    Call { target: "/vector", body: format!(r#"{{"text":"text {at}.{turn}"}}"#) }
}

/// Batches lists on one route and single texts on another, with a field that separates two
/// languages.
pub(crate) async fn batches(bench: &Bench, server: &Server) -> Verdict {
    let call = |at: usize, turn| match at % 8 {
        0..4 => vector(at, turn),
        7 => score(at, turn, "de"),
        _ => score(at, turn, "en"),
    };
    let callers: Vec<Vec<_>> = (0..CALLERS).map(|at| (0..CALLS).map(|turn| call(at, turn)).collect()).collect();
    let mut proxy = bench.proxy(server.address, Some(&folder().join("fastapi.yaml"))).await?;
    let compared = compare(server.address, proxy.listen, RUNS, &callers).await?;
    let numbers = compared.verdict()?;
    compared.verify_distinct()?;
    compared.statuses(CALLERS * CALLS, 0)?;
    Ok(format!("{numbers}, {}", BatchCounters::of(&mut proxy).await?.verdict(compared.runs)?))
}

/// Sends an item that validation refuses (422, and the answer quotes it) and one that makes the
/// model fail (500).
pub(crate) async fn bad_item(bench: &Bench, server: &Server) -> Verdict {
    let bad = |text: &str| Call { target: "/score", body: format!(r#"{{"texts": ["{text}"], "language": "en"}}"#) };
    let call = |at: usize, turn| match (at, turn) {
        (9, 0) => bad(""),
        (40, 1) => bad("poison"),
        _ => score(at, turn, "en"),
    };
    let callers: Vec<Vec<_>> = (0..CALLERS).map(|at| (0..2).map(|turn| call(at, turn)).collect()).collect();
    let mut proxy = bench.proxy(server.address, Some(&folder().join("fastapi.yaml"))).await?;
    let compared = compare(server.address, proxy.listen, RUNS, &callers).await?;
    let numbers = compared.verdict()?;
    compared.statuses(2 * CALLERS - 2, 2)?;
    let BatchCounters { shared, .. } = BatchCounters::of(&mut proxy).await?;
    if shared == 0 {
        return Err("nothing was shared".to_owned());
    }
    Ok(format!("{numbers}, 2 of them errors, {} calls of the model ({shared} shared)", compared.runs))
}

/// Passes through pages, large bodies in both directions, a stream and a WebSocket.
pub(crate) async fn passed(bench: &Bench, server: &Server) -> Verdict {
    let large: Vec<u8> = (0..LARGE).map(|at| at.to_le_bytes()[at % 3]).collect();
    let plain = [
        PassedRequest::get("/docs"),
        PassedRequest::get("/openapi.json"),
        PassedRequest::get("/nothing?x=1"),
        PassedRequest::new("HEAD", "/docs"),
        PassedRequest::new("DELETE", "/score"),
        PassedRequest::get("/download?size=20971520"),
        PassedRequest::new("POST", "/upload").with(&[("content-type", "application/octet-stream")], &large),
        PassedRequest::new("POST", "/upload").with(&[("transfer-encoding", "chunked")], &large),
        PassedRequest::new("POST", "/upload").with(&[("expect", "100-continue")], &large),
        PassedRequest::new("POST", "/score").with(&[("content-type", "application/json")], "{\"texts\": [\"a\", 1]}"),
    ];
    let config = folder().join("fastapi.yaml");
    let numbers = pass_through::compare(bench, server, &plain).await?;
    let proxy = bench.proxy(server.address, Some(&config)).await?;
    let url = format!("http://{}", proxy.listen);
    let report = bench.python.report("passed_on.py", &[url.into()], PASSED_MAX).await?;
    let faults: Vec<_> = report.get("faults").and_then(Value::as_array).into_iter().flatten().collect();
    if !faults.is_empty() {
        return Err(listed("httpx and websockets", &faults.iter().map(ToString::to_string).collect::<Vec<_>>()));
    }
    Ok(format!("{numbers}, a stream, a websocket and a compressed answer as made"))
}
