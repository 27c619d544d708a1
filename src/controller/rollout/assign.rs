//! Assignment of pods to arms.
//!
//! Pods are assigned by weighted rendezvous hashing (Thaler and Ravishankar 1996): each pod draws a
//! number for each arm from its UID, divides it by the arm's weight, and joins the arm with the
//! smallest result. A pod's arm is therefore independent of other pods, raising an arm's weight
//! only moves pods to it, and pods move only to or from an arm that changes. An arm with a positive
//! weight that would receive no pod receives the one nearest to it.
//!
//! If there are fewer pods than arms, a pod changes arms in periods of equal length (a switchback
//! experiment, [`switchback_period`]). The periods form blocks that contain every arm according to
//! its weight, in an order that differs from pod to pod and from block to block, so that periodic
//! load is not attributed to an arm. The first part of each period (the washout) is still affected
//! by the previous arm and is not counted.

use super::UnixSeconds;

/// Maximum number of periods in one block. If the weights require more, each period is drawn
/// independently.
const BLOCK_MAX: usize = 16;
/// Part of a period that is washout...
const WASHOUT_PARTS: u64 = 5;
/// ...and its minimum in seconds, which covers two reports and a batch in flight. It never exceeds
/// half of the period.
const WASHOUT_MIN: u64 = 10;

/// A switchback period of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchbackPeriod {
    /// Index of the arm.
    pub arm: usize,
    /// Instant from which on measurements count for the arm.
    pub counts_from: UnixSeconds,
    /// End of the period.
    pub ends: UnixSeconds,
}

/// Returns the arm of each pod, by index. `arms` are names with weights; an arm of weight 0
/// receives no pods. `salt` identifies the comparison: another salt yields an independent
/// assignment.
///
/// If there are at least as many pods as arms with a positive weight, each of these arms has a pod.
#[must_use]
pub fn assign_arms(uids: &[&str], salt: &str, arms: &[(&str, u32)]) -> Vec<usize> {
    let scores: Vec<Vec<f64>> = uids.iter().map(|uid| scores(uid, salt, arms)).collect();
    let mut given: Vec<usize> = scores.iter().map(|scores| min_score_index(scores)).collect();
    let live: Vec<usize> = (0..arms.len()).filter(|arm| arms.get(*arm).is_some_and(|arm| arm.1 > 0)).collect();
    if uids.len() < live.len() {
        return given;
    }
    for &arm in &live {
        if given.contains(&arm) {
            continue;
        }
        // Among pods that are not the last of their arm, take the one that would move first if the
        // weight of this arm grew.
        let nearest = (0..uids.len())
            .filter(|pod| given.iter().filter(|other| **other == given[*pod]).count() > 1)
            .min_by(|one, other| {
                weight_factor_to_join(&scores[*one], arm).total_cmp(&weight_factor_to_join(&scores[*other], arm))
            });
        if let Some(pod) = nearest {
            given[pod] = arm;
        }
    }
    given
}

/// Returns the current switchback period of a pod.
#[must_use]
pub fn switchback_period(
    uid: &str,
    salt: &str,
    arms: &[(&str, u32)],
    (started, now): (UnixSeconds, UnixSeconds),
    period: u64,
) -> SwitchbackPeriod {
    let period = period.max(1);
    let index = now.since(started) / period;
    let begins = UnixSeconds(started.0 + index * period);
    let washout = washout(period);
    let arm = match switchback_block(arms) {
        Some(mut block) => {
            let length = u64::try_from(block.len()).unwrap_or(1).max(1);
            shuffle(&mut block, uid, salt, index / length);
            usize::try_from(index % length).ok().and_then(|at| block.get(at)).copied().unwrap_or(0)
        }
        None => min_score_index(&scores(uid, &format!("{salt} {index}"), arms)),
    };
    SwitchbackPeriod { arm, counts_from: UnixSeconds(begins.0 + washout), ends: UnixSeconds(begins.0 + period) }
}

/// Returns the number of seconds at the start of a period that do not count.
#[must_use]
pub fn washout(period: u64) -> u64 {
    (period / WASHOUT_PARTS).max(WASHOUT_MIN).min(period / 2)
}

// === impl SwitchbackPeriod ===

