//! Sidecars: the reports that arrive on their streams, and the configuration pushed to each of
//! them.
//!
//! ```text
//! control::server ─▶ ControllerStreamHandler: Hello, Report, Event ─▶ registry::SidecarRegistry
//!   ─▶ policy_runtime::PolicyRuntime, one per policy: rollout and tuner   (each round of the leader)
//!   ─▶ PushedConfig ─▶ mailbox of the stream
//! ```
//! A replica that does not lead redirects sidecars to the leader. If no leader is known, for
//! example while the API server is unreachable, streams remain open.
//!
//! The stream itself is in `control`, the decisions are in `rollout` and `tuner`, and results are
//! written by `recompute` and `apply`.

mod registry;
mod leader_round;
mod policy_runtime;
mod learned_convert;
mod merging;
mod summary_window;
mod push;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use strum::VariantArray as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use self::policy_runtime::PolicyRuntime;
use self::push::PushedConfig;
use self::registry::SidecarRegistry;
use super::attachment::AttachmentMap;
use super::certs::ServingCertificate;
use super::cluster_state::{ClusterState, ObjectKey};
use super::events::{EventNotice, EventTarget};
use super::lease::{Leadership, LeadershipTerm};
use super::observed_state::{ObservationSource, ObservedState};
use super::watch::SharedState;
use crate::api::v1alpha1::Mode;
use crate::clock::Clock;
use crate::config::MachineLimits;
use crate::control::server::{
    ControllerStreamHandler, EncodedPush, InjectedPods, PodIdentity, ServerLimits, StreamEvent, StreamRegistry,
    TokenReviewer, serve,
};
use crate::control::token_bucket::TokenBucket;
use crate::control::wire::{CaBundle, Goaway, Hello, SidecarEvent, SidecarReport};
use crate::rollout::UnixSeconds;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::EventResult;
use crate::tuner::learned::InitialState;

/// Dependencies of [`SidecarController`].
#[derive(Debug, Clone)]
pub struct SidecarsConfig {
    /// The cluster state.
    pub shared: SharedState,
    /// The leadership state.
    pub leadership: Leadership,
    /// The certificates in use.
    pub certificate: ServingCertificate,
    /// Queue of Events to publish.
    pub notices: mpsc::Sender<EventNotice>,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// The clock of the process.
    pub clock: Clock,
    /// Mode that applies if neither policy nor pod specifies one.
    pub mode: Mode,
    /// Interval of the slow tuning loop; `None` disables it.
    pub tuner: Option<Duration>,
}

/// All connected sidecars, and the runtime state of every policy.
pub struct SidecarController {
    needs: SidecarsConfig,
    /// The open streams, once the port is served.
    streams: OnceLock<StreamRegistry>,
    state: Mutex<State>,
}

/// State that streams and rounds share.
#[derive(Default)]
struct State {
    registry: SidecarRegistry,
    runtimes: BTreeMap<ObjectKey, PolicyRuntime>,
    /// Configuration to push to each pod, by UID, as computed by the last round.
    configs: HashMap<String, (Arc<PushedConfig>, Option<InitialState>)>,
    /// Injected pods, by UID.
    pods: HashMap<String, ObjectKey>,
    /// Leadership term in which `runtimes` were created.
    term: Option<LeadershipTerm>,
    /// Limits full scans of the pods for a UID that no round has seen yet.
    scan_rate: Option<TokenBucket>,
}

/// Rate per second and burst of these scans: twice the rate of token reviews. Any client may
/// present the UID of a pod that does not exist, and each scan visits all pods. A pod that a round
/// has seen needs no scan, and the next round is at most a second away.
const POD_SCAN_RATE: (u64, u64) = (100, 100);

// === impl SidecarController ===

impl SidecarController {
    /// Creates the state without any sidecar.
    #[must_use]
    pub fn new(needs: SidecarsConfig) -> Arc<Self> {
        Arc::new(Self { needs, streams: OnceLock::new(), state: Mutex::default() })
    }

