//! The criteria of each row and their evaluation.
//!
//! A criterion compares one figure of Groupage with a limit that comes from an oracle, from the
//! other policies on the same arrivals, or from a constant. If the reference cannot be computed for
//! a run, the criterion does not apply, and it is left out rather than reported as met.

use std::fmt;

use crate::batching::TenantId;

use super::super::baseline::Baseline;
use super::super::metrics::Scope;
use super::{Figures, Table, judged};

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
enum Bar {
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
    /// Goodput of all tenants but this one, which floods.
    Light(u64),
    /// The p99 of the interactive class is in time, and the bulk class gets its share.
    Classes,
}

/// The criteria of the base rows.
const DESIGN: [(&str, &[Bar]); 24] = [
    ("low", &[Bar::Window, Bar::Best]),
    ("mid", &[Bar::Smdp, Bar::Window, Bar::Best]),
    ("high", &[Bar::Smdp, Bar::Window, Bar::Best]),
    ("overload 1.5x", &[Bar::Clairvoyant(0.96), Bar::Window]),
    ("bursty MMPP", &[Bar::Clairvoyant(0.965), Bar::Window]),
    ("on-off", &[Bar::Clairvoyant(0.94), Bar::Window]),
    ("ramp", &[Bar::Clairvoyant(0.97), Bar::Window]),
    ("tight SLO", &[Bar::Clairvoyant(0.97), Bar::Window]),
    ("closed 32", &[Bar::Window]),
    ("closed 8 think", &[Bar::Window, Bar::Best]),
    ("fan-out 32", &[Bar::Clairvoyant(0.97), Bar::Window]),
    ("cpu", &[Bar::Smdp, Bar::Window, Bar::Best]),
    ("pow2 shapes", &[Bar::Smdp, Bar::Window]),
    ("tile 8", &[Bar::Smdp, Bar::Window, Bar::WindowMean(0.85)]),
    ("thrash", &[Bar::Smdp, Bar::Window]),
    ("padded lens", &[Bar::Window, Bar::NextMean(0.85)]),
    ("padded over", &[Bar::Window, Bar::Goodput(0.88)]),
    // Two percentage points of tolerance, and one for a limiter that probes for more room from time
    // to time.
    ("k=4 slots", &[Bar::Goodput(0.995), Bar::FourSlots(1.03)]),
    ("host 3ms", &[Bar::Window, Bar::WindowMean(1.0)]),
    ("engine", &[Bar::Window, Bar::Direct(1.03)]),
    ("reject >16", &[Bar::Window, Bar::Best]),
    ("stalls 1%", &[Bar::Goodput(0.95)]),
    ("slows x2", &[Bar::Window, Bar::Best]),
    ("cold model", &[Bar::Window, Bar::Goodput(0.945)]),
];

/// The criteria of the wider rows that have more than `Bar::New`.
const WIDER: [(&str, &[Bar]); 3] = [
    ("64 tenants, one flooding", &[Bar::New, Bar::Light(64)]),
    ("flood beside light", &[Bar::New, Bar::Light(0)]),
    ("classes 8:1 at 1.3x", &[Bar::New, Bar::Classes]),
];

/// The figure that a criterion compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
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
    RateOf,
    /// Mean latency in a window, relative to direct calls.
    MeanOf,
    /// 99th percentile of the latency in a window, relative to direct calls.
    P99Of,
    /// Number of rows.
    Rows,
}

/// The side of the limit on which a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// Not below the limit.
    AtLeast,
    /// Not above the limit.
    AtMost,
}

/// An evaluated criterion.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Label: the letter of the criterion, `row` for a criterion of a single row, `new` for those
    /// of the wider rows, or the kind of job.
    pub bar: &'static str,
    /// Compared figure.
    pub quantity: Quantity,
    /// Measured value.
    pub found: f64,
    /// Side of the limit on which the value has to be.
    pub sense: Sense,
    /// Limit.
    pub limit: f64,
    /// Description of the origin of the limit.
    pub of: String,
}

/// Returns the rows that have criteria of their own.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    DESIGN.iter().chain(&WIDER).map(|(row, _)| *row)
}