impl SwitchbackPeriod {
    /// Returns `true` if measurements of this interval count for the period's arm.
    #[must_use]
    pub fn holds(&self, from: UnixSeconds, to: UnixSeconds) -> bool {
        from >= self.counts_from && to <= self.ends && from <= to
    }
}

/// Returns a block that contains every arm according to its weight, or `None` if it would exceed
/// [`BLOCK_MAX`] periods.
fn switchback_block(arms: &[(&str, u32)]) -> Option<Vec<usize>> {
    let divisor = arms.iter().fold(0, |divisor, (_, weight)| gcd(divisor, *weight)).max(1);
    let mut block = Vec::new();
    for (arm, (_, weight)) in arms.iter().enumerate() {
        let times = usize::try_from(weight / divisor).unwrap_or(usize::MAX);
        if times > BLOCK_MAX - block.len().min(BLOCK_MAX) {
            return None;
        }
        block.extend(std::iter::repeat_n(arm, times));
    }
    (!block.is_empty()).then_some(block)
}

/// Shuffles the block by the Fisher–Yates algorithm (1938), with random numbers from a hash.
fn shuffle(block: &mut [usize], uid: &str, salt: &str, index: u64) {
    for last in (1..block.len()).rev() {
        let draw = hash_to_u64(&[uid, salt, &index.to_string(), &last.to_string()]);
        let among = u64::try_from(last + 1).unwrap_or(u64::MAX);
        block.swap(last, usize::try_from(draw % among).unwrap_or(0));
    }
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the score of each arm: an exponential variate with the arm's weight as its rate. The arm
/// with the smallest score wins with a probability proportional to its weight.
fn scores(uid: &str, salt: &str, arms: &[(&str, u32)]) -> Vec<f64> {
    let score = |(arm, weight): &(&str, u32)| {
        if *weight == 0 { f64::INFINITY } else { minus_log2(hash_to_u64(&[uid, salt, arm])) / f64::from(*weight) }
    };
    arms.iter().map(score).collect()
}

fn min_score_index(scores: &[f64]) -> usize {
    (0..scores.len()).min_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap_or(0)
}

/// Returns the factor by which the weight of an arm would have to grow for a pod to join it.
fn weight_factor_to_join(scores: &[f64], arm: usize) -> f64 {
    let others = scores.iter().enumerate().filter(|(other, _)| *other != arm).map(|(_, score)| *score);
    scores.get(arm).copied().unwrap_or(f64::INFINITY) / others.fold(f64::INFINITY, f64::min)
}

/// Hashes the texts to 64 bits. Each is prefixed by its length, so that concatenations differ.
fn hash_to_u64(parts: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hasher.update(&length.to_be_bytes()).update(part.as_bytes());
    }
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

/// Computes −log₂ of (bits + 1) ÷ 2⁶⁴ by repeated squaring. All arithmetic is exact, so that every
/// machine assigns a pod to the same arm.
fn minus_log2(bits: u64) -> f64 {
    // Integer part of the logarithm; the loop below computes 32 bits of its fraction.
    let number = bits.saturating_add(1);
    let whole = number.ilog2();
    // The mantissa in [1, 2), in units of 2⁻³¹.
    let mut mantissa = if whole >= 31 { number >> (whole - 31) } else { number << (31 - whole) };
    let mut fraction = 0.0;
    let mut part = 0.5;
    for _ in 0..32 {
        mantissa = (mantissa * mantissa) >> 31;
        if mantissa >= 1 << 32 {
            mantissa >>= 1;
            fraction += part;
        }
        part /= 2.0;
    }
    // Never zero, so that a weight always affects the score.
    (64.0 - f64::from(whole) - fraction).max(1e-9)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uids(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("0b9c51c4-{i:04}-4f6e-9d0c-{:012x}", i * 7919)).collect()
    }

    fn given(uids: &[String], weights: &[u32]) -> Vec<usize> {
        let names = ["current", "candidate", "third"];
        let arms: Vec<(&str, u32)> = names.into_iter().zip(weights.iter().copied()).collect();
        assign_arms(&uids.iter().map(String::as_str).collect::<Vec<_>>(), "x", &arms)
    }

    #[test]
    fn the_logarithm_is_right_to_nine_digits_and_the_same_everywhere() {
        for bits in [0, 1, 5, 1 << 20, u64::MAX / 3, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            let expected = 64.0 - ((bits as f64) + 1.0).log2();
            assert!((minus_log2(bits) - expected.max(1e-9)).abs() < 1e-8, "{bits}: {} {expected}", minus_log2(bits));
        }
        assert_eq!(minus_log2(0xDEAD_BEEF_0BAD_F00D).to_bits(), 4_596_416_303_736_029_184);
    }

    #[test]
    fn shares_are_near_their_weights() {
        let pods = uids(4000);
        let given = given(&pods, &[50, 30, 20]);
        for (arm, expected) in [0.5, 0.3, 0.2].into_iter().enumerate() {
            let share = given.iter().filter(|other| **other == arm).count() as f64 / 4000.0;
            assert!((share - expected).abs() < 0.03, "{arm}: {share}");
        }
    }

    #[test]
    fn an_arm_without_weight_gets_no_pod_and_one_of_little_weight_gets_one() {
        let pods = uids(3);
        assert!(given(&pods, &[100, 0]).iter().all(|arm| *arm == 0));
        assert_eq!(given(&pods, &[99, 1]).iter().filter(|arm| **arm == 1).count(), 1);
        assert_eq!(given(&pods, &[1, 99]).iter().filter(|arm| **arm == 0).count(), 1);
        assert_eq!(given(&uids(1), &[50, 50]).len(), 1, "fewer pods than arms: by turns, elsewhere");
    }

    #[test]
    fn a_switchback_serves_arms_by_weight_and_excludes_the_start_of_each_period() {
        let arms = [("a", 2), ("b", 1)];
        let mut counts = [0; 2];
        for at in 0..3 * 40 {
            let now = UnixSeconds(1000 + at * 60 + 30);
            let turn = switchback_period("u", "s", &arms, (UnixSeconds(1000), now), 60);
            counts[turn.arm] += 1;
            assert_eq!((turn.counts_from, turn.ends), (UnixSeconds(1000 + at * 60 + 12), UnixSeconds(1060 + at * 60)));
            assert!(
                turn.holds(UnixSeconds(1000 + at * 60 + 12), now) && !turn.holds(UnixSeconds(1000 + at * 60 + 11), now)
            );
        }
        assert_eq!(counts, [80, 40]);
        let order = |uid: &str| -> Vec<usize> {
            (0..60)
                .map(|at| switchback_period(uid, "s", &arms, (UnixSeconds(0), UnixSeconds(at * 60)), 60).arm)
                .collect()
        };
        assert_ne!(order("u"), order("v"), "pods turn in orders of their own");
    }

    #[test]
    fn switchback_periods_of_uneven_weights_are_drawn_at_random() {
        let arms = [("a", 97), ("b", 3)];
        let of = |at: u64| switchback_period("u", "s", &arms, (UnixSeconds(0), UnixSeconds(at * 60)), 60).arm;
        let few = (0..2000).filter(|at| of(*at) == 1).count();
        assert!((30..100).contains(&few), "{few} of 2000");
        assert_eq!(switchback_period("u", "s", &[("a", 0)], (UnixSeconds(0), UnixSeconds(9)), 0).arm, 0);
    }

    proptest! {
        #[test]
        fn a_canary_only_grows(count in 1..60_usize, percents in prop::collection::vec(1..100_u32, 1..6)) {
            let pods = uids(count);
            let mut percents = percents;
            percents.sort_unstable();
            let mut before = vec![0; count];
            for percent in percents {
                let now = given(&pods, &[100 - percent, percent]);
                for (was, is) in before.iter().zip(&now) {
                    prop_assert!(*was == 0 || *is == 1, "a pod left the canary at {percent} %");
                }
                if count >= 2 {
                    prop_assert!(now.contains(&0) && now.contains(&1));
                }
                before = now;
            }
        }

        #[test]
        fn the_arm_of_a_pod_is_independent_of_other_pods_while_no_arm_is_empty(count in 20..60_usize, removed in 0..10_usize) {
            let pods = uids(count);
            let all = given(&pods, &[50, 50]);
            let rest = given(&pods[removed..], &[50, 50]);
            prop_assert_eq!(&all[removed..], &rest[..]);
        }
    }
}
