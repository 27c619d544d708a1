//! Concurrent batches.

use groupage::testkit::load::Report;
use groupage::testkit::server::ServerConfig;
use serde_json::json;

use crate::load::median_of_runs;
use crate::setup::{start_with_stand_in, within_timeout};
use crate::{ms, quiet};

const BATCH_ITEMS_MAX: usize = 4;

/// Three full batches at a server with three slots are answered after about one service time,
/// although the number of slots is not configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_full_batches_before_a_server_that_runs_three_take_about_one_service_time() {
    let _quiet = quiet().await;
    let service = ms(40);
    let config = ServerConfig { base: service, per_item: ms(0), slots: 3, ..ServerConfig::default() };
    let (proxy, server) = start_with_stand_in(config, &json!({"limits": {"batchItemsMax": BATCH_ITEMS_MAX}})).await;
    // As many clients as three batches have items. One after the other, the batches would take three
    // service times.
    let report = median_of_runs(&proxy, 3 * BATCH_ITEMS_MAX, (ms(4000), ms(800)), Report::p50).await;
    assert_eq!(report.refused + report.failed, 0);
    let learned = within_timeout(proxy.running.learned()).await;
    assert!(report.p50() < service * 2, "{:?} {learned:?}", report.p50());
    assert!(server.stats().sizes.len() <= BATCH_ITEMS_MAX + 1, "no batch above its limit");
}
