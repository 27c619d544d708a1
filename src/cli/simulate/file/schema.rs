//! Schema of a scenario file.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::config::{parse_duration, parse_share};
use crate::simulate::curve::Curve;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) scenarios: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(default = "default_seconds")]
    pub(super) seconds: u64,
    #[serde(default = "default_slo")]
    pub(super) slo: Span,
    #[serde(default = "default_items")]
    pub(super) batch_items_max: u32,
    pub(super) upstream: Upstream,
    pub(super) arrivals: Vec<Comes>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Upstream {
    #[serde(deserialize_with = "curve")]
    pub(super) curve: Curve,
    #[serde(default)]
    pub(super) batches_by_itself: bool,
    #[serde(default = "one")]
    pub(super) slots: u32,
    #[serde(default)]
    pub(super) slots_from: Vec<SlotsFrom>,
    #[serde(default)]
    pub(super) host_before: Span,
    #[serde(default)]
    pub(super) host_after: Span,
    pub(super) round_trip: Option<Span>,
    pub(super) noise: Option<f64>,
    #[serde(default)]
    pub(super) contention: f64,
    pub(super) stalls: Option<StallsOf>,
    pub(super) slower: Option<Slower>,
    pub(super) cold: Option<Cold>,
    #[serde(default)]
    pub(super) refuses: Refuses,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlotsFrom {
    pub(super) at: Span,
    pub(super) slots: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StallsOf {
    pub(super) share: Part,
    pub(super) mean: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slower {
    pub(super) at: Span,
    pub(super) factor: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cold {
    pub(super) executions: u32,
    pub(super) factor: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Refuses {
    pub(super) items_above: Option<u32>,
    pub(super) weight_above: Option<u64>,
    pub(super) memory_above: Option<u64>,
    pub(super) names_limit: bool,
    pub(super) until: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Comes {
    pub(super) poisson: Option<f64>,
    pub(super) bursts: Option<Bursts>,
    pub(super) swings: Option<Swings>,
    pub(super) step: Option<Step>,
    pub(super) fan_out: Option<FanOut>,
    pub(super) clients: Option<Clients>,
    pub(super) items_max: Option<u32>,
    pub(super) weights: Option<WeightsOf>,
    #[serde(default)]
    pub(super) keys: SpreadOf,
    #[serde(default)]
    pub(super) tenants: SpreadOf,
    #[serde(default)]
    pub(super) bulk: bool,
    pub(super) deadlines: Option<Between>,
    #[serde(default)]
    pub(super) cancels: Part,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bursts {
    pub(super) rates: [f64; 2],
    pub(super) stays: [Span; 2],
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Swings {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) period: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) rate: f64,
    pub(super) then: f64,
    pub(super) from: Span,
    pub(super) until: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FanOut {
    pub(super) rate: f64,
    pub(super) size: u32,
    pub(super) within: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clients {
    pub(super) count: u32,
    pub(super) think: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightsOf {
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) min: u32,
    pub(super) max: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SpreadOf {
    pub(super) count: Option<u32>,
    pub(super) first: Option<Part>,
    pub(super) zipf: Option<f64>,
    pub(super) only: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Between {
    pub(super) min: Span,
    pub(super) max: Span,
}

/// A duration written as text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span(pub(super) Duration);

/// A share written as text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part(pub(super) f64);

// === impl Span ===

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a duration, such as 50ms or 1m30s"));
        parse_duration(&text).map(Self).ok_or_else(wrong)
    }
}

// === impl Part ===

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a share, such as 3%"));
        parse_share(&text).map(|share| Self(share.fraction())).ok_or_else(wrong)
    }
}

fn curve<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Curve, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

const fn default_seconds() -> u64 {
    20
}

const fn default_slo() -> Span {
    Span(Duration::from_millis(50))
}

const fn default_items() -> u32 {
    64
}

const fn one() -> u32 {
    1
}
