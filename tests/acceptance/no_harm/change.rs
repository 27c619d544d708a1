//! Servers that change during a run: more or fewer concurrent calls, or slower ones.

use groupage_batching::Tick;
use groupage_simulator::scenario::Scenario;
use groupage_simulator::upstream::{SlotServer, UpstreamKind};
use groupage_simulator::workload::{CallStream, Workload};

use super::criteria::{HarmCriteria, ServerPhase};
use super::{HarmTask, rows, servers};

/// Number of callers, which share one key.
const CALLERS: u32 = 48;
/// Number of windows in a phase, and in the last one. A loss by a change is recovered within
/// fifteen sojourns, which are at most eight windows.
const WINDOWS: usize = 6;
const WINDOWS_LAST: usize = 12;

/// A server with several phases.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerChange {
    /// Time of an unbatched call in the first phase, in milliseconds.
    time: u32,
    /// Number of concurrent calls in each phase.
    slots: &'static [u32],
    /// Factor of the time of a call from the second phase on.
    slower: u32,
}

const ALL: [ServerChange; 9] = [
    ServerChange { time: 5, slots: &[1, 64, 1], slower: 1 },
    ServerChange { time: 50, slots: &[1, 64, 1], slower: 1 },
    ServerChange { time: 200, slots: &[1, 64, 1], slower: 1 },
    ServerChange { time: 5, slots: &[64, 1, 64], slower: 1 },
    ServerChange { time: 50, slots: &[64, 1, 64], slower: 1 },
    ServerChange { time: 20, slots: &[8, 1, 8], slower: 1 },
    ServerChange { time: 20, slots: &[64, 64], slower: 100 },
    ServerChange { time: 20, slots: &[8, 8], slower: 100 },
    ServerChange { time: 20, slots: &[1, 1], slower: 100 },
];

// === impl ServerChange ===

impl ServerChange {
    pub(super) const fn all() -> &'static [Self] {
        &ALL
    }

    pub(super) fn task(&self) -> HarmTask {
        let slots = |phase: usize| self.slots[phase].min(CALLERS);
        let time = |phase: usize| f64::from(self.time * if phase > 0 { self.slower } else { 1 });
        let phases = 0..self.slots.len();
        let slowest = phases.clone().map(|phase| f64::from(slots(phase)) / time(phase)).fold(f64::INFINITY, f64::min);
        let window = rows::window(time(1), CALLERS, slowest);
        let at = |phase: usize| Tick::default().after(window * u32::try_from(phase * WINDOWS).unwrap_or(0));
        let server = SlotServer {
            slot_changes: phases.clone().skip(1).map(|phase| (at(phase), self.slots[phase])).collect(),
            shift: (self.slower > 1).then(|| (at(1), f64::from(self.slower))),
            ..servers::workers(self.slots[0], f64::from(self.time))
        };
        let windows = WINDOWS * (self.slots.len() - 1) + WINDOWS_LAST;
        let streams = vec![CallStream { arrivals: rows::callers(CALLERS), mix: rows::shared() }];
        let name = self.name();
        let scenario = Scenario {
            upstream: UpstreamKind::Server(server),
            workload: Workload { streams, recorded: Vec::new() },
            horizon: window * u32::try_from(windows).unwrap_or(1),
            ..Scenario::new(name.clone(), rows::callers(0))
        };
        let judged = phases.map(|phase| ServerPhase {
            from: phase * WINDOWS,
            service: time(phase) / 1e3,
            sojourn: f64::from(CALLERS) * time(phase) / f64::from(slots(phase)) / 1e3,
            has_more_slots: phase > 0 && self.slots[phase] > self.slots[phase - 1],
            has_queue: self.slots[phase] < CALLERS,
        });
        HarmTask { name, scenario, window, windows, criteria: HarmCriteria::Change(judged.collect()) }
    }

    fn name(&self) -> String {
        if self.slower > 1 {
            return format!("change k{} {}ms {}ms", self.slots[0], self.time, self.time * self.slower);
        }
        let slots: Vec<String> = self.slots.iter().map(|slots| format!("k{slots}")).collect();
        format!("change {} {}ms", slots.join(" "), self.time)
    }
}
