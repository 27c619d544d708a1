//! Reconfiguration of a running proxy: new settings take effect all at once, or not at all.
//!
//! The core receives its limits first and confirms them; only then do new calls use the new routes,
//! because a call may only name a scope that the core knows. Queued calls are dispatched under the
//! new limits, calls in flight are untouched, and a call keeps the routes and headers that it began
//! with. Settings below `proxy` are used only at the start; changes of them are reported as
//! pending.
//!
//! After crashes (`keep::crash_guard`) everything passes through for a while, whatever the settings
//! are. Settings that arrive meanwhile take effect afterwards. When and from where settings are
//! read is decided elsewhere (`reload`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Value, json};

use super::super::state_dir::crash_guard::{CRASH_COUNT, CRASH_WINDOW};
use super::port::{self, PortHandle};
use super::scopes::ScopeRegistry;
use super::{core_limits, published_limits};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::{LoadError, Policy, Setting, SettingChange};
use crate::telemetry::Metrics;
use crate::telemetry::names::ReloadResult;

/// Source of each setting that turns batching on, as shown by `/api/config` in the crash guard's
/// pass-through mode.
pub(super) const CRASH_GUARD_SOURCE: &str = "crashed 3 times in 60 s";

/// A handle that changes the settings of a running proxy.
#[derive(Debug, Clone)]
pub struct SettingsHandle {
    inner: Arc<Inner>,
}

/// Result of applying new settings.
#[derive(Debug, Clone, Default)]
pub struct AppliedSettings {
    /// Changes that are in force now.
    pub changes: Vec<SettingChange>,
    /// Changes that take effect at the next start.
    pub pending: Vec<SettingChange>,
}

#[derive(Debug)]
struct Inner {
    parts: Parts,
    /// Serializes changes.
    turn: tokio::sync::Mutex<ChangeState>,
    shown: RwLock<SettingsState>,
    /// The settings come from the controller, and a file's are ignored.
    told: AtomicBool,
}

/// State that is carried from one change to the next.
#[derive(Debug)]
struct ChangeState {
    scopes: ScopeRegistry,
    /// In pass-through mode after crashes: the settings that are in force afterwards.
    wanted: Option<Policy>,
}

/// Pass-through mode after crashes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct CrashPassthrough {
    /// End of the pass-through mode.
    pub(in super::super) until: Tick,
}

/// Components that a change of settings acts on.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) ports: Vec<PortHandle>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// The settings in force and the history of their changes.
#[derive(Debug)]
struct SettingsState {
    policy: Policy,
    pending: Vec<SettingChange>,
    applied: u64,
    refused: u64,
    last: Option<LastChange>,
    aside: Option<CrashPassthrough>,
}

/// Result of the last change.
#[derive(Debug)]
struct LastChange {
    at: Tick,
    result: ReloadResult,
    changes: Vec<SettingChange>,
    /// Errors of a refused change.
    why: Value,
}

// === impl SettingsHandle ===

impl SettingsHandle {
    /// Creates the handle. `policy` is in force and `scopes` are its own. `aside` has the
    /// pass-through mode and the policy to resume afterwards.
    pub(super) fn new(
        parts: Parts,
        policy: Policy,
        scopes: ScopeRegistry,
        aside: Option<(CrashPassthrough, Policy)>,
    ) -> Self {
        let (aside, wanted) = aside.unzip();
        parts.metrics.crash_guard(aside.is_some());
        let shown =
            RwLock::new(SettingsState { policy, pending: Vec::new(), applied: 0, refused: 0, last: None, aside });
        let told = AtomicBool::new(false);
        Self {
            inner: Arc::new(Inner {
                parts,
                turn: tokio::sync::Mutex::new(ChangeState { scopes, wanted }),
                shown,
                told,
            }),
        }
    }

    /// Puts new settings in force, except those below `proxy`.
    ///
    /// # Errors
    /// The reason why they cannot be applied. The previous settings stay in force.
    pub async fn apply(&self, policy: Policy) -> Result<AppliedSettings, String> {
        let mut turn = self.inner.turn.lock().await;
        if turn.wanted.is_none() {
            return self.put(&mut turn.scopes, policy).await;
        }
        let applied = self.put(&mut turn.scopes, policy.clone().into_passthrough(CRASH_GUARD_SOURCE)).await?;
        turn.wanted = Some(policy);
        Ok(applied)
    }

    /// Ends the pass-through mode after a time without a crash, and puts the pending settings in
    /// force.
    pub(super) async fn resume(&self) {
        let mut turn = self.inner.turn.lock().await;
        let Some(policy) = turn.wanted.take() else { return };
        self.write(|shown| shown.aside = None);
        self.inner.parts.metrics.crash_guard(false);
        match self.put(&mut turn.scopes, policy).await {
            Ok(_) => {
                tracing::info!("no crash since the restart: the settings are in force again and calls are batched");
            }
            Err(why) => tracing::error!(why, "no crash since the restart, but the settings cannot be applied again"),
        }
    }

