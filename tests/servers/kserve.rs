//! The `kserve` server with a forest trained here, behind the adapter that the proxy finds by
//! itself: its policy names no route.

use std::time::Duration;

use super::calls::{CALLERS, Call, Counted, Tally, compare};
use super::passed::{self, Plain};
use super::python::{Python, Server, folder};
use super::{Bench, Verdict};

const PREDICT: &str = "/v1/models/digits:predict";
/// KServe's own histogram.
const RUNS: Tally = Tally("/metrics", "request_predict_seconds_count{model_name=\"digits\"}");
/// Calls of each caller.
const CALLS: usize = 5;
/// Training takes two seconds.
const TRAINED_MAX: Duration = Duration::from_secs(60);

/// The server, and the rows that its model has not seen.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) server: Server,
    rows: Vec<String>,
}

/// Trains, and serves what was trained.
pub(crate) async fn start(python: &Python) -> Result<Model, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    python.report("train.py", &[folder.path().into()], TRAINED_MAX).await?;
    let rows = std::fs::read_to_string(folder.path().join("rows.json")).map_err(|e| e.to_string())?;
    let rows = rows.lines().map(str::to_owned).collect();
    let model = folder.path().join("model.joblib");
    // Once it is ready it holds the model in memory, and the folder may go.
    let server = python.serve("kserve_model.py", &[model.into()], "/v2/health/ready").await?;
    Ok(Model { server, rows })
}

// === impl Model ===

impl Model {
    /// A call with these rows.
    fn predict(&self, at: usize, rows: usize) -> Call {
        let rows: Vec<_> = self.rows.iter().cycle().skip(at).take(rows).map(String::as_str).collect();
        Call { target: PREDICT, body: format!(r#"{{"instances": [{}]}}"#, rows.join(", ")) }
    }

    /// A row of the same form, with a value that no f32 holds: the forest refuses the whole call, 500.
    fn poison(&self, at: usize) -> Call {
        let mut call = self.predict(at, 1);
        call.body = call.body.replacen("[[0.0,", "[[1e39,", 1);
        call
    }
}

/// Mostly single rows, some callers with three.
pub(crate) async fn batches(bench: &Bench, model: &Model) -> Verdict {
    let callers: Vec<Vec<_>> = (0..CALLERS)
        .map(|at| (0..CALLS).map(|turn| model.predict(7 * at + 131 * turn, if at % 16 == 5 { 3 } else { 1 })).collect())
        .collect();
    let mut proxy = bench.proxy(model.server.address, Some(&folder().join("merging.yaml"))).await?;
    let compared = compare(model.server.address, proxy.listen, RUNS, &callers).await?;
    let numbers = compared.verdict()?;
    compared.tells_apart()?;
    compared.statuses(CALLERS * CALLS, 0)?;
    Ok(format!("{numbers}, {}", Counted::of(&mut proxy).await?.verdict(compared.runs)?))
}

/// Two bad rows among many: their owners get the model's own error, all others their predictions.
pub(crate) async fn bad_item(bench: &Bench, model: &Model) -> Verdict {
    let bad = [(9, 0), (40, 1)];
    let callers: Vec<Vec<_>> = (0..CALLERS)
        .map(|at| {
            let one = |turn| if bad.contains(&(at, turn)) { model.poison(at) } else { model.predict(5 * at + turn, 1) };
            (0..2).map(one).collect()
        })
        .collect();
    let mut proxy = bench.proxy(model.server.address, Some(&folder().join("merging.yaml"))).await?;
    let compared = compare(model.server.address, proxy.listen, RUNS, &callers).await?;
    let numbers = compared.verdict()?;
    compared.statuses(2 * CALLERS - bad.len(), bad.len())?;
    let Counted { shared, .. } = Counted::of(&mut proxy).await?;
    if shared == 0 {
        return Err("nothing was shared".to_owned());
    }
    Ok(format!("{numbers}, {} of them errors, {} calls of the model ({shared} shared)", bad.len(), compared.runs))
}

/// What is no prediction, or none that can be read.
pub(crate) async fn passed(bench: &Bench, model: &Model) -> Verdict {
    let json = &[("content-type", "application/json")];
    let call = model.predict(3, 1).body;
    let tensor = format!(
        r#"{{"id": "t", "inputs": [{{"name": "x", "shape": [1, 64], "datatype": "FP64", "data": {}}}]}}"#,
        model.rows.first().ok_or("no rows")?
    );
    let plain = [
        Plain::get("/v2/health/ready"),
        Plain::get("/v2/health/live"),
        Plain::get("/v2"),
        Plain::get("/v1/models"),
        Plain::get("/v1/models/digits"),
        Plain::get("/v2/models/digits"),
        Plain::get("/"),
        Plain::get("/nothing/here?a=%2F&a=b"),
        Plain::new("HEAD", "/v2/health/ready"),
        Plain::new("OPTIONS", PREDICT),
        Plain::new("GET", PREDICT),
        Plain::new("POST", PREDICT).with(json, "{\"instances\": [[1.0, 2.0"),
        Plain::new("POST", PREDICT).with(json, "{\"rows\": []}"),
        Plain::new("POST", PREDICT).with(&[("content-type", "text/plain")], &call),
        Plain::new("POST", PREDICT).with(&[("content-type", "application/json"), ("expect", "100-continue")], &call),
        Plain::new("POST", "/v1/models/other:predict").with(json, &call),
        Plain::new("POST", "/v2/models/digits/infer").with(json, &tensor),
    ];
    passed::compare(bench, &model.server, &plain).await
}
