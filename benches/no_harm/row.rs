//! Rows of the benchmark: a server and its clients.

use std::time::Duration;

use super::process::Model;

/// A group of clients with one item per call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGroup {
    pub(crate) clients: usize,
    pub(crate) keys: ApiKeys,
    pub(crate) stream: bool,
    pub(crate) slow: SlowReason,
}

/// API keys of a group, which limit the calls that may share a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiKeys {
    /// No call has a key, so all may share a batch.
    One,
    /// Four API keys. Calls with the same key may share a batch.
    Four,
    /// An API key for each client, so that no calls share a batch.
    Own,
}

/// Reason why the calls of a group are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlowReason {
    No,
    /// They use another, slow model.
    Model,
    /// They use the same model with slow items.
    Items,
}

/// Order of the direct and the proxied measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOrder {
    /// Both concurrently, each in front of its own server, so that a disturbance affects both. For
    /// loads that leave the processor idle.
    Concurrent,
    /// In turns, with a new proxy for each.
    InTurns,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) model: Model,
    pub(crate) groups: Vec<ClientGroup>,
    pub(crate) order: RunOrder,
    /// Minimum share of the direct rate.
    pub(crate) share_min: f64,
    /// `true` if the share is that of the rate through the same proxy in mode `Passthrough`: the
    /// cost of any proxy in front of a server that answers at once is not caused by batching.
    pub(crate) of_pass: bool,
}

/// Minimum share of the direct rate, and for calls so short that the 0.1 ms of the proxy matters.
const SHARE_MIN: f64 = 0.96;
const SHORT_SHARE_MIN: f64 = 0.93;

// === impl ClientGroup ===

impl ClientGroup {
    pub(crate) const fn of(clients: usize, keys: ApiKeys) -> Self {
        Self { clients, keys, stream: false, slow: SlowReason::No }
    }

    const fn streams(self) -> Self {
        Self { stream: true, ..self }
    }

    const fn slow(self, slow: SlowReason) -> Self {
        Self { slow, ..self }
    }

    pub(crate) fn name(&self) -> String {
        let keys = match self.keys {
            ApiKeys::One => "one key",
            ApiKeys::Four => "4 keys",
            ApiKeys::Own => "own keys",
        };
        let stream = if self.stream { ", streams" } else { "" };
        let slow = match self.slow {
            SlowReason::No => "",
            SlowReason::Model => ", slow model",
            SlowReason::Items => ", slow items",
        };
        format!("{} x {keys}{stream}{slow}", self.clients)
    }
}

// === impl Row ===

impl Row {
    fn new(name: &'static str, model: Model, groups: &[ClientGroup]) -> Self {
        Self { name, model, groups: groups.to_vec(), order: RunOrder::Concurrent, share_min: SHARE_MIN, of_pass: false }
    }

    fn short(self) -> Self {
        Self { share_min: SHORT_SHARE_MIN, order: RunOrder::InTurns, ..self }
    }
}

/// Returns all rows.
pub(crate) fn rows() -> Vec<Row> {
    use ApiKeys::{Four, One, Own};
    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }
    let wide = Model::flat(ms(200), 64);
    let slow = Model::flat(ms(2000), 64);
    let serial = Model::flat(ms(20), 1);
    let four = Model::flat(ms(50), 4);
    let inner = Model { inner: Some(64), ..Model::linear(ms(20), ms(1), 1) };
    let (few, many) = (Model::flat(ms(50), 64), Model::linear(ms(100), ms(20), 8));
    let two_models = Model { slow: Some(ms(1000)), ..Model::flat(ms(20), 64) };
    let slow_items = Model { slow: Some(ms(2000)), ..Model::flat(ms(25), 64) };
    vec![
        Row::new("64 at once, 200 ms, own", wide, &[ClientGroup::of(48, Own)]),
        Row::new("64 at once, 200 ms, streams", wide, &[ClientGroup::of(48, One).streams()]),
        Row::new("64 at once, 200 ms, 4 keys", wide, &[ClientGroup::of(48, Four)]),
        Row::new("64 at once, 200 ms, one key", wide, &[ClientGroup::of(48, One)]),
        Row::new(
            "64 at once, 200 ms, half streams",
            wide,
            &[ClientGroup::of(24, One), ClientGroup::of(24, Own).streams()],
        ),
        Row::new("64 at once, 50 ms, 200 of one key", few, &[ClientGroup::of(200, One)]),
        Row::new("64 at once, 50 ms, 8 own", few, &[ClientGroup::of(8, Own)]),
        Row::new("256 at once, 300 ms, 100 own", Model::flat(ms(300), 256), &[ClientGroup::of(100, Own)]),
        Row::new("256 at once, 300 ms, 200 of one key", Model::flat(ms(300), 256), &[ClientGroup::of(200, One)]),
        Row::new("slow, 64 at once, 32 own", slow, &[ClientGroup::of(32, Own)]),
        Row::new("slow, 64 at once, 32 of one key", slow, &[ClientGroup::of(32, One)]),
        Row::new("linear, 64 at once, 32 of one key", Model::linear(ms(20), ms(20), 64), &[ClientGroup::of(32, One)]),
        Row::new("linear, serial, 32 of one key", Model::linear(ms(0), ms(20), 1), &[ClientGroup::of(32, One)]),
        Row::new("8 at once, 100 ms + 20 ms an item, 200 of one key", many, &[ClientGroup::of(200, One)]),
        Row::new("4 at once, 50 ms, 48 of 4 keys", four, &[ClientGroup::of(48, Four)]),
        Row::new("serial, 20 ms, 32 of one key", serial, &[ClientGroup::of(32, One)]),
        Row::new("serial, 20 ms, 12 of one key", serial, &[ClientGroup::of(12, One)]),
        Row::new("serial, 20 ms, 32 own", serial, &[ClientGroup::of(32, Own)]),
        Row::new("serial, 20 ms, a lone caller", serial, &[ClientGroup::of(1, One)]),
        Row::new("batches itself, 48 of one key", inner, &[ClientGroup::of(48, One)]),
        Row::new(
            "slow items beside light ones",
            slow_items,
            &[ClientGroup::of(8, Own), ClientGroup::of(1, Own).slow(SlowReason::Items)],
        ),
        Row::new(
            "slow model beside a fast one",
            two_models,
            &[ClientGroup::of(13, One), ClientGroup::of(8, One).slow(SlowReason::Model)],
        ),
        Row::new("64 at once, 5 ms, 4 own", Model::flat(ms(5), 64), &[ClientGroup::of(4, Own)]).short(),
        Row::new("64 at once, 5 ms, 4 of one key", Model::flat(ms(5), 64), &[ClientGroup::of(4, One)]).short(),
        Row {
            of_pass: true,
            ..Row::new("about 0 ms, 8 of one key", Model::flat(ms(0), 64), &[ClientGroup::of(8, One)]).short()
        },
    ]
}
