//! Tests that the ledger detects the faults it is designed for and reports no others. The clients
//! call the mock directly, so every call is forwarded alone and nothing is shared.

use std::time::Duration;

use tokio::net::TcpListener;

use crate::http1::{HttpConnection, ServerAddr};

use super::{LedgerConfig, LedgerMock, LedgerReport, MockConfig, run};

const ITEMS: u64 = 3_000;

async fn direct(mock: MockConfig, adjust: impl FnOnce(&mut LedgerConfig)) -> LedgerReport {
    let mock = LedgerMock::start(MockConfig { base: Duration::ZERO, per_item: Duration::ZERO, ..mock }).await.unwrap();
    let mut config = LedgerConfig { concurrency: 32, ..LedgerConfig::new(mock.addr(), ITEMS) };
    adjust(&mut config);
    let report = run(config, &mock).await;
    assert_eq!(mock.items_done(), ITEMS);
    assert_eq!((report.items, report.outcomes(), report.upstream_open), (ITEMS, ITEMS, 0));
    report
}

#[tokio::test]
async fn upstream_without_faults_serves_every_item() {
    let mock = MockConfig { fault_share: 0.0, ..MockConfig::default() };
    let report = direct(mock, |config| (config.cancel_share, config.poison_share) = (0.0, 0.0)).await;
    assert_eq!((report.served, report.shared, report.upstream_items), (ITEMS, 0, ITEMS), "{report:?}");
    assert_eq!(report.violations(), 0, "{report:?}");
    assert!(report.innocent_served_ratio() > 0.999);
    assert!(report.upstream_items_max == 4 && report.upstream_calls == report.calls);
}

#[tokio::test]
async fn cancelled_and_poisoned_calls_are_no_violations() {
    let mock = MockConfig { fault_share: 0.0, ..MockConfig::default() };
    let report = direct(mock, |config| (config.cancel_share, config.poison_share) = (0.2, 0.1)).await;
    assert_eq!(report.violations(), 0, "{report:?}");
    assert!(report.cancelled > 0 && report.poisoned > 0, "{report:?}");
    assert_eq!(report.poisoned_answered, report.poisoned);
    assert_eq!(report.innocent_served, report.innocent);
}

#[tokio::test]
async fn every_fault_is_injected_and_classified() {
    let silence_max = Duration::from_millis(40);
    let mock = MockConfig { fault_share: 0.2, silence_max, unsolicited_unbatched: true, ..MockConfig::default() };
    let report = direct(mock, |config| config.response_timeout = Duration::from_millis(500)).await;
    assert!(report.faults.iter().all(|&(_, met)| met > 0), "{report:?}");
    // Without a proxy, resets and silence lose calls, unsolicited responses reach the client, and
    // all other faults are marked by the header.
    assert!(report.lost > 0 && report.unasked + report.misdelivered > 0 && report.faulted > 0, "{report:?}");
    assert!(report.violations() > 0);
    assert_eq!(
        (report.blamed, report.mixed, report.corrupt, report.torn, report.oversent),
        (0, 0, 0, 0, 0),
        "{report:?}"
    );
}

/// Accepts two calls at a time, and answers each with the response of the other.
async fn crossing(listener: TcpListener, upstream: ServerAddr) {
    loop {
        let mut conns = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..2 {
            let mut conn = HttpConnection::tcp(listener.accept().await.unwrap().0).unwrap();
            let request = conn.inbox.read_request().await.unwrap().unwrap();
            let request = [request.head, request.body].concat();
            let mut model = upstream.connect().await.unwrap();
            let answer = model.call(&request).await.unwrap();
            answers.push([answer.head, answer.body].concat());
            conns.push(conn);
        }
        for (mut conn, answer) in conns.into_iter().zip(answers.into_iter().rev()) {
            conn.outbox.send(&answer).await.unwrap();
        }
    }
}

#[tokio::test]
async fn swapped_responses_are_misdelivered_and_foreign_poison_is_blamed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let config =
        MockConfig { base: Duration::ZERO, per_item: Duration::ZERO, fault_share: 0.0, ..MockConfig::default() };
    let mock = LedgerMock::start(config).await.unwrap();
    let crossing = tokio::spawn(crossing(listener, ServerAddr::Tcp(mock.addr())));
    let patience = Duration::from_millis(200);
    let config = LedgerConfig {
        concurrency: 2,
        cancel_share: 0.0,
        poison_share: 0.2,
        response_timeout: patience,
        ..LedgerConfig::new(proxy, 300)
    };
    let report = run(config, &mock).await;
    crossing.abort();
    assert_eq!((report.served, report.outcomes()), (0, 300), "{report:?}");
    assert!(report.misdelivered > 0 && report.blamed > 0, "{report:?}");
}
