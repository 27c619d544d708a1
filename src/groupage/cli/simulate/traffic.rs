//! Traffic from an access log: arrivals, their attributes and their recorded outcomes.
//!
//! Calls arrive as they did in the log, with their items, weights, tenants, merge keys and
//! deadlines. Recorded decisions are not replayed but reported for comparison. Calls that were
//! never read (no items) are left out. Calls missing from a sampled log are not restored; `--rate`
//! compensates for them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::access_log::CallRecord;
use crate::batching::{Call, CallId, Deadline, DeadlineSource, KeyId, TenantId, Tick, Weight};
use crate::simulator::Arrival;

/// Maximum number of lines: a day at 50 calls per second. It bounds memory.
const LINES_MAX: usize = 5_000_000;
/// Upper bound for the weight and bytes of a call, so that the sum over `LINES_MAX` lines cannot
/// overflow.
const AMOUNT_MAX: u64 = u32::MAX as u64;
/// Label of the bulk class. The simulator treats every other class as interactive.
const BULK: &str = "bulk";

/// Contents of a log.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RecordedTraffic {
    pub(super) calls: Vec<Arrival>,
    /// Time from the first call until shortly after the last.
    pub(super) horizon: Duration,
    pub(super) recorded: RecordedOutcome,
    /// SLO of the policy, taken to be the most common deadline.
    pub(super) slo: Option<Duration>,
    /// Largest batch that was sent.
    pub(super) batch_items: u32,
}

/// Outcomes of the items according to the log.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct RecordedOutcome {
    pub(super) items: u64,
    pub(super) goodput: f64,
    pub(super) mean_ms: f64,
    pub(super) p99_ms: f64,
}

/// Parses a log. An error names its line.
pub(super) fn parse(text: &str) -> Result<RecordedTraffic, String> {
    let mut records: Vec<CallRecord> = Vec::new();
    for (number, line) in (1_usize..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        if records.len() >= LINES_MAX {
            return Err(format!("it has more than {LINES_MAX} lines"));
        }
        let record: CallRecord = serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        records.push(record);
    }
    records.retain(|record| record.items > 0);
    // Records are written when calls end, not when they arrive.
    records.sort_by_key(|record| record.time_us);
    let Some((first, last)) = records.first().zip(records.last()) else { return Err("it contains no call".to_owned()) };
    let span = Duration::from_micros(last.time_us.saturating_sub(first.time_us)) + Duration::from_millis(1);
    let start = first.time_us;
    let (mut keys, mut tenants) = (TrafficIdInterner::default(), TrafficIdInterner::default());
    let calls = records.iter().map(|record| arrival(record, start, &mut keys, &mut tenants)).collect();
    Ok(RecordedTraffic {
        calls,
        horizon: span,
        recorded: RecordedOutcome::of(&records),
        slo: common_deadline(&records),
        batch_items: records.iter().map(|record| record.batch_items).max().unwrap_or(0),
    })
}

fn arrival(record: &CallRecord, start: u64, keys: &mut TrafficIdInterner, tenants: &mut TrafficIdInterner) -> Arrival {
    let at = Tick::default().after(Duration::from_micros(record.time_us.saturating_sub(start)));
    let budget = Some(record.deadline_us).filter(|us| *us > 0);
    let items = u64::from(record.items);
    let weight = record.weight.min(AMOUNT_MAX);
    let call = Call {
        // A call that was forwarded alone shares its merge key with no other call.
        key: KeyId(if record.key.is_empty() { keys.fresh() } else { keys.id(&record.key) }),
        unmergeable: record.key.is_empty(),
        replayable: true,
        tenant: TenantId(tenants.id(&record.tenant)),
        deadline: budget.map(|us| Deadline { at: at.after(Duration::from_micros(us)), source: DeadlineSource::Slo }),
        items: record.items,
        // For several items only the sum is recorded, so they are assumed to have equal weights.
        weight: Weight { sum: weight.max(items), max: weight.div_ceil(items).max(1) },
        bytes: record.bytes.min(AMOUNT_MAX),
        ..Call::new(CallId(0))
    };
    Arrival { at, call, class: u8::from(record.class == BULK), cancel_at: None }
}

/// Returns the most common deadline.
fn common_deadline(records: &[CallRecord]) -> Option<Duration> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for record in records.iter().filter(|record| record.deadline_us > 0) {
        *counts.entry(record.deadline_us).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(us, _)| Duration::from_micros(us))
}

