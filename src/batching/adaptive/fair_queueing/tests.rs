use super::super::super::call::{PriorityId, TenantId};
use super::*;

fn flow(tenant: u64) -> FairFlow {
    FairFlow { tenant: TenantId(tenant), priority: PriorityId(0) }
}

#[test]
fn idle_or_single_flow_gets_no_credit_or_debt() {
    let mut clocks = VirtualClocks::default();
    let (busy, fresh) = (flow(1), flow(2));
    for _ in 0..10 {
        clocks.charge_flow(busy, 100, 100, false);
    }
    assert_eq!((clocks.start_tag(busy), clocks.start_tag(fresh)), (1000, 900));
    clocks.charge_flow(busy, 100, 100, true);
    assert_eq!((clocks.start_tag(busy), clocks.start_tag(fresh)), (1000, 1000));
}

#[test]
fn waiting_flow_lags_at_most_two_batches() {
    let mut clocks = VirtualClocks::default();
    let (served, waits) = (flow(1), flow(2));
    clocks.on_contended(served);
    clocks.on_backlogged(waits);
    clocks.charge_flow(served, 100, 100, false);
    clocks.charge_flow(served, 100, 100, false);
    assert_eq!((clocks.start_tag(served), clocks.start_tag(waits)), (200, 0));
    for _ in 0..8 {
        clocks.charge_flow(served, 100, 100, false);
    }
    assert_eq!((clocks.start_tag(served), clocks.start_tag(waits)), (1000, 700));
}

#[test]
fn clocks_are_bounded() {
    let mut clocks = VirtualClocks::default();
    for tenant in 0..10_000 {
        clocks.charge_flow(flow(tenant), 1 + tenant % 7, 7, false);
    }
    assert!(clocks.finish_tags.len() <= CLOCKS_MAX);
}

#[test]
fn the_charge_by_weight_is_proportional_and_has_the_mean_of_the_charge_by_time() {
    let mut price = WeightPrice::default();
    let charge = |price: &mut WeightPrice, weight| price.charge(weight, 1_000_000);
    (0..2000).for_each(|call| _ = charge(&mut price, if call % 2 == 0 { 100 } else { 1900 }));
    let (light, heavy) = (charge(&mut price, 100), charge(&mut price, 1900));
    assert!((17..=21).contains(&(heavy / light)), "{light} {heavy}");
    let mean = light.midpoint(heavy);
    assert!((900_000..1_100_000).contains(&mean), "{mean}");
    assert!(price.charge(u64::MAX, u64::MAX) > 0, "extreme weights do not overflow");
}
