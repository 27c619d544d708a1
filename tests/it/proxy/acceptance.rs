//! What users of other batchers have asked for, as tests: the cases of the design's list, each named after what it says, with its number.
//!
//! They run under the policy that learns. Cases that other files show already have their number there; here stand those that need a server with a curve,
//! many callers, or a process. What depends on time rests on counts, on orders at the upstream, and on ratios within one run.

mod callers;
mod overload;
mod process;
mod promise;
mod slots;
mod waiting;

use std::time::Duration;

use groupage::standin::load::{Calls, ClosedConfig, OpenConfig, Report, closed, open};
use groupage::standin::server::{Running, Server, ServerConfig};
use groupage::standin::{Route, Target};
use serde_json::Value;

use super::setup::{Proxy, learning, within};

/// A proxy that learns, before a stand-in.
async fn before(config: ServerConfig, spec: &Value) -> (Proxy, Running) {
    let server = Server::start(config).await.unwrap();
    (Proxy::before(&server.url(), learning(spec)), server)
}

/// So many clients for so long, counted after so long a start; every answer is right.
async fn clients(proxy: &Proxy, clients: usize, warm_up: Duration, duration: Duration) -> Report {
    let calls = Calls::new(Route::Predict, 1, 1);
    let target = Target::Tcp(proxy.address);
    let report =
        within(closed(ClosedConfig { target, calls, clients, duration, warm_up, think: None, fresh: false })).await;
    assert_eq!((report.wrong, report.unsent), (0, 0));
    report
}

/// Three loads of clients, one after the other, by this figure: the middle one. Other work on these cores can spoil one of them.
async fn middle<T: Ord>(
    proxy: &Proxy,
    so_many: usize,
    times: (Duration, Duration),
    figure: impl Fn(&Report) -> T,
) -> Report {
    let mut reports = Vec::new();
    for _ in 0..3 {
        reports.push(clients(proxy, so_many, times.0, times.1).await);
    }
    reports.sort_by_key(figure);
    reports.swap_remove(1)
}

/// Calls as they come, so many a second; every answer is right.
async fn arrivals(proxy: &Proxy, rate: f64, duration: Duration) -> Report {
    let load = open(OpenConfig::new(Target::Tcp(proxy.address), Calls::new(Route::Predict, 1, 1), rate, duration));
    let report = within(load.finish()).await.unwrap();
    assert_eq!((report.wrong, report.unsent), (0, 0));
    report
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