    /// Serves streams on this port until shutdown is signalled; sidecars that are connected then
    /// are redirected.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up.
    pub fn listen(
        self: &Arc<Self>,
        port: TcpListener,
        client: kube::Client,
        stop: watch::Receiver<bool>,
    ) -> Result<impl Future<Output = ()> + Send + use<>, rustls::Error> {
        let SidecarsConfig { clock, certificate, .. } = self.needs.clone();
        let reviews = Arc::new(TokenReviewer::new(client, self.clone(), clock));
        let tls = crate::control::server::server_config(Arc::new(certificate.clone()))?;
        let limits = ServerLimits::default().within(MachineLimits::read().files_max);
        let (streams, work) = serve(port, tls, (reviews, self.clone()), limits, (clock, stop.clone()));
        self.streams.get_or_init(|| streams.clone());
        let own = self.clone();
        Ok(async move {
            let pushes = own.push_certificates(streams, certificate.subscribe(), stop);
            tokio::join!(work, pushes);
        })
    }

    /// Pushes new CA bundles to all sidecars, and redirects them at shutdown.
    async fn push_certificates(
        &self,
        streams: StreamRegistry,
        mut presented: watch::Receiver<Option<super::certs::CertificateInfo>>,
        mut stop: watch::Receiver<bool>,
    ) {
        loop {
            tokio::select! {
                changed = presented.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if let Some(push) = self.bundle() {
                        streams.push_all(&push);
                    }
                }
                () = crate::wait_for_shutdown(&mut stop) => break,
            }
        }
        let goaway = Goaway {
            address: self.leader_address(),
            reason: "the controller is shutting down".to_owned(),
            ..Goaway::default()
        };
        if let Ok(push) = EncodedPush::goaway(goaway) {
            streams.push_all(&push);
        }
    }

    /// Returns the CA bundle to push, or `None` if the certificate is issued by a public authority.
    fn bundle(&self) -> Option<EncodedPush> {
        let ca = self.needs.certificate.subscribe().borrow().as_ref().map(|info| info.bundle.clone())?;
        if ca.is_empty() {
            return None;
        }
        EncodedPush::bundle(CaBundle { ca, ..CaBundle::default() }).ok()
    }

    /// Returns the leader's stream address if another replica leads and its address is known.
    fn leader_address(&self) -> Option<String> {
        let leader = self.needs.leadership.leader().filter(|_| !self.needs.leadership.is_leader())?;
        leader.address
    }

    /// Returns the message that redirects a sidecar to the leader; `None` if this replica leads, or
    /// if the leader's address is not known.
    fn goaway(&self) -> Option<EncodedPush> {
        let address = Some(self.leader_address()?);
        EncodedPush::goaway(Goaway { address, reason: "another replica is the leader".to_owned(), ..Goaway::default() })
            .ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_stream_metrics(&self) {
        let Some(streams) = self.streams.get() else { return };
        self.needs.metrics.set_streams(streams.len());
        for &count in StreamEvent::VARIANTS {
            self.needs.metrics.set_stream_events(count.as_str(), streams.count(count));
        }
    }
}

impl ObservationSource for SidecarController {
    fn observe(&self, cluster: &ClusterState, attached: &AttachmentMap, leads: bool, now: Timestamp) -> ObservedState {
        let mut state = self.state();
        state.pods = cluster.pods.iter().map(|(key, pod)| (pod.meta.uid.clone(), key.clone())).collect();
        self.update_stream_metrics();
        if !leads {
            // The leader writes the statuses that a successor resumes from. If no other replica
            // leads, this one keeps its state and continues with it once it leads again.
            if self.needs.leadership.leader().is_some() {
                state.runtimes.clear();
                state.configs.clear();
                state.term = None;
            }
            state.registry.remove_disconnected();
            drop(state);
            if let (Some(streams), Some(push)) = (self.streams.get(), self.goaway()) {
                streams.push_all(&push);
            }
            return ObservedState::default();
        }
        let term = self.needs.leadership.reign();
        if std::mem::replace(&mut state.term, term) != term {
            // Another replica may have led in between without this one observing it.
            state.runtimes.clear();
            state.configs.clear();
            tracing::info!("this replica is the leader and configures the sidecars");
        }
        let live = self.run_leader_round(&mut state, cluster, attached, now);
        self.push_pending(&mut state);
        state.registry.remove_disconnected();
        live
    }
}

