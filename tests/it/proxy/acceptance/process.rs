//! The process while it is idle.

use std::collections::BTreeMap;
use std::time::Duration;

use groupage::testkit::load::{ClosedConfig, PreparedCalls, run_closed_loop};
use groupage::testkit::server::{Server, ServerConfig};
use groupage::testkit::{Route, ServerAddr};
use serde_json::{Value, json};

use super::super::binary::Binary;
use super::super::setup::{adaptive_spec, within_timeout};
use super::ms;

/// Duration of an observation.
const WATCHED: Duration = Duration::from_secs(2);
/// Number of observations, one of which is of an idle process.
const OBSERVATIONS_MAX: usize = 5;

/// After it has served, learned and planned, a proxy becomes idle and is not woken: at most two
/// context switches per second, and almost no CPU time.
#[tokio::test]
async fn an_idle_process_that_has_learned_is_not_woken_and_uses_no_cpu() {
    let server = Server::start(ServerConfig::default()).await.unwrap();
    let binary = Binary::start(&server.url(), &adaptive_spec(&json!({"slo": {"latencyP99": "1s"}})), &[]).await;
    let calls = PreparedCalls::new(Route::Predict, 1, 1);
    let target = ServerAddr::Tcp(binary.listen);
    let load =
        ClosedConfig { target, calls, clients: 16, duration: ms(600), warm_up: ms(0), think: None, fresh: false };
    let mut served = 0;
    while served <= 200 {
        let report = within_timeout(run_closed_loop(load.clone())).await;
        assert!(report.served > 0 && report.failed == 0, "{report:?}");
        served += report.served;
    }
    wait_idle(&binary).await;
    // The effects of the last request end first, such as a plan that is being solved, memory that is
    // returned after a second, and connections that are closed. A thread that is ready to run, and
    // does not because the machine is busy, is not idle.
    let mut ticks = tokio::time::interval(WATCHED);
    ticks.tick().await;
    let mut observed = Vec::new();
    for _ in 0..OBSERVATIONS_MAX {
        let (switches, cpu_before) = (context_switches(binary.pid()), cpu(binary.pid()));
        ticks.tick().await;
        let after = context_switches(binary.pid());
        let switched = after.iter().map(|(thread, count)| count - switches.get(thread).unwrap_or(&0)).sum::<u64>();
        let used = cpu(binary.pid()).saturating_sub(cpu_before);
        if are_asleep(binary.pid()) && switched <= 2 * WATCHED.as_secs() && used < WATCHED / 200 {
            return;
        }
        observed
            .push(format!("{switched} context switches and {used:?} of CPU in {WATCHED:?}: {switches:?} {after:?}"));
    }
    panic!("the process is never idle: {observed:#?}");
}

async fn wait_idle(binary: &Binary) {
    within_timeout(async {
        loop {
            let stats: Value = serde_json::from_slice(&binary.get(binary.admin, "/api/stats").await.body).unwrap();
            if stats["items"]["queued"] == 0 && stats["batches"]["in_flight"] == 0 {
                return;
            }
        }
    })
    .await;
}

/// Returns the context switches of a process by thread.
fn context_switches(pid: u32) -> BTreeMap<String, u64> {
    let of = |(thread, text): (String, String)| {
        let counts = text.lines().filter_map(|line| {
            let (name, count) = line.split_once(':')?;
            name.ends_with("ctxt_switches").then(|| count.trim().parse::<u64>().unwrap())
        });
        (thread, counts.sum())
    };
    threads(pid, "status").into_iter().map(of).collect()
}

/// Returns `true` if no thread of a process runs or is ready to run.
fn are_asleep(pid: u32) -> bool {
    let is_asleep = |text: &str| text.lines().any(|line| line.starts_with("State:") && line.contains("(sleeping)"));
    threads(pid, "status").iter().all(|(_, text)| is_asleep(text))
}

fn cpu(pid: u32) -> Duration {
    let nanos = |text: &str| text.split_whitespace().next().unwrap().parse::<u64>().unwrap();
    Duration::from_nanos(threads(pid, "schedstat").iter().map(|(_, text)| nanos(text)).sum())
}

/// Returns a file of each thread of a process, by the thread's id and name. Threads that end
/// meanwhile are left out.
fn threads(pid: u32, file: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
    let read = |task: std::path::PathBuf| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let id = task.file_name()?.to_string_lossy().into_owned();
        Some((format!("{id} {}", name.trim()), std::fs::read_to_string(task.join(file)).ok()?))
    };
    tasks.filter_map(read).collect()
}
