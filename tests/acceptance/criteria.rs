//! The criteria of each row and their evaluation.
//!
//! A criterion compares one figure of Groupage with a limit that comes from an oracle, from the
//! other policies on the same arrivals, or from a constant. If the reference cannot be computed for
//! a run, the criterion does not apply, and it is left out rather than reported as met.

use std::fmt;

use groupage_batching::TenantId;
use groupage_simulator::baseline::Baseline;
use groupage_simulator::compare::{AverageFigures, shown_calls};
use groupage_simulator::metrics::CallFilter;

use crate::results::{ClairvoyantBound, RowResults};

/// Allowance for the first seconds, which the clairvoyant bound covers: every call is forwarded
/// until a queue is measured.
const COLD_START: f64 = 0.015;
/// Difference up to which two goodputs count as equal.
const EQUAL: f64 = 0.002;
/// Minimum goodput at which means are compared in new rows. In overload a mean depends on the calls
/// that were given up.
const NEARLY_ALL: f64 = 0.99;
/// Maximum mean in a new row, relative to the best baseline of equal goodput.
const NEW_MEAN: f64 = 1.02;
/// Goodput owed to the bulk class: with weight 1 beside weight 8 it gets 1/9 of the capacity, and
/// it requests 0.8 of the capacity.
const BULK_SHARE: f64 = 1.0 / 9.0 / 0.8;
/// Minimum goodput of tenants that send less than their share beside a tenant that floods.
const LIGHT_GOODPUT: f64 = 0.99;

/// A criterion.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Criterion {
    /// a: goodput, as a share of the clairvoyant's.
    Clairvoyant(f64),
    /// b: mean, relative to the SMDP optimum.
    Smdp,
    /// c: as good as the window tuned for the row.
    Window,
    /// d: mean, relative to the best rival.
    Best,
    /// Mean, relative to the best window's.
    WindowMean(f64),
    /// Mean, relative to the fastest rival that serves as many items in time.
    NextMean(f64),
    /// Goodput, with an absolute limit.
    Goodput(f64),
    /// Mean, relative to greedy on four slots.
    FourSlots(f64),
    /// Mean, relative to direct calls.
    Direct(f64),
    /// As good as every baseline.
    New,
    /// Goodput of all tenants but the one with this id, which floods.
    Light(u64),
    /// The p99 of the interactive class is in time, and the bulk class gets its share.
    Classes,
}

/// The criteria of the base rows.
const BASE_ROWS: [(&str, &[Criterion]); 24] = [
    ("low", &[Criterion::Window, Criterion::Best]),
    ("mid", &[Criterion::Smdp, Criterion::Window, Criterion::Best]),
    ("high", &[Criterion::Smdp, Criterion::Window, Criterion::Best]),
    ("overload 1.5x", &[Criterion::Clairvoyant(0.96), Criterion::Window]),
    ("bursty MMPP", &[Criterion::Clairvoyant(0.965), Criterion::Window]),
    ("on-off", &[Criterion::Clairvoyant(0.94), Criterion::Window]),
    ("ramp", &[Criterion::Clairvoyant(0.97), Criterion::Window]),
    ("tight SLO", &[Criterion::Clairvoyant(0.97), Criterion::Window]),
    ("closed 32", &[Criterion::Window]),
    ("closed 8 think", &[Criterion::Window, Criterion::Best]),
    ("fan-out 32", &[Criterion::Clairvoyant(0.97), Criterion::Window]),
    ("cpu", &[Criterion::Smdp, Criterion::Window, Criterion::Best]),
    ("pow2 shapes", &[Criterion::Smdp, Criterion::Window]),
    ("tile 8", &[Criterion::Smdp, Criterion::Window, Criterion::WindowMean(0.85)]),
    ("thrash", &[Criterion::Smdp, Criterion::Window]),
    ("padded lens", &[Criterion::Window, Criterion::NextMean(0.85)]),
    ("padded over", &[Criterion::Window, Criterion::Goodput(0.88)]),
    // Two percentage points of tolerance, and one for a limiter that probes for more room from time
    // to time.
    ("k=4 slots", &[Criterion::Goodput(0.995), Criterion::FourSlots(1.03)]),
    ("host 3ms", &[Criterion::Window, Criterion::WindowMean(1.0)]),
    ("engine", &[Criterion::Window, Criterion::Direct(1.03)]),
    ("reject >16", &[Criterion::Window, Criterion::Best]),
    ("stalls 1%", &[Criterion::Goodput(0.95)]),
    ("slows x2", &[Criterion::Window, Criterion::Best]),
    ("cold model", &[Criterion::Window, Criterion::Goodput(0.945)]),
];

