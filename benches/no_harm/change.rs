//! Servers that change while they serve. The direct and the proxied path have the same changes at
//! the same time and are compared window by window.

use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::load::{Report, SLICE_INTERVAL};
use groupage::testkit::remote::ModelUpdate;

use super::data_path_process::Process;
use super::measure::{Tally, loads, lost};
use super::process::{Model, StandIn};
use super::row::{ApiKeys, ClientGroup};
use super::{Reference, diagnose, referred};

/// Number of clients, low enough that neither path saturates the processor if the server has
/// capacity for all.
const CLIENTS: usize = 12;
/// Minimum share of the direct rate in a window, and in the first window after a change.
const SHARE_MIN: f64 = 0.9;
const FIRST_SHARE_MIN: f64 = 0.85;
/// Maximum time until additional capacity is used. If longer, the time of this number of answers
/// applies.
const MORE_ROOM_MAX: Duration = Duration::from_secs(3);
const MORE_ROOM_ANSWERS: u32 = 5;
/// Shares of the direct rate from which capacity is considered used, and batching considered
/// effective.
const USED: f64 = 0.9;
const PAYS: f64 = 1.5;
/// Maximum time until the proxy batches for less capacity, in multiples of the latency of direct
/// calls.
const LESS_ROOM_SOJOURNS: f64 = 15.0;
/// Number of slices of which the mean rate is judged.
const JUDGED_SLICES: usize = 4;

/// A time span in which the server does not change.
#[derive(Clone, Copy)]
struct Phase {
    base: Duration,
    slots: usize,
    lasts: Duration,
    window: Duration,
}

/// The phases of a server.
struct ChangeScenario {
    name: &'static str,
    phases: Vec<Phase>,
}

fn scenarios() -> Vec<ChangeScenario> {
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    // A window has at least two latencies of direct calls; for the serial server, 100 answers.
    let serial = |lasts| Phase { base: ms(20), slots: 1, lasts: s(lasts), window: s(2) };
    let wide = |lasts| Phase { base: ms(20), slots: 64, lasts: s(lasts), window: s(2) };
    let slow = Phase { base: s(2), slots: 64, lasts: s(24), window: s(8) };
    vec![
        ChangeScenario { name: "change: serial, 64 at once, serial", phases: vec![serial(8), wide(8), serial(16)] },
        ChangeScenario { name: "change: 20 ms, 2 s, 20 ms", phases: vec![wide(6), slow, wide(8)] },
    ]
}

pub(crate) async fn run(tally: &mut Tally, is_selected: impl Fn(&str) -> bool, reference: Reference, tiny: bool) {
    for mut scenario in scenarios() {
        if tiny {
            for phase in &mut scenario.phases {
                (phase.base, phase.lasts, phase.window) = (phase.base / 20, SLICE_INTERVAL, SLICE_INTERVAL);
            }
        }
        for keys in [ApiKeys::One, ApiKeys::Own] {
            let group = ClientGroup::of(CLIENTS, keys);
            let name = format!("{}, {}", scenario.name, group.name());
            if is_selected(&name) {
                println!("{name}");
                run_scenario(&scenario, group, reference, tally).await;
            }
        }
    }
}

async fn run_scenario(scenario: &ChangeScenario, group: ClientGroup, reference: Reference, tally: &mut Tally) {
    let first = scenario.phases[0];
    let model = Model::flat(first.base, first.slots);
    let servers = [StandIn::start(&model), StandIn::start(&model)];
    let proxy = Process::with_admin(&servers[1].url(), "");
    let (to, _passing) = referred(reference, &servers[0]);
    let time = (Duration::ZERO, scenario.phases.iter().map(|phase| phase.lasts).sum());
    let groups = [group];
    let changes = async {
        for (phase, next) in scenario.phases.iter().zip(scenario.phases.iter().skip(1)) {
            tokio::time::sleep(phase.lasts).await;
            let curve = Some((next.base, Duration::ZERO));
            let change = ModelUpdate { curve, slots: Some(next.slots), ..ModelUpdate::default() };
            tokio::join!(servers[0].change(&change), servers[1].change(&change));
        }
    };
    let (direct, proxied, ()) = tokio::join!(
        loads(to, Route::Embeddings, &groups, time),
        loads(proxy.listen, Route::Embeddings, &groups, time),
        changes
    );
    let (direct, proxied) = (&direct[0], &proxied[0]);
    let before = tally.missed;
    let mut from = Duration::ZERO;
    for (at, phase) in scenario.phases.iter().enumerate() {
        let past = at.checked_sub(1).map(|at| scenario.phases[at]);
        judge_phase(tally, (direct, proxied), from, *phase, past, group);
        from += phase.lasts;
    }
    let items = servers[1].stats().await.items;
    tally.count(lost(proxied) == 0, &format!("{} calls not answered as directly", lost(proxied)));
    tally.count(
        items == proxied.made,
        &format!("{} calls were made, {items} items were computed: one was lost or doubled", proxied.made),
    );
    if tally.missed > before {
        diagnose(&proxy).await;
    }
}

