//! What pods learned, kept for those that come: by profile and accelerator, at most sixteen entries in a policy's status.
//!
//! A new pod on a kind of machine that others know begins with their slots, their curve and the settings that they ended with, instead of finding all of it
//! anew. It believes it little (`batching::Batcher::restore`), so a wrong start is corrected by the first batches.

use std::collections::BTreeMap;

use super::Settings;
use crate::batching::{Base, ClassSnapshot, Point, Sample, Snapshot, UpstreamSnapshot, Weight};

/// Entries in a status (kubernetes.md §3).
pub const ENTRIES_MAX: usize = 16;
/// Points of a curve: from 1 to 512 the sizes double nine times. With its class an entry stays below 1 KiB.
pub const POINTS_MAX: usize = 10;
/// A class with a longer name is not kept, as in the file of what was learned.
const NAME_MAX: usize = 256;
/// Fewer batches have taught a pod too little to hand on.
const BATCHES_MIN: u64 = 100;
/// An entry is written anew where a number moved by this much, in thousandths: as a status is (kubernetes.md §3).
const MOVED_PERMILLE: u64 = 100;
/// A restored curve believes at most so many samples of a size (`batching::Snapshot`).
const SAMPLES_KEPT: u32 = 3;
/// A new pod tries other numbers of slots as often as one that knows nothing: its server may be another build.
const EXPLORE_PERMILLE: u32 = 500;

/// What pods of one profile on one kind of machine learned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    /// The profile's name.
    pub profile: String,
    /// The accelerator or instance type.
    pub node_class: String,
    /// Requests that the server runs side by side, with calls held and merged beyond; 0: calls are
    /// forwarded as they come.
    pub slots: u32,
    /// What the concurrency limiter concluded; `None` while that is being learned: then the entry
    /// keeps what it has.
    pub limiter: Option<Limiter>,
    /// By how much the next batch may leave before one comes back, in microseconds.
    pub lead_micros: u64,
    /// The running mean of execution times, in microseconds.
    pub mean_micros: u64,
    /// What a batch costs, for the cost class with most of them: a model server has one that matters, others are learned soon.
    pub curve: Option<Curve>,
    /// What the slow loop ended with.
    pub settings: Settings,
    /// Batches that it was learned from.
    pub batches: u64,
    /// When it was last written, in seconds since 1970.
    pub at: u64,
}

/// What a concurrency limiter concluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limiter {
    /// Latency of a lone call below the limit, in microseconds; 0: not known.
    pub base_micros: u64,
    /// Calls are forwarded since a batch does not pay: cost of an item in one, in thousandths of a
    /// lone call; `None`: not so.
    pub no_gain_permille: Option<u64>,
}

/// What batches of one cost class take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Curve {
    /// The class, as `u8::escape_ascii` writes its bytes.
    pub class: String,
    /// Items and microseconds, by items.
    pub points: Vec<(u32, u64)>,
    /// What a batch exceeds but once in fifty times, over what it was expected to take, in thousandths.
    pub tail_permille: u64,
    /// The mean weight of an item, in thousandths.
    pub weight_milli: u64,
}

/// What a new pod begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// For the sidecar.
    pub settings: Settings,
    /// Of the server's slots.
    pub upstream: UpstreamSnapshot,
    /// What a batch costs.
    pub curve: Option<Curve>,
    /// What its concurrency limiter begins with; `None`: with nothing.
    pub limiter: Option<Limiter>,
    /// Whether it comes from pods of the same profile; otherwise of another one, on the same kind of machine.
    pub same_profile: bool,
}

