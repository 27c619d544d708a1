//! The next rotation step, from the certificates and the time. Pure.

use super::{
    CA_INTRODUCTION_PERIOD, CA_LIFE, CA_RETIREMENT_AGE, CaCertificate, LEAF_LIFE, LEAF_REPLACE_BEFORE, LeafCertificate,
    NEW_LEAF_MIN_AGE, SecretContents, Validity,
};

/// A rotation step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationStep {
    /// No step is due before this time, in seconds since 1970.
    Keep(u64),
    /// Create a CA and a leaf: no usable certificate exists.
    Begin,
    /// Create a CA that is trusted first and used later.
    Introduce,
    /// Issue a leaf of the newest CA.
    Renew,
    /// Remove old CAs from the bundle.
    Retire,
}

/// Returns the step that is due at `now`, in seconds since 1970.
#[must_use]
pub fn plan(now: u64, held: &SecretContents) -> RotationStep {
    let leaf = held.leaf.as_ref().filter(|leaf| leaf.covers_names && leaf.validity.contains(now));
    let Some(newest) = held.newest().filter(|newest| newest.validity.contains(now)) else {
        // The newest CA cannot sign: its key is missing or it has expired. A usable leaf stays in
        // use, so only a CA is introduced; otherwise both are created.
        return if leaf.is_some() { RotationStep::Introduce } else { RotationStep::Begin };
    };
    let Some(leaf) = leaf else { return RotationStep::Renew };
    // Collects the times of future steps, for `RotationStep::Keep`.
    let mut next = Vec::new();
    let mut due = |at: u64| {
        next.push(at);
        now >= at
    };
    let trusted_from = newest.validity.begin.saturating_add(CA_INTRODUCTION_PERIOD.as_secs());
    let replace_by = leaf.validity.end.saturating_sub(LEAF_REPLACE_BEFORE.as_secs());
    // The leaf of the newest CA is renewed after two thirds of its validity period. The leaf of an
    // older CA is replaced once the newest CA is trusted everywhere, or one day before the leaf
    // expires.
    if leaf.authority == 0 {
        if due(renewal_time(leaf.validity, LEAF_LIFE.as_secs())) {
            return RotationStep::Renew;
        }
    } else if due(trusted_from.min(replace_by)) {
        return RotationStep::Renew;
    }
    // An old CA is removed once no client can depend on it, or once it has expired and its leaf is
    // not in use.
    if leaf.authority == 0 && held.authorities.len() > 1 && due(retire_at(newest, leaf)) {
        return RotationStep::Retire;
    }
    if held.authorities.iter().skip(1).enumerate().any(|(at, old)| leaf.authority != at + 1 && due(old.validity.end)) {
        return RotationStep::Retire;
    }
    // One CA at a time: an introduced CA is in use before the next one is created.
    if leaf.authority == 0 && due(renewal_time(newest.validity, CA_LIFE.as_secs())) {
        return RotationStep::Introduce;
    }
    RotationStep::Keep(next.into_iter().filter(|at| *at > now).min().unwrap_or(leaf.validity.end))
}

fn retire_at(newest: &CaCertificate, leaf: &LeafCertificate) -> u64 {
    let introduced = newest.validity.begin.saturating_add(CA_RETIREMENT_AGE.as_secs());
    introduced.max(leaf.validity.begin.saturating_add(NEW_LEAF_MIN_AGE.as_secs()))
}

