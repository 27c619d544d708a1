//! Writes what is to be: statuses and profiles, by the leader alone, each only when it differs and no more often than somebody reads it.
//!
//! Statuses go by server-side apply under one name ([`MANAGER`]), so what others keep in them stays, and what is said no more disappears. What fails is tried
//! again, ever more slowly, for each object by itself: one that is refused holds up no other.

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
use tokio::sync::watch;

use super::MANAGER;
use super::lease::Leadership;
use super::recompute::NewProfile;
use super::reconcile::Round;
use super::status::Type;
use super::world::Key;
use crate::api::v1alpha1::{API_VERSION, BatchPolicy, BatchPolicyStatus, BatchProfile, BatchProfileStatus};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::Done;

/// Between two writes of a status for what only moves, such as counts and latencies.
const QUIET: Duration = Duration::from_secs(15);
/// Between two writes for what changes, such as a condition. Below the second between two rounds, or
/// a write would now and then wait for the round after the next.
const URGENT: Duration = Duration::from_millis(500);
/// What was written and is not seen within this time is written again.
const UNSEEN: Duration = Duration::from_secs(60);
/// Between tries of what fails.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// One call.
const CALL: Duration = Duration::from_secs(10);
/// Calls at once, so that ten thousand policies do not stand before the API server together.
const CALLS_MAX: usize = 8;
/// A round has no more writes than this; the next one, seconds later, has the rest.
const WRITES_MAX: usize = 500;
/// Between two looks at what waits.
const LOOK: Duration = Duration::from_secs(1);

/// The statuses of policies as they were written last, with the time.
#[derive(Debug, Clone, Default)]
pub struct Written(Arc<Mutex<BTreeMap<Key, (BatchPolicyStatus, Tick)>>>);

/// What one write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    Policy,
    Profile,
    Make,
    Remove,
}

/// A write that was tried.
#[derive(Debug, Clone, Copy)]
struct Tried {
    at: Tick,
    fails: u32,
    /// The last one had no answer.
    unanswered: bool,
}

/// A write to do.
enum Write {
    Policy(Key, Box<BatchPolicyStatus>),
    Profile(Key, Box<BatchProfileStatus>),
    Make(Box<NewProfile>),
    Remove(Key, String),
}

// === impl Written ===

impl Written {
    /// What was written last of each policy.
    #[must_use]
    pub fn statuses(&self) -> BTreeMap<Key, BatchPolicyStatus> {
        self.lock().iter().map(|(key, (status, _))| (key.clone(), status.clone())).collect()
    }

