//! Concurrent batches.

use groupage::testkit::load::Report;
use groupage::testkit::server::ServerConfig;
use serde_json::json;

use crate::load::{before, middle};
use crate::setup::within_timeout;
use crate::{ms, quiet};

/// Three full batches at a server with three slots are answered after about one service time,
/// although the number of slots is not configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_full_batches_before_a_server_that_runs_three_take_about_one_service_time() {
    let _quiet = quiet().await;
    let service = ms(40);
    let config = ServerConfig { base: service, per_item: ms(0), slots: 3, ..ServerConfig::default() };
    let (proxy, server) = before(config, &json!({"limits": {"batchItemsMax": 4}})).await;
    // Four clients fill a batch. One after the other, three batches would take three service times.
    let report = middle(&proxy, 12, (ms(4000), ms(800)), Report::p50).await;
    assert_eq!(report.refused + report.failed, 0);
    let learned = within_timeout(proxy.running.learned()).await;
    assert!(report.p50() < service * 2, "{:?} {learned:?}", report.p50());
    assert!(server.stats().sizes.len() <= 5, "no batch above its limit");
}
