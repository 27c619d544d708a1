//! What is asked of each row, and whether it came (`scheduling.md` §5.1, last column, and §6).
//!
//! A bar compares one number of ours with a limit that comes from an oracle, from others on the same arrivals, or from the design. A bar whose yardstick
//! cannot be computed for what was run does not hold, and is left out rather than called met.

use std::fmt;

use crate::batching::TenantId;

use super::super::baseline::Baseline;
use super::super::metrics::Scope;
use super::{Figures, Table, judged};

/// What forwarding every call until a queue is measured may cost in the first seconds, which the clairvoyant's bound covers.
const COLD_START: f64 = 0.015;
/// Bar a, and c to e: goodputs this close count as equal.
const EQUAL: f64 = 0.002;
/// Means are compared in new rows only where nearly all is served: in overload they say who was given up (`scheduling.md` §5.1, §7).
const NEARLY_ALL: f64 = 0.99;
/// The most of its mean that a new row may take of the best baseline's where goodput is equal.
const NEW_MEAN: f64 = 1.02;
/// Of the capacity, the part that a class of weight 1 beside one of weight 8 is owed, as a share of what bulk asks: 1/9 of 0.8 of it.
const BULK_SHARE: f64 = 1.0 / 9.0 / 0.8;
/// Who sends less than its share loses nothing to who floods (§5.5).
const LIGHT_GOODPUT: f64 = 0.99;

/// The criteria.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Bar {
    /// a: goodput, as a share of the clairvoyant's.
    Clairvoyant(f64),
    /// b: mean, in optima of the SMDP.
    Smdp,
    /// c: as good as the window tuned for the row.
    Window,
    /// d: mean, compared with the best baseline.
    Best,
    /// Mean, compared with the best window's.
    WindowMean(f64),
    /// Mean, compared with the quickest of the others that serve as many.
    NextMean(f64),
    /// Goodput.
    Goodput(f64),
    /// Mean once settled, compared with greedy on four slots.
    FourSlots(f64),
    /// Mean, compared with forwarding each call at once.
    Direct(f64),
    /// As good as every baseline.
    New,
    /// Goodput of all but the tenant that floods.
    Light(u64),
    /// The interactive class is in time at its p99, and bulk gets its share.
    Classes,
}

/// The rows of the design and their bars.
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
    // Two points, and one for a limiter that looks for room now and then.
    ("k=4 slots", &[Bar::Goodput(0.995), Bar::FourSlots(1.03)]),
    ("host 3ms", &[Bar::Window, Bar::WindowMean(1.0)]),
    ("engine", &[Bar::Window, Bar::Direct(1.03)]),
    ("reject >16", &[Bar::Window, Bar::Best]),
    ("stalls 1%", &[Bar::Goodput(0.95)]),
    ("slows x2", &[Bar::Window, Bar::Best]),
    ("cold model", &[Bar::Window, Bar::Goodput(0.945)]),
];

/// New rows of which more is asked than to beat the others.
const WIDER: [(&str, &[Bar]); 3] = [
    ("64 tenants, one flooding", &[Bar::New, Bar::Light(64)]),
    ("flood beside light", &[Bar::New, Bar::Light(0)]),
    ("classes 8:1 at 1.3x", &[Bar::New, Bar::Classes]),
];

/// A number that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A share of items.
    Goodput,
    /// In milliseconds.
    Mean,
    /// In milliseconds.
    P99,
    /// Items a second.
    Rate,
    /// Share of slot time spent executing.
    Busy,
    /// Share of items that were answered at all.
    Answered,
    /// Milliseconds by which a deadline shift is off.
    Shift,
    /// Seeds that tell one story.
    Seeds,
    /// Answers in a window, as a multiple of direct's.
    RateOf,
    /// The same of the mean.
    MeanOf,
    /// And of the p99.
    P99Of,
    /// Rows.
    Rows,
}

/// On which side of the limit it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// Not below.
    AtLeast,
    /// Not above.
    AtMost,
}

/// A bar, and what came.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Its letter in the design, or `row` for what is asked of one row only, or `new`.
    pub bar: &'static str,
    /// What is judged.
    pub quantity: Quantity,
    /// What came.
    pub found: f64,
    /// On which side it has to be.
    pub sense: Sense,
    /// Of what.
    pub limit: f64,
    /// Where the limit comes from.
    pub of: String,
}

/// The rows that have bars of their own.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    DESIGN.iter().chain(&WIDER).map(|(row, _)| *row)
}

/// Every bar of the row, judged. In an altered row plain numbers do not hold.
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
            Self::Goodput(least) => vec![Verdict::goodput("row", ours.goodput, least, "the design".to_owned())],
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

/// Goodput not below the other's, and where they are equal a mean that is not above it by more than this factor.
fn as_good(bar: &'static str, ours: &Figures, name: &str, other: &Figures, factor: f64) -> Vec<Verdict> {
    let of = format!("{name}'s {:.3} − {EQUAL}", other.goodput);
    let mut verdicts = vec![Verdict::goodput(bar, ours.goodput, other.goodput - EQUAL, of)];
    if (ours.goodput - other.goodput).abs() <= EQUAL {
        verdicts.push(mean(bar, ours, factor, name, other));
    }
    verdicts
}

/// The quickest of the others among those that serve as many in time.
fn next(table: &Table<'_>, ours: &Figures) -> Option<(String, Figures)> {
    let as_many = table.rivals().filter(|(_, figures)| figures.goodput >= ours.goodput - EQUAL);
    as_many.min_by(|a, b| a.1.mean.total_cmp(&b.1.mean))
}

/// As good as all of the others: as the one of the best goodput, and as the quickest of those that are equal to ours.
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
    Verdict::goodput("new", goodput, LIGHT_GOODPUT, "the tenants beside the one that floods".to_owned())
}

fn classes(table: &Table<'_>) -> Vec<Verdict> {
    let of = |class| table.ours.figures(&Scope { class: Some(class), ..judged(table.scenario) });
    let (interactive, bulk) = (of(0), of(1));
    let slo = table.scenario.slo.as_secs_f64() * 1e3;
    vec![
        // A p99 covers what was answered: who is given up is not in time either.
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

    /// Whether it is as it should be. What is no number is not.
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
            Quantity::Shift => write!(f, "shift off by {:.1} ms, {sense} {:.1}", self.found, self.limit)?,
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
