//! One task for the two sides of a connection: which of them has something to do.
//!
//! Each side is polled with a waker of its own. A wake-up that one side gives the other while the
//! task runs is a flag and nothing more; only one from outside wakes the task. So a message goes
//! from one side to the other without a turn of the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Turns of the sides within one turn of the task: a call has two or three. A connection that
/// always has more lets others run.
const TURNS_MAX: usize = 16;

/// The sides of one connection.
#[derive(Debug)]
pub(super) struct TaskSides<const N: usize> {
    wakers: [Waker; N],
    sides: [Arc<SideFlag>; N],
    shared: Arc<TaskState>,
}

/// What a turn of the task came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PollTurn {
    /// One side is done, and with it the connection.
    Done,
    /// Some had something to do.
    Busy,
    /// None had: something else woke the task.
    Quiet,
}

#[derive(Debug)]
struct TaskState {
    /// The sides are being polled: their flags are looked at before the task sleeps.
    running: AtomicBool,
    task: AtomicWaker,
}

#[derive(Debug)]
struct SideFlag {
    raised: AtomicBool,
    shared: Arc<TaskState>,
}

impl Wake for SideFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Raised before the look at `running`, and looked at after `running` was taken back: one of
        // the two sees the other.
        self.raised.store(true, Ordering::SeqCst);
        if !self.shared.running.load(Ordering::SeqCst) {
            self.shared.task.wake();
        }
    }
}

// === impl TaskSides ===

impl<const N: usize> TaskSides<N> {
    /// Sides that all have something to do.
    pub(super) fn new() -> Self {
        let shared = Arc::new(TaskState { running: AtomicBool::new(false), task: AtomicWaker::new() });
        let sides = [(); N].map(|()| Arc::new(SideFlag { raised: AtomicBool::new(true), shared: shared.clone() }));
        Self { wakers: sides.each_ref().map(|side| Waker::from(side.clone())), sides, shared }
    }

    /// Has the side polled that wakes by this waker.
    pub(super) fn raise(&self, side: usize) {
        self.sides[side].raised.store(true, Ordering::SeqCst);
    }

    /// Polls the sides that have something to do, in order, until none has or one is done.
    pub(super) fn poll(
        &self,
        cx: &mut Context<'_>,
        mut poll_side: impl FnMut(usize, &mut Context<'_>) -> Poll<()>,
    ) -> PollTurn {
        self.shared.task.register(cx.waker());
        self.shared.running.store(true, Ordering::SeqCst);
        let mut any = false;
        for _ in 0..TURNS_MAX {
            let mut turned = false;
            for (index, side) in self.sides.iter().enumerate() {
                // A look before the swap: most sides have nothing to do.
                if side.raised.load(Ordering::Relaxed) && side.raised.swap(false, Ordering::SeqCst) {
                    turned = true;
                    if poll_side(index, &mut Context::from_waker(&self.wakers[index])).is_ready() {
                        return PollTurn::Done;
                    }
                }
            }
            if !turned {
                break;
            }
            any = true;
        }
        self.shared.running.store(false, Ordering::SeqCst);
        if self.sides.iter().any(|side| side.raised.load(Ordering::SeqCst)) {
            cx.waker().wake_by_ref();
        }
        if any { PollTurn::Busy } else { PollTurn::Quiet }
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
                sides.raise(0);
            }
            Poll::Pending
        });
        assert_eq!((turn, polled), (PollTurn::Busy, vec![0, 1, 0]));
        assert_eq!(sides.poll(&mut cx, |_, _| Poll::Pending), PollTurn::Quiet);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_wake_up_from_outside_wakes_the_task_and_has_its_side_polled() {
        let count = Arc::new(WakeCount::default());
        let task = Waker::from(count.clone());
        let mut cx = Context::from_waker(&task);
        let sides = TaskSides::<2>::new();
        let mut kept = None;
        let mut poll = |side: usize, cx: &mut Context<'_>| {
            if side == 1 {
                kept = Some(cx.waker().clone());
            }
            Poll::Pending
        };
        assert_eq!(sides.poll(&mut cx, &mut poll), PollTurn::Busy);
        kept.unwrap().wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        let mut polled = Vec::new();
        let turn = sides.poll(&mut cx, |side, _| {
            polled.push(side);
            Poll::Ready(())
        });
        assert_eq!((turn, polled), (PollTurn::Done, vec![1]));
    }

    #[test]
    fn a_side_that_always_has_more_lets_others_run() {
        let count = Arc::new(WakeCount::default());
        let task = Waker::from(count.clone());
        let sides = TaskSides::<1>::new();
        let mut turns = 0;
        let turn = sides.poll(&mut Context::from_waker(&task), |_, cx| {
            turns += 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!((turn, turns, count.0.load(Ordering::SeqCst)), (PollTurn::Busy, TURNS_MAX, 1));
    }
}
