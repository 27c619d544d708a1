//! The runner of the end-to-end cases: runs them one after the other on one cluster, and prints the
//! result and the duration of each.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use super::TestError;
use super::cases::{self, Requirement, TestCase};
use super::cluster::{self, Cluster};
use super::controller_errors;
use super::diagnostics::collect_diagnostics;
use super::installation;
use super::prerequisites::Prerequisites;
use super::programs::now;
use super::test_namespace::TestNamespace;

/// Timeout of a case.
const CASE_MAX: Duration = Duration::from_secs(300);
/// Timeout of a case with `--all`, by which cases run at full length.
const FULL_LENGTH_CASE_MAX: Duration = Duration::from_secs(3600);
/// Timeout for the collection of diagnostics after a failure.
const DIAGNOSTICS_MAX: Duration = Duration::from_secs(60);

/// Number of cases by result.
#[derive(Debug, Default)]
struct CaseCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Starts a cluster and runs the cases on it, or a shell. The process is inside of the Linux
/// namespaces that isolate the cluster from the machine. `kit` is a file with the prerequisites.
pub(crate) fn run_inside_namespaces(kit: &Path) -> Result<ExitCode, TestError> {
    let kit: Prerequisites = serde_json::from_slice(&std::fs::read(kit)?)?;
    runtime()?.block_on(async {
        let begun = now();
        let output_dir = kit.output_dir.clone();
        let cluster = match cluster::start(kit).await {
            Ok(cluster) => cluster,
            Err(fault) => {
                let logs = output_dir.join("start");
                cluster::keep_logs(&logs)?;
                return Err(format!("the cluster does not start: {fault}\nlogs: {}", logs.display()).into());
            }
        };
        println!("cluster ready ({:.1} s)", now().duration_since(begun).as_secs_f64());
        if cluster.kit.shell { run_shell(&cluster) } else { Ok(run_cases(cluster).await) }
    })
}

