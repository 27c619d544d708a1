//! The loop: whenever something changed, everything is looked at once.
//!
//! One loop over the whole world rather than one for each object: which policy a pod follows depends on all others. A second passes between a change and the
//! look, so that a rollout of a hundred pods is one look and not a hundred. Every replica looks, since every one serves sidecars and the webhook; what is
//! written follows from it elsewhere (`apply`), and only where the replica leads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::apply::Written;
use super::attachment::{Accepted, Attached, attached};
use super::events::Notice;
use super::lease::Leadership;
use super::missed::Looked;
use super::recompute::{Desired, Input, Live, recompute};
use super::watch::Shared;
use super::world::World;
use crate::clock::Clock;
use crate::telemetry::ControllerMetrics;
use crate::telemetry::names::Told;

/// From a change to the look at it.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// A look without a change: what sidecars say changes too.
const TICK: Duration = Duration::from_secs(5);

/// What one look found. Everybody who wants to know of it holds the same one.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// The cluster.
    pub world: World,
    /// Who follows whom.
    pub attached: Attached,
    /// What is to be.
    pub desired: Desired,
    /// How many there were before.
    pub number: u64,
}

/// Where what sidecars say comes from: the control stream, rollout and tuner. Asked in every round, with the pods of every policy and the profile that it
/// wants; it must not block.
pub trait Source: Send + Sync {
    /// What is known now. Only where `leads` is true may anything be decided; others just tell what they see.
    fn look(&self, world: &World, attached: &Attached, leads: bool, now: Timestamp) -> Live;
}

/// No sidecar is connected.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStreams;

/// What the loop needs.
#[derive(Clone)]
pub struct Loop {
    /// What is known.
    pub shared: Shared,
    /// Who leads.
    pub leadership: Leadership,
    /// What was written last.
    pub written: Written,
    /// What was found of pods without a sidecar.
    pub looked: Looked,
    /// What sidecars say.
    pub source: Arc<dyn Source>,
    /// Whether pods that say nothing ask for a sidecar.
    pub unless_disabled: bool,
    /// Namespaces that are left alone.
    pub excluded: BTreeSet<String>,
    /// The clock of the process.
    pub clock: Clock,
    /// Counters.
    pub metrics: ControllerMetrics,
    /// Where notices go; what does not fit is dropped and counted.
    pub notices: mpsc::Sender<Notice>,
}

// === impl NoStreams ===

impl Source for NoStreams {
    fn look(&self, _: &World, _: &Attached, _: bool, _: Timestamp) -> Live {
        Live::default()
    }
}

// === impl Loop ===

impl Loop {
    /// Looks at everything whenever something changed, until told to stop.
    pub async fn run(self, rounds: watch::Sender<Arc<Round>>, mut stop: watch::Receiver<bool>) {
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
                () = tokio::time::sleep(TICK) => {}
                () = told(&mut stop) => return,
            }
            changes.borrow_and_update();
            let world = self.shared.world();
            // Of half a world, most of what could be said is wrong.
            if !world.synced {
                continue;
            }
            number += 1;
            rounds.send_replace(Arc::new(self.look(world, number)));
        }
    }

    fn look(&self, world: World, number: u64) -> Round {
        let began = self.clock.now();
        let now = wall();
        let leads = self.leadership.leads();
        let attached = attached(&world, self.unless_disabled, &self.excluded);
        let live = self.source.look(&world, &attached, leads, now);
        let (bare, written) = (self.looked.found(), self.written.statuses());
        let input = Input { world: &world, attached: &attached, live: &live, bare: &bare, written: &written };
        let desired = recompute(input, now);
        self.metrics.reconciled(self.clock.now().since(began));
        self.metrics.pods_missing(desired.missing.len());
        let mut reasons: BTreeMap<&'static str, usize> = Accepted::REASONS.map(|reason| (reason, 0)).into();
        for attachment in attached.policies.values() {
            *reasons.entry(attachment.accepted.reason()).or_default() += 1;
        }
        for (reason, count) in reasons {
            self.metrics.policies(reason, count);
        }
        if leads {
            for notice in &desired.told {
                if self.notices.try_send(notice.clone()).is_err() {
                    self.metrics.event(Told::Dropped);
                }
            }
        }
        Round { world, attached, desired, number }
    }
}

impl fmt::Debug for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loop").field("unless_disabled", &self.unless_disabled).finish_non_exhaustive()
    }
}

/// Resolves when the process is to end; that nobody is left to say so means the same.
async fn told(stop: &mut watch::Receiver<bool>) {
    // What it lends must not be held on to.
    drop(stop.wait_for(|stop| *stop).await);
}

/// The time of the wall, for what people read.
fn wall() -> Timestamp {
    let micros = i64::try_from(Clock::wall_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}
