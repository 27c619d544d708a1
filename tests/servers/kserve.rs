//! The `kserve` server with a random forest that is trained here. Its policy has no route, so the
//! proxy detects the adapter by itself.

use std::time::Duration;

use super::calls::{BatchCounters, CALLERS, Call, Tally, compare};
use super::pass_through::{self, PassedRequest};
use super::python::{Python, Server, folder};
use super::{Bench, Verdict};

const PREDICT: &str = "/v1/models/digits:predict";
/// Number of samples in KServe's own histogram of predictions.
const RUNS: Tally = Tally("/metrics", "request_predict_seconds_count{model_name=\"digits\"}");
/// Number of calls per client.
const CALLS: usize = 5;
/// Maximum time of the training, which takes about two seconds.
const TRAINED_MAX: Duration = Duration::from_secs(60);

/// The server, and rows that its model was not trained with.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) server: Server,
    rows: Vec<String>,
}

/// Trains a model and starts the server with it.
pub(crate) async fn start(python: &Python) -> Result<Model, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    python.report("train.py", &[folder.path().into()], TRAINED_MAX).await?;
    let rows = std::fs::read_to_string(folder.path().join("rows.json")).map_err(|e| e.to_string())?;
    let rows = rows.lines().map(str::to_owned).collect();
    let model = folder.path().join("model.joblib");
    // The server is ready once the model is in memory, so the folder may be removed.
    let server = python.serve("kserve_model.py", &[model.into()], "/v2/health/ready").await?;
    Ok(Model { server, rows })
}

// === impl Model ===

impl Model {
    /// Returns a call with `rows` rows from index `at` on.
    fn predict(&self, at: usize, rows: usize) -> Call {
        let rows: Vec<_> = self.rows.iter().cycle().skip(at).take(rows).map(String::as_str).collect();
        Call { target: PREDICT, body: format!(r#"{{"instances": [{}]}}"#, rows.join(", ")) }
    }

    /// Returns a call with a value that no f32 can represent: the forest refuses the whole call
    /// with 500.
    fn poison(&self, at: usize) -> Call {
        let mut call = self.predict(at, 1);
        call.body = call.body.replacen("[[0.0,", "[[1e39,", 1);
        call
    }
}

/// Batches calls with a single row, and with three rows from some clients.
pub(crate) async fn batches(bench: &Bench, model: &Model) -> Verdict {
    let callers: Vec<Vec<_>> = (0..CALLERS)
        .map(|at| (0..CALLS).map(|turn| model.predict(7 * at + 131 * turn, if at % 16 == 5 { 3 } else { 1 })).collect())
        .collect();
    let mut proxy = bench.proxy(model.server.address, Some(&folder().join("merging.yaml"))).await?;
    let compared = compare(model.server.address, proxy.listen, RUNS, &callers).await?;
    let numbers = compared.verdict()?;
    compared.verify_distinct()?;
    compared.statuses(CALLERS * CALLS, 0)?;
    Ok(format!("{numbers}, {}", BatchCounters::of(&mut proxy).await?.verdict(compared.runs)?))
}

/// Sends two bad rows among many: their clients get the model's own error, all others their
/// predictions.
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
    let BatchCounters { shared, .. } = BatchCounters::of(&mut proxy).await?;
    if shared == 0 {
        return Err("nothing was shared".to_owned());
    }
    Ok(format!("{numbers}, {} of them errors, {} calls of the model ({shared} shared)", bad.len(), compared.runs))
}

/// Passes through requests that are not predictions, or cannot be parsed.
pub(crate) async fn passed(bench: &Bench, model: &Model) -> Verdict {
    let json = &[("content-type", "application/json")];
    let call = model.predict(3, 1).body;
    let tensor = format!(
        r#"{{"id": "t", "inputs": [{{"name": "x", "shape": [1, 64], "datatype": "FP64", "data": {}}}]}}"#,
        model.rows.first().ok_or("no rows")?
    );
    let plain = [
        PassedRequest::get("/v2/health/ready"),
        PassedRequest::get("/v2/health/live"),
        PassedRequest::get("/v2"),
        PassedRequest::get("/v1/models"),
        PassedRequest::get("/v1/models/digits"),
        PassedRequest::get("/v2/models/digits"),
        PassedRequest::get("/"),
        PassedRequest::get("/nothing/here?a=%2F&a=b"),
        PassedRequest::new("HEAD", "/v2/health/ready"),
        PassedRequest::new("OPTIONS", PREDICT),
        PassedRequest::new("GET", PREDICT),
        PassedRequest::new("POST", PREDICT).with(json, "{\"instances\": [[1.0, 2.0"),
        PassedRequest::new("POST", PREDICT).with(json, "{\"rows\": []}"),
        PassedRequest::new("POST", PREDICT).with(&[("content-type", "text/plain")], &call),
        PassedRequest::new("POST", PREDICT)
            .with(&[("content-type", "application/json"), ("expect", "100-continue")], &call),
        PassedRequest::new("POST", "/v1/models/other:predict").with(json, &call),
        PassedRequest::new("POST", "/v2/models/digits/infer").with(json, &tensor),
    ];
    pass_through::compare(bench, &model.server, &plain).await
}