/// Evaluates the criteria of the row. In an altered row those with absolute limits do not apply.
pub(super) fn judge(table: &Table<'_>, altered: bool) -> Vec<Verdict> {
    let name = table.scenario.name.as_str();
    let listed = DESIGN.iter().chain(&WIDER).find(|(row, _)| *row == name);
    let bars = listed.map_or(&[Bar::New] as &[Bar], |(_, bars)| *bars);
    let holds = |bar: &&Bar| !altered || !matches!(bar, Bar::Goodput(_) | Bar::Light(_) | Bar::Classes);
    bars.iter().filter(holds).flat_map(|bar| bar.judge(table)).collect()
}

// === impl Bar ===

impl Bar {
    fn judge(self, table: &Table<'_>) -> Vec<Verdict> {
        let ours = table.ours.figures(&judged(table.scenario));
        match self {
            Self::Clairvoyant(share) => {
                let judged = |bound: &super::Bound| {
                    let of = format!(
                        "{share} × clairvoyant's {:.3} in the first {:?}, less {COLD_START}",
                        bound.goodput, bound.window
                    );
                    Verdict::goodput("a", bound.ours, share * bound.goodput - COLD_START, of)
                };
                table.bound.iter().map(judged).collect()
            }
            Self::Smdp => table.smdp.iter().map(|best| mean("b", &ours, 1.06, &best.name, &best.figures)).collect(),
            Self::Window => table.window.iter().flat_map(|w| as_good("c", &ours, &w.name, &w.figures, 1.05)).collect(),
            Self::Best => {
                next(table, &ours).map(|(name, best)| mean("d", &ours, 1.02, &name, &best)).into_iter().collect()
            }
            Self::WindowMean(factor) => {
                table.window.iter().map(|window| mean("row", &ours, factor, &window.name, &window.figures)).collect()
            }
            Self::NextMean(factor) => {
                next(table, &ours).map(|(name, best)| mean("row", &ours, factor, &name, &best)).into_iter().collect()
            }
            Self::Goodput(least) => vec![Verdict::goodput("row", ours.goodput, least, "reference".to_owned())],
            Self::FourSlots(factor) => {
                let four =
                    |entry: &&(Baseline, Figures)| matches!(entry.0, Baseline::Greedy { slots: 4, expire: false, .. });
                let judged =
                    |(baseline, best): &(Baseline, Figures)| mean("row", &ours, factor, &baseline.to_string(), best);
                table.baselines.iter().find(four).map(judged).into_iter().collect()
            }
            Self::Direct(factor) => {
                let alone = table.baselines.iter().find(|entry| entry.0 == Baseline::Direct);
                alone.map(|(name, alone)| mean("row", &ours, factor, &name.to_string(), alone)).into_iter().collect()
            }
            Self::New => new(table, &ours),
            Self::Light(flooding) => vec![light(table, &ours, TenantId(flooding))],
            Self::Classes => classes(table),
        }
    }
}

fn mean(bar: &'static str, ours: &Figures, factor: f64, name: &str, other: &Figures) -> Verdict {
    let of = format!("{factor} × {name}'s {:.2} ms", other.mean);
    let (found, limit) = (ours.mean, factor * other.mean);
    Verdict { bar, quantity: Quantity::Mean, found, sense: Sense::AtMost, limit, of }
}

/// Requires a goodput not below the other's, and where the two are equal, a mean of at most
/// `factor` times the other's.
fn as_good(bar: &'static str, ours: &Figures, name: &str, other: &Figures, factor: f64) -> Vec<Verdict> {
    let of = format!("{name}'s {:.3} − {EQUAL}", other.goodput);
    let mut verdicts = vec![Verdict::goodput(bar, ours.goodput, other.goodput - EQUAL, of)];
    if (ours.goodput - other.goodput).abs() <= EQUAL {
        verdicts.push(mean(bar, ours, factor, name, other));
    }
    verdicts
}

/// Returns the fastest rival among those that serve as many items in time.
fn next(table: &Table<'_>, ours: &Figures) -> Option<(String, Figures)> {
    let as_many = table.rivals().filter(|(_, figures)| figures.goodput >= ours.goodput - EQUAL);
    as_many.min_by(|a, b| a.1.mean.total_cmp(&b.1.mean))
}

