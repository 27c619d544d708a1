//! Property test of arbitrary sequences of offers, cancels, completions and polls against the
//! simulator's model. It covers orders that the simulator does not generate, and shrinks a failure.

use std::time::Duration;

use groupage::batching::{
    BatchId, BatchOutcome, Batcher, Call, CallId, CostClassId, Deadline, DeadlineSource, Decision, DispatchPolicy,
    KeyId, LateTreatment, Limits, Observation, ScopeId, ScopeLimits, TenantId, Tick, Weight,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};
use proptest::test_runner::TestCaseError;

use crate::sim::invariant::Violation;
use crate::sim::model::Model;
use crate::sim::trace::{CoreResponse, Event, apply_event};

const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
enum Op {
    Offer {
        key: u64,
        tenant: u32,
        items: u32,
        bytes: u64,
        unmergeable: bool,
        exclusive: Option<u64>,
        deadline: Option<(u32, DeadlineSource)>,
    },
    Cancel(u64),
    Answered(u64),
    Pass(u32),
    /// Advances the time to the wake-up that the core requested.
    Wake,
    Complete {
        nth: usize,
        millis: u32,
        outcome: BatchOutcome,
    },
    SetLimits(Box<Limits>),
    Publish(u32),
    Drain,
}

fn source() -> impl Strategy<Value = DeadlineSource> {
    prop_oneof![Just(DeadlineSource::Slo), Just(DeadlineSource::Caller)]
}

fn outcome() -> impl Strategy<Value = BatchOutcome> {
    prop_oneof![
        6 => Just(BatchOutcome::Ok),
        1 => prop::option::of(0..9_u32).prop_map(|limit| BatchOutcome::TooLarge { limit }),
        1 => Just(BatchOutcome::Overloaded { retry_after: None }),
        1 => Just(BatchOutcome::Mismatched),
        1 => Just(BatchOutcome::Failed),
    ]
}

