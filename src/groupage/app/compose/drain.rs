//! The drain task: carries out the decisions of the drain state machine (`drain_state`).
//!
//! It stops the schedulers from holding calls, signals clients to disconnect, and answers pending
//! `preStop` hooks. While the process serves, the task only waits for commands. It does not end the
//! process (`RunningApp::drain`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use tokio::sync::{mpsc, oneshot, watch};

use super::drain_state::{DrainInputs, DrainOutputs, DrainState, DrainTimes};
use super::port::PortHandle;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::proxy::{Connections, ListenerControl, ListenerState};
use crate::telemetry::Metrics;

/// Capacity of the command channel. Commands come from the hooks of a pod's containers, of which
/// there are few; further senders wait.
const COMMANDS_MAX: usize = 16;

/// A handle to the drain task: starts a drain or a flush.
#[derive(Debug, Clone)]
pub(super) struct DrainHandle {
    commands: mpsc::Sender<DrainCommand>,
    status: Arc<DrainStatus>,
    /// `true` while clients are signalled to disconnect.
    leaving: watch::Receiver<bool>,
}

/// State of the drain that is readable without a message to its task.
#[derive(Debug)]
struct DrainStatus {
    /// `true` while the process is not ready.
    leaving: AtomicBool,
    /// Name of the stage.
    stage: std::sync::Mutex<&'static str>,
}

#[derive(Debug)]
enum DrainCommand {
    /// Flush, and reply at its end whether all calls were answered.
    Flush(oneshot::Sender<bool>),
    /// Drain, and reply with the instant at which the drain began.
    Drain(oneshot::Sender<Tick>),
}

/// Components that a drain acts on.
#[derive(Debug)]
pub(super) struct DrainedParts {
    pub(super) clock: Clock,
    pub(super) ports: Vec<(PortHandle, ListenerControl)>,
    pub(super) connections: Arc<Connections>,
    pub(super) metrics: Arc<Metrics>,
}

/// The drain task. It ends with the process.
struct DrainTask {
    state: DrainState,
    parts: DrainedParts,
    inbox: mpsc::Receiver<DrainCommand>,
    status: Arc<DrainStatus>,
    leaving: watch::Sender<bool>,
    /// For each port, the number of times that its application accepted connections again.
    returns: Vec<watch::Receiver<u64>>,
    /// Hooks that wait for the end of the drain.
    waiting: Vec<oneshot::Sender<bool>>,
    /// Outputs that were carried out last; `None` before the first.
    previous: Option<DrainOutputs>,
}

/// An event that may change the outputs.
enum DrainEvent {
    Command(DrainCommand),
    /// Connections have ended, or an application has returned.
    Observed,
    /// The instant of the next change has come.
    Elapsed,
    /// All handles are dropped, or a port has stopped.
    Stopped,
}

// === impl DrainHandle ===

impl DrainHandle {
    /// Starts the task. Must be called inside a tokio runtime.
    pub(super) fn start(times: DrainTimes, parts: DrainedParts) -> Self {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let status = Arc::new(DrainStatus { leaving: AtomicBool::new(false), stage: std::sync::Mutex::new("serving") });
        let (leaving_sender, leaving) = watch::channel(false);
        let task = DrainTask {
            state: DrainState::new(times),
            returns: parts.ports.iter().map(|(port, _)| port.upstream.recoveries()).collect(),
            parts,
            inbox,
            status: status.clone(),
            leaving: leaving_sender,
            waiting: Vec::new(),
            previous: None,
        };
        tokio::spawn(task.run());
        Self { commands, status, leaving }
    }

    /// Returns `false` once the drain makes the process unready.
    pub(super) fn is_ready(&self) -> bool {
        !self.status.leaving.load(Ordering::Relaxed)
    }

    /// Returns `serving`, `flushing` or `draining`.
    pub(super) fn stage(&self) -> &'static str {
        self.status.stage.lock().map_or("draining", |stage| *stage)
    }

    /// Starts a flush, since the application is about to be stopped. Resolves when it may stop,
    /// with `true` if all calls were answered.
    pub(super) async fn flush(&self) -> bool {
        let (done, over) = oneshot::channel();
        // A stopped task means that the process has ended and has no calls left.
        if self.commands.send(DrainCommand::Flush(done)).await.is_err() {
            return true;
        }
        over.await.unwrap_or(true)
    }

    /// Starts a drain, since the process is about to be stopped, and returns the instant at which
    /// it began. The process continues to serve.
    pub(super) async fn drain(&self) -> Option<Tick> {
        let (reply, since) = oneshot::channel();
        self.commands.send(DrainCommand::Drain(reply)).await.ok()?;
        since.await.ok()
    }

    /// Resolves once clients are signalled to disconnect.
    pub(super) async fn leaving(&self) {
        // An error means that the task has stopped, so that no clients are left.
        self.leaving.clone().wait_for(|leaving| *leaving).await.ok();
    }
}

