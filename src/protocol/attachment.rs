//! Data that a backend derives from a call before the call is queued.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Data of a backend's own type that travels with a call, so that work on the body is not repeated
/// when the call is executed. Cheap to clone: clones share the data.
#[derive(Clone)]
pub struct CallAttachment(Arc<dyn Any + Send + Sync>);

// === impl CallAttachment ===

impl CallAttachment {
    /// Wraps data.
    pub fn new(data: impl Any + Send + Sync) -> Self {
        Self(Arc::new(data))
    }

    /// Returns the data, if it has this type.
    #[must_use]
    pub fn downcast<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for CallAttachment {
    /// Prints nothing of the data, which may contain texts of a call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallAttachment").finish_non_exhaustive()
    }
}
