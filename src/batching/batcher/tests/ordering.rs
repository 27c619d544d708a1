//! The order of calls that cannot be merged, in front of a saturated server.

use super::closed_loop::ClosedLoop;
use super::*;

/// Returns the number of calls answered within five seconds: those of one client of a tenant beside
/// 48 clients of another, each with a merge key of its own, and those of all.
fn answered(ordered: bool) -> (usize, usize) {
    let mut clients = ClosedLoop::without_clients(1, ordered);
    (1..=48).for_each(|key| clients.add(1, key, 1));
    clients.run(2000);
    clients.add(1, 0, 0);
    clients.run(2000);
    let mut light = 0;
    let all = clients.run_counting(5000, |key| {
        light += usize::from(key == KeyId(0));
        true
    });
    (light, all)
}

#[test]
fn a_tenant_has_its_share_of_a_saturated_server_although_no_calls_are_merged() {
    let (light, all) = answered(true);
    assert!(light >= 50 && all >= 240, "{light} of {all}");
    let (light, all) = answered(false);
    assert!(light <= 8 && all >= 240, "the server answers in the order of arrival: {light} of {all}");
}
