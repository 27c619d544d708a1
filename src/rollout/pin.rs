//! Going back by hand: `groupage rollback bpol/x --to P`.
//!
//! The command writes one annotation on the policy and leaves its spec alone, so that what is in git stays what is in git. It holds for what the policy wants
//! at that moment: another edit of limits or scheduling is a new wish, and the annotation no longer counts.

/// The annotation's key.
pub const ANNOTATION: &str = "groupage.dev/rollback";

/// A profile that is to be in force instead of the one that the policy wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The profile to go back to.
    pub to: String,
    /// What the policy wanted when it was written.
    pub instead_of: String,
}

// === impl Pin ===

impl Pin {
    /// Reads an annotation's value, `<to> instead of <wanted>`; `None` where it says something else.
    #[must_use]
    pub fn read(value: &str) -> Option<Self> {
        let (to, instead_of) = value.split_once(" instead of ")?;
        let name = |text: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            (!text.is_empty() && text.len() <= 253 && text.chars().all(fits)).then(|| text.to_owned())
        };
        Some(Self { to: name(to.trim())?, instead_of: name(instead_of.trim())? })
    }

    /// The annotation's value.
    #[must_use]
    pub fn write(&self) -> String {
        format!("{} instead of {}", self.to, self.instead_of)
    }

    /// Whether it holds for a policy that wants this profile now.
    #[must_use]
    pub fn holds(&self, wanted: &str) -> bool {
        self.instead_of == wanted && self.to != wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_holds_until_the_next_edit() {
        let pin = Pin { to: "a-1".to_owned(), instead_of: "a-2".to_owned() };
        assert_eq!(Pin::read(&pin.write()), Some(pin.clone()));
        assert!(pin.holds("a-2") && !pin.holds("a-3"));
        assert!(!Pin { to: "a-2".to_owned(), ..pin }.holds("a-2"));
        for wrong in ["", "a-1", "a-1 instead of ", "A instead of b", "a instead of b/c", "a b instead of c"] {
            assert_eq!(Pin::read(wrong), None, "{wrong}");
        }
    }
}
