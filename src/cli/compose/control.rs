//! Other settings for a running proxy: all at once, or none.
//!
//! The core gets its limits first and says that it has them, then calls that begin see the new routes: a call may only name a scope that the core knows. What
//! is queued leaves under the new limits, what is in flight is untouched, and a call keeps the routes and headers that it began with. What stands under
//! `proxy` was used at the start; a change of it is told as pending.
//!
//! After crashes (`keep::crashes`) everything passes through for a while, whatever the settings say: those that come meanwhile are kept until it is over.
//!
//! What it leaves out: when settings are read again, and from where (`reload`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Value, json};

use super::super::keep::crashes::{CRASHES, WITHIN};
use super::port::{self, Reach};
use super::scopes::Scopes;
use super::{core_limits, published_limits};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::{Change, LoadError, Policy, Setting};
use crate::telemetry::Metrics;
use crate::telemetry::names::Reload;

/// As `/api/config` says it of each setting that turns batching on.
pub(super) const CRASHED: &str = "crashed 3 times in 60 s";

/// Changes the settings of a running proxy.
#[derive(Debug, Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

/// What came of new settings.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// What is otherwise now.
    pub changes: Vec<Change>,
    /// What will be after the next start.
    pub pending: Vec<Change>,
}

#[derive(Debug)]
struct Inner {
    parts: Parts,
    /// One change at a time.
    turn: tokio::sync::Mutex<Turn>,
    shown: RwLock<Shown>,
    /// The controller's settings are in force, whatever a file says.
    told: AtomicBool,
}

/// What a change goes on from.
#[derive(Debug)]
struct Turn {
    scopes: Scopes,
    /// While everything passes through after crashes: what would be in force otherwise.
    wanted: Option<Policy>,
}

/// Everything passes through after crashes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Aside {
    /// Until then.
    pub(in super::super) until: Tick,
}

/// What a change reaches.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) ports: Vec<Reach>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// What is in force, and how it came to be.
#[derive(Debug)]
struct Shown {
    policy: Policy,
    pending: Vec<Change>,
    applied: u64,
    refused: u64,
    last: Option<Last>,
    aside: Option<Aside>,
}

/// The last change.
#[derive(Debug)]
struct Last {
    at: Tick,
    result: Reload,
    changes: Vec<Change>,
    /// What was wrong.
    why: Value,
}

// === impl Control ===

