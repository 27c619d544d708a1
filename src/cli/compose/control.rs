//! Other settings for a running proxy: all at once, or none.
//!
//! The core gets its limits first and says that it has them, then calls that begin see the new routes: a call may only name a scope that the core knows. What
//! is queued leaves under the new limits, what is in flight is untouched, and a call keeps the routes and headers that it began with. What stands under
//! `proxy` was used at the start; a change of it is told as pending.
//!
//! What it leaves out: when settings are read again, and from where (`reload`).

use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Value, json};

use super::scopes::Scopes;
use super::{core_limits, published_limits, table};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::config::{Change, LoadError, Policy, Setting};
use crate::proxy::Proxy;
use crate::scheduler::Handle;
use crate::telemetry::Metrics;
use crate::telemetry::names::Reload;
use crate::upstream::Upstream;

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
    scopes: tokio::sync::Mutex<Scopes>,
    shown: RwLock<Shown>,
}

/// What a change reaches.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) proxy: Arc<Proxy>,
    pub(super) scheduler: Handle,
    pub(super) upstream: Upstream,
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
    /// `scopes` are those of `policy`, which is in force.
    pub(super) fn new(parts: Parts, policy: Policy, scopes: Scopes) -> Self {
        let shown = RwLock::new(Shown { policy, pending: Vec::new(), applied: 0, refused: 0, last: None });
        Self { inner: Arc::new(Inner { parts, scopes: tokio::sync::Mutex::new(scopes), shown }) }
    }

    /// Puts these settings in force, all but what stands under `proxy`.
    ///
    /// # Errors
    /// Why they cannot be; what was in force stays.
    pub async fn apply(&self, policy: Policy) -> Result<Applied, String> {
        let Inner { parts, scopes, .. } = &*self.inner;
        let mut scopes = scopes.lock().await;
        let before = self.shown(|shown| shown.policy.clone());
        let (policy, pending) = policy.within(&before);
        let mut next = scopes.clone();
        let ids = next.take(&policy)?;
        let table = table(&policy, &ids, Some(&parts.proxy.table()))?;
        if !parts.scheduler.set_limits(core_limits(&policy, next.limits())).await {
            return Err("the scheduler has ended".to_owned());
        }
        *scopes = next;
        parts.upstream.set_failure(policy.failure.isolate_above, policy.failure.replay_budget.ppm() / 1000);
        parts.proxy.set_table(table);
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
