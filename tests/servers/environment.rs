//! Environments of servers and clients. Packages that exclude each other are in virtual
//! environments of their own, which `e2e/python/setup.sh` installs from `PyPI` and keeps.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Bench;
use super::python::Python;

/// An environment with pinned packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Environment {
    /// That of `tests/servers/requirements.txt`, installed by `setup.sh`.
    Base,
    /// That of `e2e/python/requirements/NAME.txt`.
    Venv(&'static str),
    /// The packages of `tests/servers/node` and the `node` of this machine.
    Node,
}

// === impl Environment ===

impl Environment {
    /// Returns the environment's interpreter, and installs packages that are missing.
    ///
    /// # Errors
    /// Describes what cannot be installed.
    pub(crate) fn open(self, bench: &Bench) -> Result<Python, String> {
        match self {
            Self::Base => Ok(bench.python.clone()),
            Self::Venv(name) => {
                let venv = install("e2e/python/setup.sh", &[name])?;
                Ok(Python::new(venv.join("bin/python")))
            }
            Self::Node => Ok(Python::node(install("tests/servers/node/setup.sh", &[])?)),
        }
    }

    /// Returns the pinned version of a package.
    pub(crate) fn version(self, package: &str) -> Option<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = match self {
            Self::Base => root.join("tests/servers/requirements.txt"),
            Self::Venv(name) => root.join(format!("e2e/python/requirements/{name}.txt")),
            Self::Node => return None,
        };
        let text = std::fs::read_to_string(file).ok()?;
        let pins = text.lines().filter_map(|line| line.split_once("=="));
        let mut found = pins.filter(|(name, _)| name.split('[').next() == Some(package));
        found.next().map(|(_, version)| version.to_owned())
    }
}

/// Runs a script that prints the folder of an environment, which is complete then.
fn install(script: &str, args: &[&str]) -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let done = Command::new("sh").arg(path).args(args).output().map_err(|e| format!("{script}: {e}"))?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() {
        let reason = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason").to_owned();
        return Err(format!("{script} {} failed: {reason}", args.join(" ")));
    }
    let stdout = String::from_utf8_lossy(&done.stdout);
    stdout.lines().last().map(PathBuf::from).ok_or_else(|| format!("{script} prints no folder"))
}