impl Control {
    /// `scopes` are those of `policy`, which is in force; `wanted` would be, did not everything pass through.
    pub(super) fn new(parts: Parts, policy: Policy, scopes: Scopes, aside: Option<(Aside, Policy)>) -> Self {
        let (aside, wanted) = aside.unzip();
        parts.metrics.crash_guard(aside.is_some());
        let shown = RwLock::new(Shown { policy, pending: Vec::new(), applied: 0, refused: 0, last: None, aside });
        let told = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { parts, turn: tokio::sync::Mutex::new(Turn { scopes, wanted }), shown, told }) }
    }

    /// Puts these settings in force, all but what stands under `proxy`.
    ///
    /// # Errors
    /// Why they cannot be; what was in force stays.
    pub async fn apply(&self, policy: Policy) -> Result<Applied, String> {
        let mut turn = self.inner.turn.lock().await;
        if turn.wanted.is_none() {
            return self.put(&mut turn.scopes, policy).await;
        }
        let applied = self.put(&mut turn.scopes, policy.clone().stepped_aside(CRASHED)).await?;
        turn.wanted = Some(policy);
        Ok(applied)
    }

    /// Time has passed without a crash: what is wanted is in force again.
    pub(super) async fn resume(&self) {
        let mut turn = self.inner.turn.lock().await;
        let Some(policy) = turn.wanted.take() else { return };
        self.write(|shown| shown.aside = None);
        self.inner.parts.metrics.crash_guard(false);
        match self.put(&mut turn.scopes, policy).await {
            Ok(_) => tracing::info!(
                "no crash for a while: the settings are in force again, and calls are batched as they say"
            ),
            Err(why) => tracing::error!(why, "no crash for a while, but the settings cannot be put in force again"),
        }
    }

    async fn put(&self, scopes: &mut Scopes, policy: Policy) -> Result<Applied, String> {
        let Inner { parts, .. } = &*self.inner;
        let before = self.shown(|shown| shown.policy.clone());
        let (policy, pending) = policy.within(&before);
        let mut next = scopes.clone();
        let ids = next.take(&policy)?;
        // What can be wrong is found before anything is changed.
        let tables = parts.ports.iter().map(|port| port.table(&policy, &ids)).collect::<Result<Vec<_>, _>>()?;
        for port in &parts.ports {
            if !port.scheduler.set_limits(core_limits(&policy, next.limits())).await {
                return Err("a scheduler has ended".to_owned());
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
        parts.metrics.reloaded(Reload::Applied, pending.len());
        let applied = Applied { changes: policy.changes(&before), pending };
        let (at, changes) = (parts.clock.now(), applied.changes.clone());
        self.write(|shown| {
            shown.policy = policy;
            shown.pending.clone_from(&applied.pending);
            shown.applied += 1;
            shown.last = Some(Last { at, result: Reload::Applied, changes, why: Value::Null });
        });
        Ok(applied)
    }

    /// Settings were read and are wrong: those before stay in force, and it is shown why.
    pub fn refused(&self, error: &Refusal) {
        let at = self.inner.parts.clock.now();
        let pending = self.write(|shown| {
            shown.refused += 1;
            shown.last = Some(Last { at, result: Reload::Refused, changes: Vec::new(), why: error.json() });
            shown.pending.len()
        });
        self.inner.parts.metrics.reloaded(Reload::Refused, pending);
    }

    /// Whether the servers are there that the settings in force ask for.
    pub(super) fn is_ready(&self) -> bool {
        self.shown(|shown| port::is_ready(&shown.policy, &self.inner.parts.ports))
    }

    /// From now on the controller says what is in force.
    pub(in super::super) fn is_told_from_now_on(&self) {
        self.inner.told.store(true, Ordering::Relaxed);
    }

    /// Whether the controller says what is in force.
    pub(in super::super) fn is_told(&self) -> bool {
        self.inner.told.load(Ordering::Relaxed)
    }

    /// Until when everything passes through after crashes.
    pub(in super::super) fn aside(&self) -> Option<Aside> {
        self.shown(|shown| shown.aside)
    }

    /// The same as JSON, for `/api/scheduler`.
    pub(super) fn aside_json(&self) -> Value {
        let now = self.inner.parts.clock.now();
        self.aside().map_or(Value::Null, |aside| {
            json!({
                "crashes": CRASHES,
                "within_seconds": WITHIN.as_secs(),
                "ends_in_seconds": aside.until.since(now).as_secs(),
            })
        })
    }

    /// The ports that it changes.
    pub(in super::super) fn ports(&self) -> &[Reach] {
        &self.inner.parts.ports
    }

    /// The clock of the process.
    pub(in super::super) fn clock(&self) -> Clock {
        self.inner.parts.clock
    }

    /// What adds up over ports.
    pub(in super::super) fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.parts.metrics
    }

    /// Settings that wait for the next start.
    pub(in super::super) fn pending(&self) -> usize {
        self.shown(|shown| shown.pending.len())
    }

    /// Every setting in force with its source, as JSON; `pending` beside those that a start would change.
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

    /// How the last change went, as JSON.
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

    fn shown<T>(&self, look: impl FnOnce(&Shown) -> T) -> T {
        // Nobody can panic while he writes it.
        look(&self.inner.shown.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Shown) -> T) -> T {
        change(&mut self.inner.shown.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why settings are not put in force.
#[derive(Debug)]
pub enum Refusal {
    /// They cannot be read, or say something wrong.
    Load(LoadError),
    /// Something else, in words.
    Because(String),
}

// === impl Refusal ===

impl Refusal {
    fn json(&self) -> Value {
        match self {
            Self::Load(LoadError::Wrong(errors)) => errors.json(),
            Self::Load(error @ LoadError::Unreadable { .. }) => json!([{"message": error.to_string()}]),
            Self::Because(why) => json!([{"message": why}]),
        }
    }
}

/// The limits of a policy as gauges; those of another source are over.
pub(super) fn publish(metrics: &Metrics, before: Option<&Policy>, policy: &Policy) {
    let before = before.map(published_limits);
    for (index, (limit, source, value)) in published_limits(policy).into_iter().enumerate() {
        if let Some((_, old, _)) = before.as_ref().and_then(|before| before.get(index))
            && *old != source
        {
            metrics.limit_gone(limit, old);
        }
        metrics.limit(limit, source, value);
    }
}
