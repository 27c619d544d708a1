//! The I/O of leader election: reads and writes the Lease, and publishes the leadership.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::watch;

use super::{Candidate, LEASE_DURATION, LeaseRecord, LeaseRequest, LeaseResponse, RETRY_PERIOD};
use crate::clock::Clock;

/// Timeout of one API call: half of `RENEW_DEADLINE`, so that two attempts fit into it.
const CALL: Duration = Duration::from_secs(5);
/// Annotation with the holder's stream address.
const ADDRESS: &str = "groupage.dev/stream-address";

/// Parameters of the election.
#[derive(Debug, Clone)]
pub struct ElectionSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique name of this replica: the name of its pod.
    pub me: String,
    /// Address at which this replica serves streams.
    pub address: Option<String>,
}

/// The leadership as known to this replica. Cheap to clone.
#[derive(Clone)]
pub struct Leadership {
    clock: Clock,
    until: Arc<AtomicU64>,
    state: watch::Receiver<LeadershipState>,
}

/// The published state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct LeadershipState {
    leads: bool,
    leader: Option<LeaderReplica>,
    /// This replica's term, if it was the last observed holder.
    reign: Option<LeadershipTerm>,
}

/// One leadership term. It continues through renewals; a new term starts after another replica has
/// led.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeadershipTerm {
    transitions: i32,
    acquired: i64,
}

/// The leading replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReplica {
    /// Name of the replica.
    pub name: String,
    /// Address at which it serves streams.
    pub address: Option<String>,
}

/// Takes part in the election until shutdown is signalled, and then releases the lease. The
/// returned future must be spawned.
pub fn elect(
    client: kube::Client,
    settings: ElectionSettings,
    clock: Clock,
    stop: watch::Receiver<bool>,
) -> (Leadership, impl Future<Output = ()> + Send) {
    let until = Arc::new(AtomicU64::new(0));
    let (publisher, state) = watch::channel(LeadershipState::default());
    let leadership = Leadership { clock, until: until.clone(), state };
    let elector = Elector {
        leases: Api::namespaced(client, &settings.namespace),
        candidate: Candidate::new(settings.me.clone(), settings.address.clone()),
        settings,
        clock,
        until,
        publisher,
    };
    (leadership, elector.run(stop))
}

struct Elector {
    leases: Api<Lease>,
    candidate: Candidate,
    settings: ElectionSettings,
    clock: Clock,
    until: Arc<AtomicU64>,
    publisher: watch::Sender<LeadershipState>,
}

// === impl Leadership ===

impl Leadership {
    /// Returns `true` if this replica leads now. Must be called immediately before each write,
    /// since a process may have been suspended.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.clock.now().0 < self.until.load(Ordering::Acquire)
    }

    /// Returns the leader. This is not this replica once its own lease has expired: while the API
    /// server is unreachable no replica leads, and returning this one would redirect sidecars in a
    /// circle.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderReplica> {
        let state = self.state.borrow();
        state.leader.clone().filter(|_| state.reign.is_none() || self.is_leader())
    }

    /// Returns the term of this replica while no later leader was observed: state of that term is
    /// still valid.
    #[must_use]
    pub fn reign(&self) -> Option<LeadershipTerm> {
        self.state.borrow().reign
    }

    /// Resolves if this replica starts or stops leading, or if the leader changes. It stays pending
    /// after the end of the election.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Creates a state that always leads, for a single replica without election.
    #[must_use]
    pub fn always(clock: Clock) -> Self {
        let (_, state) =
            watch::channel(LeadershipState { leads: true, leader: None, reign: Some(LeadershipTerm::default()) });
        Self { clock, until: Arc::new(AtomicU64::new(u64::MAX)), state }
    }

    /// Creates a state that never leads, for a replica that only observes.
    #[must_use]
    pub fn never(clock: Clock) -> Self {
        let (_, state) = watch::channel(LeadershipState::default());
        Self { clock, until: Arc::default(), state }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("leads", &self.is_leader()).field("leader", &self.leader()).finish()
    }
}

// === impl Elector ===

