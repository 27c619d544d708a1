//! Writes the desired state, statuses and profiles, on the leader only. An object is written only
//! if it differs, and at a limited rate.
//!
//! Statuses use server-side apply under one field manager ([`FIELD_MANAGER`]), so fields of other
//! managers are kept and fields that are no longer applied are removed. Failed writes are retried
//! with exponential backoff per object, so a rejected object does not delay the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
};
use serde::Serialize;
use serde_json::json;
use strum::VariantArray as _;
use tokio::sync::watch;

use super::FIELD_MANAGER;
use super::cluster_state::ObjectKey;
use super::desired::{NewProfile, ReconcileResult};
use super::lease::Leadership;
use super::status::ConditionType;
use crate::api::v1alpha1::{API_VERSION, BatchPolicy, BatchPolicyStatus, BatchProfile, BatchProfileStatus};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::WriteResult;

/// Minimum interval between two writes of a status for gradual changes, such as counts and
/// latencies.
const GRADUAL_INTERVAL: Duration = Duration::from_secs(15);
/// Minimum interval between two writes for discrete changes, such as a condition. It is shorter
/// than the second between two rounds, so that a write never slips to the round after the next.
const DISCRETE_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a write that is not observed in the watch is repeated.
const UNOBSERVED_TIMEOUT: Duration = Duration::from_secs(60);
/// Bounds of the exponential backoff after failures.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Timeout of one API call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent calls, so that ten thousand policies do not load the API server at
/// once.
const CALLS_MAX: usize = 8;
/// Maximum number of writes per round; the next one, seconds later, continues.
const WRITES_MAX: usize = 500;
/// Interval between two checks of deferred writes.
const DEFERRED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The last written status of each policy, with the time of the write.
#[derive(Debug, Clone, Default)]
pub struct WrittenStatuses(Arc<Mutex<BTreeMap<ObjectKey, (BatchPolicyStatus, Tick)>>>);

/// The subject of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WriteKind {
    Policy,
    Profile,
    Make,
    Remove,
}

/// State of the last attempt of a write.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    at: Tick,
    fails: u32,
    /// Set if the last attempt got no response.
    unanswered: bool,
}

enum PendingWrite {
    Policy(ObjectKey, Box<BatchPolicyStatus>),
    Profile(ObjectKey, Box<BatchProfileStatus>),
    Make(Box<NewProfile>),
    Remove(ObjectKey, String),
}

// === impl WrittenStatuses ===

impl WrittenStatuses {
    /// Returns the last written status of each policy.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<ObjectKey, BatchPolicyStatus> {
        self.lock().iter().map(|(key, (status, _))| (key.clone(), status.clone())).collect()
    }

    /// Clears all records. They may be older than the observed state if another replica led in
    /// between.
    fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, (BatchPolicyStatus, Tick)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the desired state of each round while this replica leads, until shutdown is signalled.
pub async fn apply(
    client: kube::Client,
    mut rounds: watch::Receiver<Arc<ReconcileResult>>,
    leadership: Leadership,
    written: WrittenStatuses,
    (clock, metrics, mut reach): (Clock, ControllerMetrics, watch::Receiver<bool>),
    mut stop: watch::Receiver<bool>,
) {
    let mut writer = StatusWriter { client, written, clock, metrics, tried: BTreeMap::new(), was_leader: false };
    loop {
        tokio::select! {
            changed = rounds.changed() => if changed.is_err() { return },
            // Deferred writes may have become due.
            () = tokio::time::sleep(DEFERRED_CHECK_INTERVAL), if writer.has_deferred() => {}
            changed = reach.changed() => if changed.is_ok() && *reach.borrow_and_update() {
                writer.reset_unanswered();
            },
            () = crate::wait_for_shutdown(&mut stop) => return,
        }
        let round = rounds.borrow_and_update().clone();
        let leads = leadership.is_leader();
        if leads && !writer.was_leader {
            // Another replica may have written since this one led before.
            writer.written.clear();
            writer.tried.clear();
        }
        writer.was_leader = leads;
        if leads {
            writer.write(&round, &leadership).await;
        }
    }
}

struct StatusWriter {
    client: kube::Client,
    written: WrittenStatuses,
    clock: Clock,
    metrics: ControllerMetrics,
    tried: BTreeMap<(WriteKind, ObjectKey), Attempt>,
    was_leader: bool,
}

// === impl StatusWriter ===

