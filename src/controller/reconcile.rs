//! The reconcile loop: recomputes the whole state after a change.
//!
//! There is one loop over the whole cluster state instead of one per object, since the policy of a
//! pod depends on all other policies. One second passes between a change and the round, so that a
//! rollout of a hundred pods takes one round. Every replica runs it, since every replica serves
//! sidecars and the webhook; only the leader writes the result (`apply`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use strum::VariantNames as _;
use tokio::sync::{mpsc, watch};

use super::apply::WrittenStatuses;
use super::attachment::{Acceptance, attach_all};
use super::cluster_state::ClusterState;
use super::desired::ReconcileResult;
use super::events::EventNotice;
use super::lease::Leadership;
use super::observed_state::ObservationSource;
use super::recompute::{RecomputeInput, recompute};
use super::uninjected::InjectionGaps;
use super::watch::SharedState;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::EventResult;

/// Delay between a change and its round.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Interval between rounds without a change, since sidecar reports arrive without one.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);

/// Parameters of the loop.
#[derive(Clone)]
pub struct Reconciler {
    /// The cluster state.
    pub shared: SharedState,
    /// The leadership state.
    pub leadership: Leadership,
    /// The statuses written last.
    pub written: WrittenStatuses,
    /// Results for pods without a sidecar.
    pub gaps: InjectionGaps,
    /// Source of sidecar reports.
    pub source: Arc<dyn ObservationSource>,
    /// Enables injection for pods that neither request nor reject it.
    pub inject_by_default: bool,
    /// Namespaces excluded from injection.
    pub excluded: BTreeSet<String>,
    /// The clock of the process.
    pub clock: Clock,
    /// Metrics registry.
    pub metrics: ControllerMetrics,
    /// Queue of Events to publish; notices that do not fit are dropped and counted.
    pub notices: mpsc::Sender<EventNotice>,
}

// === impl Reconciler ===

impl Reconciler {
    /// Runs a round after every change until shutdown is signalled.
    pub async fn run(self, rounds: watch::Sender<Arc<ReconcileResult>>, mut stop: watch::Receiver<bool>) {
        let mut changes = self.shared.changes();
        let mut leadership = self.leadership.clone();
        let mut number = 0;
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(DEBOUNCE).await;
                }
                () = leadership.changed() => {}
                () = tokio::time::sleep(RESYNC_INTERVAL) => {}
                () = crate::wait_for_shutdown(&mut stop) => return,
            }
            changes.borrow_and_update();
            let cluster = self.shared.cluster();
            // Conclusions from a partial cluster state would be wrong.
            if !cluster.is_synced {
                continue;
            }
            number += 1;
            rounds.send_replace(Arc::new(self.run_round(cluster, number)));
        }
    }

    fn run_round(&self, cluster: ClusterState, number: u64) -> ReconcileResult {
        let start = self.clock.now();
        let now = wall_clock_now();
        let leads = self.leadership.is_leader();
        let attached = attach_all(&cluster, self.inject_by_default, &self.excluded);
        let observed = self.source.observe(&cluster, &attached, leads, now);
        let (gaps, written) = (self.gaps.results(), self.written.statuses());
        let input = RecomputeInput {
            cluster: &cluster,
            attached: &attached,
            observed: &observed,
            gaps: &gaps,
            written: &written,
        };
        let desired = recompute(input, now);
        self.metrics.record_reconcile(self.clock.now().since(start));
        self.metrics.set_pods_missing(desired.missing.len());
        let mut reasons: BTreeMap<_, usize> = Acceptance::VARIANTS.iter().map(|reason| (*reason, 0)).collect();
        for attachment in attached.policies.values() {
            *reasons.entry(attachment.accepted.reason()).or_default() += 1;
        }
        for (reason, count) in reasons {
            self.metrics.set_policies(reason, count);
        }
        if leads {
            for notice in &desired.notices {
                if self.notices.try_send(notice.clone()).is_err() {
                    self.metrics.record_event(EventResult::Dropped);
                }
            }
        }
        ReconcileResult { cluster, attached, desired, number }
    }
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler").field("inject_by_default", &self.inject_by_default).finish_non_exhaustive()
    }
}

/// Returns the wall-clock time, for human-readable timestamps.
fn wall_clock_now() -> Timestamp {
    let micros = i64::try_from(Clock::wall_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}