/// The criteria of the wider rows that have more than `Criterion::New`.
const EXTENDED_ROWS: [(&str, &[Criterion]); 3] = [
    ("64 tenants, one flooding", &[Criterion::New, Criterion::Light(64)]),
    ("flood beside light", &[Criterion::New, Criterion::Light(0)]),
    ("classes 8:1 at 1.3x", &[Criterion::New, Criterion::Classes]),
];

/// The figure that a criterion compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Goodput, as a share of items.
    Goodput,
    /// Mean latency in milliseconds.
    Mean,
    /// 99th percentile of the latency in milliseconds.
    P99,
    /// Throughput in items per second.
    Rate,
    /// Share of slot time spent executing.
    Busy,
    /// Share of items that were answered at all.
    Answered,
    /// Error of a deadline shift in milliseconds.
    Shift,
    /// Number of seeds with deterministic runs.
    Seeds,
    /// Answers in a window, relative to direct calls.
    RateRatio,
    /// Mean latency in a window, relative to direct calls.
    MeanRatio,
    /// 99th percentile of the latency in a window, relative to direct calls.
    P99Ratio,
    /// Number of rows.
    Rows,
}

/// The side of the limit on which a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Not below the limit.
    AtLeast,
    /// Not above the limit.
    AtMost,
}

/// An evaluated criterion.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CriterionResult {
    /// Label: the letter of the criterion, `row` for a criterion of a single row, `new` for those
    /// of the wider rows, or the kind of job.
    pub(crate) criterion: &'static str,
    /// Compared figure.
    pub(crate) quantity: Metric,
    /// Measured value.
    pub(crate) found: f64,
    /// Side of the limit on which the value has to be.
    pub(crate) sense: Comparison,
    /// Limit.
    pub(crate) limit: f64,
    /// Description of the origin of the limit.
    pub(crate) of: String,
}

/// Returns the rows that have criteria of their own.
#[cfg(test)]
pub(crate) fn rows() -> impl Iterator<Item = &'static str> {
    BASE_ROWS.iter().chain(&EXTENDED_ROWS).map(|(row, _)| *row)
}

/// Evaluates the criteria of the row.
pub(crate) fn judge(table: &RowResults<'_>) -> Vec<CriterionResult> {
    let name = table.scenario.name.as_str();
    let listed = BASE_ROWS.iter().chain(&EXTENDED_ROWS).find(|(row, _)| *row == name);
    let criteria = listed.map_or(&[Criterion::New] as &[Criterion], |(_, criteria)| *criteria);
    criteria.iter().flat_map(|criterion| criterion.judge(table)).collect()
}

// === impl Criterion ===