/// Maps names to ids, in order of appearance.
#[derive(Debug, Default)]
struct TrafficIdInterner {
    ids: BTreeMap<String, u64>,
    next: u64,
}

// === impl TrafficIdInterner ===

impl TrafficIdInterner {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn id(&mut self, name: &str) -> u64 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.fresh();
        self.ids.insert(name.to_owned(), id);
        id
    }
}

// === impl RecordedOutcome ===

impl RecordedOutcome {
    fn of(records: &[CallRecord]) -> Self {
        let latency = |record: &CallRecord| record.queue_us.saturating_add(record.exec_us);
        let served = |record: &&CallRecord| record.outcome == "served";
        let items: u64 = records.iter().map(|record| u64::from(record.items)).sum();
        let good = |record: &&CallRecord| record.deadline_us == 0 || latency(record) <= record.deadline_us;
        let good: u64 = records.iter().filter(served).filter(good).map(|record| u64::from(record.items)).sum();
        // Latencies are weighted by items, since a call with several items counts as several.
        let mut latencies: Vec<(u64, u64)> =
            records.iter().filter(served).map(|record| (latency(record), u64::from(record.items))).collect();
        latencies.sort_unstable();
        let answered: u64 = latencies.iter().map(|(_, items)| items).sum();
        let sum: f64 = latencies.iter().map(|(us, items)| *us as f64 / 1e3 * *items as f64).sum();
        let mut before = 0;
        let p99 = latencies.iter().find(|(_, items)| {
            before += items;
            before * 100 > answered * 99
        });
        Self {
            items,
            goodput: good as f64 / items.max(1) as f64,
            mean_ms: sum / answered.max(1) as f64,
            p99_ms: p99.map_or(f64::INFINITY, |(us, _)| *us as f64 / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(record: &CallRecord) -> String {
        serde_json::to_string(record).unwrap() + "\n"
    }

    #[test]
    fn calls_keep_their_arrival_times_and_outcomes() {
        let first = CallRecord {
            time_us: 5_000_000,
            tenant: "t".to_owned(),
            key: "k".to_owned(),
            deadline_us: 50_000,
            items: 3,
            weight: 30,
            queue_us: 1000,
            exec_us: 9000,
            batch_items: 8,
            outcome: "served".to_owned(),
            ..CallRecord::default()
        };
        let late = CallRecord { time_us: 5_002_000, exec_us: 60_000, items: 1, weight: 4, ..first.clone() };
        let unmergeable =
            CallRecord { time_us: 5_001_000, key: String::new(), outcome: "expired".to_owned(), ..first.clone() };
        let unread = CallRecord { items: 0, ..first.clone() };
        let text = [&first, &late, &unmergeable, &unread].map(line).concat();
        let traffic = parse(&text).unwrap();
        let at: Vec<u64> = traffic.calls.iter().map(|arrival| arrival.at.0 / 1_000_000).collect();
        assert_eq!(at, [0, 1, 2], "in order of arrival");
        let call = &traffic.calls[0].call;
        assert_eq!((call.items, call.weight, call.unmergeable), (3, Weight { sum: 30, max: 10 }, false));
        assert_eq!(call.deadline.unwrap().at, Tick::from_millis(50));
        assert!(traffic.calls[1].call.unmergeable && traffic.calls[1].call.key != call.key);
        assert_eq!(traffic.calls[2].call.key, call.key);
        let RecordedOutcome { items, goodput, mean_ms, p99_ms } = traffic.recorded;
        assert_eq!((items, goodput, p99_ms), (7, 3.0 / 7.0, 61.0));
        assert!((mean_ms - (3.0 * 10.0 + 61.0) / 4.0).abs() < 1e-9, "{mean_ms}");
        assert_eq!((traffic.slo, traffic.batch_items), (Some(Duration::from_millis(50)), 8));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = CallRecord {
            time_us: u64::MAX,
            deadline_us: u64::MAX,
            items: u32::MAX,
            weight: u64::MAX,
            bytes: u64::MAX,
            queue_us: u64::MAX,
            exec_us: u64::MAX,
            outcome: "served".to_owned(),
            ..CallRecord::default()
        };
        let traffic = parse(&[line(&CallRecord { time_us: 0, ..most.clone() }), line(&most)].concat()).unwrap();
        assert_eq!(traffic.recorded.items, 2 * u64::from(u32::MAX));
        assert_eq!(traffic.calls[1].call.weight.sum, AMOUNT_MAX);
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = parse("\n{\"time_us\": 1}\n").unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
        assert_eq!(parse(""), Err("it contains no call".to_owned()));
    }
}