    /// Forgets what is older than what is seen: another replica led in between.
    fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, (BatchPolicyStatus, Tick)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what each round wants, while this replica leads, until told to stop.
pub async fn apply(
    client: kube::Client,
    mut rounds: watch::Receiver<Arc<Round>>,
    leadership: Leadership,
    written: Written,
    (clock, metrics, mut reach): (Clock, ControllerMetrics, watch::Receiver<bool>),
    mut stop: watch::Receiver<bool>,
) {
    let mut writer = Writer { client, written, clock, metrics, tried: BTreeMap::new(), led: false };
    loop {
        tokio::select! {
            changed = rounds.changed() => if changed.is_err() { return },
            // Something may wait for its time.
            () = tokio::time::sleep(LOOK), if writer.waits() => {}
            changed = reach.changed() => if changed.is_ok() && *reach.borrow_and_update() {
                writer.forgive();
            },
            // An error means the same: the process ends.
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let round = rounds.borrow_and_update().clone();
        let leads = leadership.leads();
        if leads && !writer.led {
            // What was written before was perhaps not the last word.
            writer.written.forget();
            writer.tried.clear();
        }
        writer.led = leads;
        if leads {
            writer.write(&round, &leadership).await;
        }
    }
}

struct Writer {
    client: kube::Client,
    written: Written,
    clock: Clock,
    metrics: ControllerMetrics,
    tried: BTreeMap<(About, Key), Tried>,
    led: bool,
}

// === impl Writer ===

impl Writer {
    /// Whether something was put off.
    fn waits(&self) -> bool {
        self.led && !self.tried.is_empty()
    }

    /// Tries again what had no answer: the API server is back.
    fn forgive(&mut self) {
        self.tried.retain(|_, tried| !tried.unanswered);
    }

    async fn write(&mut self, round: &Round, leadership: &Leadership) {
        let now = self.clock.now();
        let writes = self.due(round, now);
        self.tried.retain(|_, tried| now.since(tried.at) < UNSEEN);
        if writes.is_empty() {
            return;
        }
        let client = &self.client;
        let calls = futures_util::stream::iter(writes.into_iter().take(WRITES_MAX).map(|write| async move {
            // Leading may end while they wait for their turn.
            let (done, unanswered) =
                if leadership.leads() { one(client, &write).await } else { (Done::Conflict, false) };
            (write, done, unanswered)
        }));
        let done: Vec<(Write, Done, bool)> = calls.buffer_unordered(CALLS_MAX).collect().await;
        let now = self.clock.now();
        let mut worst = Done::Ok;
        for (write, done, unanswered) in done {
            self.metrics.written(done);
            let (about, key) = write.key();
            let fails = self.tried.get(&(about, key.clone())).map_or(0, |tried| tried.fails);
            let fails = if done == Done::Ok { 0 } else { fails.saturating_add(1) };
            self.tried.insert((about, key.clone()), Tried { at: now, fails, unanswered });
            if done == Done::Ok {
                if let Write::Policy(key, status) = write {
                    self.written.lock().insert(key, (*status, now));
                }
            } else {
                worst = done;
            }
        }
        self.metrics.applied(worst);
    }

    /// What is due of all that a round wants.
    fn due(&self, round: &Round, now: Tick) -> Vec<Write> {
        let desired = &round.desired;
        let mut writes = Vec::new();
        for profile in &desired.make {
            if self.may(About::Make, &profile.key, URGENT, now) {
                writes.push(Write::Make(Box::new(profile.clone())));
            }
        }
        let written = self.written.lock();
        for (key, wanted) in &desired.policies {
            let Some(policy) = round.world.policies.get(key) else { continue };
            let last = written.get(key).filter(|(_, at)| now.since(*at) < UNSEEN).map(|(status, _)| status);
            if let Some(wait) = differs(&ours(&policy.status), last, wanted)
                && self.may(About::Policy, key, wait, now)
            {
                writes.push(Write::Policy(key.clone(), Box::new(wanted.clone())));
            }
        }
        for (key, wanted) in &desired.profiles {
            let known = round.world.profiles.get(key).map(|profile| &profile.status);
            if known.is_some_and(|known| known != wanted) && self.may(About::Profile, key, QUIET, now) {
                writes.push(Write::Profile(key.clone(), Box::new(wanted.clone())));
            }
        }
        for (key, uid) in &desired.remove {
            if self.may(About::Remove, key, QUIET, now) {
                writes.push(Write::Remove(key.clone(), uid.clone()));
            }
        }
        writes
    }

    /// Whether it is time: so long after the last write, or later after tries that failed.
    fn may(&self, about: About, key: &Key, gap: Duration, now: Tick) -> bool {
        let Some(tried) = self.tried.get(&(about, key.clone())) else { return true };
        let back = (0..tried.fails.saturating_sub(1).min(8)).fold(BACKOFF.0, |wait, _| wait * 2).min(BACKOFF.1);
        now.since(tried.at) >= if tried.fails > 0 { back } else { gap }
    }
}

// === impl Write ===

impl Write {
    const fn key(&self) -> (About, &Key) {
        match self {
            Self::Policy(key, _) => (About::Policy, key),
            Self::Profile(key, _) => (About::Profile, key),
            Self::Make(profile) => (About::Make, &profile.key),
            Self::Remove(key, _) => (About::Remove, key),
        }
    }
}

/// Whether a status differs from what is known and from what was written since, and how long it may wait after the last write.
fn differs(
    known: &BatchPolicyStatus,
    last: Option<&BatchPolicyStatus>,
    wanted: &BatchPolicyStatus,
) -> Option<Duration> {
    if known == wanted || last == Some(wanted) {
        return None;
    }
    let base = last.unwrap_or(known);
    let words = |status: &BatchPolicyStatus| {
        let said = |one: &Condition| (one.type_.clone(), one.status.clone(), one.reason.clone());
        status.conditions.iter().map(said).collect::<Vec<_>>()
    };
    let phase =
        |status: &BatchPolicyStatus| status.rollout.as_ref().map(|rollout| (rollout.phase.clone(), rollout.step));
    let urgent = base.observed_generation != wanted.observed_generation
        || base.current_profile != wanted.current_profile
        || base.candidate_profile != wanted.candidate_profile
        || words(base) != words(wanted)
        || phase(base) != phase(wanted);
    Some(if urgent { URGENT } else { QUIET })
}

/// Of a status, what is ours: others may add conditions, and the API server keeps them in an order of its own.
fn ours(status: &BatchPolicyStatus) -> BatchPolicyStatus {
    let of = |kind: Type| status.conditions.iter().find(|condition| condition.type_ == kind.as_str()).cloned();
    BatchPolicyStatus { conditions: Type::ALL.into_iter().filter_map(of).collect(), ..status.clone() }
}

/// Does one write; returns what came of it, and whether there was no answer.
async fn one(client: &kube::Client, write: &Write) -> (Done, bool) {
    let call = async {
        match write {
            Write::Policy(key, status) => status_of::<BatchPolicy>(client, key, "BatchPolicy", status).await,
            Write::Profile(key, status) => {
                // With nothing in it, server-side apply takes the status for null, which the schema refuses.
                let mut status = json!(status);
                status.as_object_mut().map(|fields| fields.entry("usedBy").or_insert_with(|| json!([])));
                status_of::<BatchProfile>(client, key, "BatchProfile", &status).await
            }
            Write::Make(profile) => make(client, profile).await,
            Write::Remove(key, uid) => remove(client, key, uid).await,
        }
    };
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(())) => (Done::Ok, false),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => (Done::Conflict, false),
        // That the API server cannot be reached is logged once for all.
        Err(_) | Ok(Err(kube::Error::HyperError(_) | kube::Error::Service(_))) => (Done::Error, true),
        Ok(Err(error)) => {
            let (_, key) = write.key();
            tracing::warn!(%error, object = %key, "a write was refused; it is tried again");
            (Done::Error, false)
        }
    }
}