fn judge_phase(
    tally: &mut Tally,
    (direct, proxied): (&Report, &Report),
    from: Duration,
    phase: Phase,
    past: Option<Phase>,
    group: ClientGroup,
) {
    let windows = phase.lasts.as_nanos() / phase.window.as_nanos().max(1);
    let mut shares = Vec::new();
    for at in 0..u32::try_from(windows).unwrap_or(0) {
        let begin = from + phase.window * at;
        let (own, theirs) = (served(proxied, begin, phase.window), served(direct, begin, phase.window));
        let share = own as f64 / theirs.max(1) as f64;
        shares.push(format!("{share:.2}"));
        let share_min = if at == 0 { FIRST_SHARE_MIN } else { SHARE_MIN };
        let line = format!("window {at} after the change: {share:.3} of direct, at least {share_min}");
        tally.count(share >= share_min, &line);
    }
    println!(
        "  {} at once, {} ms, windows of {:.0} s: {}",
        phase.slots,
        phase.base.as_millis(),
        phase.window.as_secs_f64(),
        shares.join(" ")
    );
    let Some(past) = past else { return };
    if group.keys != ApiKeys::One {
        return;
    }
    let clients = u32::try_from(group.clients).unwrap_or(1);
    if phase.slots > past.slots || phase.base < past.base {
        let most = MORE_ROOM_MAX.max(past.base.max(phase.base) * MORE_ROOM_ANSWERS);
        reached(tally, "more room is used", (direct, proxied), (from, phase.lasts), USED, most);
    } else if phase.slots == 1 {
        let most = (phase.base * clients).mul_f64(LESS_ROOM_SOJOURNS);
        reached(tally, "less room is batched for", (direct, proxied), (from, phase.lasts), PAYS, most);
    }
}

/// Judges the time from a change until the proxied rate reaches a share of the direct rate in the
/// second half of the phase.
fn reached(
    tally: &mut Tally,
    what: &str,
    (direct, proxied): (&Report, &Report),
    (from, lasts): (Duration, Duration),
    share: f64,
    most: Duration,
) {
    let half = lasts / 2;
    let settled = served(direct, from + half, half) as f64 / half.as_secs_f64();
    let judged = SLICE_INTERVAL * u32::try_from(JUDGED_SLICES).unwrap_or(1);
    let slices = u32::try_from(lasts.as_nanos() / SLICE_INTERVAL.as_nanos()).unwrap_or(0);
    let wanted = settled * judged.as_secs_f64() * share;
    let found =
        (0..slices).map(|at| SLICE_INTERVAL * at).find(|&at| served(proxied, from + at, judged) as f64 >= wanted);
    let shown = found.map_or("never".to_owned(), |at| format!("after {:.2} s", at.as_secs_f64()));
    println!("  {what} {shown}, at most {:.1} s", most.as_secs_f64());
    tally.count(found.is_some_and(|at| at <= most), &format!("{what} {shown}"));
}

fn served(report: &Report, from: Duration, lasts: Duration) -> u64 {
    let slice = |time: Duration| usize::try_from(time.as_nanos() / SLICE_INTERVAL.as_nanos()).unwrap_or(usize::MAX);
    let (begin, end) = (slice(from), slice(from + lasts).min(report.slices.len()));
    report.slices.get(begin.min(end)..end).unwrap_or_default().iter().sum()
}
