//! Memory of the cost classes that are not divided, because responses to their parts could not be
//! joined.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::batching::Tick;
use crate::protocol::MismatchKind;

/// Maximum number of classes that are remembered: the number that the batching core remembers.
/// Beyond it, the class that is divided again first is dropped.
const CLASSES_MAX: usize = 256;
/// Time after which a class is divided again: the maximum duration of a quarantine. The server may
/// have been replaced, and one call an hour that is executed twice costs little.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Cost classes that are not divided, and the time until which they are not.
#[derive(Debug, Default)]
pub(in super::super) struct UndividedClasses(Mutex<BTreeMap<Box<[u8]>, Tick>>);

// === impl UndividedClasses ===

impl UndividedClasses {
    /// Returns `true` if calls of this class are sent whole.
    pub(in super::super) fn contains(&self, now: Tick, class: &[u8]) -> bool {
        let classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        classes.get(class).is_some_and(|until| now < *until)
    }

    /// Records that the responses to the parts of a call could not be joined. Returns `true` if
    /// calls of its class are sent whole from now on.
    ///
    /// Only a form that every response of the server has is remembered: a missing or incomplete
    /// body is that of a single response.
    pub(super) fn on_mismatch(&self, now: Tick, class: &[u8], mismatch: MismatchKind) -> bool {
        if !matches!(mismatch, MismatchKind::Undeclared | MismatchKind::Shape) {
            return false;
        }
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = classes.insert(class.into(), now.after(FORGOTTEN_AFTER));
        if classes.len() > CLASSES_MAX
            && let Some(first) = classes.iter().min_by_key(|(_, until)| **until).map(|(class, _)| class.clone())
        {
            classes.remove(&first);
        }
        before.is_none_or(|until| until <= now)
    }

    /// Discards all classes, after the policy was replaced, which may declare other members.
    pub(in super::super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_remembered_for_a_limited_time_and_for_lasting_reasons() {
        let classes = UndividedClasses::default();
        let now = Tick::from_millis(5);
        assert!(!classes.on_mismatch(now, b"a", MismatchKind::Empty));
        assert!(!classes.contains(now, b"a"));
        assert!(classes.on_mismatch(now, b"a", MismatchKind::Shape));
        assert!(!classes.on_mismatch(now, b"a", MismatchKind::Undeclared), "it is known");
        assert!(classes.contains(now, b"a") && !classes.contains(now, b"b"));
        let later = now.after(FORGOTTEN_AFTER);
        assert!(!classes.contains(later, b"a"));
        assert!(classes.on_mismatch(later, b"a", MismatchKind::Shape), "and is reported again");
        classes.clear();
        assert!(!classes.contains(later, b"a"));
    }

    #[test]
    fn the_number_of_classes_is_bounded() {
        let classes = UndividedClasses::default();
        for class in 0..1000_u16 {
            classes.on_mismatch(Tick::from_millis(class.into()), &class.to_be_bytes(), MismatchKind::Shape);
        }
        assert_eq!(classes.0.lock().unwrap().len(), CLASSES_MAX);
        assert!(classes.contains(Tick::from_millis(1000), &999_u16.to_be_bytes()));
    }
}