fn policy() -> impl Strategy<Value = DispatchPolicy> {
    (0..3, 1..6_u32, 0..20_u32).prop_map(|(which, items, delay)| match which {
        0 => DispatchPolicy::WorkConserving,
        1 => DispatchPolicy::Window { items, delay: delay * MS },
        _ => DispatchPolicy::Static { items, delay: delay * MS },
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let scope = (1..6_u32, prop::option::of(1..20_u64), 1..60_u64, 0..20_u32, 1..12_u32, 1..4_u32).prop_map(
        |(batch_items_max, batch_weight_max, batch_bytes_max, hold, queue_items_max, slots_max)| ScopeLimits {
            batch_items_max,
            batch_weight_max,
            batch_bytes_max,
            queue_delay_max: hold * MS,
            queue_items_max,
            queue_bytes_max: 120,
            slots_max,
            late: LateTreatment::Refuse,
            merges_always: false,
        },
    );
    (policy(), 1..4_u32, 1..16_u32, prop::collection::vec(scope, 1..3)).prop_map(
        |(policy, slots, queue_items_max, scopes)| Limits {
            policy,
            slots,
            stand_aside_max: 512,
            queue_items_max,
            queue_bytes_max: 150,
            scopes,
            quarantine: 7 * MS,
            ..Limits::default()
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let offer = (0..4_u64, 0..3_u32, 1..5_u32, 0..30_u64, prop::bool::weighted(0.05))
        .prop_flat_map(|call| {
            (Just(call), prop::option::weighted(0.2, 0..3_u64), prop::option::of((0..25_u32, source())))
        })
        .prop_map(|((key, tenant, items, bytes, unmergeable), exclusive, deadline)| Op::Offer {
            key,
            tenant,
            items,
            bytes,
            unmergeable,
            exclusive,
            deadline,
        });
    prop_oneof![
        12 => offer,
        2 => (0..40_u64).prop_map(Op::Cancel),
        1 => (0..40_u64).prop_map(Op::Answered),
        3 => (0..20_u32).prop_map(Op::Pass),
        4 => Just(Op::Wake),
        6 => (any::<usize>(), 0..20_u32, outcome()).prop_map(|(nth, millis, outcome)| Op::Complete { nth, millis, outcome }),
        1 => limits().prop_map(|limits| Op::SetLimits(Box::new(limits))),
        1 => (0..6_u32).prop_map(Op::Publish),
        1 => Just(Op::Drain),
    ]
}

/// A core with its model, and the batches in flight.
struct ModelledCore {
    core: Batcher,
    model: Model,
    now: Tick,
    calls: u64,
    in_flight: Vec<BatchId>,
    wakeup: Option<Tick>,
}

// === impl ModelledCore ===

impl ModelledCore {
    fn apply(&mut self, event: &Event) -> Result<CoreResponse, Violation> {
        let response = apply_event(&mut self.core, event);
        self.model.step(event, &response, &self.core)?;
        Ok(response)
    }

    fn apply_op(&mut self, op: Op) -> Result<(), Violation> {
        let now = self.now;
        let event = match op {
            Op::Offer { key, tenant, items, bytes, unmergeable, exclusive, deadline } => {
                self.calls += 1;
                let weight = Weight { sum: u64::from(items) * 2, max: 2 };
                let deadline = deadline.map(|(millis, source)| Deadline { at: now.after(millis * MS), source });
                let (class, scope) = if key % 2 == 0 { (0, 0) } else { (1, 1) };
                Event::Offer(
                    now,
                    Call {
                        key: KeyId(key),
                        cost_class: CostClassId(class),
                        scope: ScopeId(scope),
                        tenant: TenantId(tenant.into()),
                        unmergeable,
                        replayable: true,
                        deadline,
                        items,
                        weight,
                        bytes,
                        exclusive: exclusive.into_iter().collect(),
                        ..Call::new(CallId(self.calls))
                    },
                )
            }
            Op::Cancel(id) => Event::Cancel(now, CallId(id)),
            Op::Answered(id) => Event::Answered(CallId(id)),
            Op::Pass(millis) => {
                self.now = now.after(millis * MS);
                return self.decide();
            }
            Op::Wake => {
                self.now = self.wakeup.unwrap_or(now);
                return self.decide();
            }
            Op::Complete { nth, millis, outcome } => {
                if self.in_flight.is_empty() {
                    return Ok(());
                }
                let batch = self.in_flight.remove(nth % self.in_flight.len());
                Event::Complete(now, batch, Observation { duration: millis * MS, first_byte: None, outcome })
            }
            Op::SetLimits(limits) => Event::SetLimits(*limits),
            Op::Publish(items_max) => Event::Publish(now, CostClassId(0), items_max),
            Op::Drain => Event::Drain(now),
        };
        self.apply(&event)?;
        self.decide()
    }

    fn decide(&mut self) -> Result<(), Violation> {
        for _ in 0..=self.model.decisions_max() {
            match self.apply(&Event::Poll(self.now))? {
                CoreResponse::Decided(Decision::Dispatch(batch)) => self.in_flight.push(batch.id),
                CoreResponse::Idle(wakeup) => {
                    self.wakeup = wakeup;
                    return Ok(());
                }
                _ => {}
            }
        }
        panic!("poll does not stop deciding");
    }

    /// Drains, and completes every batch.
    fn end(&mut self) -> Result<(), Violation> {
        self.apply_op(Op::Drain)?;
        for _ in 0..=self.calls {
            self.apply_op(Op::Complete { nth: 0, millis: 1, outcome: BatchOutcome::Ok })?;
        }
        self.model.check_end()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn invariants_hold_for_any_sequence(limits in limits(), ops in prop::collection::vec(op(), 1..80)) {
        let mut pair = ModelledCore {
            core: Batcher::new(limits.clone(), 1),
            model: Model::new(limits),
            now: Tick::from_millis(1),
            calls: 0,
            in_flight: Vec::new(),
            wakeup: None,
        };
        let done = ops.into_iter().try_for_each(|op| pair.apply_op(op)).and_then(|()| pair.end());
        done.map_err(|Violation { invariant, how }| TestCaseError::fail(format!("invariant {invariant:?} broken: {how}")))?;
    }
}