impl StatusWriter {
    /// Returns `true` if writes may be deferred.
    fn has_deferred(&self) -> bool {
        self.was_leader && !self.tried.is_empty()
    }

    /// Drops the backoff of unanswered writes: the API server is reachable again.
    fn reset_unanswered(&mut self) {
        self.tried.retain(|_, tried| !tried.unanswered);
    }

    async fn write(&mut self, round: &ReconcileResult, leadership: &Leadership) {
        let now = self.clock.now();
        let writes = self.due_writes(round, now);
        self.tried.retain(|_, tried| now.since(tried.at) < UNOBSERVED_TIMEOUT);
        if writes.is_empty() {
            return;
        }
        let client = &self.client;
        let calls = futures_util::stream::iter(writes.into_iter().take(WRITES_MAX).map(|write| async move {
            // Leadership may end while writes wait for their turn.
            let (done, unanswered) = if leadership.is_leader() {
                perform_write(client, &write).await
            } else {
                (WriteResult::Conflict, false)
            };
            (write, done, unanswered)
        }));
        let done: Vec<(PendingWrite, WriteResult, bool)> = calls.buffer_unordered(CALLS_MAX).collect().await;
        let now = self.clock.now();
        let mut worst = WriteResult::Ok;
        for (write, done, unanswered) in done {
            self.metrics.record_status_write(done);
            let (about, key) = write.key();
            let fails = self.tried.get(&(about, key.clone())).map_or(0, |tried| tried.fails);
            let fails = if done == WriteResult::Ok { 0 } else { fails.saturating_add(1) };
            self.tried.insert((about, key.clone()), Attempt { at: now, fails, unanswered });
            if done == WriteResult::Ok {
                if let PendingWrite::Policy(key, status) = write {
                    self.written.lock().insert(key, (*status, now));
                }
            } else {
                worst = done;
            }
        }
        self.metrics.record_reconcile_result(worst);
    }

    fn due_writes(&self, round: &ReconcileResult, now: Tick) -> Vec<PendingWrite> {
        let desired = &round.desired;
        let mut writes = Vec::new();
        for profile in &desired.make {
            if self.is_due(WriteKind::Make, &profile.key, DISCRETE_INTERVAL, now) {
                writes.push(PendingWrite::Make(Box::new(profile.clone())));
            }
        }
        let written = self.written.lock();
        for (key, next) in &desired.policies {
            let Some(policy) = round.cluster.policies.get(key) else { continue };
            let last = written.get(key).filter(|(_, at)| now.since(*at) < UNOBSERVED_TIMEOUT).map(|(status, _)| status);
            // A status differs from the observed one, or from the last written one if the watch has
            // not delivered that yet.
            if let Some(wait) = write_interval(&own_conditions(&policy.status), last, next)
                && self.is_due(WriteKind::Policy, key, wait, now)
            {
                writes.push(PendingWrite::Policy(key.clone(), Box::new(next.clone())));
            }
        }
        for (key, next) in &desired.profiles {
            let known = round.cluster.profiles.get(key).map(|profile| &profile.status);
            if known.is_some_and(|known| known != next) && self.is_due(WriteKind::Profile, key, GRADUAL_INTERVAL, now) {
                writes.push(PendingWrite::Profile(key.clone(), Box::new(next.clone())));
            }
        }
        for (key, uid) in &desired.remove {
            if self.is_due(WriteKind::Remove, key, GRADUAL_INTERVAL, now) {
                writes.push(PendingWrite::Remove(key.clone(), uid.clone()));
            }
        }
        writes
    }

    /// Returns `true` if a write may be attempted now: `gap` after the last success, or after the
    /// backoff if it failed.
    fn is_due(&self, about: WriteKind, key: &ObjectKey, gap: Duration, now: Tick) -> bool {
        let Some(tried) = self.tried.get(&(about, key.clone())) else { return true };
        let back = (0..tried.fails.saturating_sub(1).min(8)).fold(BACKOFF.0, |wait, _| wait * 2).min(BACKOFF.1);
        now.since(tried.at) >= if tried.fails > 0 { back } else { gap }
    }
}

// === impl PendingWrite ===

impl PendingWrite {
    const fn key(&self) -> (WriteKind, &ObjectKey) {
        match self {
            Self::Policy(key, _) => (WriteKind::Policy, key),
            Self::Profile(key, _) => (WriteKind::Profile, key),
            Self::Make(profile) => (WriteKind::Make, &profile.key),
            Self::Remove(key, _) => (WriteKind::Remove, key),
        }
    }
}

