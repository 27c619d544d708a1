//! Rows of the benchmark: a server and its clients.

use std::time::Duration;

use super::process::Model;

/// A group of clients with one item per call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    pub(crate) clients: usize,
    pub(crate) keys: Keys,
    pub(crate) stream: bool,
    pub(crate) slow: Slow,
}

/// API keys of a crowd, which limit the calls that may share a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// No call has a key, so all may share a batch.
    One,
    /// Four API keys. Calls with the same key may share a batch.
    Four,
    /// An API key for each client, so that no calls share a batch.
    Own,
}

/// Reason why the calls of a crowd are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    No,
    /// They use another, slow model.
    Model,
    /// They use the same model with slow items.
    Items,
}

/// Order of the direct and the proxied measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Both concurrently, each in front of its own server, so that a disturbance affects both. For
    /// loads that leave the processor idle.
    Beside,
    /// In turns, with a new proxy for each.
    InTurns,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) model: Model,
    pub(crate) crowds: Vec<Crowd>,
    pub(crate) pace: Pace,
    /// Minimum share of the direct rate.
    pub(crate) bar: f64,
    /// `true` if the share is that of the rate through the same proxy in mode `Passthrough`: the
    /// cost of any proxy in front of a server that answers at once is not caused by batching.
    pub(crate) of_pass: bool,
}

/// Minimum share of the direct rate, and for calls so short that the 0.1 ms of the proxy matters.
const BAR: f64 = 0.96;
const BAR_SHORT: f64 = 0.93;

// === impl Crowd ===

impl Crowd {
    pub(crate) const fn of(clients: usize, keys: Keys) -> Self {
        Self { clients, keys, stream: false, slow: Slow::No }
    }

    const fn streams(self) -> Self {
        Self { stream: true, ..self }
    }

    const fn slow(self, slow: Slow) -> Self {
        Self { slow, ..self }
    }

    pub(crate) fn name(&self) -> String {
        let keys = match self.keys {
            Keys::One => "one key",
            Keys::Four => "4 keys",
            Keys::Own => "own keys",
        };
        let stream = if self.stream { ", streams" } else { "" };
        let slow = match self.slow {
            Slow::No => "",
            Slow::Model => ", slow model",
            Slow::Items => ", slow items",
        };
        format!("{} x {keys}{stream}{slow}", self.clients)
    }
}

// === impl Row ===

impl Row {
    fn new(name: &'static str, model: Model, crowds: &[Crowd]) -> Self {
        Self { name, model, crowds: crowds.to_vec(), pace: Pace::Beside, bar: BAR, of_pass: false }
    }

    fn short(self) -> Self {
        Self { bar: BAR_SHORT, pace: Pace::InTurns, ..self }
    }
}

/// Returns all rows.
pub(crate) fn rows() -> Vec<Row> {
    use Keys::{Four, One, Own};
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
        Row::new("64 at once, 200 ms, own", wide, &[Crowd::of(48, Own)]),
        Row::new("64 at once, 200 ms, streams", wide, &[Crowd::of(48, One).streams()]),
        Row::new("64 at once, 200 ms, 4 keys", wide, &[Crowd::of(48, Four)]),
        Row::new("64 at once, 200 ms, one key", wide, &[Crowd::of(48, One)]),
        Row::new("64 at once, 200 ms, half streams", wide, &[Crowd::of(24, One), Crowd::of(24, Own).streams()]),
        Row::new("64 at once, 50 ms, 200 of one key", few, &[Crowd::of(200, One)]),
        Row::new("64 at once, 50 ms, 8 own", few, &[Crowd::of(8, Own)]),
        Row::new("256 at once, 300 ms, 100 own", Model::flat(ms(300), 256), &[Crowd::of(100, Own)]),
        Row::new("256 at once, 300 ms, 200 of one key", Model::flat(ms(300), 256), &[Crowd::of(200, One)]),
        Row::new("slow, 64 at once, 32 own", slow, &[Crowd::of(32, Own)]),
        Row::new("slow, 64 at once, 32 of one key", slow, &[Crowd::of(32, One)]),
        Row::new("linear, 64 at once, 32 of one key", Model::linear(ms(20), ms(20), 64), &[Crowd::of(32, One)]),
        Row::new("linear, serial, 32 of one key", Model::linear(ms(0), ms(20), 1), &[Crowd::of(32, One)]),
        Row::new("8 at once, 100 ms + 20 ms an item, 200 of one key", many, &[Crowd::of(200, One)]),
        Row::new("4 at once, 50 ms, 48 of 4 keys", four, &[Crowd::of(48, Four)]),
        Row::new("serial, 20 ms, 32 of one key", serial, &[Crowd::of(32, One)]),
        Row::new("serial, 20 ms, 12 of one key", serial, &[Crowd::of(12, One)]),
        Row::new("serial, 20 ms, 32 own", serial, &[Crowd::of(32, Own)]),
        Row::new("serial, 20 ms, a lone caller", serial, &[Crowd::of(1, One)]),
        Row::new("batches itself, 48 of one key", inner, &[Crowd::of(48, One)]),
        Row::new("slow items beside light ones", slow_items, &[Crowd::of(8, Own), Crowd::of(1, Own).slow(Slow::Items)]),
        Row::new(
            "slow model beside a fast one",
            two_models,
            &[Crowd::of(13, One), Crowd::of(8, One).slow(Slow::Model)],
        ),
        Row::new("64 at once, 5 ms, 4 own", Model::flat(ms(5), 64), &[Crowd::of(4, Own)]).short(),
        Row::new("64 at once, 5 ms, 4 of one key", Model::flat(ms(5), 64), &[Crowd::of(4, One)]).short(),
        Row {
            of_pass: true,
            ..Row::new("about 0 ms, 8 of one key", Model::flat(ms(0), 64), &[Crowd::of(8, One)]).short()
        },
    ]
}
