//! Looks at calls that pass, in mode `Observe`, and tells what batching would have done with them.
//!
//! A task of its own that owns a [`Shadow`]: it is told of calls and of their answers, and wakes for nothing else. Reading a call is its work, not the caller's.
//! What comes faster than it reads is left out and counted. What it leaves out: bodies (`proxy`), and who asks for the counts (`cli`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::numbers::Numbers;
use super::recent::{Recent, Windows};
use super::{Config, Submission};
use crate::backend::Backend;
use crate::batching::{
    CallId, CostClassId, Deadline, Limits, Plan, PlanInput, PriorityId, ScopeId, Shadow, ShadowEnd, Tick, Would, solve,
};
use crate::clock::Clock;
use crate::protocol::{Call, Endpoint, Label, Merge, Published};
use crate::telemetry::names::{Outcome, Unpredicted};
use crate::telemetry::{CallEnd, Metrics};

/// Events that wait: bodies that they hold are counted in the budget of buffers. A look that is this far behind leaves calls out.
const EVENTS_MAX: usize = 4096;
/// Between two looks at what a server publishes; `backend` remembers it.
const PUBLISHED_EVERY: Duration = Duration::from_secs(1);

/// Where calls that pass are told.
#[derive(Debug, Clone)]
pub struct Onlooker {
    events: mpsc::Sender<Event>,
    next_id: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// Reads a call that passes.
pub struct Reading(pub Box<dyn FnOnce() -> Call + Send>);

/// What is known of a call that passes before it is read.
#[derive(Debug)]
pub struct Passing {
    /// How it would be sent in a batch.
    pub endpoint: Arc<Endpoint>,
    /// Whose limits would hold.
    pub scope: ScopeId,
    /// Its priority class.
    pub priority: PriorityId,
    /// What its tenant weighs.
    pub tenant_weight: u32,
    /// When its head came.
    pub began: Tick,
    /// When its answer becomes useless.
    pub deadline: Option<Deadline>,
    /// The deadline that holds instead once an SLO cannot be met at all.
    pub later: Option<Deadline>,
    /// The SLO as the policy has it.
    pub slo: Option<Duration>,
    /// A route names its protocol: it would be merged also before a server that batches by itself.
    pub names_protocol: bool,
}

/// A call whose body is not there yet.
#[derive(Debug)]
pub struct Coming {
    onlooker: Onlooker,
    id: CallId,
    ended: Ended,
}

/// A call whose answer is awaited. Dropped without one, its caller has left.
#[derive(Debug)]
pub struct Awaited {
    onlooker: Onlooker,
    id: CallId,
    ended: Ended,
}

/// Whether a call's end was told. Held while one of the two events is sent: they stand in the channel in the order in which this was asked.
type Ended = Arc<Mutex<bool>>;

/// What was seen, since the process started.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Calls of which something was predicted.
    pub calls: u64,
    /// Calls of which nothing was, and why.
    pub left_out: Vec<(Unpredicted, u64)>,
    /// Upstream calls that these would have been.
    pub executions: u64,
    /// Calls and items in those.
    pub carried: (u64, u64),
    /// Calls that would have been answered, refused, and given up in the queue.
    pub answered: u64,
    /// See `answered`.
    pub rejected: u64,
    /// See `answered`.
    pub expired: u64,
    /// From arrival to answer, of those that would have been answered, together.
    pub latency: Duration,
    /// Calls that were answered as they passed, and the same time of those.
    pub passed: (u64, Duration),
    /// Calls that the server was seen to run side by side.
    pub side_by_side: u32,
    /// By cost class what a lone call takes, and the most items in a call of which that was learned.
    pub classes: Vec<(Box<[u8]>, Duration, u32)>,
    /// The same counts of the last minute or two.
    pub recent: Recent,
}

#[derive(Debug)]
enum Event {
    Came(CallId, Tick, Box<Passing>, Reading, Answered),
    Ended(CallId, Tick, How),
    Plan(CostClassId, Plan),
    Published(Option<Published>),
    Limits(Box<Limits>),
    Seen(oneshot::Sender<Seen>),
}

/// Whether a call's answer was there before the call's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    Before,
    Not,
}

/// How a call that passed ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Well,
    Failed,
    Left,
}

/// The task.
struct Look {
    shadow: Shadow,
    numbers: Numbers,
    /// Queued in the shadow.
    queued: BTreeMap<CallId, Submission>,
    /// On their way, with when they began.
    passing: BTreeMap<CallId, Tick>,
    seen: Seen,
    windows: Windows,
    published: Option<Published>,
    asked: Option<Tick>,
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    clock: Clock,
    events: mpsc::WeakSender<Event>,
}

