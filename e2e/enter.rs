//! The way into namespaces of our own, and what is left to clean up afterwards.
//!
//! Three processes of this program: the one that the user started prepares and waits; `unshare` starts the second as the first process of the new
//! namespaces, which does nothing but bury what dies there (containers' shims are orphans); the third starts the cluster and runs the cases. When the
//! second ends, the kernel kills all that is left; when the first is killed, so is the second.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{WaitOptions, waitpid};

use super::Fault;
use super::kit::Kit;

/// Of the folders that containers' control groups stand in; the rest is the number of the run.
const CGROUP: &str = "groupage-e2e-";
/// Control groups stand here, with a folder for each controller before version 2.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Runs the third process in its namespaces, to its end.
pub(crate) fn enter(kit: &Kit) -> Result<ExitCode, Fault> {
    sweep(None)?;
    let hierarchies = hierarchies()?;
    for hierarchy in &hierarchies {
        std::fs::create_dir_all(hierarchy.join(cgroup(kit.run)))?;
    }
    let file = kit.kept.join(format!("kit-{}.json", kit.run));
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
    sweep(Some(kit.run))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The name of a run's control group.
pub(crate) fn cgroup(run: u32) -> String {
    format!("{CGROUP}{run}")
}

/// The first process: buries everything that dies, and ends with the third.
pub(crate) fn init(kit: &Path) -> Result<ExitCode, Fault> {
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

/// Every folder with control groups of its own.
fn hierarchies() -> Result<Vec<PathBuf>, Fault> {
    let root = PathBuf::from(CGROUPS);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        // Some are other names of others.
        if path.is_dir() && !path.is_symlink() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Removes the control groups of this run, or of all runs that are over: empty folders, the one thing that outlives the namespaces.
fn sweep(run: Option<u32>) -> Result<(), Fault> {
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
                remove(&entry.path());
            }
        }
    }
    Ok(())
}

fn remove(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    // What is in use stays, and goes the next time.
    std::fs::remove_dir(folder).ok();
}
