//! The node of a cluster started by this run: its components and the processes in its containers,
//! for cases about faults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rustix::process::{Pid, Signal, kill_process};

use super::component::Component;
use crate::TestError;
use crate::programs::run_quietly;

/// Components that run beside the pods, by name.
#[derive(Debug)]
pub(crate) struct LocalNode {
    pub(super) components: Mutex<BTreeMap<&'static str, Component>>,
    /// Socket of containerd.
    pub(crate) socket: PathBuf,
}

// === impl LocalNode ===

impl LocalNode {
    fn components(&self) -> MutexGuard<'_, BTreeMap<&'static str, Component>> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_component<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut Component) -> Result<T, TestError>,
    ) -> Result<T, TestError> {
        let mut components = self.components();
        act(components.get_mut(name).ok_or_else(|| format!("no component {name}"))?)
    }

    /// Kills a component (`kube-apiserver`, `etcd`, `kubelet` …) like `kill -9`.
    pub(crate) fn kill(&self, name: &str) -> Result<(), TestError> {
        self.with_component(name, Component::kill)
    }

    /// Restarts a killed component with the same arguments.
    pub(crate) fn start(&self, name: &str) -> Result<(), TestError> {
        self.with_component(name, Component::restart)
    }

    /// Suspends a component (`SIGSTOP`) or resumes it (`SIGCONT`).
    pub(crate) fn set_suspended(&self, name: &str, hang: bool) -> Result<(), TestError> {
        let signal = if hang { Signal::STOP } else { Signal::CONT };
        self.with_component(name, |component| component.signal(signal))
    }

    /// Returns a report for each component that has exited on its own, with the end of its log.
    pub(crate) fn exit_reports(&self) -> Vec<String> {
        self.components().values_mut().filter_map(Component::exit_report).collect()
    }

    /// Returns the process ID of a container's first process, in the namespace of this program.
    pub(crate) fn pid(&self, pod: &Pod, container: &str) -> Result<Pid, TestError> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let status = pod.status.as_ref().ok_or_else(|| format!("pod {name} has no status"))?;
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let id = lists.into_iter().flatten().flatten().find(|status| status.name == container);
        let id = id.and_then(|status| status.container_id.as_deref()?.strip_prefix("containerd://"));
        let id = id.ok_or_else(|| format!("pod {name} has no running container {container}"))?;
        // The columns are TASK, PID and STATUS.
        let listed =
            run_quietly(Command::new("ctr").arg("-a").arg(&self.socket).args(["-n", "k8s.io", "tasks", "ls"]))?;
        let pid = listed.lines().find_map(|line| line.strip_prefix(id)?.split_whitespace().next()?.parse().ok());
        pid.and_then(Pid::from_raw).ok_or_else(|| format!("container {container} of pod {name} does not run").into())
    }

    /// Sends a signal to the first process of a container: `Signal::KILL` simulates a crash,
    /// `Signal::STOP` a process that hangs.
    pub(crate) fn signal(&self, pod: &Pod, container: &str, signal: Signal) -> Result<(), TestError> {
        Ok(kill_process(self.pid(pod, container)?, signal)?)
    }
}
