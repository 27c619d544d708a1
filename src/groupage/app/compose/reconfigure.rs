//! Reconfiguration of a running proxy: new settings take effect all at once, or not at all.
//!
//! The core receives its limits first and confirms them; only then do new calls use the new routes,
//! because a call may only name a scope that the core knows. Queued calls are dispatched under the
//! new limits, calls in flight are untouched, and a call keeps the routes and headers that it began
//! with. Settings below `engine` and `proxy` are used only at the start; changes of them are
//! reported as pending.
//!
//! After crashes (`state_dir::crash_guard`), all calls pass through for a while, whatever the
//! settings are. Settings that arrive meanwhile take effect afterwards.
//!
//! Left out: the sources of the settings, and the time at which they are read (`reload`, `stream`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use super::limits::{core_limits, publish_limits};
use super::port::{self, PortHandle};
use super::scopes::ScopeRegistry;
use super::settings_state::{AppliedSettings, SettingsRefusal, SettingsState};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::Policy;
use crate::telemetry::Metrics;
use crate::telemetry::names::ReloadResult;

/// Source of each setting that turns batching on, as shown by `/api/config` in the crash guard's
/// pass-through mode.
pub(super) const CRASH_GUARD_SOURCE: &str = "crashed 3 times in 60 s";

/// A handle that changes the settings of a running proxy.
#[derive(Debug, Clone)]
pub struct SettingsHandle {
    inner: Arc<SettingsInner>,
}

#[derive(Debug)]
struct SettingsInner {
    parts: ControlledParts,
    /// Locked during a change, so that changes are applied one after the other.
    change: tokio::sync::Mutex<ChangeState>,
    current: RwLock<SettingsState>,
    /// `true` if the settings come from the controller, so that those of a file are ignored.
    controlled: AtomicBool,
}

/// State that is carried from one change to the next.
#[derive(Debug)]
struct ChangeState {
    scopes: ScopeRegistry,
    /// The settings to put in force at the end of the pass-through mode after crashes; `None` while
    /// the mode is off.
    deferred: Option<Policy>,
}

/// Components that a change of settings acts on.
#[derive(Debug)]
pub(super) struct ControlledParts {
    pub(super) ports: Vec<PortHandle>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

// === impl SettingsHandle ===

impl SettingsHandle {
    /// Creates the handle. `policy` is in force, and its routes are registered in `scopes`. `aside`
    /// has the end of the pass-through mode after crashes, if it is on, and the policy to put in
    /// force afterwards.
    pub(super) fn new(
        parts: ControlledParts,
        policy: Policy,
        scopes: ScopeRegistry,
        aside: Option<(Tick, Policy)>,
    ) -> Self {
        let (passthrough_until, deferred) = aside.unzip();
        parts.metrics.set_crash_guard(passthrough_until.is_some());
        Self {
            inner: Arc::new(SettingsInner {
                parts,
                change: tokio::sync::Mutex::new(ChangeState { scopes, deferred }),
                current: RwLock::new(SettingsState::new(policy, passthrough_until)),
                controlled: AtomicBool::new(false),
            }),
        }
    }

    /// Puts new settings in force, except those below `engine` and `proxy`.
    ///
    /// # Errors
    /// The reason why they cannot be applied. The previous settings stay in force.
    pub async fn apply(&self, policy: Policy) -> Result<AppliedSettings, String> {
        let mut change = self.inner.change.lock().await;
        if change.deferred.is_none() {
            return self.put_in_force(&mut change.scopes, policy).await;
        }
        let applied =
            self.put_in_force(&mut change.scopes, policy.clone().into_passthrough(CRASH_GUARD_SOURCE)).await?;
        change.deferred = Some(policy);
        Ok(applied)
    }

    /// Ends the pass-through mode after crashes, and puts the deferred settings in force.
    pub(super) async fn resume(&self) {
        let mut change = self.inner.change.lock().await;
        let Some(policy) = change.deferred.take() else { return };
        self.update_state(|state| state.passthrough_until = None);
        self.inner.parts.metrics.set_crash_guard(false);
        match self.put_in_force(&mut change.scopes, policy).await {
            Ok(_) => {
                tracing::info!("no crash since the restart: the settings are in force again and calls are batched");
            }
            Err(reason) => {
                tracing::error!(reason, "no crash since the restart, but the settings cannot be applied again");
            }
        }
    }