impl Criterion {
    /// Evaluates the criterion. Returns nothing if its reference was not computed for the row.
    fn judge(self, table: &RowResults<'_>) -> Vec<CriterionResult> {
        let ours = table.ours.figures(&shown_calls(table.scenario));
        match self {
            Self::Clairvoyant(share) => {
                let judged = |bound: &ClairvoyantBound| {
                    let of = format!(
                        "{share} × clairvoyant's {:.3} in the first {:?}, less {COLD_START}",
                        bound.goodput, bound.window
                    );
                    CriterionResult::goodput("a", bound.ours, share * bound.goodput - COLD_START, of)
                };
                table.bound.iter().map(judged).collect()
            }
            Self::Smdp => table.smdp.iter().map(|best| mean("b", &ours, 1.06, &best.name, &best.figures)).collect(),
            Self::Window => {
                table.window.iter().flat_map(|w| not_worse_than("c", &ours, &w.name, &w.figures, 1.05)).collect()
            }
            Self::Best => fastest_rival(table, &ours)
                .map(|(name, best)| mean("d", &ours, 1.02, &name, &best))
                .into_iter()
                .collect(),
            Self::WindowMean(factor) => {
                table.window.iter().map(|window| mean("row", &ours, factor, &window.name, &window.figures)).collect()
            }
            Self::NextMean(factor) => fastest_rival(table, &ours)
                .map(|(name, best)| mean("row", &ours, factor, &name, &best))
                .into_iter()
                .collect(),
            Self::Goodput(least) => vec![CriterionResult::goodput("row", ours.goodput, least, "reference".to_owned())],
            Self::FourSlots(factor) => {
                let is_four_slots = |entry: &&(Baseline, AverageFigures)| {
                    matches!(entry.0, Baseline::Greedy { slots: 4, expire: false, .. })
                };
                let judged = |(baseline, best): &(Baseline, AverageFigures)| {
                    mean("row", &ours, factor, &baseline.to_string(), best)
                };
                table.baselines.iter().find(is_four_slots).map(judged).into_iter().collect()
            }
            Self::Direct(factor) => {
                let direct = table.baselines.iter().find(|entry| entry.0 == Baseline::Direct);
                direct.map(|(name, direct)| mean("row", &ours, factor, &name.to_string(), direct)).into_iter().collect()
            }
            Self::New => as_good_as_all(table, &ours),
            Self::Light(flooding) => vec![light_tenants(table, &ours, TenantId(flooding))],
            Self::Classes => classes(table),
        }
    }
}

/// Requires a mean of at most `factor` times the other's.
fn mean(
    criterion: &'static str,
    ours: &AverageFigures,
    factor: f64,
    name: &str,
    other: &AverageFigures,
) -> CriterionResult {
    let of = format!("{factor} × {name}'s {:.2} ms", other.mean);
    let (found, limit) = (ours.mean, factor * other.mean);
    CriterionResult { criterion, quantity: Metric::Mean, found, sense: Comparison::AtMost, limit, of }
}

/// Requires a goodput not below the other's, and where the two are equal, a mean of at most
/// `factor` times the other's.
fn not_worse_than(
    criterion: &'static str,
    ours: &AverageFigures,
    name: &str,
    other: &AverageFigures,
    factor: f64,
) -> Vec<CriterionResult> {
    let of = format!("{name}'s {:.3} − {EQUAL}", other.goodput);
    let mut results = vec![CriterionResult::goodput(criterion, ours.goodput, other.goodput - EQUAL, of)];
    if (ours.goodput - other.goodput).abs() <= EQUAL {
        results.push(mean(criterion, ours, factor, name, other));
    }
    results
}

/// Returns the fastest rival among those that serve as many items in time.
fn fastest_rival(table: &RowResults<'_>, ours: &AverageFigures) -> Option<(String, AverageFigures)> {
    let as_many = table.rivals().filter(|(_, figures)| figures.goodput >= ours.goodput - EQUAL);
    as_many.min_by(|a, b| a.1.mean.total_cmp(&b.1.mean))
}

/// Requires results as good as those of all rivals: compared with the one of the best goodput, and
/// with the fastest of those with equal goodput.
fn as_good_as_all(table: &RowResults<'_>, ours: &AverageFigures) -> Vec<CriterionResult> {
    let Some((name, best)) = table.rivals().max_by(|a, b| a.1.goodput.total_cmp(&b.1.goodput)) else {
        return Vec::new();
    };
    let of = format!("{name}'s {:.3} − {EQUAL}", best.goodput);
    let mut results = vec![CriterionResult::goodput("new", ours.goodput, best.goodput - EQUAL, of)];
    let is_comparable =
        |figures: &AverageFigures| ours.goodput >= NEARLY_ALL && (figures.goodput - ours.goodput).abs() <= EQUAL;
    let equal = fastest_rival(table, ours).filter(|(_, figures)| is_comparable(figures));
    results.extend(equal.map(|(name, quickest)| mean("new", ours, NEW_MEAN, &name, &quickest)));
    results
}