/// Requires results as good as those of all rivals: compared with the one of the best goodput, and
/// with the fastest of those with equal goodput.
fn new(table: &Table<'_>, ours: &Figures) -> Vec<Verdict> {
    let Some((name, best)) = table.rivals().max_by(|a, b| a.1.goodput.total_cmp(&b.1.goodput)) else {
        return Vec::new();
    };
    let of = format!("{name}'s {:.3} − {EQUAL}", best.goodput);
    let mut verdicts = vec![Verdict::goodput("new", ours.goodput, best.goodput - EQUAL, of)];
    let comparable = |figures: &Figures| ours.goodput >= NEARLY_ALL && (figures.goodput - ours.goodput).abs() <= EQUAL;
    let equal = next(table, ours).filter(|(_, figures)| comparable(figures));
    verdicts.extend(equal.map(|(name, quickest)| mean("new", ours, NEW_MEAN, &name, &quickest)));
    verdicts
}

fn light(table: &Table<'_>, ours: &Figures, flooding: TenantId) -> Verdict {
    let flood = table.ours.figures(&Scope { tenant: Some(flooding), ..judged(table.scenario) });
    let good = |figures: &Figures| figures.goodput * figures.came as f64;
    let others = ours.came.saturating_sub(flood.came).max(1);
    let goodput = (good(ours) - good(&flood)) / others as f64;
    Verdict::goodput("new", goodput, LIGHT_GOODPUT, "the tenants other than the flooding one".to_owned())
}

fn classes(table: &Table<'_>) -> Vec<Verdict> {
    let of = |class| table.ours.figures(&Scope { class: Some(class), ..judged(table.scenario) });
    let (interactive, bulk) = (of(0), of(1));
    let slo = table.scenario.slo.as_secs_f64() * 1e3;
    vec![
        // The p99 covers answered calls only; calls that were given up are not in time either.
        Verdict::goodput("new", interactive.goodput, 0.99, "interactive".to_owned()),
        Verdict {
            bar: "new",
            quantity: Quantity::P99,
            found: interactive.p99,
            sense: Sense::AtMost,
            limit: slo,
            of: "the SLO, interactive".to_owned(),
        },
        Verdict::goodput("new", bulk.goodput, BULK_SHARE, "bulk's ninth of the capacity".to_owned()),
    ]
}

// === impl Verdict ===

impl Verdict {
    fn goodput(bar: &'static str, found: f64, limit: f64, of: String) -> Self {
        Self { bar, quantity: Quantity::Goodput, found, sense: Sense::AtLeast, limit, of }
    }

    /// Returns `true` if the value is on the required side of the limit. NaN never is.
    #[must_use]
    pub fn is_met(&self) -> bool {
        match self.sense {
            Sense::AtLeast => self.found >= self.limit,
            Sense::AtMost => self.found <= self.limit,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_met() { "met" } else { "MISSED" };
        let sense = match self.sense {
            Sense::AtLeast => "at least",
            Sense::AtMost => "at most",
        };
        write!(f, "{:<4} {verdict:<7}", self.bar)?;
        match self.quantity {
            Quantity::Goodput => write!(f, "goodput {:.4}, {sense} {:.4}", self.found, self.limit)?,
            Quantity::Mean => write!(f, "mean {:.2} ms, {sense} {:.2}", self.found, self.limit)?,
            Quantity::P99 => write!(f, "p99 {:.1} ms, {sense} {:.1}", self.found, self.limit)?,
            Quantity::Busy => write!(f, "busy {:.3}, {sense} {:.3}", self.found, self.limit)?,
            Quantity::Answered => write!(f, "answered {:.4}, {sense} {:.4}", self.found, self.limit)?,
            Quantity::Shift => write!(f, "shift error {:.1} ms, {sense} {:.1}", self.found, self.limit)?,
            Quantity::Seeds => write!(f, "{:.0} seeds equal, {sense} {:.0}", self.found, self.limit)?,
            Quantity::Rate => write!(f, "{:.0} items/s, {sense} {:.0}", self.found, self.limit)?,
            Quantity::RateOf => write!(f, "rate {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Quantity::MeanOf => write!(f, "mean {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Quantity::P99Of => write!(f, "p99 {:.3}, {sense} {:.2}", self.found, self.limit)?,
            Quantity::Rows => write!(f, "{:.0} rows, {sense} {:.0}", self.found, self.limit)?,
        }
        write!(f, " ({})", self.of)
    }
}