// === impl Reading ===

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading(..)")
    }
}

// === impl Onlooker ===

impl Onlooker {
    /// Begins to look.
    #[must_use]
    pub fn start(config: &Config, clock: Clock, backend: Arc<dyn Backend>, metrics: Arc<Metrics>) -> Self {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let look = Look {
            shadow: Shadow::new(config.limits.clone(), config.seed),
            numbers: Numbers::new(),
            queued: BTreeMap::new(),
            passing: BTreeMap::new(),
            seen: Seen::default(),
            windows: Windows::new(clock.now()),
            published: None,
            asked: None,
            backend,
            metrics: metrics.clone(),
            clock,
            events: events.downgrade(),
        };
        tokio::spawn(look.run(inbox));
        Self { events, next_id: Arc::new(AtomicU64::new(1)), metrics, clock }
    }

    /// A call begins to pass: who tells of its body, and who of its answer.
    #[must_use]
    pub fn begins(&self) -> (Coming, Awaited) {
        let id = CallId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let ended = Ended::default();
        let coming = Coming { onlooker: self.clone(), id, ended: ended.clone() };
        (coming, Awaited { onlooker: self.clone(), id, ended })
    }

    /// Decides within these walls from now on.
    pub async fn set_limits(&self, limits: Limits) {
        // A look that has ended predicts nothing.
        self.events.send(Event::Limits(Box::new(limits))).await.ok();
    }

    /// What was seen; `None` when nobody answers within a second.
    pub async fn seen(&self) -> Option<Seen> {
        let (reply, seen) = oneshot::channel();
        self.events.try_send(Event::Seen(reply)).ok()?;
        tokio::time::timeout(Duration::from_secs(1), seen).await.ok()?.ok()
    }
}

// === impl Coming ===

impl Coming {
    /// Its body is there. It is read once nobody waits for that.
    pub fn came(self, passing: Box<Passing>, read: Reading) {
        let Self { onlooker, id, ended } = self;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = if *ended { Answered::Before } else { Answered::Not };
        let event = Event::Came(id, onlooker.clock.now(), passing, read, answered);
        if onlooker.events.try_send(event).is_err() {
            onlooker.metrics.unpredicted(Unpredicted::Behind);
        }
    }

    /// Nothing can be said of it.
    pub fn left_out(self, why: Unpredicted) {
        self.onlooker.metrics.unpredicted(why);
    }
}

// === impl Awaited ===

impl Awaited {
    /// Its answer is there, `well` or not.
    pub fn answered(&self, well: bool) {
        self.end(if well { How::Well } else { How::Failed });
    }

    fn end(&self, how: How) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *ended, true) {
            // What is lost to a full channel is the oldest of those on their way some time, and forgotten.
            self.onlooker.events.try_send(Event::Ended(self.id, self.onlooker.clock.now(), how)).ok();
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.end(How::Left);
    }
}

// === impl Seen ===

impl Seen {
    /// The most items in one call of which it was learned what they take.
    #[must_use]
    pub fn measured_items(&self) -> u32 {
        self.classes.iter().map(|(.., items)| *items).max().unwrap_or(0)
    }
}

// === impl Look ===