async fn status_of<K>(client: &kube::Client, key: &Key, kind: &str, status: &impl Serialize) -> kube::Result<()>
where
    K: kube::Resource<DynamicType = ()>,
{
    // Untyped: an answer that this version cannot read was a write that succeeded.
    let objects: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &ApiResource::erase::<K>(&()));
    let patch = json!({
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "status": status,
    });
    match objects.patch_status(&key.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(patch)).await {
        // It went in the meantime.
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
        // With it, `update` on the owner's finalizers would be needed.
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
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match profiles.create(&params, &object).await {
        // Another replica led a moment ago.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        done => done.map(drop),
    }
}

async fn remove(client: &kube::Client, key: &Key, uid: &str) -> kube::Result<()> {
    let profiles: Api<BatchProfile> = Api::namespaced(client.clone(), &key.namespace);
    // Another one may have its name by now.
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match profiles.delete(&key.name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::status::{Finding, Holds, conditions};

    fn status(reason: &str, throughput: u64) -> BatchPolicyStatus {
        let finding = Finding::new(Type::Accepted, Holds::True, reason, "m");
        let now = k8s_openapi::jiff::Timestamp::from_second(1).unwrap();
        let summary = crate::api::v1alpha1::Summary { throughput: Some(throughput), ..Default::default() };
        BatchPolicyStatus {
            conditions: conditions(&[], &[finding], 1, now),
            summary: Some(summary),
            ..BatchPolicyStatus::default()
        }
    }

    #[test]
    fn what_is_known_or_was_written_is_not_written_again() {
        let (a, b) = (status("A", 1), status("A", 2));
        assert_eq!(differs(&a, None, &a), None);
        assert_eq!(differs(&a, Some(&b), &b), None, "it was written and is not seen yet");
        assert_eq!(differs(&a, None, &b), Some(QUIET));
        assert_eq!(differs(&a, Some(&b), &status("B", 2)), Some(URGENT));
        assert_eq!(differs(&b, Some(&a), &b), None, "back at what is seen");
    }

    #[test]
    fn conditions_of_others_and_their_order_are_no_difference() {
        let wanted = status("A", 1);
        let mut known = wanted.clone();
        let mut theirs = known.conditions[0].clone();
        theirs.type_ = "Theirs".into();
        known.conditions.insert(0, theirs);
        assert_eq!(differs(&ours(&known), None, &wanted), None);
    }
}
