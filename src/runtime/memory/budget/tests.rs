use super::super::guard::HoldPhase;
use super::*;

fn budget(max: usize) -> BufferBudget {
    BufferBudget::new(max, Clock::start())
}

#[test]
fn evicted_memory_counts_until_its_owner_drops_it() {
    const LARGE: usize = 4 * SMALL_MAX;
    let budget = budget(8 * LARGE);
    let mut uploads: Vec<BufferGuard> = (0..7).map(|_| budget.empty()).collect();
    for upload in &mut uploads {
        upload.register_for_eviction();
        upload.grow(LARGE).unwrap();
    }
    let mut newcomers: Vec<BufferGuard> = (0..2).map(|_| budget.empty()).collect();
    newcomers.iter_mut().for_each(|newcomer| newcomer.grow(LARGE).unwrap());
    // Two guards are evicted and their memory still exists: another one would exceed the
    // quarter.
    assert_eq!(budget.evictions(), 2);
    assert_eq!(budget.empty().grow(LARGE), Err(BuffersFull));
    budget.empty().grow(SMALL_MAX).unwrap();
    uploads.retain(|upload| !upload.is_evicted());
    budget.empty().grow(LARGE).unwrap();
    drop((uploads, newcomers));
    assert_eq!((budget.held(), budget.inner.evicted_bytes.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn beginnings_of_large_bodies_leave_the_reserve_for_small_ones() {
    let budget = budget(8 * SMALL_MAX);
    let mut beginnings: Vec<BufferGuard> = (0..8).map(|_| budget.empty()).collect();
    let admitted = beginnings.iter_mut().filter_map(|beginning| {
        beginning.announce(2 * SMALL_MAX);
        beginning.grow(SMALL_MAX).ok()
    });
    assert_eq!(admitted.count(), 7);
    budget.empty().grow(SMALL_MAX).unwrap();
}

#[test]
fn held_bytes_never_exceed_the_limit_and_are_released() {
    let budget = budget(100);
    let mut a = budget.empty();
    let mut b = budget.empty();
    a.grow(60).unwrap();
    assert_eq!(b.grow(50), Err(BuffersFull));
    b.grow(40).unwrap();
    drop(a);
    b.grow(60).unwrap();
    drop(b);
    assert_eq!(budget.held(), 0);
}

#[test]
fn the_largest_unfinished_upload_is_evicted_and_work_in_progress_is_kept() {
    let budget = budget(100);
    let [mut small, mut large, mut worked_on, mut newcomer] = std::array::from_fn(|_| budget.empty());
    for (held, bytes) in [(&mut small, 10), (&mut large, 30), (&mut worked_on, 60)] {
        held.register_for_eviction();
        held.grow(bytes).unwrap();
    }
    worked_on.set_phase(HoldPhase::Server);
    newcomer.grow(20).unwrap();
    assert_eq!([&small, &large, &worked_on].map(BufferGuard::is_evicted), [false, true, false]);
    assert_eq!((budget.held(), budget.evictions()), (90, 1));
    assert_eq!(newcomer.grow(50), Err(BuffersFull), "the rest is in progress");
    assert!(!small.is_evicted(), "it would not suffice");
    drop((small, large, worked_on, newcomer));
    assert_eq!(budget.held(), 0);
}

#[test]
fn an_eighth_is_kept_for_small_bodies() {
    let budget = budget(800 << 10);
    let [mut large, mut small] = std::array::from_fn(|_| budget.empty());
    large.grow(700 << 10).unwrap();
    assert_eq!(large.grow(1 << 10), Err(BuffersFull));
    small.grow(64 << 10).unwrap();
}

#[test]
fn pressure_lowers_the_bound_and_uploads_make_room_at_once() {
    let budget = budget(800);
    let mut upload = budget.empty();
    upload.register_for_eviction();
    upload.grow(600).unwrap();
    budget.set_pressure(PressureLevel::Shrink);
    assert!(upload.is_evicted());
    drop(upload);
    let mut other = budget.empty();
    assert_eq!(other.grow(500), Err(BuffersFull));
    other.grow(400).unwrap();
    budget.set_pressure(PressureLevel::None);
    other.grow(400).unwrap();
}

#[test]
fn a_call_that_has_just_begun_is_kept_while_others_hold_too_much() {
    let budget = budget(8 * NEW_MAX);
    let [mut begun, mut upload, mut answers] = std::array::from_fn(|_| budget.empty());
    begun.register_for_eviction();
    begun.set_bytes(NEW_MAX);
    upload.register_for_eviction();
    upload.set_bytes(NEW_MAX + 1);
    answers.set_bytes(7 * NEW_MAX - 1);
    assert_eq!((begun.is_evicted(), upload.is_evicted()), (false, true));
    // More than the memory bound of the process covers.
    answers.set_bytes(9 * NEW_MAX);
    assert!(begun.is_evicted());
}

#[test]
fn reserved_bytes_move_to_the_replies_that_are_copied_from_them() {
    let budget = budget(100);
    let mut reserved = budget.empty();
    reserved.grow(50).unwrap();
    let replies = [reserved.split_off(30), reserved.split_off(30)];
    assert_eq!((reserved.bytes(), budget.held()), (0, 60));
    drop((reserved, replies));
    assert_eq!(budget.held(), 0);
}

#[test]
fn under_pressure_uploads_are_evicted_even_if_they_do_not_suffice() {
    let budget = budget(800);
    let [mut upload, mut worked_on] = std::array::from_fn(|_| budget.empty());
    worked_on.grow(700).unwrap();
    upload.register_for_eviction();
    upload.grow(100).unwrap();
    budget.set_pressure(PressureLevel::Shrink);
    assert!(upload.is_evicted());
    assert_eq!(budget.held(), 700);
}
