//! Facts from an access log in JSON lines. Records are read one at a time, so a day of traffic
//! needs no more memory than a minute.
//!
//! A log may be a sample. Each record contains the number of items of its batch, so it counts as
//! its fraction of a batch, and means over batches are correct whatever fraction of the calls was
//! logged. The load cannot be derived from a sample. The header or field that separates calls is
//! found by comparing the digests of merge-key parts. Digests are comparable only within one
//! process, and a log may contain records of several.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read};

use super::facts::{CallKind, KeyDifference, LabelCounts, ProxyFacts};
use crate::access_log::CallRecord;
use crate::protocol::{PartDigest, RecentKeys};

/// Maximum number of merge keys tracked per process and route.
const KEYS_MAX: usize = 1024;
/// Maximum number of processes per route for which merge keys are compared. The first ones are
/// used: all pods of a workload give the same result.
const PROCESSES_MAX: usize = 4;
/// Maximum number of routes tracked, more than a policy can have.
const ROUTES_MAX: usize = 64;
/// Maximum number of reasons or causes tracked, about three times as many as exist.
const WORDS_MAX: usize = 64;
/// Maximum length of a route, protocol, reason, cause or key digest. The proxy never writes a
/// longer one; longer values are truncated.
const WORD_BYTES_MAX: usize = 256;
/// Maximum length of a line, about seven times that of the longest record.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Counts for one route.
#[derive(Debug, Default)]
struct LogRouteCounts {
    /// Sum of the fractions of batches that the records represent: the number of batches, as far as
    /// they were logged.
    batches: f64,
    causes: BTreeMap<String, f64>,
    apart: f64,
    calls: u64,
    items: u64,
    passed: u64,
    wait_us: u64,
    exec_us: u64,
    processes: BTreeMap<String, ProcessKeys>,
}

/// Merge keys of the calls of one process, which are comparable only with each other.
#[derive(Debug, Default)]
struct ProcessKeys {
    keys: HashSet<String>,
    parts: RecentKeys,
    /// Merge key of the previous call, and the start and end of its queueing time.
    last: Option<(String, u64, u64)>,
}

/// Counts for the whole log.
#[derive(Debug, Default)]
struct LogCounts {
    calls: u64,
    items: u64,
    unreadable: u64,
    first_us: u64,
    last_us: u64,
    passed: BTreeMap<String, u64>,
    unserved: BTreeMap<String, u64>,
    routes: BTreeMap<String, LogRouteCounts>,
}

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// The input cannot be read; the error is a message for the user.
pub(super) fn read(path: &str) -> Result<ProxyFacts, String> {
    let source: Box<dyn Read> = if path == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| format!("cannot read {path}: {error}"))?)
    };
    let name = if path == "-" { "standard input" } else { path };
    facts(name, source).map_err(|error| format!("cannot read {path}: {error}"))
}

fn facts(name: &str, source: impl Read) -> std::io::Result<ProxyFacts> {
    let mut counts = LogCounts { first_us: u64::MAX, ..LogCounts::default() };
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut source).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(counts.facts(name));
        }
        match serde_json::from_slice::<CallRecord>(&line) {
            Ok(record) => counts.take(record),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => counts.unreadable += 1,
        }
    }
}

// === impl LogCounts ===

impl LogCounts {
    fn take(&mut self, mut record: CallRecord) {
        for word in [
            &mut record.route,
            &mut record.protocol,
            &mut record.reason,
            &mut record.cause,
            &mut record.key,
            &mut record.process,
        ] {
            word.truncate(word.floor_char_boundary(WORD_BYTES_MAX));
        }
        self.calls += 1;
        self.items = self.items.saturating_add(record.items.into());
        self.first_us = self.first_us.min(record.time_us);
        self.last_us = self.last_us.max(record.time_us);
        match record.outcome.as_str() {
            "rejected" | "expired" => {
                if let Some(items) = counter_for(&mut self.unserved, record.reason) {
                    *items = items.saturating_add(record.items.into());
                }
                return;
            }
            "served" | "passed" => {}
            // Cancelled and failed calls reveal nothing about batches.
            _ => return,
        }
        if !record.reason.is_empty()
            && let Some(calls) = counter_for(&mut self.passed, record.reason.clone())
        {
            *calls += 1;
        }
        let name = format!("{} ({})", record.route, record.protocol);
        if record.outcome == "passed" || self.routes.len() >= ROUTES_MAX && !self.routes.contains_key(&name) {
            return;
        }
        let route = self.routes.entry(name).or_default();
        if record.reason == "no_gain" {
            route.passed += 1;
        } else if record.reason.is_empty() && record.batch_items > 0 {
            route.take(record);
        }
    }

