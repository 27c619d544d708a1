//! The batching rules of other systems, for comparison with Groupage on the same arrivals.
//!
//! Each rule observes its queue, its batches in flight and their completions, and nothing else; the
//! two that receive the exact curve or an optimal table are documented as such. Where the original
//! knows only one queue, the baseline keeps one queue per merge key and serves the one with the
//! head that arrived first. A batch that the upstream refuses is halved and sent again, and a call
//! refused alone keeps its refusal.

mod adaptive;
mod cork;
mod queue;
mod fixed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::batching::{CallId, KeyId};

use super::batch::BatchCompletion;
use super::curve::CostCurve;
use super::policy::SimPolicy;
use super::proxy::SimProxy;
use queue::BaselineQueue;

/// A baseline, as data. Each run builds a fresh policy from it.
#[derive(Debug, Clone, PartialEq)]
pub enum Baseline {
    /// Forwards every call alone and at once, as without a proxy.
    Direct,
    /// Dispatches at `items` items, or `delay` after the first arrival, with any number of batches
    /// in flight (`MLServer`).
    Window {
        /// Maximum number of items.
        items: u32,
        /// Delay after the arrival of the first call.
        delay: Duration,
    },
    /// Dispatches at `items` items and never before.
    Static {
        /// Number of items.
        items: u32,
    },
    /// A window of a loop that reads no calls while its batch is in flight. The next window starts
    /// when the first call is read after that (the agent of KServe).
    KServe {
        /// Maximum number of items.
        items: u32,
        /// Delay after the first read.
        delay: Duration,
    },
    /// Dispatches what is queued, up to `items`, whenever fewer than `slots` batches are in flight
    /// (Triton).
    Greedy {
        /// Maximum number of batches in flight.
        slots: u32,
        /// Maximum number of items.
        items: u32,
        /// Triton's `max_queue_delay`.
        delay: Duration,
        /// Expires calls past their deadline.
        expire: bool,
    },
    /// AIMD with one batch in flight: the cap rises by one after a full batch within the SLO, and
    /// falls by a tenth when a batch takes longer or fails (Clipper, Crankshaw et al., NSDI 2017).
    Aimd,
    /// A linear fit of the time of a batch, predicted lateness, and a tick of 1 ms (BentoML's
    /// `CorkDispatcher`).
    Cork {
        /// Maximum number of items.
        items: u32,
    },
    /// Hill climbing for the number of batches in flight with the least mean latency (the adaptive
    /// shared batch scheduler of TensorFlow Serving).
    Asbs {
        /// Maximum number of items.
        items: u32,
    },
    /// Dispatches as late as the deadline of the head allows, by the exact curve (deferred batch
    /// scheduling of Symphony, arXiv:2308.07470, on one server).
    Deferred {
        /// Cost of an execution.
        curve: CostCurve,
        /// Maximum number of items.
        items: u32,
    },
    /// Greedy, with a controller that observes only the end-to-end p99 and moves the cap.
    NaiveLoop,
    /// Looks up the batch size by queue length; 0 waits for the next arrival (the optimal policy of
    /// an SMDP).
    Table {
        /// Batch size by queue length. The last entry applies to longer queues.
        sizes: Arc<[u32]>,
    },
}

/// The rule of a baseline: a step after every event.
trait BaselineRule {
    /// Dispatches what is due and requests the next wakeup.
    fn step(&mut self, queue: &mut BaselineQueue, proxy: &mut SimProxy);

    /// Learns from a completed batch, before the queue handles it.
    fn on_completion(&mut self, _proxy: &mut SimProxy, _done: &BatchCompletion) {}
}

/// A policy that runs a named rule on a queue.
struct RulePolicy<R> {
    name: String,
    queue: BaselineQueue,
    rule: R,
}

// === impl Baseline ===

impl Baseline {
    /// Sizes and delays of the grid of windows, in items and milliseconds.
    pub const WINDOWS: ([u32; 4], [u64; 5]) = ([8, 16, 32, 64], [1, 2, 5, 10, 20]);

    /// Creates a window baseline.
    #[must_use]
    pub fn window(items: u32, millis: u64) -> Self {
        Self::Window { items, delay: Duration::from_millis(millis) }
    }

    /// Creates a greedy baseline without a delay.
    #[must_use]
    pub fn greedy(slots: u32, items: u32, expire: bool) -> Self {
        Self::Greedy { slots, items, delay: Duration::ZERO, expire }
    }

