//! Loads on an adaptive proxy in front of a mock server.

use std::time::Duration;

use groupage::testkit::load::{ClosedConfig, OpenConfig, PreparedCalls, Report, run_closed_loop, start_open_loop};
use groupage::testkit::{Route, ServerAddr};

use crate::setup::{TestProxy, within_timeout};

/// Runs a closed loop of clients, counted after a warm-up, and verifies every answer.
pub(crate) async fn clients(proxy: &TestProxy, clients: usize, warm_up: Duration, duration: Duration) -> Report {
    let calls = PreparedCalls::new(Route::Predict, 1, 1);
    let target = ServerAddr::Tcp(proxy.address);
    let report = within_timeout(run_closed_loop(ClosedConfig {
        target,
        calls,
        clients,
        duration,
        warm_up,
        think: None,
        fresh: false,
    }))
    .await;
    assert_eq!((report.wrong, report.unsent), (0, 0));
    report
}

/// Runs three loads of clients one after the other and returns the one with the median of `figure`,
/// because other work on the cores can spoil one of them.
pub(crate) async fn median_of_runs<T: Ord>(
    proxy: &TestProxy,
    client_count: usize,
    times: (Duration, Duration),
    figure: impl Fn(&Report) -> T,
) -> Report {
    let mut reports = Vec::new();
    for _ in 0..3 {
        reports.push(clients(proxy, client_count, times.0, times.1).await);
    }
    reports.sort_by_key(figure);
    reports.swap_remove(1)
}

/// Runs an open loop with `rate` calls per second and verifies every answer.
pub(crate) async fn arrivals(proxy: &TestProxy, rate: f64, duration: Duration) -> Report {
    let load = start_open_loop(OpenConfig::new(
        ServerAddr::Tcp(proxy.address),
        PreparedCalls::new(Route::Predict, 1, 1),
        rate,
        duration,
    ));
    let report = within_timeout(load.finish()).await.unwrap();
    assert_eq!((report.wrong, report.unsent), (0, 0));
    report
}