// === impl DrainTask ===

impl DrainTask {
    async fn run(mut self) {
        loop {
            let inputs = self.observe();
            let outputs = self.state.poll(self.parts.clock.now(), inputs);
            self.carry_out(outputs).await;
            let event = self.next_event(outputs).await;
            if !self.handle(event, outputs).await {
                return;
            }
        }
    }

    fn observe(&self) -> DrainInputs {
        DrainInputs {
            open: self.parts.connections.open_count(),
            returns: self.returns.iter().map(|port| *port.borrow()).sum(),
        }
    }

    /// Acts on the outputs that have changed.
    async fn carry_out(&mut self, outputs: DrainOutputs) {
        let previous = self.previous.replace(outputs);
        // Act only on changes. The schedulers start in the serving state, so the first round
        // resumes nothing.
        if previous.is_none_or(|previous| previous.flushed != outputs.flushed)
            && (outputs.flushed || previous.is_some())
        {
            join_all(self.parts.ports.iter().map(|(port, _)| async {
                if outputs.flushed { port.scheduler.drain().await } else { port.scheduler.resume().await }
            }))
            .await;
            self.parts.metrics.set_draining(outputs.flushed);
        }
        if previous.is_none_or(|previous| previous.leaving != outputs.leaving) {
            let state = if outputs.leaving { ListenerState::Draining } else { ListenerState::Serving };
            self.parts.ports.iter().for_each(|(_, listener)| listener.set_state(state));
            self.status.leaving.store(outputs.leaving, Ordering::Relaxed);
            self.leaving.send_replace(outputs.leaving);
        }
        if previous.is_none_or(|previous| previous.stage != outputs.stage) {
            if let Ok(mut stage) = self.status.stage.lock() {
                *stage = outputs.stage;
            }
            if previous.is_some() {
                tracing::info!(stage = outputs.stage, "{}", stage_message(outputs.stage));
            }
        }
        if let Some(all_answered) = outputs.over {
            // The hook's connection may be closed by now.
            self.waiting.drain(..).for_each(|hook| _ = hook.send(all_answered));
        }
    }

    /// Waits for the next event that matters in the current stage.
    async fn next_event(&mut self, outputs: DrainOutputs) -> DrainEvent {
        let Self { parts, inbox, returns, waiting, .. } = self;
        let returned = select_all(returns.iter_mut().map(|port| port.changed().boxed()));
        // The end of the last connection matters only to hooks, and only once clients are signalled
        // to disconnect.
        let awaits_close = !waiting.is_empty() && outputs.leaving;
        tokio::select! {
            command = inbox.recv() => command.map_or(DrainEvent::Stopped, DrainEvent::Command),
            () = parts.connections.wait_until_closed(), if awaits_close => DrainEvent::Observed,
            (change, ..) = returned, if outputs.flushed => {
                if change.is_ok() { DrainEvent::Observed } else { DrainEvent::Stopped }
            }
            () = sleep_until(parts.clock, outputs.until) => DrainEvent::Elapsed,
        }
    }

    /// Handles an event. Returns `false` if the task ends.
    async fn handle(&mut self, event: DrainEvent, outputs: DrainOutputs) -> bool {
        match event {
            DrainEvent::Command(DrainCommand::Flush(done)) => {
                let inputs = self.observe();
                self.state.on_flush(self.parts.clock.now(), inputs);
                self.waiting.push(done);
            }
            // The hook's connection may be closed by now.
            DrainEvent::Command(DrainCommand::Drain(reply)) => {
                _ = reply.send(self.state.on_drain(self.parts.clock.now()));
            }
            DrainEvent::Elapsed if outputs.probe => {
                // A server that refuses the connection is probed until it accepts again; that
                // counts as a return.
                join_all(self.parts.ports.iter().map(|(port, _)| port.upstream.check_connection())).await;
            }
            DrainEvent::Observed | DrainEvent::Elapsed => {}
            DrainEvent::Stopped => return false,
        }
        true
    }
}

async fn sleep_until(clock: Clock, until: Option<Tick>) {
    match until {
        Some(until) => tokio::time::sleep_until(clock.instant(until)).await,
        None => std::future::pending().await,
    }
}

fn stage_message(stage: &str) -> &'static str {
    match stage {
        "flushing" => "the application is about to stop: calls are no longer held",
        "draining" => "draining: calls are no longer held, and every accepted call is answered",
        _ => "the application is running again: serving as before",
    }
}