    /// Returns the baselines that are compared in every row, with this batch cap. If an exact curve
    /// is given, the deferred baseline uses it.
    #[must_use]
    pub fn all(cap: u32, curve: Option<CostCurve>) -> Vec<Self> {
        let mut all = vec![
            Self::Direct,
            Self::window(32, 5),
            Self::KServe { items: 32, delay: Duration::from_secs(5) },
            Self::Static { items: 8 },
            Self::Aimd,
            Self::Cork { items: cap },
            Self::Asbs { items: cap },
            Self::greedy(1, cap, false),
            Self::greedy(1, cap, true),
            Self::greedy(2, cap, false),
            Self::greedy(4, cap, false),
        ];
        all.extend(curve.map(|curve| Self::Deferred { curve, items: cap }));
        all
    }

    /// Returns every window of the grid.
    pub fn windows() -> impl Iterator<Item = Self> {
        let (sizes, delays) = Self::WINDOWS;
        sizes.into_iter().flat_map(move |items| delays.into_iter().map(move |millis| Self::window(items, millis)))
    }

    /// Creates a fresh policy of this kind.
    #[must_use]
    pub fn build(&self) -> Box<dyn SimPolicy> {
        match *self {
            Self::Direct => self.boxed(fixed::DirectForwarding),
            Self::Window { items, delay } => self.boxed(fixed::FixedWindow { items, delay }),
            Self::Static { items } => self.boxed(fixed::FixedSize { items }),
            Self::KServe { items, delay } => self.boxed(fixed::KServe { items, delay, read: None }),
            Self::Greedy { slots, items, delay, expire } => self.boxed(fixed::Greedy { slots, items, delay, expire }),
            Self::Aimd => self.boxed(adaptive::Aimd::default()),
            Self::Cork { items } => self.boxed(cork::Cork::new(items)),
            Self::Asbs { items } => self.boxed(adaptive::AdaptiveSharedBatch::new(items)),
            Self::Deferred { curve, items } => self.boxed(fixed::DeferredBatching { curve, items }),
            Self::NaiveLoop => self.boxed(adaptive::CapByP99::default()),
            Self::Table { ref sizes } => self.boxed(fixed::SizeTable { sizes: Arc::clone(sizes) }),
        }
    }

    fn boxed(&self, rule: impl BaselineRule + 'static) -> Box<dyn SimPolicy> {
        Box::new(RulePolicy { name: self.to_string(), queue: BaselineQueue::default(), rule })
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Window { items, delay } => write!(f, "window N={items} W={delay:?}"),
            Self::Static { items } => write!(f, "static N={items}"),
            Self::KServe { items, delay } => write!(f, "KServe N={items} W={delay:?}"),
            Self::Greedy { slots, items, delay, expire } => {
                write!(f, "greedy C={slots} N={items}")?;
                if !delay.is_zero() {
                    write!(f, " D={delay:?}")?;
                }
                f.write_str(if *expire { " +expire" } else { "" })
            }
            Self::Aimd => f.write_str("AIMD (Clipper)"),
            Self::Cork { .. } => f.write_str("cork (BentoML)"),
            Self::Asbs { .. } => f.write_str("ASBS (TF)"),
            Self::Deferred { .. } => f.write_str("deferred (exact curve)"),
            Self::NaiveLoop => f.write_str("greedy + naive p99 loop"),
            Self::Table { .. } => f.write_str("SMDP optimum"),
        }
    }
}

// === impl RulePolicy ===

impl<R: BaselineRule> SimPolicy for RulePolicy<R> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn on_arrival(&mut self, proxy: &mut SimProxy, id: CallId) {
        self.queue.push(proxy, id);
        self.rule.step(&mut self.queue, proxy);
    }

    fn on_completion(&mut self, proxy: &mut SimProxy, done: &BatchCompletion) {
        self.rule.on_completion(proxy, done);
        self.queue.on_completion(proxy, done);
        self.rule.step(&mut self.queue, proxy);
    }

    fn on_tick(&mut self, proxy: &mut SimProxy) {
        self.rule.step(&mut self.queue, proxy);
    }

    fn on_cancel(&mut self, proxy: &mut SimProxy, id: CallId) {
        let key: KeyId = proxy.arrival(id).call.key;
        self.queue.remove(proxy, key, id);
        self.rule.step(&mut self.queue, proxy);
    }
}