/// Runs the cases on an existing cluster.
pub(crate) fn run_on_existing_cluster(kit: Prerequisites) -> Result<ExitCode, TestError> {
    runtime()?.block_on(async {
        let kubeconfig = kit.kubeconfig.clone().ok_or("no kubeconfig")?;
        Ok(run_cases(Cluster::connect_existing(kit, kubeconfig).await?).await)
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, TestError> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Runs a shell in which `kubectl` and `helm` reach the cluster, until it exits.
fn run_shell(cluster: &Cluster) -> Result<ExitCode, TestError> {
    let programs = &cluster.kit.output_dir;
    // The Kubernetes binary contains several programs, and selects one by the name under which it
    // is executed.
    link_program(&cluster.kit.kube, &programs.join("kubectl"))?;
    match &cluster.kit.helm {
        Ok(helm) => {
            link_program(helm, &programs.join("helm"))?;
            println!("a shell with kubectl and helm for the cluster: leave it with `exit`");
        }
        Err(fault) => println!("a shell with kubectl for the cluster: leave it with `exit`\nno helm: {fault}"),
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&path)))?;
    let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/bash".into());
    Command::new(shell).env("PATH", path).env("KUBECONFIG", cluster.kubectl.kubeconfig()).status()?;
    Ok(ExitCode::SUCCESS)
}

/// Creates a symbolic link to a program, or replaces the link of an earlier run.
fn link_program(program: &Path, link: &Path) -> Result<(), TestError> {
    std::fs::remove_file(link).ok();
    Ok(std::os::unix::fs::symlink(program, link)?)
}

/// Runs the selected cases, removes the installation, and prints the counts.
async fn run_cases(cluster: Cluster) -> ExitCode {
    let begun = now();
    let cluster = Arc::new(cluster);
    let mut totals = CaseCounts::default();
    // If a case in the list was renamed, the controller errors that it causes deliberately would
    // count as failures.
    if let Some(name) =
        controller_errors::FAULT_CASES.into_iter().find(|name| cases::all().all(|case| case.name != *name))
    {
        println!("FAULT_CASES in e2e/controller_errors.rs has {name}, which is not the name of a case");
        totals.failed += 1;
    }
    for case in cases::all().filter(|case| cluster.kit.cases.iter().any(|name| *name == case.name)) {
        if let Some(reason) = missing_requirement(&cluster, &case) {
            totals.skipped += 1;
            println!("SKIPPED {}: {reason}", case.name);
            continue;
        }
        let begun = now();
        let result = run_case(&cluster, &case).await;
        let took = now().duration_since(begun).as_secs_f64();
        match result {
            Ok(numbers) => {
                totals.passed += 1;
                println!("ok      {}: {numbers} ({took:.1} s)", case.name);
            }
            Err(fault) => {
                totals.failed += 1;
                println!("FAILED  {}: {fault} ({took:.1} s)", case.name);
            }
        }
    }
    if let Err(fault) = installation::uninstall(&cluster).await {
        println!("cannot remove the installation: {fault}");
    }
    let CaseCounts { passed, failed, skipped } = totals;
    let took = now().duration_since(begun).as_secs_f64();
    println!("{passed} passed, {failed} failed, {skipped} skipped ({took:.1} s)");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns a requirement of the case that this run does not meet.
fn missing_requirement(cluster: &Cluster, case: &TestCase) -> Option<String> {
    case.needs.iter().find_map(|need| match need {
        Requirement::Node => cluster.node.is_none().then(|| "requires an own node".to_owned()),
        Requirement::Helm => cluster.kit.helm.as_ref().err().cloned(),
        Requirement::Python => cluster.kit.python.as_ref().err().cloned(),
        Requirement::Venv(name) => cluster.kit.venv(name).err(),
        Requirement::CudaImage => cluster
            .kit
            .images
            .cuda
            .is_none()
            .then(|| "runs only with --all: the image takes minutes to build".to_owned()),
        Requirement::FullLength => {
            (!cluster.kit.all).then(|| "runs only with --all: another case covers the same code path".to_owned())
        }
    })
}

/// Runs one case in a namespace of its own, and keeps diagnostics if it fails.
async fn run_case(cluster: &Arc<Cluster>, case: &TestCase) -> Result<String, TestError> {
    let space = TestNamespace::create(Arc::clone(cluster), case.namespace()).await?;
    let begun = now();
    let limit = if cluster.kit.all { FULL_LENGTH_CASE_MAX } else { CASE_MAX };
    let result = match tokio::time::timeout(limit, case.run(&space)).await {
        Ok(result) => result,
        Err(_) => Err(format!("not completed within {} s", limit.as_secs()).into()),
    };
    // Crashes and logged errors fail a case even if all of its checks passed.
    let mut faults = cluster.node.as_ref().map(cluster::LocalNode::exit_reports).unwrap_or_default();
    faults.extend(controller_errors::errors(cluster, case.name, now().duration_since(begun)).await);
    let result = match (result, faults.is_empty()) {
        (result, true) => result,
        (Ok(numbers), false) => Err(format!("{numbers}, but {}", faults.join("\n")).into()),
        (Err(fault), false) => Err(format!("{fault}\n{}", faults.join("\n")).into()),
    };
    let diagnostics = match &result {
        Ok(_) => None,
        Err(_) => Some(match tokio::time::timeout(DIAGNOSTICS_MAX, collect_diagnostics(cluster, case.name)).await {
            Ok(Ok(folder)) => format!("diagnostics: {}", folder.display()),
            Ok(Err(fault)) => format!("cannot collect diagnostics: {fault}"),
            Err(_) => format!(
                "diagnostics are incomplete after {} s: {}",
                DIAGNOSTICS_MAX.as_secs(),
                cluster.kit.output_dir.display()
            ),
        }),
    };
    let deleted = space.delete().await;
    match (result, diagnostics) {
        (Ok(numbers), _) => deleted.map(|()| numbers),
        (Err(fault), diagnostics) => Err(format!("{fault}\n{}", diagnostics.unwrap_or_default()).into()),
    }
}
