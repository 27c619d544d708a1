//! `e2e [CASE…]`: everything for real, on a Kubernetes cluster that this starts itself and takes down again.
//!
//! Etcd, the control plane and the node agents come as one binary from a Go module (`kube/`, cached by what it is made of), container runtime and network
//! plugins from Debian, images from our own packer (`image`). All of it runs in network, mount and process namespaces of its own: no port can clash, nothing
//! is sent outside, several may run side by side, and when the command ends every process is gone. `--kubeconfig FILE` runs the same cases on a cluster that
//! is there already. `just e2e`; `docs/testing.md` says how to add a case.
//!
//! Whoever lacks what it takes (root, Linux, Go) is told so in one line, and the exit status is 77.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a runner for people and scripts")]

mod caller;
mod cases;
mod cluster;
mod enter;
mod image;
mod installation;
mod keep;
mod kit;
mod options;
mod run;
mod silent;
mod space;
mod tools;

use std::process::ExitCode;

use clap::Parser;

use self::options::Options;

/// What went wrong, in words.
type Fault = Box<dyn std::error::Error + Send + Sync>;
/// What a case says of itself: numbers, or what is wrong.
type Verdict = Result<String, Fault>;

/// What does not run for want of something says so with this (automake's convention).
const EXIT_SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (&options.init, &options.inside) {
        (Some(kit), _) => enter::init(kit),
        (_, Some(kit)) => run::inside(kit),
        _ => outside(&options),
    };
    done.unwrap_or_else(|fault| {
        eprintln!("e2e: {fault}");
        ExitCode::FAILURE
    })
}

/// What the user started.
fn outside(options: &Options) -> Result<ExitCode, Fault> {
    if options.list {
        for case in cases::all() {
            println!("{:<60} {}", case.name, case.needs());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if options.image {
        image::product(&options.profile)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(missing) = kit::missing(options) {
        eprintln!("e2e: SKIPPED, all of it: {missing}");
        return Ok(ExitCode::from(EXIT_SKIPPED));
    }
    let kit = kit::gather(options)?;
    if options.kubeconfig.is_some() { run::elsewhere(kit) } else { enter::enter(&kit) }
}