    fn facts(self, name: &str) -> ProxyFacts {
        let seconds = self.last_us.saturating_sub(self.first_us).div_ceil(1_000_000);
        let mut over = format!("{} calls in {name}, over {seconds} s", self.calls);
        if self.unreadable > 0 {
            over.push_str(&format!("; {} lines are not access log records", self.unreadable));
        }
        ProxyFacts {
            description: over,
            calls: self.calls,
            passed: self.passed.into_iter().collect(),
            unserved: self.unserved.into_iter().collect(),
            items: self.items,
            kinds: self.routes.into_iter().map(|(name, route)| route.kind(name)).collect(),
            ..ProxyFacts::default()
        }
    }
}

// === impl LogRouteCounts ===

impl LogRouteCounts {
    fn take(&mut self, mut record: CallRecord) {
        let part = f64::from(record.items.max(1)) / f64::from(record.batch_items);
        self.batches += part;
        if let Some(parts) = counter_for(&mut self.causes, std::mem::take(&mut record.cause)) {
            *parts += part;
        }
        self.calls += 1;
        self.items = self.items.saturating_add(record.items.into());
        self.wait_us = self.wait_us.saturating_add(record.queue_us);
        self.exec_us = self.exec_us.saturating_add(record.exec_us);
        if self.processes.len() < PROCESSES_MAX || self.processes.contains_key(&record.process) {
            let process = self.processes.entry(std::mem::take(&mut record.process)).or_default();
            self.apart += if process.observe_key_overlap(record) { part } else { 0.0 };
        }
    }

    fn kind(self, name: String) -> CallKind {
        let busiest = self.processes.into_values().max_by_key(|process| process.keys.len()).unwrap_or_default();
        let causes: LabelCounts = self.causes.into_iter().map(|(cause, part)| (cause, round_count(part))).collect();
        CallKind {
            name,
            batches: round_count(self.batches),
            calls: self.calls,
            items: self.items,
            separated_batches: round_count(self.apart),
            passed: self.passed,
            wait_us: self.wait_us.checked_div(self.calls).unwrap_or(0),
            exec_us: self.exec_us.checked_div(self.calls),
            causes,
            keys: to_u64(busiest.keys.len()),
            differs: busiest
                .parts
                .differing_parts()
                .into_iter()
                .map(|part| KeyDifference {
                    what: part.kind.as_str().to_owned(),
                    name: part.name,
                    values: to_u64(part.values),
                    keys_without: to_u64(part.keys_without),
                })
                .collect(),
            ..CallKind::default()
        }
    }
}

// === impl ProcessKeys ===

impl ProcessKeys {
    /// Returns `true` if this call was queued at the same time as the previous one and has another
    /// merge key.
    fn observe_key_overlap(&mut self, record: CallRecord) -> bool {
        // Records are written in the order in which calls end, so calls that were queued at the
        // same time are close together.
        let (from, to) = (record.time_us, record.time_us.saturating_add(record.queue_us));
        let before = self.last.replace((record.key.clone(), from, to));
        let whole = parse_digest(&record.key);
        if !record.parts.is_empty() && !self.parts.contains(whole) {
            self.parts.push(whole, record.parts.into_iter().filter_map(parse_part));
        }
        let apart = before.is_some_and(|(key, since, until)| key != record.key && from.max(since) < to.min(until));
        if self.keys.len() < KEYS_MAX {
            self.keys.insert(record.key);
        }
        apart
    }
}

/// Parses a part of a merge key; `None` if the kind is unknown.
fn parse_part((kind, mut name, digest): (String, String, String)) -> Option<PartDigest> {
    name.truncate(name.floor_char_boundary(WORD_BYTES_MAX));
    Some((kind.parse().ok()?, name.into(), parse_digest(&digest)))
}

/// Parses a short hexadecimal digest. An invalid one becomes 0, which serves as well as any other
/// value.
fn parse_digest(digest: &str) -> u64 {
    u64::from_str_radix(digest, 16).unwrap_or(0)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns the counter of `word`, or `None` if the maximum number of words is already tracked.
fn counter_for<T: Default>(counts: &mut BTreeMap<String, T>, word: String) -> Option<&mut T> {
    if counts.len() >= WORDS_MAX && !counts.contains_key(&word) {
        return None;
    }
    Some(counts.entry(word).or_default())
}

/// Rounds a sum of fractions to the nearest whole number of batches.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of parts of calls, far below 2^53")]
fn round_count(parts: f64) -> u64 {
    parts.round() as u64
}

#[cfg(test)]
mod tests;
