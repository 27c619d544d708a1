//! Records the events applied to the core and its responses, and replays them.

use std::fmt::{self, Write as _};

use groupage::batching::{
    Batch, BatchId, Batcher, Call, CallId, CostClassId, Decision, Limits, Observation, Rejection, Tick,
};

/// An event that is applied to the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Offer(Tick, Call),
    Cancel(Tick, CallId),
    Answered(CallId),
    Complete(Tick, BatchId, Observation),
    SetLimits(Limits),
    Publish(Tick, CostClassId, u32),
    PublishWeight(Tick, CostClassId, u64),
    Drain(Tick),
    Poll(Tick),
}

/// The core's response to an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CoreResponse {
    Nothing,
    Offered(Result<(), Rejection>),
    Cancelled(bool),
    Decided(Decision),
    /// `poll` returned no decision. Carries the next wake-up.
    Idle(Option<Tick>),
}

/// A run, from its limits to its last event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) limits: Limits,
    pub(crate) seed: u64,
    pub(crate) events: Vec<Event>,
    /// One response per event, or one less if the core panicked.
    pub(crate) responses: Vec<CoreResponse>,
}

/// Applies an event to the core.
pub(crate) fn apply_event(core: &mut Batcher, event: &Event) -> CoreResponse {
    match event.clone() {
        Event::Offer(now, call) => return CoreResponse::Offered(core.enqueue(now, call)),
        Event::Cancel(now, id) => return CoreResponse::Cancelled(core.cancel(now, id)),
        Event::Poll(now) => {
            return core.poll(now).map_or_else(|| CoreResponse::Idle(core.next_wakeup()), CoreResponse::Decided);
        }
        Event::Answered(id) => core.on_member_answered(id),
        Event::Complete(now, batch, observed) => core.complete(now, batch, observed),
        Event::SetLimits(limits) => core.set_limits(limits),
        Event::Publish(now, class, items_max) => core.set_published_items_max(now, class, items_max),
        Event::PublishWeight(now, class, weight_max) => core.set_published_weight_max(now, class, weight_max),
        Event::Drain(now) => core.drain(now),
    }
    CoreResponse::Nothing
}

// === impl Trace ===

impl Trace {
    /// Applies the same events to a new core and returns its responses.
    pub(crate) fn replay(&self) -> Vec<CoreResponse> {
        let mut core = Batcher::new(self.limits.clone(), self.seed);
        self.events.iter().map(|event| apply_event(&mut core, event)).collect()
    }

    /// Returns the run as text, one line per event.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("limits {:?}\n", self.limits);
        let mut responses = self.responses.iter();
        for event in &self.events {
            match responses.next() {
                Some(CoreResponse::Nothing) => _ = writeln!(text, "{event}"),
                Some(response) => _ = writeln!(text, "{event} -> {response}"),
                None => _ = writeln!(text, "{event} -> (no answer)"),
            }
        }
        text
    }
}

// === impl Event ===

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offer(now, call) => {
                let Call {
                    id,
                    key,
                    cost_class,
                    tenant,
                    tenant_weight,
                    priority,
                    scope,
                    unmergeable,
                    deadline,
                    items,
                    weight,
                    bytes,
                    exclusive,
                    fallback_deadline: later,
                    slo: _,
                    replayable: _,
                    charged_by_weight: _,
                    origin: _,
                } = call;
                write!(
                    f,
                    "{now:?} offer {} key {} class {} tenant {} scope {}",
                    id.0, key.0, cost_class.0, tenant.0, scope.0
                )?;
                if (*tenant_weight, priority.0) != (1, 0) {
                    write!(f, ", weight {tenant_weight} priority {}", priority.0)?;
                }
                write!(f, ", {items} items, weight {}, {bytes} bytes", weight.sum)?;
                if *unmergeable {
                    f.write_str(", alone")?;
                }
                if !exclusive.is_empty() {
                    write!(f, ", exclusive {exclusive:?}")?;
                }
                for deadline in [deadline, later].into_iter().flatten() {
                    write!(f, ", until {:?} ({:?})", deadline.at, deadline.source)?;
                }
                Ok(())
            }
            Self::Cancel(now, id) => write!(f, "{now:?} cancel {}", id.0),
            Self::Answered(id) => write!(f, "answered {}", id.0),
            Self::Complete(now, batch, Observation { duration, outcome, .. }) => {
                write!(f, "{now:?} complete batch {} after {duration:?}: {outcome:?}", batch.0)
            }
            Self::SetLimits(limits) => write!(f, "set {limits:?}"),
            Self::Publish(now, class, items_max) => write!(f, "{now:?} publish class {}: {items_max} items", class.0),
            Self::PublishWeight(now, class, weight_max) => {
                write!(f, "{now:?} publish class {}: weight {weight_max}", class.0)
            }
            Self::Drain(now) => write!(f, "{now:?} drain"),
            Self::Poll(now) => write!(f, "{now:?} poll"),
        }
    }
}

// === impl CoreResponse ===

impl fmt::Display for CoreResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Offered(Ok(())) => f.write_str("accepted"),
            Self::Offered(Err(Rejection { reason, retry_after })) => {
                write!(f, "refused, {reason:?}, again after {retry_after:?}")
            }
            Self::Cancelled(left) => write!(f, "{}", if *left { "left" } else { "unknown" }),
            Self::Decided(Decision::Dispatch(batch)) => {
                let Batch { id, key, cost_class, members, items, weight, bytes, cause, unbatched_reason, .. } = batch;
                write!(
                    f,
                    "batch {} key {} class {} {cause:?}, {items} items, weight {weight}",
                    id.0, key.0, cost_class.0
                )?;
                write!(f, ", {bytes} bytes: ")?;
                f.debug_list().entries(members.iter().map(|member| member.id.0)).finish()?;
                unbatched_reason.map_or(Ok(()), |reason| write!(f, " {reason:?}"))
            }
            Self::Decided(Decision::Expire { id, reason }) => write!(f, "expire {}, {reason:?}", id.0),
            Self::Decided(Decision::Abort(batch)) => write!(f, "abort batch {}", batch.0),
            Self::Idle(None) => f.write_str("idle"),
            Self::Idle(Some(at)) => write!(f, "idle until {at:?}"),
        }
    }
}
