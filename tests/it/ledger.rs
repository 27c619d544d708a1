//! The ledger: every item is followed from client to upstream and back while both ends misbehave.
//!
//! `GROUPAGE_LEDGER_ITEMS` sets how many items: 30 000 here, 300 000 in CI, 30 million in `just soak`.

use std::net::SocketAddr;

use groupage::cli::{Starting, start};
use groupage::config::{self, Given, Machine, Overrides};
use groupage::standin::ledger::{self, LedgerConfig, LedgerMock, MockConfig};
use groupage::telemetry::log::LevelHandle;

fn items() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "how much to test is no setting of the proxy")]
    let items = std::env::var("GROUPAGE_LEDGER_ITEMS").ok();
    items.and_then(|items| items.parse().ok()).unwrap_or(30_000)
}

#[test]
fn no_item_is_misdelivered_lost_or_doubled_whatever_goes_wrong() {
    hold(ledger::POLICY);
}

#[test]
fn nor_is_one_while_the_proxy_learns() {
    hold(&ledger::POLICY.replace("scheduling: {slots: 4}", "scheduling: {policy: Adaptive}"));
}

#[expect(clippy::print_stdout, reason = "what was counted is read beside the verdict")]
fn hold(policy: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mock = LedgerMock::start(MockConfig::default()).await.unwrap();
        let any = || "127.0.0.1:0".to_owned();
        let overrides = Overrides {
            listen: Some(Given::flag("--listen", vec![any()])),
            upstream: Some(Given::flag("--upstream", mock.url())),
            metrics: Some(Given::flag("--metrics", "off".to_owned())),
            admin: Some(Given::flag("--admin", "off".to_owned())),
            ..Overrides::default()
        };
        let loaded = config::load(policy, "ledger").unwrap();
        let policy = config::build(Some(&loaded), &overrides, &Machine::default()).unwrap();
        let mut proxy = start(Starting { policy, level: LevelHandle::none(), seed: 1 }).unwrap();
        let to: SocketAddr = proxy.listen[0];
        let report = ledger::run(LedgerConfig::new(to, items()), &mock).await;
        println!("{report:#?}");
        println!(
            "innocent served {:.4}, replayable {:.4}, shared {:.3}, {:.0} items/s",
            report.innocent_served_ratio(),
            report.innocent_served_ratio_replayable(),
            report.shared_ratio(),
            report.rate()
        );
        assert_eq!(report.violations(), 0, "the books above say which");
        assert!(report.innocent_served_ratio() >= 0.97, "innocent served {}", report.innocent_served_ratio());
        assert!(report.shared_ratio() >= 0.5, "shared {}", report.shared_ratio());
        let metrics = proxy.metrics.clone();
        let stats = &metrics.stats;
        assert!(proxy.drain().await, "everything in flight ended");
        assert_eq!(stats.queue_items.load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(stats.in_flight.load(std::sync::atomic::Ordering::Relaxed), 0, "in flight back to zero");
    });
}