impl InjectedPods for SidecarController {
    fn find(&self, uid: &str) -> Option<(String, String)> {
        let now = self.needs.clock.now();
        let (key, is_scan_allowed) = {
            let mut state = self.state();
            let key = state.pods.get(uid).cloned();
            let scan_rate =
                state.scan_rate.get_or_insert_with(|| TokenBucket::new(now, POD_SCAN_RATE.0, POD_SCAN_RATE.1));
            let is_scan_allowed = key.is_none() && scan_rate.try_take(now, 1);
            (key, is_scan_allowed)
        };
        // A pod that was created a moment ago may not be part of a round yet.
        let key = key.or_else(|| {
            if !is_scan_allowed {
                return None;
            }
            let cluster = self.needs.shared.cluster();
            cluster.pods.iter().find(|(_, pod)| pod.meta.uid == uid).map(|(key, _)| key.clone())
        })?;
        Some((key.namespace, key.name))
    }
}

impl ControllerStreamHandler for SidecarController {
    fn on_open(&self, streams: &StreamRegistry, pod: &Arc<PodIdentity>, hello: &Hello) {
        if let Some(push) = self.bundle() {
            let _has_stream = streams.push(&pod.uid, &push);
        }
        if let Some(push) = self.goaway() {
            let _has_stream = streams.push(&pod.uid, &push);
        }
        self.streams.get_or_init(|| streams.clone());
        self.state().registry.on_open(pod, hello);
        // Requests a round, which computes the configuration of the pod. It depends on the one that
        // `Hello` reports as in force.
        self.needs.shared.update(|_| true);
    }

    fn on_report(&self, pod: &Arc<PodIdentity>, report: SidecarReport) {
        let changed = self.state().registry.on_report(pod, report, UnixSeconds(Clock::wall_micros() / 1_000_000));
        if changed {
            // The condition `Programmed` depends on the configuration in force.
            self.needs.shared.update(|_| true);
        }
    }

    fn on_event(&self, pod: &Arc<PodIdentity>, event: SidecarEvent) {
        if event.reason == "ConfigRefused" {
            self.state().registry.on_rejected(pod, &event.hash, &event.message);
        }
        let Some((reason, warning)) = event_type(&event) else { return };
        let key = ObjectKey::new(&pod.namespace, &pod.name);
        let cluster = self.needs.shared.cluster();
        if let Some(about) = cluster.find_pod(&key, &pod.uid) {
            let notice = EventNotice { about: EventTarget::pod(&about.meta), warning, reason, note: event.message };
            if self.needs.notices.try_send(notice).is_err() {
                self.needs.metrics.record_event(EventResult::Dropped);
            }
        }
    }

    fn on_close(&self, pod: &Arc<PodIdentity>) {
        self.state().registry.on_close(pod);
        self.needs.shared.update(|_| true);
    }
}

/// Returns the reason of the Event for a report of a sidecar, and whether it is a warning; `None` if
/// it creates no Event.
fn event_type(event: &SidecarEvent) -> Option<(&'static str, bool)> {
    match event.reason.as_str() {
        // A pod sends it once, when its model is loaded.
        "EngineDevice" => Some(("EngineDevice", event.warning)),
        // Other reports create no Event: each edit of a policy would create one on every one of up to
        // ten thousand pods.
        _ if !event.warning => None,
        "ConfigRefused" => Some(("ConfigRefused", true)),
        "ConfigPartlyUnknown" => Some(("ConfigPartlyUnknown", true)),
        "SteppedAside" => Some(("SteppedAside", true)),
        _ => Some(("SidecarWarning", true)),
    }
}

impl fmt::Debug for SidecarController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SidecarController").field("streams", &self.streams).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_the_device_of_an_engine_become_events() {
        let of = |reason: &str, warning| {
            event_type(&SidecarEvent { reason: reason.to_owned(), warning, ..SidecarEvent::default() })
        };
        assert_eq!(of("ConfigRefused", true), Some(("ConfigRefused", true)));
        assert_eq!(of("CrashGuard", true), Some(("SidecarWarning", true)));
        assert_eq!(of("ConfigApplied", false), None);
        assert_eq!(of("EngineDevice", false), Some(("EngineDevice", false)));
        assert_eq!(of("EngineDevice", true), Some(("EngineDevice", true)));
    }
}
