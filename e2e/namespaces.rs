//! Entry into the namespaces, and cleanup after a run.
//!
//! A run consists of three processes of this program. The first is started by the user, prepares
//! the run and waits for it. `unshare` starts the second as the init process of the new namespaces,
//! which only reaps orphans, such as containers' shims. The third starts the cluster and runs the
//! cases. When the second exits, the kernel kills all other processes of the namespaces. When the
//! first is killed, the second is killed too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{WaitOptions, waitpid};

use super::TestError;
use super::prerequisites::Prerequisites;

/// Prefix of the run's control-group folders, followed by the number of the run.
const CGROUP: &str = "groupage-e2e-";
/// Mount point of control groups. Version 1 has one folder for each controller in it.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Runs the third process in the namespaces and waits for it.
pub(crate) fn run_in_namespaces(kit: &Prerequisites) -> Result<ExitCode, TestError> {
    remove_cgroups(None)?;
    let hierarchies = hierarchies()?;
    for hierarchy in &hierarchies {
        std::fs::create_dir_all(hierarchy.join(cgroup(kit.run)))?;
    }
    let file = kit.output_dir.join(format!("kit-{}.json", kit.run));
    std::fs::write(&file, serde_json::to_vec(kit)?)?;
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe()?)
        .arg("--init")
        .arg(&file)
        .status()
        .map_err(|error| format!("cannot start setpriv and unshare (util-linux): {error}"))?;
    std::fs::remove_file(&file)?;
    remove_cgroups(Some(kit.run))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns the name of a run's control group.
pub(crate) fn cgroup(run: u32) -> String {
    format!("{CGROUP}{run}")
}

/// Runs the init process: reaps all processes and exits with the third.
pub(crate) fn run_init(kit: &Path) -> Result<ExitCode, TestError> {
    let child = Command::new(std::env::current_exe()?).arg("--inside").arg(kit).spawn()?;
    let child = i32::try_from(child.id())?;
    loop {
        match waitpid(None, WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == child => {
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns every control-group hierarchy: one for version 2, one for each controller for version 1.
fn hierarchies() -> Result<Vec<PathBuf>, TestError> {
    let root = PathBuf::from(CGROUPS);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // Some controllers are symbolic links to another hierarchy.
        if path.is_dir() && !path.is_symlink() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Removes the control groups of this run, or of all runs that have ended. These empty folders are
/// all that outlives the namespaces.
fn remove_cgroups(run: Option<u32>) -> Result<(), TestError> {
    for hierarchy in hierarchies()? {
        for entry in std::fs::read_dir(&hierarchy)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_prefix(CGROUP)) else { continue };
            let over = match run {
                Some(run) => number == run.to_string(),
                None => !Path::new("/proc").join(number).exists(),
            };
            if over {
                remove_cgroup(&entry.path());
            }
        }
    }
    Ok(())
}

fn remove_cgroup(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    // A control group that is still in use is removed by a later run.
    std::fs::remove_dir(folder).ok();
}