impl Look {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::Came(id, at, passing, read, answered) => {
                    self.came((id, at), *passing, (read.0)(), answered);
                }
                Event::Ended(id, at, how) => self.ended(id, at, how),
                Event::Plan(class, plan) => self.shadow.set_plan(class, plan),
                Event::Published(published) => self.published = published,
                Event::Limits(limits) => self.shadow.set_limits(*limits),
                // Who asked may have gone.
                Event::Seen(reply) => _ = reply.send(self.seen()),
            }
            self.count();
            while let Some((class, input)) = self.shadow.plan_due() {
                self.plan(class, input);
            }
        }
    }

    fn came(&mut self, (id, at): (CallId, Tick), passing: Passing, call: Call, answered: Answered) {
        let Passing { endpoint, scope, priority, tenant_weight, began, .. } = passing;
        let mut alone = matches!(call.merge, Merge::Alone(_));
        if endpoint.label == Label::Tei {
            self.ask();
            let by_itself = self.published.is_some_and(|known| endpoint.needs_info && known.batches_itself);
            self.shadow.set_known_batching(by_itself && !passing.names_protocol);
            alone |= by_itself && passing.names_protocol;
        }
        let submission = Submission {
            call: Arc::new(call),
            endpoint,
            scope,
            priority,
            tenant_weight,
            alone,
            batches_itself: None,
            deadline: passing.deadline,
            later: passing.later,
            slo: passing.slo,
            caller_deadline: None,
            timeout: None,
            published_items_max: None,
            published_weight_max: None,
        };
        let (offered, _) = self.numbers.call(id, &submission);
        if let Some(published) = self.published {
            let most = (published.items_max, published.weight_max);
            self.shadow.publish(at, offered.cost_class, most);
        }
        self.queued.insert(id, submission);
        if self.shadow.came(at, began, offered) {
            self.seen.calls += 1;
            self.windows.at(at).calls += 1;
            if self.passing.len() >= EVENTS_MAX {
                self.passing.pop_first();
            }
            self.passing.insert(id, began);
        } else {
            self.forget(id);
            self.metrics.unpredicted(Unpredicted::Unlearned);
        }
        if answered == Answered::Before {
            // What it took is not known.
            self.passing.remove(&id);
            self.shadow.answered(at, id, false);
        }
    }

    fn ended(&mut self, id: CallId, at: Tick, how: How) {
        let began = self.passing.remove(&id);
        match how {
            How::Left => self.shadow.left(at, id),
            How::Well | How::Failed => self.shadow.answered(at, id, how == How::Well),
        }
        if let (Some(began), How::Well) = (began, how) {
            let took = at.since(began);
            for passed in [&mut self.seen.passed, &mut self.windows.at(at).passed] {
                passed.0 += 1;
                passed.1 += took;
            }
        }
    }

    /// Counts what would have happened by now.
    fn count(&mut self) {
        let now = self.clock.now();
        for would in self.shadow.would() {
            self.windows.at(now).count(&would);
            let observer = self.metrics.predicted_observer();
            match would {
                Would::Leave { members, scope, items } => {
                    self.seen.executions += 1;
                    self.seen.carried.0 += members.len() as u64;
                    self.seen.carried.1 += u64::from(items);
                    self.metrics.predicted_leaves(items, members.iter().map(|(_, delay)| *delay));
                    if let Some(observer) = observer {
                        observer.dispatched(scope, items, &mut members.iter().map(|(_, delay)| *delay));
                    }
                    for (id, _) in members {
                        self.forget(id);
                    }
                }
                Would::End { id, scope, items, how, latency, slo } => {
                    let outcome = match how {
                        ShadowEnd::Answered => {
                            self.seen.answered += 1;
                            self.seen.latency += latency;
                            Outcome::Served
                        }
                        ShadowEnd::Rejected => {
                            self.seen.rejected += 1;
                            Outcome::Rejected
                        }
                        ShadowEnd::Expired => {
                            self.seen.expired += 1;
                            Outcome::Expired
                        }
                        ShadowEnd::Cancelled => Outcome::Cancelled,
                    };
                    self.metrics.predicted_ends(outcome, latency);
                    if let Some(observer) = observer {
                        observer.ended(scope, &CallEnd { outcome, latency, items, slo, server_error: false });
                    }
                    self.forget(id);
                }
            }
        }
    }

    fn forget(&mut self, id: CallId) {
        if let Some(submission) = self.queued.remove(&id) {
            self.numbers.release(&submission);
        }
    }

    fn seen(&mut self) -> Seen {
        self.shadow.advance(self.clock.now());
        self.count();
        let known = self.shadow.known();
        let class = |(id, nanos, items): &(CostClassId, u64, u32)| {
            Some((self.numbers.class_name(*id)?.into(), Duration::from_nanos(*nanos), *items))
        };
        Seen {
            side_by_side: known.side_by_side,
            classes: known.classes.iter().filter_map(class).collect(),
            left_out: self.metrics.unpredicted_counts(),
            recent: self.windows.sum(self.clock.now()),
            ..self.seen.clone()
        }
    }

    /// Asks what the server publishes; the next calls know it.
    fn ask(&mut self) {
        let now = self.clock.now();
        if self.asked.is_some_and(|at| now.since(at) < PUBLISHED_EVERY) {
            return;
        }
        self.asked = Some(now);
        let (backend, events) = (self.backend.clone(), self.events.clone());
        tokio::spawn(async move {
            let published = backend.published().await;
            if let Some(events) = events.upgrade() {
                // A full channel loses it: it is asked again.
                events.try_send(Event::Published(published)).ok();
            }
        });
    }

    fn plan(&self, class: CostClassId, input: PlanInput) {
        let events = self.events.clone();
        tokio::task::spawn_blocking(move || {
            let plan = solve(&input);
            if let Some(events) = events.upgrade() {
                // A full channel loses it: the next one comes.
                events.try_send(Event::Plan(class, plan)).ok();
            }
        });
    }
}
