//! A process of the cluster with its own log, which cases about faults kill, suspend and restart.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::TestError;

/// Number of log lines in the report of a failure.
const TAIL_LINES: usize = 12;

/// A process that is expected to run. It is killed on drop.
#[derive(Debug)]
pub(crate) struct Component {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

// === impl Component ===

impl Component {
    /// Starts the process. Its log is appended to on every start.
    pub(super) fn start(name: &'static str, program: &Path, args: Vec<String>, logs: &Path) -> Result<Self, TestError> {
        let log = logs.join(name);
        let mut component = Self { name, program: program.to_owned(), args, log, child: None };
        component.restart()?;
        Ok(component)
    }

    /// Starts the process again if it does not run.
    pub(super) fn restart(&mut self) -> Result<(), TestError> {
        if self.exit_report().is_none() && self.child.is_some() {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().map_err(|error| format!("cannot start {}: {error}", self.name))?);
        Ok(())
    }

    /// Kills the process like `kill -9`, and waits for its exit.
    pub(super) fn kill(&mut self) -> Result<(), TestError> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Sends a signal to the process.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), TestError> {
        let child = self.child.as_ref().ok_or_else(|| format!("{} does not run", self.name))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Returns a report if the process has exited on its own.
    pub(super) fn exit_report(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        Some(format!("{} has ended ({status}):\n{}", self.name, self.tail()))
    }

    fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let last = lines.len().saturating_sub(TAIL_LINES);
        lines.get(last..).unwrap_or_default().iter().map(|line| format!("  | {line}\n")).collect()
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        // This only fails if the process has exited already.
        self.kill().ok();
    }
}

/// Writes a configuration file of a component and returns its path.
pub(super) fn write_config(file: &Path, text: &str) -> Result<String, TestError> {
    std::io::Write::write_all(&mut File::create(file)?, text.as_bytes())?;
    Ok(file.to_string_lossy().into_owned())
}
