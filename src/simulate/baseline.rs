//! The batching rules of others, to stand beside ours on the same arrivals.
//!
//! Each sees its queue, what it has in flight and when that came back, nothing else; the two that are handed the exact curve or an optimal table
//! say so. Where the original knows one queue, so does the baseline: with several merge keys each key has its own line, and the line whose head
//! came first goes first. A batch that the upstream refuses is halved and sent again, and a call refused alone keeps its refusal.

mod adaptive;
mod cork;
mod queue;
mod simple;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::batching::{CallId, KeyId};

use super::curve::Curve;
use super::desk::Desk;
use super::policy::{Done, Policy};
use queue::Queue;

/// A baseline, as data: what stands in a table is made anew for each run.
#[derive(Debug, Clone, PartialEq)]
pub enum Baseline {
    /// Every call alone, at once: as without a proxy.
    Direct,
    /// At `items`, or `delay` after the first; any number in flight (`MLServer`).
    Window {
        /// Most items.
        items: u32,
        /// From the arrival of the first.
        delay: Duration,
    },
    /// At `items`, never before.
    Static {
        /// Items.
        items: u32,
    },
    /// A window whose loop blocks while a batch is out, and which starts when the first call is read after that (KServe's agent).
    KServe {
        /// Most items.
        items: u32,
        /// From the first read.
        delay: Duration,
    },
    /// Whenever fewer than `slots` batches are out, what is queued, up to `items` (Triton).
    Greedy {
        /// Batches in flight.
        slots: u32,
        /// Most items.
        items: u32,
        /// Triton's `max_queue_delay`.
        delay: Duration,
        /// Give up calls past their deadline.
        expire: bool,
    },
    /// One batch out; its cap rises by one while batches take less than the SLO and falls by a tenth when one takes longer (Clipper).
    Aimd,
    /// A line learned for the time of a batch, foreseen lateness, and a tick of 1 ms (BentoML's `CorkDispatcher`).
    Cork {
        /// Most items.
        items: u32,
    },
    /// Climbs to the number of batches in flight that gives the least mean latency (TF Serving's adaptive shared batch scheduler).
    Asbs {
        /// Most items.
        items: u32,
    },
    /// As late as the head's deadline allows, by the exact curve (as Symphony on one server).
    Deferred {
        /// What an execution takes.
        curve: Curve,
        /// Most items.
        items: u32,
    },
    /// Greedy, with a controller that reads only the end-to-end p99 and moves the cap.
    NaiveLoop,
    /// Plays a table from queue length to batch size; 0 waits for the next arrival (an SMDP's optimum).
    Table {
        /// By queue length; the last entry holds for longer queues.
        sizes: Arc<[u32]>,
    },
}

/// What the baselines have in common: a queue, and a step after every event.
trait Rule {
    fn queue(&mut self) -> &mut Queue;

    /// Sends what is to be sent now and asks to be woken.
    fn step(&mut self, desk: &mut Desk);

    /// Looks at a batch that came back, before anything else is done with it.
    fn learn(&mut self, _desk: &mut Desk, _done: &Done) {}
}

/// A rule with its name: a policy.
struct Ruled<R> {
    name: String,
    rule: R,
}

// === impl Baseline ===

impl Baseline {
    /// Sizes and delays of the windows that are tried by hand, in items and milliseconds (`scheduling.md` §5.1).
    pub const WINDOWS: ([u32; 4], [u64; 5]) = ([8, 16, 32, 64], [1, 2, 5, 10, 20]);

    /// A window.
    #[must_use]
    pub fn window(items: u32, millis: u64) -> Self {
        Self::Window { items, delay: Duration::from_millis(millis) }
    }

    /// Greedy without a delay.
    #[must_use]
    pub fn greedy(slots: u32, items: u32, expire: bool) -> Self {
        Self::Greedy { slots, items, delay: Duration::ZERO, expire }
    }

    /// Those that stand beside ours in every row, with this cap; the curve, where one is exact, for the one that is handed it.
    #[must_use]
    pub fn all(cap: u32, curve: Option<Curve>) -> Vec<Self> {
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

    /// Every window on the grid.
    pub fn windows() -> impl Iterator<Item = Self> {
        let (sizes, delays) = Self::WINDOWS;
        sizes.into_iter().flat_map(move |items| delays.into_iter().map(move |millis| Self::window(items, millis)))
    }

    /// A fresh policy of this kind.
    #[must_use]
    pub fn build(&self) -> Box<dyn Policy> {
        match *self {
            Self::Direct => self.ruled(simple::Direct::default()),
            Self::Window { items, delay } => self.ruled(simple::Window::new(items, delay)),
            Self::Static { items } => self.ruled(simple::Static::new(items)),
            Self::KServe { items, delay } => self.ruled(simple::KServe::new(items, delay)),
            Self::Greedy { slots, items, delay, expire } => {
                self.ruled(simple::Greedy::new(slots, items, delay, expire))
            }
            Self::Aimd => self.ruled(adaptive::Aimd::default()),
            Self::Cork { items } => self.ruled(cork::Cork::new(items)),
            Self::Asbs { items } => self.ruled(adaptive::Asbs::new(items)),
            Self::Deferred { curve, items } => self.ruled(simple::Deferred::new(curve, items)),
            Self::NaiveLoop => self.ruled(adaptive::NaiveLoop::default()),
            Self::Table { ref sizes } => self.ruled(simple::Table::new(Arc::clone(sizes))),
        }
    }

    fn ruled(&self, rule: impl Rule + 'static) -> Box<dyn Policy> {
        Box::new(Ruled { name: self.to_string(), rule })
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

// === impl Ruled ===

impl<R: Rule> Policy for Ruled<R> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn arrival(&mut self, desk: &mut Desk, id: CallId) {
        self.rule.queue().push(desk, id);
        self.rule.step(desk);
    }

    fn done(&mut self, desk: &mut Desk, done: &Done) {
        self.rule.learn(desk, done);
        self.rule.queue().settle(desk, done);
        self.rule.step(desk);
    }

    fn tick(&mut self, desk: &mut Desk) {
        self.rule.step(desk);
    }

    fn cancel(&mut self, desk: &mut Desk, id: CallId) {
        let key: KeyId = desk.arrival(id).call.key;
        self.rule.queue().remove(desk, key, id);
        self.rule.step(desk);
    }
}