impl Elector {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            self.round().await;
            let wait = self.wait();
            tokio::select! {
                () = tokio::time::sleep(wait) => self.publish(),
                () = crate::wait_for_shutdown(&mut stop) => break,
            }
        }
        if let Some(record) = self.candidate.release() {
            self.publish();
            if let Err(error) = self.write(record).await {
                tracing::warn!(?error, "cannot release the lease: another replica can lead only after it expires");
            }
        }
        self.publish();
    }

    /// Returns the delay of the next round. A leader without a renewal in time stops leading then.
    fn wait(&self) -> Duration {
        let now = self.clock.now();
        // Up to 50 % jitter, so that replicas that started together do not send requests together.
        let retry = RETRY_PERIOD.mul_f64(1.0 + 0.5 * rand::random::<f64>());
        if self.candidate.is_leader(now) { retry.min(self.candidate.until().since(now)) } else { retry }
    }

    async fn round(&mut self) {
        self.candidate.start_round();
        // A read, and the request that follows from it.
        for _ in 0..2 {
            let wall = i64::try_from(Clock::wall_micros()).unwrap_or(i64::MAX);
            let request = self.candidate.next_request(self.clock.now(), wall);
            let call = async {
                match request {
                    LeaseRequest::Nothing => None,
                    LeaseRequest::Read => Some(self.read().await),
                    LeaseRequest::Create(record) => Some(self.create(record).await),
                    LeaseRequest::Write(record) => Some(self.write(record).await),
                }
            };
            let answer = match tokio::time::timeout(CALL, call).await {
                Ok(None) => break,
                Ok(Some(Ok(answer))) => answer,
                Ok(Some(Err(error))) => to_answer(&error),
                Err(_) => {
                    tracing::warn!("the lease request timed out");
                    LeaseResponse::Failed
                }
            };
            let more = self.candidate.on_response(self.clock.now(), answer);
            self.publish();
            if !more {
                break;
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let now = self.clock.now();
        self.until.store(self.candidate.until().0, Ordering::Release);
        let holder = self.candidate.holder();
        let leader = holder
            .and_then(|record| Some(LeaderReplica { name: record.holder.clone()?, address: record.address.clone() }));
        let ours = holder.filter(|record| record.holder.as_ref() == Some(&self.settings.me));
        let reign = ours.map(|record| LeadershipTerm { transitions: record.transitions, acquired: record.acquired });
        let state = LeadershipState { leads: self.candidate.is_leader(now), leader, reign };
        self.publisher.send_if_modified(|before| {
            if *before == state {
                return false;
            }
            if before.leads != state.leads {
                tracing::info!(leads = state.leads, me = self.settings.me, "leadership changed");
            }
            *before = state;
            true
        });
    }

    async fn read(&self) -> kube::Result<LeaseResponse> {
        Ok(LeaseResponse::Read(self.leases.get_opt(&self.settings.name).await?.map(|lease| record(&lease))))
    }

    async fn create(&self, desired: LeaseRecord) -> kube::Result<LeaseResponse> {
        let lease = self.leases.create(&PostParams::default(), &lease(&self.settings, &desired)).await?;
        Ok(LeaseResponse::Wrote(record(&lease)))
    }

    /// Writes a merge patch with the version that was read. `update` would be an additional RBAC
    /// verb without another use.
    async fn write(&self, desired: LeaseRecord) -> kube::Result<LeaseResponse> {
        let mut patch = serde_json::to_value(lease(&self.settings, &desired)).map_err(kube::Error::SerdeError)?;
        if desired.holder.is_none() {
            // In a merge patch, null removes a field. Without a holder the lease can be acquired at
            // once.
            patch["spec"]["holderIdentity"] = serde_json::Value::Null;
            patch["metadata"]["annotations"][ADDRESS] = serde_json::Value::Null;
        }
        let lease = self.leases.patch(&self.settings.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(LeaseResponse::Wrote(record(&lease)))
    }
}

fn to_answer(error: &kube::Error) -> LeaseResponse {
    match error {
        kube::Error::Api(status) if status.code == 409 => LeaseResponse::Conflict,
        error => {
            tracing::warn!(%error, "the lease request failed");
            LeaseResponse::Failed
        }
    }
}

fn micros(micros: i64) -> Option<MicroTime> {
    Timestamp::from_microsecond(micros).ok().map(MicroTime)
}

fn lease(settings: &ElectionSettings, record: &LeaseRecord) -> Lease {
    let seconds = record.duration.as_secs();
    Lease {
        metadata: ObjectMeta {
            name: Some(settings.name.clone()),
            namespace: Some(settings.namespace.clone()),
            annotations: record.address.clone().map(|address| [(ADDRESS.to_owned(), address)].into()),
            resource_version: (!record.version.is_empty()).then(|| record.version.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: record.holder.clone(),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            acquire_time: micros(record.acquired),
            renew_time: micros(record.renewed),
            lease_transitions: Some(record.transitions),
            ..LeaseSpec::default()
        }),
    }
}

fn record(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let at = |time: Option<MicroTime>| time.map_or(0, |time| time.0.as_microsecond());
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let annotations = lease.metadata.annotations.as_ref();
    LeaseRecord {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        address: annotations.and_then(|all| all.get(ADDRESS)).cloned(),
        duration: seconds.map_or(LEASE_DURATION, Duration::from_secs),
        acquired: at(spec.acquire_time),
        renewed: at(spec.renew_time),
        transitions: spec.lease_transitions.unwrap_or(0),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
