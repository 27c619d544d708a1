//! Polls the sides of one connection within a single task, each only if it was woken.
//!
//! Each side is polled with a waker of its own. A wake-up between sides while the task runs only
//! sets a flag; only one from outside wakes the task. A message therefore moves from one side to
//! the other without a pass through the runtime's scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Maximum number of rounds over the sides within one poll of the task: a call needs two or three.
/// A connection that always has more work yields to other tasks after that.
const ROUNDS_MAX: usize = 16;

/// The sides of one connection and their wakers.
#[derive(Debug)]
pub(super) struct TaskSides<const N: usize> {
    wakers: [Waker; N],
    sides: [Arc<SideFlag>; N],
    shared: Arc<TaskState>,
}

/// Result of one poll of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollResult {
    /// One side is done, which ends the connection.
    Done,
    /// At least one side was polled.
    Busy,
    /// No side was woken: the task was woken for another reason.
    Quiet,
}

/// The state shared by the wakers of all sides.
#[derive(Debug)]
struct TaskState {
    /// The task is polling its sides. A wake-up only sets a flag meanwhile, since the flags are
    /// checked again before the task sleeps.
    running: AtomicBool,
    /// The waker of the task itself.
    task: AtomicWaker,
}

/// The waker of one side.
#[derive(Debug)]
struct SideFlag {
    /// The side was woken and has not been polled since.
    raised: AtomicBool,
    shared: Arc<TaskState>,
}

impl Wake for SideFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Raised before `running` is read, and checked after `running` was cleared: at least one of
        // the two threads sees the store of the other, so no wake-up is lost.
        self.raised.store(true, Ordering::SeqCst);
        if !self.shared.running.load(Ordering::SeqCst) {
            self.shared.task.wake();
        }
    }
}

// === impl TaskSides ===

impl<const N: usize> TaskSides<N> {
    /// Creates the sides, each marked as woken.
    pub(super) fn new() -> Self {
        let shared = Arc::new(TaskState { running: AtomicBool::new(false), task: AtomicWaker::new() });
        let sides = [(); N].map(|()| Arc::new(SideFlag { raised: AtomicBool::new(true), shared: shared.clone() }));
        Self { wakers: sides.each_ref().map(|side| Waker::from(side.clone())), sides, shared }
    }

    /// Marks a side to be polled, as its waker does.
    pub(super) fn mark_woken(&self, side: usize) {
        self.sides[side].raised.store(true, Ordering::SeqCst);
    }

    /// Polls the woken sides in order, until none is woken or one is done.
    pub(super) fn poll(
        &self,
        cx: &mut Context<'_>,
        mut poll_side: impl FnMut(usize, &mut Context<'_>) -> Poll<()>,
    ) -> PollResult {
        self.shared.task.register(cx.waker());
        self.shared.running.store(true, Ordering::SeqCst);
        let mut any = false;
        for _ in 0..ROUNDS_MAX {
            let mut any_in_round = false;
            for (index, side) in self.sides.iter().enumerate() {
                // A relaxed load before the swap, because most sides are not woken.
                if side.raised.load(Ordering::Relaxed) && side.raised.swap(false, Ordering::SeqCst) {
                    any_in_round = true;
                    if poll_side(index, &mut Context::from_waker(&self.wakers[index])).is_ready() {
                        return PollResult::Done;
                    }
                }
            }
            if !any_in_round {
                break;
            }
            any = true;
        }
        self.shared.running.store(false, Ordering::SeqCst);
        if self.sides.iter().any(|side| side.raised.load(Ordering::SeqCst)) {
            cx.waker().wake_by_ref();
        }
        if any { PollResult::Busy } else { PollResult::Quiet }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts the wake-ups of a task.
    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_side_that_wakes_the_other_wakes_no_task() {
        let count = Arc::new(WakeCount::default());
        let task = Waker::from(count.clone());
        let mut cx = Context::from_waker(&task);
        let sides = TaskSides::<2>::new();
        let mut polled = Vec::new();
        let turn = sides.poll(&mut cx, |side, _| {
            polled.push(side);
            if polled.len() == 2 {
                sides.mark_woken(0);
            }
            Poll::Pending
        });
        assert_eq!((turn, polled), (PollResult::Busy, vec![0, 1, 0]));
        assert_eq!(sides.poll(&mut cx, |_, _| Poll::Pending), PollResult::Quiet);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_wake_up_from_outside_wakes_the_task_and_has_its_side_polled() {
        let count = Arc::new(WakeCount::default());
        let task = Waker::from(count.clone());
        let mut cx = Context::from_waker(&task);
        let sides = TaskSides::<2>::new();
        let mut waker = None;
        let mut poll = |side: usize, cx: &mut Context<'_>| {
            if side == 1 {
                waker = Some(cx.waker().clone());
            }
            Poll::Pending
        };
        assert_eq!(sides.poll(&mut cx, &mut poll), PollResult::Busy);
        waker.unwrap().wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        let mut polled = Vec::new();
        let turn = sides.poll(&mut cx, |side, _| {
            polled.push(side);
            Poll::Ready(())
        });
        assert_eq!((turn, polled), (PollResult::Done, vec![1]));
    }

    #[test]
    fn a_side_that_is_always_ready_yields_after_a_bounded_number_of_turns() {
        let count = Arc::new(WakeCount::default());
        let task = Waker::from(count.clone());
        let sides = TaskSides::<1>::new();
        let mut turns = 0;
        let turn = sides.poll(&mut Context::from_waker(&task), |_, cx| {
            turns += 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!((turn, turns, count.0.load(Ordering::SeqCst)), (PollResult::Busy, ROUNDS_MAX, 1));
    }
}
