//! `e2e [CASE…]`: end-to-end tests on a Kubernetes cluster that the command starts and removes.
//!
//! Etcd, the control plane and the node agents are built as one binary from a Go module (`kube/`),
//! cached by a hash of its sources. The container runtime and network plugins come from Debian, and
//! the images from the packer in `image`. All of it runs in network, mount and process namespaces
//! of its own: no port conflicts, no traffic leaves the machine, several runs can proceed side by
//! side, and every process ends with the command. `--kubeconfig FILE` runs the same cases on an
//! existing cluster. `just e2e` starts it; `docs/testing.md` describes the addition of a case.
//!
//! If a prerequisite (root, Linux, Go) is missing, the command prints it in one line and exits with
//! status 77.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

mod test_client;
mod cases;
mod cluster;
mod namespaces;
mod image;
mod installation;
mod diagnostics;
mod prerequisites;
mod prepare;
mod options;
mod run;
mod controller_errors;
mod test_namespace;
mod programs;

use std::process::ExitCode;

use clap::Parser;

use self::options::Options;

/// Error with a message for the user.
type TestError = Box<dyn std::error::Error + Send + Sync>;
/// Result of a case: a line of measurements, or the error.
type CaseResult = Result<String, TestError>;

/// Exit status of a skipped run (the convention of automake).
const EXIT_SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (&options.init, &options.inside) {
        (Some(kit), _) => namespaces::run_init(kit),
        (_, Some(kit)) => run::run_inside_namespaces(kit),
        _ => run_outside_namespaces(&options),
    };
    done.unwrap_or_else(|fault| {
        eprintln!("e2e: {fault}");
        ExitCode::FAILURE
    })
}

/// Runs the command as started by the user, outside the namespaces.
fn run_outside_namespaces(options: &Options) -> Result<ExitCode, TestError> {
    if options.list {
        for case in cases::all() {
            println!("{:<60} {}", case.name, case.needs());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(variant) = options.image {
        image::pack_product(variant, &options.profile)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(missing) = prerequisites::missing(options) {
        eprintln!("e2e: SKIPPED, all of it: {missing}");
        return Ok(ExitCode::from(EXIT_SKIPPED));
    }
    let kit = prepare::collect(options)?;
    if options.kubeconfig.is_some() { run::run_on_existing_cluster(kit) } else { namespaces::run_in_namespaces(&kit) }
}