    async fn put(&self, scopes: &mut ScopeRegistry, policy: Policy) -> Result<AppliedSettings, String> {
        let Inner { parts, .. } = &*self.inner;
        let before = self.shown(|shown| shown.policy.clone());
        let (policy, pending) = policy.within(&before);
        let mut next = scopes.clone();
        let ids = next.take(&policy)?;
        // Find every error before anything is changed.
        let tables = parts.ports.iter().map(|port| port.table(&policy, &ids)).collect::<Result<Vec<_>, _>>()?;
        // The cores must know the new scopes before any call can name them.
        for port in &parts.ports {
            if !port.scheduler.set_limits(core_limits(&policy, next.limits())).await {
                return Err("a scheduler has stopped".to_owned());
            }
            port.onlooker.set_limits(core_limits(&policy, next.limits())).await;
        }
        *scopes = next;
        let replay_permille = policy.failure.replay_budget.ppm() / 1000;
        for (port, table) in parts.ports.iter().zip(tables) {
            port.upstream.set_failure(policy.failure.isolate_above, replay_permille);
            port.proxy.set_table(table);
        }
        publish(&parts.metrics, Some(&before), &policy);
        parts.metrics.record_reload(ReloadResult::Applied, pending.len());
        let applied = AppliedSettings { changes: policy.changes(&before), pending };
        let (at, changes) = (parts.clock.now(), applied.changes.clone());
        self.write(|shown| {
            shown.policy = policy;
            shown.pending.clone_from(&applied.pending);
            shown.applied += 1;
            shown.last = Some(LastChange { at, result: ReloadResult::Applied, changes, why: Value::Null });
        });
        Ok(applied)
    }

    /// Records that settings were read and are invalid. Those before stay in force.
    pub fn refused(&self, error: &SettingsRefusal) {
        let at = self.inner.parts.clock.now();
        let pending = self.write(|shown| {
            shown.refused += 1;
            shown.last = Some(LastChange { at, result: ReloadResult::Refused, changes: Vec::new(), why: error.json() });
            shown.pending.len()
        });
        self.inner.parts.metrics.record_reload(ReloadResult::Refused, pending);
    }

    /// Returns `true` if the servers are ready that the settings in force require.
    pub(super) fn is_ready(&self) -> bool {
        self.shown(|shown| port::is_ready(&shown.policy, &self.inner.parts.ports))
    }

    /// Marks the controller as the source of the settings from now on.
    pub(in super::super) fn is_told_from_now_on(&self) {
        self.inner.told.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the settings come from the controller.
    pub(in super::super) fn is_told(&self) -> bool {
        self.inner.told.load(Ordering::Relaxed)
    }

    /// Returns the pass-through mode after crashes, if it is on.
    pub(in super::super) fn aside(&self) -> Option<CrashPassthrough> {
        self.shown(|shown| shown.aside)
    }

    /// Returns the pass-through mode as JSON, for `/api/scheduler`.
    pub(super) fn crash_passthrough_json(&self) -> Value {
        let now = self.inner.parts.clock.now();
        self.aside().map_or(Value::Null, |aside| {
            json!({
                "crashes": CRASH_COUNT,
                "within_seconds": CRASH_WINDOW.as_secs(),
                "ends_in_seconds": aside.until.since(now).as_secs(),
            })
        })
    }

    /// Returns the ports that the settings apply to.
    pub(in super::super) fn ports(&self) -> &[PortHandle] {
        &self.inner.parts.ports
    }

    /// Returns the clock of the process.
    pub(in super::super) fn clock(&self) -> Clock {
        self.inner.parts.clock
    }

    /// Returns the metrics of the process.
    pub(in super::super) fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.parts.metrics
    }

    /// Returns the number of settings that take effect at the next start.
    pub(in super::super) fn pending(&self) -> usize {
        self.shown(|shown| shown.pending.len())
    }

    /// Returns every setting in force with its source, as JSON. `pending` has the value that the
    /// next start would use, if it differs.
    pub(super) fn config(&self) -> Value {
        self.shown(|shown| {
            let wanted = |path: &str| shown.pending.iter().find(|change| change.path == path);
            let entry = |setting: &Setting| {
                let mut entry = json!({"value": setting.value, "source": setting.source.to_string()});
                if let Some(change) = wanted(&setting.path) {
                    entry["pending"] = change.to.clone().into();
                }
                (setting.path.clone(), entry)
            };
            Value::Object(shown.policy.effective().iter().map(entry).collect())
        })
    }

    /// Returns the result of the last change, as JSON.
    pub(super) fn reload(&self) -> Value {
        let now = self.inner.parts.clock.now();
        self.shown(|shown| {
            let last = shown.last.as_ref().map(|last| {
                json!({
                    "result": last.result.as_str(),
                    "seconds_ago": now.since(last.at).as_secs(),
                    "changes": last.changes,
                    "why": last.why,
                })
            });
            json!({"applied": shown.applied, "refused": shown.refused, "last": last, "pending": shown.pending})
        })
    }

    fn shown<T>(&self, look: impl FnOnce(&SettingsState) -> T) -> T {
        // No code panics while holding this lock, so a poisoned lock is safe to use.
        look(&self.inner.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut SettingsState) -> T) -> T {
        change(&mut self.inner.shown.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reason why settings are not put in force.
#[derive(Debug)]
pub enum SettingsRefusal {
    /// They are unreadable or invalid.
    Load(LoadError),
    /// Any other reason, as a message.
    Because(String),
}

// === impl SettingsRefusal ===

impl SettingsRefusal {
    fn json(&self) -> Value {
        match self {
            Self::Load(LoadError::Wrong(errors)) => errors.json(),
            Self::Load(error @ LoadError::Unreadable { .. }) => json!([{"message": error.to_string()}]),
            Self::Because(why) => json!([{"message": why}]),
        }
    }
}

/// Publishes the limits of a policy as gauges, and removes gauges of a previous source.
pub(super) fn publish(metrics: &Metrics, before: Option<&Policy>, policy: &Policy) {
    let before = before.map(published_limits);
    for (index, (limit, source, value)) in published_limits(policy).into_iter().enumerate() {
        if let Some((_, old, _)) = before.as_ref().and_then(|before| before.get(index))
            && *old != source
        {
            metrics.clear_policy_limit(limit, old);
        }
        metrics.limit(limit, source, value);
    }
}
