//! Memory of responses in the budget of buffers, charged before they are built.

use bytes::Bytes;
use groupage_runtime::memory::{BufferBudget, BufferGuard};
use serde::Serialize;

use crate::error::{CallError, ErrorKind};

/// The charge of one response.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    budget: BufferBudget,
    held: BufferGuard,
}

/// A response that is a list, built one element after the other.
#[derive(Debug)]
pub(crate) struct ResponseList {
    text: Vec<u8>,
    memory: ResponseMemory,
}

// === impl ResponseMemory ===

impl ResponseMemory {
    pub(crate) fn new(budget: &BufferBudget) -> Self {
        Self { budget: budget.clone(), held: budget.empty_for_answer() }
    }

    /// Charges more bytes.
    ///
    /// # Errors
    /// The budget has no room for them now, or is too small for them in any case.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), CallError> {
        let (needed, bytes_max) = (self.held.bytes().saturating_add(bytes), self.budget.answers_max());
        if needed > bytes_max {
            let message = format!(
                "the response may need {needed} bytes of memory and responses may use {bytes_max}: send fewer or \
                 shorter inputs, or raise `proxy.process.bufferedBytesMax`"
            );
            return Err(CallError::new(ErrorKind::TooLarge, message));
        }
        self.held.grow(bytes).map_err(|_| {
            let message = format!("the response may need {needed} bytes of memory, and buffers are full: retry later");
            CallError::new(ErrorKind::Overloaded, message)
        })
    }

    /// Replaces the charge by what the response takes.
    pub(crate) fn settle(&mut self, bytes: usize) {
        self.held.set_bytes(bytes);
    }

    pub(crate) fn into_guard(self) -> BufferGuard {
        self.held
    }
}

// === impl ResponseList ===

impl ResponseList {
    pub(crate) fn new(budget: &BufferBudget) -> Self {
        Self { text: Vec::new(), memory: ResponseMemory::new(budget) }
    }

    /// Adds an element. `bytes` is the memory that it takes while it is created and written.
    ///
    /// # Errors
    /// There is no memory for it, or it cannot be created.
    pub(crate) fn push<T: Serialize>(
        &mut self,
        bytes: usize,
        create: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<(), CallError> {
        self.memory.reserve(bytes)?;
        let element = create()?;
        self.text.push(if self.text.is_empty() { b'[' } else { b',' });
        serde_json::to_writer(&mut self.text, &element).map_err(|error| CallError::unwritable(&error))?;
        self.memory.settle(self.text.capacity());
        Ok(())
    }

    /// Ends a list with at least one element. Returns its text and the charge.
    pub(crate) fn finish(mut self) -> (Bytes, ResponseMemory) {
        self.text.push(b']');
        (self.text.into(), self.memory)
    }
}

#[cfg(test)]
mod tests {
    use groupage_runtime::clock::Clock;

    use super::*;

    #[test]
    fn a_response_that_never_fits_has_another_error_than_one_that_does_not_fit_now() {
        let budget = BufferBudget::new(1000, Clock::start());
        let kind = |bytes| ResponseMemory::new(&budget).reserve(bytes).map_err(|error| error.kind);
        assert_eq!((kind(750), kind(751)), (Ok(()), Err(ErrorKind::TooLarge)));
        let used = budget.charge_unchecked(600);
        assert_eq!(kind(750), Err(ErrorKind::Overloaded));
        drop(used);
        assert_eq!(kind(750), Ok(()));
    }

    #[test]
    fn a_list_is_charged_with_its_text() {
        let budget = BufferBudget::new(1000, Clock::start());
        let mut list = ResponseList::new(&budget);
        list.push(500, || Ok(vec![1, 2])).unwrap();
        list.push(500, || Ok(vec![3])).unwrap();
        assert!((9..100).contains(&budget.held()), "{}", budget.held());
        assert_eq!(list.push(1000, || Ok(0)).unwrap_err().kind, ErrorKind::TooLarge);
        let (text, memory) = list.finish();
        assert_eq!((text.as_ref(), memory.held.bytes()), (&b"[[1,2],[3]]"[..], budget.held()));
        drop(memory);
        assert_eq!(budget.held(), 0);
    }
}
