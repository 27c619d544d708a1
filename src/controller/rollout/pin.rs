//! Manual rollback: `groupage rollback bpol/x --to P`.
//!
//! The command writes one annotation on the policy and leaves its spec unchanged, so that the spec
//! still matches a version-controlled manifest. The annotation applies only to the profile that the
//! policy specifies at that moment: after another edit of limits or scheduling it is ignored.

/// Key of the annotation.
pub const ANNOTATION: &str = "groupage.dev/rollback";

/// A profile that is put in force instead of the one that the policy specifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManualRollback {
    /// Profile to put in force.
    pub to: String,
    /// Profile that the policy specified when the annotation was written.
    pub instead_of: String,
}

// === impl ManualRollback ===

impl ManualRollback {
    /// Parses the value of the annotation, `<to> instead of <desired>`. Returns `None` if it has
    /// another format.
    #[must_use]
    pub fn read(value: &str) -> Option<Self> {
        let (to, instead_of) = value.split_once(" instead of ")?;
        let name = |text: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            (!text.is_empty() && text.len() <= 253 && text.chars().all(fits)).then(|| text.to_owned())
        };
        Some(Self { to: name(to.trim())?, instead_of: name(instead_of.trim())? })
    }

    /// Formats the value of the annotation.
    #[must_use]
    pub fn write(&self) -> String {
        format!("{} instead of {}", self.to, self.instead_of)
    }

    /// Returns `true` if the pin applies to a policy that specifies this profile.
    #[must_use]
    pub fn holds(&self, desired: &str) -> bool {
        self.instead_of == desired && self.to != desired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_round_trips_and_applies_only_instead_of_its_named_profile() {
        let pin = ManualRollback { to: "a-1".to_owned(), instead_of: "a-2".to_owned() };
        assert_eq!(ManualRollback::read(&pin.write()), Some(pin.clone()));
        assert!(pin.holds("a-2") && !pin.holds("a-3"));
        assert!(!ManualRollback { to: "a-2".to_owned(), ..pin }.holds("a-2"));
        for wrong in ["", "a-1", "a-1 instead of ", "A instead of b", "a instead of b/c", "a b instead of c"] {
            assert_eq!(ManualRollback::read(wrong), None, "{wrong}");
        }
    }
}
