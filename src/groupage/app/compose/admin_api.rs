//! The handlers of the admin ports: readiness, the pages of settings and scheduler, the `preStop`
//! hooks, and the connection test.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::drain::DrainHandle;
use super::model_server::ModelServer;
use super::port::PortHandle;
use super::reconfigure::SettingsHandle;
use super::resources::ProcessResources;
use crate::admin::{AdminState, ConnectTest, DrainHooks, JsonView, SchedulerReport};
use crate::telemetry::log::LevelHandle;

/// Components that the admin ports report and change.
#[derive(Debug)]
pub(super) struct AdminParts<'a> {
    pub(super) resources: &'a ProcessResources,
    pub(super) ports: Vec<PortHandle>,
    pub(super) control: &'a SettingsHandle,
    pub(super) drainer: &'a DrainHandle,
}

// === impl AdminParts ===

impl AdminParts<'_> {
    /// Builds the state of the admin ports. `drain_token` is that of the application's hook.
    pub(super) fn build(self, level: LevelHandle, drain_token: Option<String>) -> AdminState {
        let Self { resources, ports, control, drainer } = self;
        let ready = {
            let (drainer, control) = (drainer.clone(), control.clone());
            Arc::new(move || drainer.is_ready() && control.is_ready())
        };
        AdminState {
            metrics: resources.metrics.clone(),
            buffers: resources.buffers.clone(),
            level,
            clock: resources.clock,
            started: resources.clock.now(),
            ready,
            config: json_view(control, SettingsHandle::config),
            reload: json_view(control, SettingsHandle::reload),
            connects: connect_test(&ports),
            scheduler: scheduler_report(ports, control.clone()),
            drain: drain_hooks(drainer, drain_token),
        }
    }
}

/// Builds the handlers of the containers' `preStop` hooks.
fn drain_hooks(drainer: &DrainHandle, token: Option<String>) -> DrainHooks {
    let (flush, drain, stage) = (drainer.clone(), drainer.clone(), drainer.clone());
    DrainHooks {
        token,
        flush: Arc::new(move || {
            let flush = flush.clone();
            async move { flush.flush().await }.boxed()
        }),
        drain: Arc::new(move || {
            let drain = drain.clone();
            async move { drain.drain().await.is_some() }.boxed()
        }),
        stage: Arc::new(move || stage.stage()),
    }
}

/// Builds the handler that tests whether the application accepts connections at a captured port.
fn connect_test(ports: &[PortHandle]) -> ConnectTest {
    let captured = ports.iter().filter_map(|port| Some((port.capture.as_ref()?.port, port.upstream.clone())));
    let ports: BTreeMap<u16, ModelServer> = captured.collect();
    Arc::new(move |number| {
        let upstream = ports.get(&number).cloned();
        async move { Some(upstream?.can_connect().await) }.boxed()
    })
}

/// Builds an admin page that reads the current state on each request.
fn json_view(control: &SettingsHandle, render: fn(&SettingsHandle) -> Value) -> JsonView {
    let control = control.clone();
    Arc::new(move || render(&control))
}

/// Builds the page `/api/scheduler`, which on each request reads what each scheduler has learned
/// and the proxy's outcome counts. Several ports are listed one by one.
fn scheduler_report(ports: Vec<PortHandle>, control: SettingsHandle) -> SchedulerReport {
    Arc::new(move || {
        let (ports, control) = (ports.clone(), control.clone());
        Box::pin(async move {
            if let [port] = &ports[..] {
                return port_report(port, &control).await;
            }
            let all = join_all(ports.iter().map(|port| port_report(port, &control))).await;
            Some(json!({"ports": all.into_iter().collect::<Option<Vec<_>>>()?}))
        })
    })
}

async fn port_report(port: &PortHandle, control: &SettingsHandle) -> Option<Value> {
    let mut learned = port.learned().await?;
    learned["crash_guard"] = control.crash_passthrough_json();
    Some(learned)
}
