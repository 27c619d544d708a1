//! Schema of a scenario file.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::config::{parse_duration, parse_share};
use crate::simulator::curve::CostCurve;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) scenarios: Vec<ScenarioSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ScenarioSpec {
    pub(super) name: String,
    #[serde(default = "default_seconds")]
    pub(super) seconds: u64,
    #[serde(default = "default_slo")]
    pub(super) slo: DurationText,
    #[serde(default = "default_items")]
    pub(super) batch_items_max: u32,
    pub(super) upstream: UpstreamSpec,
    pub(super) arrivals: Vec<ArrivalsSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct UpstreamSpec {
    #[serde(deserialize_with = "curve")]
    pub(super) curve: CostCurve,
    #[serde(default)]
    pub(super) batches_by_itself: bool,
    #[serde(default = "one")]
    pub(super) slots: u32,
    #[serde(default)]
    pub(super) slots_from: Vec<SlotChange>,
    #[serde(default)]
    pub(super) host_before: DurationText,
    #[serde(default)]
    pub(super) host_after: DurationText,
    pub(super) round_trip: Option<DurationText>,
    pub(super) noise: Option<f64>,
    #[serde(default)]
    pub(super) contention: f64,
    pub(super) stalls: Option<StallsSpec>,
    pub(super) slower: Option<Slowdown>,
    pub(super) cold: Option<ColdStart>,
    #[serde(default)]
    pub(super) refuses: CeilingsSpec,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlotChange {
    pub(super) at: DurationText,
    pub(super) slots: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StallsSpec {
    pub(super) share: ShareText,
    pub(super) mean: DurationText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slowdown {
    pub(super) at: DurationText,
    pub(super) factor: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ColdStart {
    pub(super) executions: u32,
    pub(super) factor: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct CeilingsSpec {
    pub(super) items_above: Option<u32>,
    pub(super) weight_above: Option<u64>,
    pub(super) memory_above: Option<u64>,
    pub(super) names_limit: bool,
    pub(super) until: Option<DurationText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ArrivalsSpec {
    pub(super) poisson: Option<f64>,
    pub(super) bursts: Option<MmppSpec>,
    pub(super) swings: Option<RampSpec>,
    pub(super) step: Option<Step>,
    pub(super) fan_out: Option<FanOut>,
    pub(super) clients: Option<ClosedLoopSpec>,
    pub(super) items_max: Option<u32>,
    pub(super) weights: Option<WeightsSpec>,
    #[serde(default)]
    pub(super) keys: SpreadSpec,
    #[serde(default)]
    pub(super) tenants: SpreadSpec,
    #[serde(default)]
    pub(super) bulk: bool,
    pub(super) deadlines: Option<DeadlineRange>,
    #[serde(default)]
    pub(super) cancels: ShareText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MmppSpec {
    pub(super) rates: [f64; 2],
    pub(super) stays: [DurationText; 2],
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RampSpec {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) period: DurationText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) rate: f64,
    pub(super) then: f64,
    pub(super) from: DurationText,
    pub(super) until: Option<DurationText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FanOut {
    pub(super) rate: f64,
    pub(super) size: u32,
    pub(super) within: DurationText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClosedLoopSpec {
    pub(super) count: u32,
    pub(super) think: DurationText,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WeightsSpec {
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) min: u32,
    pub(super) max: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SpreadSpec {
    pub(super) count: Option<u32>,
    pub(super) first: Option<ShareText>,
    pub(super) zipf: Option<f64>,
    pub(super) only: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadlineRange {
    pub(super) min: DurationText,
    pub(super) max: DurationText,
}

/// A duration written as text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DurationText(pub(super) Duration);

/// A share written as text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ShareText(pub(super) f64);

// === impl DurationText ===

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a duration, such as 50ms or 1m30s"));
        parse_duration(&text).map(Self).ok_or_else(wrong)
    }
}

// === impl ShareText ===

impl<'de> Deserialize<'de> for ShareText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a share, such as 3%"));
        parse_share(&text).map(|share| Self(share.fraction())).ok_or_else(wrong)
    }
}

fn curve<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CostCurve, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

const fn default_seconds() -> u64 {
    20
}

const fn default_slo() -> DurationText {
    DurationText(Duration::from_millis(50))
}

const fn default_items() -> u32 {
    64
}

const fn one() -> u32 {
    1
}