/// What a new pod of this profile on this kind of machine begins with: of those with the same profile, else of the newest on the same kind of machine, since
/// a curve belongs to model and machine and not to limits. On another kind of machine, or an unknown one, it begins with nothing.
#[must_use]
pub fn start(learned: &[Learned], profile: &str, node_class: &str) -> Option<Start> {
    if node_class.is_empty() {
        return None;
    }
    let alike = || learned.iter().filter(|entry| entry.node_class == node_class);
    let same = alike().find(|entry| entry.profile == profile);
    let entry = same.or_else(|| alike().max_by_key(|entry| entry.at))?;
    Some(Start {
        // What the slow loop found is about that profile's limits too.
        settings: if same.is_some() { entry.settings } else { Settings::default() },
        upstream: UpstreamSnapshot {
            slots: entry.slots,
            lead_nanos: entry.lead_micros.saturating_mul(1000),
            mean_nanos: entry.mean_micros.saturating_mul(1000),
            explore_permille: EXPLORE_PERMILLE,
        },
        curve: entry.curve.clone(),
        limiter: entry.limiter,
        same_profile: same.is_some(),
    })
}

/// The entries after these pods have reported; `None` where nothing is worth a write.
///
/// Of the pods of one profile and machine the one that learned from most batches speaks. Entries of profiles in `keep` (in force, or being tried) go last;
/// otherwise the oldest go first.
#[must_use]
pub fn update(entries: &[Learned], pods: &[Learned], keep: &[&str], now: u64) -> Option<Vec<Learned>> {
    let mut best: BTreeMap<(&str, &str), &Learned> = BTreeMap::new();
    // Calls that are forwarded side by side teach the curve little; that merging does not pay was
    // measured apart from it.
    let concluded = |pod: &Learned| pod.limiter.is_some_and(|limiter| limiter.no_gain_permille.is_some());
    let enough = |pod: &Learned| pod.batches >= BATCHES_MIN || concluded(pod);
    for pod in pods.iter().filter(|pod| enough(pod) && !pod.node_class.is_empty()) {
        let entry = best.entry((&pod.profile, &pod.node_class)).or_insert(pod);
        if pod.batches > entry.batches {
            *entry = pod;
        }
    }
    let mut next: Vec<Learned> = entries.to_vec();
    let mut moved = false;
    for ((profile, node_class), pod) in best {
        let at = next.iter().position(|entry| entry.profile == profile && entry.node_class == node_class);
        let fresh = Learned { at: now, ..pod.clone().bounded() };
        let before = at.and_then(|at| next.get(at));
        let fresh = before.map_or(fresh.clone(), |before| fresh.after(before));
        match at.and_then(|at| next.get_mut(at)) {
            Some(entry) if !entry.differs(&fresh) => {}
            Some(entry) => {
                *entry = fresh;
                moved = true;
            }
            None => {
                next.push(fresh);
                moved = true;
            }
        }
    }
    next.sort_by_key(|entry| (!keep.contains(&entry.profile.as_str()), std::cmp::Reverse(entry.at)));
    if next.len() > ENTRIES_MAX {
        next.truncate(ENTRIES_MAX);
        moved = next != entries;
    }
    moved.then_some(next)
}

// === impl Learned ===

