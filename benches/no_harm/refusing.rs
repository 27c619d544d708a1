//! Servers that accept one item per call: each kind of refusal of a list, on each route that can be
//! merged.

use std::time::Duration;

use groupage::testkit::{ListResponse, Route};
use tokio::task::JoinSet;

use super::data_path_process::Process;
use super::measure::{Tally, loads, lost, share};
use super::process::{Model, StandIn};
use super::row::{ApiKeys, ClientGroup};
use super::{Reference, referred};

/// Minimum share of the direct rate after the first second.
const RATE_SHARE_MIN: f64 = 0.95;
/// Maximum number of refused lists in the first minute.
const LISTS_MAX: u64 = 60;
/// Maximum number of batches sent to an upstream that never answers one. Each has two calls.
const SILENT_MAX: u64 = 2;
/// Timeout of a route on which lists are never answered.
const TIMEOUT: Duration = Duration::from_millis(300);
const CLIENTS: usize = 8;
/// All routes that can be merged. The last one requires a policy.
const ROUTES: [Route; 4] = [Route::Embeddings, Route::Predict, Route::Embed, Route::Ledger];
const GENERIC: &str = "protocol: Generic, idempotent: Always, generic: {items: /items, results: /results}";

/// Measurements of one route.
struct RouteMeasurement {
    route: Route,
    share: f64,
    lost: u64,
    lists: u64,
}

pub(crate) async fn run(
    tally: &mut Tally,
    is_selected: impl Fn(&str) -> bool,
    reference: Reference,
    time: (Duration, Duration),
) {
    // One server has capacity for all calls; the other one queues calls, so that merging would pay.
    for slots in [8, 1] {
        for (at, refusal) in ListResponse::TERMINATING.into_iter().chain([ListResponse::NoResponse]).enumerate() {
            let name = format!("refusing: {} to a list, 10 ms, {slots} at once, {CLIENTS} x one key", refusal.as_arg());
            if !is_selected(&name) {
                continue;
            }
            println!("{name}");
            let mut routes = JoinSet::new();
            // On the server with capacity for all calls, a single route is measured for each refusal,
            // in turn: more of them would share the processor.
            let all = slots == 1;
            for route in ROUTES.into_iter().enumerate().filter(|(place, _)| all || at % ROUTES.len() == *place) {
                routes.spawn(measure_route(route.1, (refusal, slots), reference, time));
            }
            let mut measured = routes.join_all().await;
            measured.sort_by_key(|measured| measured.route.path());
            for measured in measured {
                check_route(tally, refusal, &measured);
            }
        }
    }
}

fn check_route(tally: &mut Tally, refusal: ListResponse, measured: &RouteMeasurement) {
    let RouteMeasurement { route, share, lost, lists } = measured;
    println!("  {:<28} {share:.3} of direct, {lists} lists, {lost} not answered as alone", route.path());
    tally.count(*share >= RATE_SHARE_MIN, &format!("rate {share:.3} of direct, at least {RATE_SHARE_MIN}"));
    let (lists_max, lost_max) =
        if refusal == ListResponse::NoResponse { (SILENT_MAX, SILENT_MAX * 2) } else { (LISTS_MAX, 0) };
    tally.count(*lists <= lists_max, &format!("{lists} lists, at most {lists_max}"));
    tally.count(*lost <= lost_max, &format!("{lost} not answered as alone, at most {lost_max}"));
}

/// Measures one route. The first part, in which lists are refused, is not included in the rate.
async fn measure_route(
    route: Route,
    (refusal, slots): (ListResponse, usize),
    reference: Reference,
    (first, rest): (Duration, Duration),
) -> RouteMeasurement {
    let model = Model { lists: Some(refusal), ..Model::flat(Duration::from_millis(10), slots) };
    let servers = [StandIn::start(&model), StandIn::start(&model)];
    let timeout = match refusal {
        ListResponse::NoResponse => format!(", timeout: {}ms", TIMEOUT.as_millis()),
        _ => String::new(),
    };
    let generic = if route == Route::Ledger { format!(", {GENERIC}") } else { String::new() };
    let policy = format!("routes:\n  - {{path: \"{}\"{generic}{timeout}}}\n", route.path());
    let proxy = Process::groupage(&servers[1].url(), &policy);
    let (to, _passing) = referred(reference, &servers[0]);
    let groups = [ClientGroup::of(CLIENTS, ApiKeys::One)];
    // A single run, so that no client restarts. The first part is excluded from the rate only.
    let whole = first + rest;
    let time = (Duration::ZERO, whole);
    let (direct, proxied) = tokio::join!(loads(to, route, &groups, time), loads(proxy.listen, route, &groups, time));
    let (direct, proxied) = (&direct[0], &proxied[0]);
    let lists = servers[1].stats().await.lists;
    let share = share(&super::from(proxied, first), &super::from(direct, first));
    RouteMeasurement { route, share, lost: lost(proxied), lists }
}