/// Returns the time at which two thirds of a validity period have passed. The period counts as at
/// most `most`, the longest that the controller itself issues.
fn renewal_time(validity: Validity, most: u64) -> u64 {
    let life = validity.end.saturating_sub(validity.begin).min(most);
    validity.end.saturating_sub(life / 3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::certs::BACKDATE;

    const DAY: u64 = 24 * 3600;

    fn from(begin: u64, days: u64) -> Validity {
        Validity { begin, end: begin + days * DAY }
    }

    fn held(authorities: &[Validity], leaf: Option<(Validity, usize)>) -> SecretContents {
        let authorities =
            authorities.iter().map(|validity| CaCertificate { der: Vec::new(), validity: *validity }).collect();
        let leaf = leaf.map(|(validity, authority)| LeafCertificate { validity, authority, covers_names: true });
        SecretContents { authorities, has_ca_key: true, leaf }
    }

    #[test]
    fn an_absent_or_expired_ca_is_replaced_together_with_the_leaf() {
        assert_eq!(plan(DAY, &held(&[], None)), RotationStep::Begin);
        assert_eq!(plan(500 * DAY, &held(&[from(0, 365)], Some((from(0, 30), 0)))), RotationStep::Begin);
    }

    #[test]
    fn a_leaf_is_renewed_at_two_thirds_of_its_life_and_not_before() {
        let held = held(&[from(0, 365)], Some((from(0, 30), 0)));
        assert_eq!(plan(20 * DAY - 1, &held), RotationStep::Keep(20 * DAY));
        assert_eq!(plan(20 * DAY, &held), RotationStep::Renew);
    }

    #[test]
    fn a_leaf_that_is_torn_expired_or_for_other_names_is_renewed_at_once() {
        assert_eq!(plan(DAY, &held(&[from(0, 365)], None)), RotationStep::Renew);
        assert_eq!(plan(40 * DAY, &held(&[from(0, 365)], Some((from(0, 30), 0)))), RotationStep::Renew);
        let mut other = held(&[from(0, 365)], Some((from(0, 30), 0)));
        other.leaf.as_mut().unwrap().covers_names = false;
        assert_eq!(plan(DAY, &other), RotationStep::Renew);
    }

    #[test]
    fn a_ca_with_a_lost_key_is_followed_by_a_new_one_beside_its_valid_leaf() {
        let mut lost = held(&[from(0, 365)], Some((from(0, 30), 0)));
        lost.has_ca_key = false;
        assert_eq!(plan(DAY, &lost), RotationStep::Introduce);
        lost.leaf = None;
        assert_eq!(plan(DAY, &lost), RotationStep::Begin);
    }

    #[test]
    fn a_ca_is_introduced_then_used_and_the_old_one_retired_last() {
        let ca = renewal_time(from(0, 365), CA_LIFE.as_secs());
        let leaf = from(ca - 5 * DAY, 30);
        assert_eq!(plan(ca, &held(&[from(0, 365)], Some((leaf, 0)))), RotationStep::Introduce);
        let both = [from(ca, 365), from(0, 365)];
        assert_eq!(plan(ca, &held(&both, Some((leaf, 1)))), RotationStep::Keep(ca + 4 * DAY));
        assert_eq!(plan(ca + 4 * DAY, &held(&both, Some((leaf, 1)))), RotationStep::Renew);
        let new = from(ca + 4 * DAY, 30);
        assert_eq!(plan(ca + 4 * DAY, &held(&both, Some((new, 0)))), RotationStep::Keep(ca + 24 * DAY));
        let newer = from(ca + 24 * DAY, 30);
        assert_eq!(plan(ca + 34 * DAY - 1, &held(&both, Some((newer, 0)))), RotationStep::Keep(ca + 34 * DAY));
        assert_eq!(plan(ca + 34 * DAY, &held(&both, Some((newer, 0)))), RotationStep::Retire);
    }

    #[test]
    fn an_expiring_leaf_is_renewed_before_the_new_ca_is_trusted_everywhere() {
        let both = [from(100 * DAY, 365), from(0, 365)];
        let leaf = from(71 * DAY, 30);
        assert_eq!(
            plan(100 * DAY - 1, &held(&both, Some((leaf, 1)))),
            RotationStep::Introduce,
            "the new one is not valid yet"
        );
        assert_eq!(plan(100 * DAY, &held(&both, Some((leaf, 1)))), RotationStep::Renew, "a day is left");
    }

    /// Performs a step, as the rotator does with real certificates.
    fn act(now: u64, held: &mut SecretContents, action: RotationStep) {
        let begin = now - BACKDATE.as_secs();
        let leaf = LeafCertificate { validity: from(begin, 30), authority: 0, covers_names: true };
        match action {
            RotationStep::Keep(_) => {}
            RotationStep::Begin | RotationStep::Introduce => {
                held.authorities.insert(0, CaCertificate { der: Vec::new(), validity: from(begin, 365) });
                held.has_ca_key = true;
                if let Some(leaf) = &mut held.leaf {
                    leaf.authority += 1;
                }
                if action == RotationStep::Begin {
                    held.leaf = Some(leaf);
                }
            }
            RotationStep::Renew => held.leaf = Some(leaf),
            RotationStep::Retire => {
                let used = held.leaf.as_ref().map_or(0, |leaf| leaf.authority);
                let keep =
                    |at: usize, old: &CaCertificate| at == 0 || at == used || (used != 0 && old.validity.contains(now));
                let mut at = 0;
                held.authorities.retain(|old| {
                    at += 1;
                    keep(at - 1, old)
                });
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// A client that connected within the last three days trusts the current leaf, over years,
        /// as long as the controller is never down for that time.
        #[test]
        fn a_client_without_updates_for_three_days_trusts_the_certificate(pauses in prop::collection::vec(1..2 * DAY, 800)) {
            let mut now = 10_000 * DAY;
            let mut held = held(&[], None);
            // Trusted CAs at each time.
            let mut trusted: Vec<(u64, Vec<u64>)> = Vec::new();
            for pause in pauses {
                let mut steps = 0;
                loop {
                    let action = plan(now, &held);
                    if let RotationStep::Keep(until) = action {
                        prop_assert!(until > now);
                        break;
                    }
                    act(now, &mut held, action);
                    steps += 1;
                    prop_assert!(steps < 4, "does not terminate: {action:?} {held:?}");
                }
                prop_assert!(held.authorities.len() <= 2, "{held:?}");
                let leaf = held.leaf.clone().expect("a leaf always exists");
                prop_assert!(leaf.validity.contains(now + 3 * DAY), "{leaf:?} at {now}");
                let signer = held.authorities[leaf.authority].validity;
                prop_assert!(signer.contains(leaf.validity.end), "a CA outlives what it signed");
                for (_, believed) in trusted.iter().filter(|(at, _)| *at + 3 * DAY >= now) {
                    prop_assert!(believed.contains(&signer.begin), "clients do not trust the CA of the leaf yet");
                }
                trusted.push((now, held.authorities.iter().map(|ca| ca.validity.begin).collect()));
                now += pause;
            }
        }
    }
}