impl Learned {
    /// With no more of it than a status may hold.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.curve = self.curve.filter(|curve| curve.class.len() <= NAME_MAX && !curve.points.is_empty());
        if let Some(curve) = &mut self.curve {
            curve.thin();
        }
        self
    }

    /// With the limit of the entry before, while the pod has concluded nothing: it may be trying
    /// another one.
    fn after(self, before: &Self) -> Self {
        if self.limiter.is_some() {
            return self;
        }
        Self { slots: before.slots, limiter: before.limiter, ..self }
    }

    fn differs(&self, other: &Self) -> bool {
        let same_limiter = match (self.limiter, other.limiter) {
            (Some(own), Some(other)) => {
                own.no_gain_permille.is_some() == other.no_gain_permille.is_some()
                    && !moved(own.base_micros, other.base_micros)
                    && !moved(own.no_gain_permille.unwrap_or(0), other.no_gain_permille.unwrap_or(0))
            }
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_curve = match (&self.curve, &other.curve) {
            (Some(own), Some(other)) => {
                let pairs = || own.points.iter().zip(&other.points);
                own.class == other.class
                    && own.points.len() == other.points.len()
                    && pairs().all(|(own, other)| own.0 == other.0 && !moved(own.1, other.1))
            }
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_slots = !moved(self.slots.into(), other.slots.into());
        !same_curve || !same_limiter || !same_slots || self.settings != other.settings
    }
}

fn moved(old: u64, new: u64) -> bool {
    u128::from(old.abs_diff(new)) * 1000 >= u128::from(old.max(1)) * u128::from(MOVED_PERMILLE)
}

// === impl Curve ===

impl Curve {
    /// What a sidecar keeps of a cost class, as far as it is handed on.
    #[must_use]
    pub fn of(class: &[u8], snapshot: &Snapshot) -> Self {
        let points = snapshot.points.iter().map(|point| (point.items, point.nanos / 1000)).collect();
        let mut curve = Self {
            class: class.escape_ascii().to_string(),
            points,
            tail_permille: snapshot.tail_permille,
            weight_milli: snapshot.weight_milli,
        };
        curve.thin();
        curve
    }

    /// As a core takes it up. What weights do is learned anew: means by size know nothing of them.
    #[must_use]
    pub fn snapshot(&self) -> ClassSnapshot {
        let nanos = |micros: u64| micros.saturating_mul(1000);
        let points: Vec<Point> = self
            .points
            .iter()
            .map(|(items, micros)| Point { items: *items, nanos: nanos(*micros), count: SAMPLES_KEPT })
            .collect();
        let weight = |items: u32| {
            let each = (self.weight_milli / 1000).max(1);
            Weight { sum: each.saturating_mul(u64::from(items)), max: each }
        };
        let sample = |point: &Point| Sample { items: point.items, weight: weight(point.items), nanos: point.nanos };
        let cost = Snapshot {
            base: Base::SizeOnly,
            first_nanos: points.first().map_or(0, |point| point.nanos),
            samples: points.iter().map(sample).collect(),
            largest: points.last().map_or(0, |point| point.items),
            points,
            tail_permille: self.tail_permille,
            noise_ppm: 0,
            weights_matter: false,
            weight_milli: self.weight_milli,
            heaviest_milli: Vec::new(),
            padding_permille: 0,
        };
        ClassSnapshot { cost, ceilings: Vec::new(), flow: None }
    }

    /// Keeps the ends and, between them, sizes that lie about as far from each other.
    fn thin(&mut self) {
        self.points.sort_unstable();
        self.points.dedup_by_key(|point| point.0);
        while self.points.len() > POINTS_MAX {
            // The point whose neighbours are nearest to each other, as a ratio, says least.
            let least = (1..self.points.len() - 1).min_by_key(|at| {
                let (before, after) = (self.points[at - 1].0.max(1), self.points[at + 1].0);
                u64::from(after) * 1000 / u64::from(before)
            });
            let Some(least) = least else { return };
            self.points.remove(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(profile: &str, node_class: &str, at: u64) -> Learned {
        Learned {
            profile: profile.to_owned(),
            node_class: node_class.to_owned(),
            slots: 2,
            curve: Some(Curve {
                class: "c".to_owned(),
                points: vec![(1, 4000), (8, 6000)],
                tail_permille: 1100,
                weight_milli: 1000,
            }),
            settings: Settings { shift_permille: 80, ..Settings::default() },
            batches: 1000,
            at,
            ..Learned::default()
        }
    }

    #[test]
    fn a_new_pod_begins_with_what_its_profile_learned_on_its_kind_of_machine() {
        let learned = [entry("a", "l4", 1), entry("b", "l4", 2), entry("a", "h100", 3)];
        let same = start(&learned, "a", "l4").unwrap();
        assert_eq!((same.same_profile, same.settings.shift_permille, same.upstream.slots), (true, 80, 2));
        let other = start(&learned, "c", "l4").unwrap();
        assert_eq!((other.same_profile, other.settings), (false, Settings::default()));
        assert_eq!((start(&learned, "a", "t4"), start(&learned, "a", "")), (None, None));
    }

    #[test]
    fn a_limit_stays_while_its_pod_tries_another_and_goes_once_that_is_concluded() {
        let limited = Some(Limiter { base_micros: 4000, no_gain_permille: None });
        let old = vec![Learned { limiter: limited, ..entry("a", "l4", 1) }];
        let trying = Learned { slots: 0, limiter: None, ..entry("a", "l4", 1) };
        assert_eq!(update(&old, &[trying], &[], 9), None);
        let no_gain = Some(Limiter { base_micros: 4000, no_gain_permille: Some(970) });
        let open = Learned { slots: 0, limiter: no_gain, batches: 9, ..entry("a", "l4", 1) };
        let next = update(&old, &[open], &[], 9).unwrap();
        assert_eq!((next[0].slots, next[0].limiter, next[0].at), (0, no_gain, 9));
        let begins = start(&next, "a", "l4").unwrap();
        assert_eq!((begins.upstream.slots, begins.limiter), (0, no_gain));
    }

    #[test]
    fn a_core_takes_up_a_curve_that_was_handed_on() {
        use crate::batching::{Batcher, CostClassId, Limits, Tick};
        let curve = entry("a", "l4", 1).curve.unwrap();
        let mut batcher = Batcher::new(Limits::default(), 1);
        batcher.restore(Tick::default(), CostClassId(3), &curve.snapshot());
        let report = batcher.report().classes.remove(0).1;
        let points: Vec<_> = report.points.iter().map(|point| (point.items, point.nanos)).collect();
        assert_eq!(points, [(1, 4_000_000), (8, 6_000_000)]);
        assert!((3_000_000..4_500_000).contains(&report.batch_nanos), "{report:?}");
        let again = Curve::of(b"c", &batcher.snapshot().remove(0).1.cost);
        assert_eq!(again.points, curve.points);
    }

    #[test]
    fn entries_are_bounded_and_those_in_use_stay() {
        let old: Vec<Learned> = (0..16).map(|i| entry(&format!("p{i}"), "l4", i)).collect();
        assert_eq!(update(&old, &[entry("p3", "l4", 0)], &[], 100), None, "nothing moved");
        let next = update(&old, &[entry("new", "l4", 0)], &["p0", "new"], 100).unwrap();
        let names: Vec<&str> = next.iter().map(|entry| entry.profile.as_str()).collect();
        assert_eq!((next.len(), names[0], names[1]), (16, "new", "p0"), "p0 is the oldest, and in use");
        assert!(!names.contains(&"p1"), "the oldest that nobody uses goes");
    }

    #[test]
    fn a_pod_that_learned_little_says_nothing_and_small_moves_are_not_written() {
        let old = vec![entry("a", "l4", 1)];
        assert_eq!(update(&old, &[Learned { batches: 20, slots: 9, ..entry("a", "l4", 1) }], &[], 9), None);
        let mut near = entry("a", "l4", 1);
        near.curve.as_mut().unwrap().points[1].1 = 6300;
        assert_eq!(update(&old, &[near.clone()], &[], 9), None);
        near.curve.as_mut().unwrap().points[1].1 = 7000;
        let next = update(&old, &[near, Learned { batches: 500, slots: 7, ..entry("a", "l4", 1) }], &[], 9).unwrap();
        assert_eq!(
            (next[0].slots, next[0].at, next[0].curve.as_ref().unwrap().points[1].1),
            (2, 9, 7000),
            "who saw more speaks"
        );
    }

    #[test]
    fn a_curve_is_thinned_to_sizes_that_tell_most() {
        let mut curve = Curve { points: (1..=512).map(|n| (n, u64::from(n))).collect(), ..Curve::default() };
        curve.thin();
        let sizes: Vec<u32> = curve.points.iter().map(|point| point.0).collect();
        assert_eq!((sizes.len(), sizes[0], sizes[9]), (POINTS_MAX, 1, 512));
        assert!(sizes.windows(2).all(|pair| pair[1] <= 4 * pair[0]), "{sizes:?}");
    }
}
