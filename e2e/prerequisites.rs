//! Prerequisites of the cluster and its cases: the paths of the programs and the container images
//! that a run requires.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::TestError;
use super::image::ImageArchive;
use super::options::Options;
use super::programs::{find_program, run_quietly};

/// Minimum Go version, required by Kubernetes 1.36.
const GO_MIN: (u32, u32) = (1, 26);

/// Paths of everything that a run requires. Entries that its cases do not require are absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Prerequisites {
    /// Names of the cases to run.
    pub(crate) cases: Vec<String>,
    /// `true` to run the cases at full length.
    pub(crate) all: bool,
    /// Cargo profile of the image's binary.
    pub(crate) profile: String,
    /// `true` to open a shell instead of running the cases.
    pub(crate) shell: bool,
    /// A single binary with etcd, Kubernetes and kubectl.
    pub(crate) kube: PathBuf,
    /// Path of helm, or the reason for its absence.
    pub(crate) helm: Result<PathBuf, String>,
    /// Interpreter with the packages of `tests/servers`, or the reason for its absence.
    pub(crate) python: Result<PathBuf, String>,
    /// Interpreters of the virtual environments of `e2e/python/requirements`, by name, or the
    /// reason for the absence of one.
    pub(crate) venvs: BTreeMap<String, Result<PathBuf, String>>,
    /// Container images of the run.
    pub(crate) images: Images,
    /// Folder for diagnostics of failed cases.
    pub(crate) output_dir: PathBuf,
    /// Number that distinguishes concurrent runs.
    pub(crate) run: u32,
    /// Configuration of an existing cluster, if one is used.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Container images of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Images {
    /// The released image.
    pub(crate) groupage: ImageArchive,
    /// The test kit: a simulated model server and a client.
    pub(crate) stand_in: ImageArchive,
    /// The pause image, which every pod contains.
    pub(crate) pause: ImageArchive,
    /// The released image with CUDA support, if a selected case requires it at full length.
    pub(crate) cuda: Option<ImageArchive>,
    /// The program in the first two images.
    pub(crate) binary: PathBuf,
}

/// Returns the first missing prerequisite of this machine, in one line.
pub(crate) fn missing(options: &Options) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("needs Linux".to_owned());
    }
    if options.kubeconfig.is_some() && find_program("kubectl").is_some() {
        return None;
    }
    if options.kubeconfig.is_none() && !rustix::process::geteuid().is_root() {
        return Some("needs root, for namespaces and containers (or --kubeconfig FILE)".to_owned());
    }
    let (major, minor) = GO_MIN;
    match go_version() {
        Some(version) if version >= GO_MIN => None,
        Some((has, has_minor)) => Some(format!("needs Go {major}.{minor} or newer, and this is {has}.{has_minor}")),
        None => Some(format!("needs Go {major}.{minor} or newer, to build Kubernetes")),
    }
}

fn go_version() -> Option<(u32, u32)> {
    let output = run_quietly(Command::new("go").args(["env", "GOVERSION"])).ok()?;
    let mut parts = output.trim().strip_prefix("go")?.split('.').map(|part| part.parse().unwrap_or(0));
    Some((parts.next()?, parts.next()?))
}

// === impl Prerequisites ===

impl Prerequisites {
    /// Returns the interpreter of a virtual environment of `e2e/python/requirements`, or the reason
    /// for its absence.
    pub(crate) fn venv(&self, name: &str) -> Result<PathBuf, String> {
        self.venvs.get(name).cloned().unwrap_or_else(|| Err("not selected".to_owned()))
    }
}

// === impl Images ===

impl Images {
    pub(crate) fn all(&self) -> impl Iterator<Item = &ImageArchive> {
        [&self.groupage, &self.stand_in, &self.pause].into_iter().chain(&self.cuda)
    }

    /// Loads the images onto the nodes of an existing cluster, or replaces their registry by one
    /// that the nodes can pull from.
    pub(crate) fn offer(&mut self, options: &Options) -> Result<(), TestError> {
        for image in [&mut self.groupage, &mut self.stand_in].into_iter().chain(&mut self.cuda) {
            if let Some(registry) = &options.registry {
                let name = image.reference.split_once('/').map_or(image.reference.as_str(), |(_, name)| name);
                image.reference = format!("{}/{name}", registry.trim_end_matches('/'));
            }
            if let Some(command) = &options.load_images {
                let mut words = command.split_whitespace();
                let program = words.next().ok_or("--load-images names no program")?;
                run_quietly(Command::new(program).args(words).arg(&image.archive))?;
            }
        }
        Ok(())
    }
}
