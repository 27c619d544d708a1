//! What an SLO is worth, and where batching is worth nothing (cases 54, 55, 57; `change` has case
//! 56).
//!
//! The exact numbers of 54 and 57 hold in virtual time (`simulate::tests::peers`); here the same
//! happens over sockets, on cores that others use too.

use std::time::Duration;

use groupage::standin::load::Report;
use groupage::standin::server::ServerConfig;
use serde_json::json;

use crate::load::{arrivals, before, clients, middle};
use crate::setup::within;
use crate::{ms, quiet};

const SLO: Duration = ms(100);

/// Calls that were answered within this long, in a second.
fn goodput(report: &Report, within: Duration) -> f64 {
    let nanos = u64::try_from(within.as_nanos()).unwrap();
    report.calls_per_second() * report.latency.quantile_below(nanos)
}

/// Case 54: 20 ms and 1 ms an item, at most 32 at a time, 100 ms promised. 16 callers are all
/// served in time. Of more than the server can serve, most of those that it could serve in time
/// are, and who is answered is not answered late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_is_kept_to_whom_it_can_be_kept_and_the_others_hear_so() {
    let _quiet = quiet().await;
    let config = ServerConfig { base: ms(20), per_item: ms(1), ..ServerConfig::default() };
    let spec =
        json!({"slo": {"latencyP99": "100ms", "late": "Refuse"}, "limits": {"batchItemsMax": 32, "slotsMax": 1}});
    let (proxy, _server) = before(config, &spec).await;
    let few = middle(&proxy, 16, (ms(400), ms(1000)), |few| (few.refused + few.failed, few.p99())).await;
    // On cores of its own all of them; where others take the core for longer than a call has, the
    // few whom that hits.
    assert!((few.refused + few.failed) * 20 <= few.served && few.p99() <= SLO.mul_f64(1.5), "{few:?}");
    // What it can do: one full batch after the other, each of 52 ms and what the way there takes on
    // this machine.
    let learned = within(proxy.running.learned()).await.unwrap();
    let (_, cost) = learned.classes.first().unwrap();
    let full = ms(52).max(Duration::from_nanos(cost.batch_nanos + 32 * cost.item_nanos));
    let ceiling = 32.0 / full.as_secs_f64();
    let many = middle(&proxy, 64, (ms(400), ms(1000)), Report::p99).await;
    assert!(many.refused + many.failed > 0 && many.p99() < SLO.mul_f64(1.5), "{many:?}");
    assert!(goodput(&many, SLO) >= 0.4 * ceiling, "{many:?}");
    let mut goods = Vec::new();
    for _ in 0..3 {
        let over = arrivals(&proxy, 1.5 * ceiling, ms(1000)).await;
        assert!(over.refused + over.failed > 0, "it was too much");
        goods.push(goodput(&over, SLO));
    }
    goods.sort_by(f64::total_cmp);
    let good = goods[1];
    // Nine in ten where nothing else runs; beside other work on the same cores the way there takes
    // a part of every deadline.
    assert!(good >= 0.5 * ceiling, "{good} of {ceiling}");
}

/// Case 55: 15 ms promised where one call alone takes 20: everybody is served as well as can be,
/// nobody is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_that_nobody_could_keep_gives_nobody_up() {
    let _quiet = quiet().await;
    let config = ServerConfig { base: ms(20), per_item: ms(0), ..ServerConfig::default() };
    let (proxy, _server) = before(config, &json!({"slo": {"latencyP99": "15ms"}})).await;
    // Before the first answer it cannot be known.
    let report = clients(&proxy, 8, ms(300), ms(800)).await;
    assert!(report.served > 0);
    assert_eq!(report.refused + report.failed, 0, "best effort");
}

/// Case 57: a server for which a batch of n takes as long as n calls. A batch would only make the
/// first wait for the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gains_nothing_by_batches_gets_single_calls() {
    let _quiet = quiet().await;
    let config = ServerConfig { base: ms(0), per_item: ms(5), ..ServerConfig::default() };
    let (proxy, server) = before(config, &json!({})).await;
    // Others do come while it computes.
    arrivals(&proxy, 100.0, ms(1500)).await;
    let early = server.stats();
    let report = arrivals(&proxy, 100.0, ms(2000)).await;
    let late = server.stats().since(&early);
    // What a call costs besides the model is worth a pair now and then.
    let single = late.sizes.get(1).copied().unwrap_or_default();
    assert!(single * 2 > late.calls && late.items_per_call() < 3.0, "{late:?}");
    assert_eq!(report.refused + report.failed, 0);
}