/// Compares a status with the observed one and with the one written since. Returns the minimum
/// interval since the last write if it differs, `None` if it does not.
fn write_interval(
    known: &BatchPolicyStatus,
    last: Option<&BatchPolicyStatus>,
    next: &BatchPolicyStatus,
) -> Option<Duration> {
    if known == next || last == Some(next) {
        return None;
    }
    let base = last.unwrap_or(known);
    let words = |status: &BatchPolicyStatus| {
        let summary = |one: &Condition| (one.type_.clone(), one.status.clone(), one.reason.clone());
        status.conditions.iter().map(summary).collect::<Vec<_>>()
    };
    let phase =
        |status: &BatchPolicyStatus| status.rollout.as_ref().map(|rollout| (rollout.phase.clone(), rollout.step));
    let urgent = base.observed_generation != next.observed_generation
        || base.current_profile != next.current_profile
        || base.candidate_profile != next.candidate_profile
        || words(base) != words(next)
        || phase(base) != phase(next);
    Some(if urgent { DISCRETE_INTERVAL } else { GRADUAL_INTERVAL })
}

/// Keeps Groupage's conditions of a status, in a fixed order: other controllers may add conditions,
/// and the API server orders them itself.
fn own_conditions(status: &BatchPolicyStatus) -> BatchPolicyStatus {
    let of =
        |kind: &ConditionType| status.conditions.iter().find(|condition| condition.type_ == kind.as_str()).cloned();
    BatchPolicyStatus { conditions: ConditionType::VARIANTS.iter().filter_map(of).collect(), ..status.clone() }
}

/// Performs one write. Returns its result, and `true` if there was no response.
async fn perform_write(client: &kube::Client, write: &PendingWrite) -> (WriteResult, bool) {
    let call = async {
        match write {
            PendingWrite::Policy(key, status) => apply_status::<BatchPolicy>(client, key, "BatchPolicy", status).await,
            PendingWrite::Profile(key, status) => {
                // Server-side apply treats an empty status as null, which the schema rejects.
                let mut status = json!(status);
                status.as_object_mut().map(|fields| fields.entry("usedBy").or_insert_with(|| json!([])));
                apply_status::<BatchProfile>(client, key, "BatchProfile", &status).await
            }
            PendingWrite::Make(profile) => make(client, profile).await,
            PendingWrite::Remove(key, uid) => remove(client, key, uid).await,
        }
    };
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(Ok(())) => (WriteResult::Ok, false),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => (WriteResult::Conflict, false),
        // An unreachable API server is logged once, by `ApiReach`.
        Err(_) | Ok(Err(kube::Error::HyperError(_) | kube::Error::Service(_))) => (WriteResult::Error, true),
        Ok(Err(error)) => {
            let (_, key) = write.key();
            tracing::warn!(%error, object = %key, "the API server rejected a write; retrying");
            (WriteResult::Error, false)
        }
    }
}

async fn apply_status<K>(
    client: &kube::Client,
    key: &ObjectKey,
    kind: &str,
    status: &impl Serialize,
) -> kube::Result<()>
where
    K: kube::Resource<DynamicType = ()>,
{
    // The API is untyped: the write succeeded even if this version cannot parse the response.
    let objects: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &ApiResource::erase::<K>(&()));
    let patch = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "status": status,
    });
    match objects.patch_status(&key.name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch)).await {
        // The object was deleted in the meantime.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop),
    }
}

async fn make(client: &kube::Client, profile: &NewProfile) -> kube::Result<()> {
    let (name, uid) = profile.owner.clone();
    let owner = OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "BatchPolicy".to_owned(),
        name,
        uid,
        controller: Some(true),
        // Setting it would require the permission `update` on the owner's finalizers.
        block_owner_deletion: None,
    };
    let object = BatchProfile {
        metadata: ObjectMeta {
            name: Some(profile.key.name.clone()),
            namespace: Some(profile.key.namespace.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: profile.spec.clone(),
        status: None,
    };
    let profiles: Api<BatchProfile> = Api::namespaced(client.clone(), &profile.key.namespace);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match profiles.create(&params, &object).await {
        // The replica that led before has created it already.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        done => done.map(drop),
    }
}

async fn remove(client: &kube::Client, key: &ObjectKey, uid: &str) -> kube::Result<()> {
    let profiles: Api<BatchProfile> = Api::namespaced(client.clone(), &key.namespace);
    // The UID protects a new profile of the same name.
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match profiles.delete(&key.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests;