    /// Validates settings for every port, and applies them to all. If a scheduler has stopped, some
    /// ports may have received the new limits.
    async fn put_in_force(&self, scopes: &mut ScopeRegistry, policy: Policy) -> Result<AppliedSettings, String> {
        let SettingsInner { parts, .. } = &*self.inner;
        let before = self.read_state(|state| state.policy.clone());
        let (policy, pending) = policy.hot_reload_onto(&before);
        let mut next = scopes.clone();
        let ids = next.register(&policy)?;
        // Find every error before anything is changed.
        let tables = parts.ports.iter().map(|port| port.table(&policy, &ids)).collect::<Result<Vec<_>, _>>()?;
        // The cores must know the new scopes before any call can name them.
        for port in &parts.ports {
            if !port.scheduler.set_limits(core_limits(&policy, next.limits())).await {
                return Err("a scheduler has stopped".to_owned());
            }
            port.shadow.set_limits(core_limits(&policy, next.limits())).await;
        }
        *scopes = next;
        let replay_ppm = policy.failure.replay_budget.ppm();
        for (port, table) in parts.ports.iter().zip(tables) {
            port.upstream.set_failure(policy.failure.isolate_above, replay_ppm);
            port.proxy.set_table(table);
        }
        publish_limits(&parts.metrics, Some(&before), &policy);
        parts.metrics.record_reload(ReloadResult::Applied, pending.len());
        let applied = AppliedSettings { changes: policy.changes(&before), pending };
        let at = parts.clock.now();
        self.update_state(|state| state.on_applied(at, policy, &applied));
        Ok(applied)
    }

    /// Records that settings were read and are invalid. Those before stay in force.
    pub fn record_refusal(&self, error: &SettingsRefusal) {
        let at = self.inner.parts.clock.now();
        let pending = self.update_state(|state| {
            state.on_refused(at, error);
            state.pending.len()
        });
        self.inner.parts.metrics.record_reload(ReloadResult::Refused, pending);
    }

    /// Returns `true` if the servers are ready that the settings in force require.
    pub(super) fn is_ready(&self) -> bool {
        self.read_state(|state| port::is_ready(&state.policy, &self.inner.parts.ports))
    }

    /// Marks the controller as the source of the settings from now on.
    pub(in crate::app) fn mark_controlled(&self) {
        self.inner.controlled.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the settings come from the controller.
    pub(in crate::app) fn is_controlled(&self) -> bool {
        self.inner.controlled.load(Ordering::Relaxed)
    }

    /// Returns the end of the pass-through mode after crashes, if it is on.
    pub(in crate::app) fn passthrough_until(&self) -> Option<Tick> {
        self.read_state(|state| state.passthrough_until)
    }

    /// Returns the pass-through mode as JSON, for `/api/scheduler`.
    pub(super) fn crash_passthrough_json(&self) -> Value {
        let now = self.inner.parts.clock.now();
        self.read_state(|state| state.crash_passthrough_json(now))
    }

    /// Returns the ports that the settings apply to.
    pub(in crate::app) fn ports(&self) -> &[PortHandle] {
        &self.inner.parts.ports
    }

    /// Returns the clock of the process.
    pub(in crate::app) fn clock(&self) -> Clock {
        self.inner.parts.clock
    }

    /// Returns the metrics of the process.
    pub(in crate::app) fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.parts.metrics
    }

    /// Returns the number of settings that take effect at the next start.
    pub(in crate::app) fn pending(&self) -> usize {
        self.read_state(|state| state.pending.len())
    }

    /// Returns every setting in force with its source, as JSON, for `/api/config`.
    pub(super) fn config(&self) -> Value {
        self.read_state(SettingsState::config_json)
    }

    /// Returns the result of the last change, as JSON.
    pub(super) fn reload(&self) -> Value {
        let now = self.inner.parts.clock.now();
        self.read_state(|state| state.reload_json(now))
    }

    fn read_state<T>(&self, read: impl FnOnce(&SettingsState) -> T) -> T {
        // No code panics while holding this lock, so a poisoned lock is safe to use.
        read(&self.inner.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn update_state<T>(&self, update: impl FnOnce(&mut SettingsState) -> T) -> T {
        update(&mut self.inner.current.write().unwrap_or_else(PoisonError::into_inner))
    }
}