/// Requires a minimum goodput of all tenants together but the flooding one.
fn light_tenants(table: &RowResults<'_>, ours: &AverageFigures, flooding: TenantId) -> CriterionResult {
    let flood = table.ours.figures(&CallFilter { tenant: Some(flooding), ..shown_calls(table.scenario) });
    let items_in_time = |figures: &AverageFigures| figures.goodput * figures.items as f64;
    let other_items = ours.items.saturating_sub(flood.items).max(1);
    let goodput = (items_in_time(ours) - items_in_time(&flood)) / other_items as f64;
    CriterionResult::goodput("new", goodput, LIGHT_GOODPUT, "the tenants other than the flooding one".to_owned())
}

/// Requires that the interactive class (0) is in time and that the bulk class (1) gets its share.
fn classes(table: &RowResults<'_>) -> Vec<CriterionResult> {
    let of = |class| table.ours.figures(&CallFilter { class: Some(class), ..shown_calls(table.scenario) });
    let (interactive, bulk) = (of(0), of(1));
    let slo = table.scenario.slo.as_secs_f64() * 1e3;
    vec![
        // The p99 covers answered calls only; calls that were given up are not in time either.
        CriterionResult::goodput("new", interactive.goodput, 0.99, "interactive".to_owned()),
        CriterionResult {
            criterion: "new",
            quantity: Metric::P99,
            found: interactive.p99,
            sense: Comparison::AtMost,
            limit: slo,
            of: "the SLO, interactive".to_owned(),
        },
        CriterionResult::goodput("new", bulk.goodput, BULK_SHARE, "bulk's ninth of the capacity".to_owned()),
    ]
}

// === impl CriterionResult ===

impl CriterionResult {
    fn goodput(criterion: &'static str, found: f64, limit: f64, of: String) -> Self {
        Self { criterion, quantity: Metric::Goodput, found, sense: Comparison::AtLeast, limit, of }
    }

    /// Returns `true` if the value is on the required side of the limit. NaN never is.
    pub(crate) fn is_met(&self) -> bool {
        match self.sense {
            Comparison::AtLeast => self.found >= self.limit,
            Comparison::AtMost => self.found <= self.limit,
        }
    }
}

impl fmt::Display for CriterionResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        let sense = match self.sense {
            Comparison::AtLeast => "at least",
            Comparison::AtMost => "at most",
        };
        write!(f, "{:<4} {verdict:<7}", self.criterion)?;
        match self.quantity {
            Metric::Goodput => write!(f, "goodput {:.4}, {sense} {:.4}", self.found, self.limit)?,
            Metric::Mean => write!(f, "mean {:.2} ms, {sense} {:.2}", self.found, self.limit)?,
            Metric::P99 => write!(f, "p99 {:.1} ms, {sense} {:.1}", self.found, self.limit)?,
            Metric::Busy => write!(f, "busy {:.3}, {sense} {:.3}", self.found, self.limit)?,
            Metric::Answered => write!(f, "answered {:.4}, {sense} {:.4}", self.found, self.limit)?,
            Metric::Shift => write!(f, "shift error {:.1} ms, {sense} {:.1}", self.found, self.limit)?,
            Metric::Seeds => write!(f, "{:.0} seeds equal, {sense} {:.0}", self.found, self.limit)?,
            Metric::Rate => write!(f, "{:.0} items/s, {sense} {:.0}", self.found, self.limit)?,
            Metric::RateRatio => write!(f, "rate {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Metric::MeanRatio => write!(f, "mean {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Metric::P99Ratio => write!(f, "p99 {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Metric::Rows => write!(f, "{:.0} rows, {sense} {:.0}", self.found, self.limit)?,
        }
        write!(f, " ({})", self.of)
    }
}
