//! Crash-loop guard: after three crashes within 60 s the process starts in pass-through mode for 10
//! minutes.
//!
//! ```text
//! run.json    start: written ──▶ deliberate end: removed
//!                         └─ killed, out of memory, a defect: still present, so the next start
//!                            counts a crash
//! ```
//!
//! If a particular call crashes the process, batching it again after each restart would keep the
//! whole pod down. In pass-through mode, calls are forwarded without being parsed. Three crashes in
//! a minute are not a coincidence: the kubelet waits 10 s and then 20 s before it restarts a
//! container, so not more than three fit into a minute.
//!
//! Times are relative to the boot of the machine, so that a change of the wall clock neither adds
//! nor hides a crash; a record of an earlier boot is ignored. `next_record` is pure; the rest reads
//! and writes one small file. The record does not have to survive a crash of the machine, so it is
//! not flushed to disk.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{StateDir, read_file};
use crate::clock::Clock;

/// Number of crashes within [`CRASH_WINDOW`] that trigger the guard.
pub(in crate::app) const CRASH_COUNT: usize = 3;
/// Time window in which crashes are counted.
pub(in crate::app) const CRASH_WINDOW: Duration = Duration::from_secs(60);
/// Duration of the pass-through mode. After as long without a crash the kubelet resets its restart
/// back-off, so that further crashes would again be close together.
pub(in crate::app) const PASSTHROUGH_TIME: Duration = Duration::from_secs(600);

const NAME: &str = "run.json";
/// Version of the file format. It changes with the meaning of any field.
const FORMAT: u32 = 1;
/// File in which the kernel publishes the id of the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Record that a process writes for the next one. Times are in milliseconds since the boot of the
/// machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RunRecord {
    format: u32,
    /// Id of the boot that the times refer to.
    boot: String,
    /// Times at which the last crashes were detected.
    crashes: Vec<u64>,
    /// End of the pass-through mode.
    aside_until: Option<u64>,
}

/// Result of registering a start.
#[derive(Debug, Default)]
pub(in crate::app) struct StartRecord {
    /// Remaining time of the pass-through mode, after repeated crashes.
    pub(in crate::app) aside: Option<Duration>,
    /// Error because of which the next start cannot detect a crash of this process.
    write_error: Option<io::Error>,
}

// === impl StartRecord ===

impl StartRecord {
    /// Logs the result, once the log line with the bound addresses is written.
    pub(in crate::app) fn log(&self) {
        if let Some(error) = &self.write_error {
            tracing::warn!(%error, "the start cannot be recorded: a crash of this process will not be detected");
        }
        if let Some(aside) = self.aside {
            tracing::error!(
                seconds = aside.as_secs(),
                "crashed {CRASH_COUNT} times in {} s: all calls pass through unchanged until batching is tried again; see the log of the previous process for the cause",
                CRASH_WINDOW.as_secs()
            );
        }
    }
}

/// Computes the record of this start and the remaining time of the pass-through mode. `before` is
/// the record of the previous process, present only if that process did not end deliberately.
fn next_record(before: Option<RunRecord>, boot: String, now: u64) -> (RunRecord, Option<Duration>) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let after_crash = before.filter(|before| before.boot == boot).map(|mut before| {
        before.crashes.push(now);
        before
    });
    let mut record = after_crash.unwrap_or_else(|| RunRecord { format: FORMAT, boot, ..RunRecord::default() });
    let earliest = now.saturating_sub(millis(CRASH_WINDOW));
    record.crashes.retain(|at| (earliest..=now).contains(at));
    // Older crashes than the last three do not matter.
    let old = record.crashes.len().saturating_sub(CRASH_COUNT);
    record.crashes.drain(..old);
    let latest_end = now.saturating_add(millis(PASSTHROUGH_TIME));
    record.aside_until = if record.crashes.len() == CRASH_COUNT {
        Some(latest_end)
    } else {
        // A further crash does not shorten the current pass-through mode. An end that is past, or
        // later than this process could have set it, is ignored.
        record.aside_until.filter(|until| (now + 1..=latest_end).contains(until))
    };
    let left = record.aside_until.map(|until| Duration::from_millis(until - now));
    (record, left)
}

// === impl StateDir ===

impl StateDir {
    /// Registers the start of this process. If no state can be written, no crash is ever detected.
    pub(in crate::app) fn record_start(&self) -> StartRecord {
        if !self.may_write() {
            return StartRecord::default();
        }
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        let before = read_file(&self.path, NAME)
            .and_then(|bytes| serde_json::from_slice::<RunRecord>(&bytes).ok())
            .filter(|record| record.format == FORMAT);
        let (record, aside) = next_record(before, boot, Clock::boot_millis());
        StartRecord { aside, write_error: write(&self.path, &record).err() }
    }

    /// Registers a deliberate end, or a failed start: an end of the process from now on is no
    /// crash.
    pub(in crate::app) fn record_end(&self) {
        if !self.may_write() {
            return;
        }
        match std::fs::remove_file(self.path.join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the end of the process cannot be recorded: the next start will count it as a crash");
            }
            _ => {}
        }
    }
}

/// Replaces the record. Other processes read either the former one or the new one.
fn write(folder: &Path, record: &RunRecord) -> io::Result<()> {
    let temporary = folder.join(format!(".{NAME}.new"));
    std::fs::write(&temporary, serde_json::to_vec(record)?)?;
    std::fs::rename(&temporary, folder.join(NAME))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1000;

    /// Returns the remaining pass-through time in seconds of starts at the given seconds, each but
    /// the first after a crash.
    fn starts(at: &[u64]) -> Vec<Option<u64>> {
        let mut before = None;
        at.iter()
            .map(|at| {
                let (record, left) = next_record(before.take(), "boot".to_owned(), at * SECOND);
                before = Some(record);
                left.map(|left| left.as_secs())
            })
            .collect()
    }

    #[test]
    fn a_start_after_three_crashes_within_a_minute_passes_through_for_a_while() {
        assert_eq!(starts(&[100, 105, 115, 165]), [None, None, None, Some(600)]);
        assert_eq!(starts(&[100, 105, 115, 166]), [None; 4], "61 s from the first crash to the third");
        assert_eq!(starts(&[100, 200, 300, 400, 500]), [None; 5]);
    }

    #[test]
    fn a_crash_does_not_end_pass_through_mode_and_three_more_restart_it() {
        assert_eq!(starts(&[0, 10, 20, 30, 300, 629, 630]), [None, None, None, Some(600), Some(330), Some(1), None]);
        assert_eq!(starts(&[0, 10, 20, 30, 40]).last(), Some(&Some(600)));
    }

    #[test]
    fn a_clean_end_and_a_run_before_the_boot_are_no_crashes() {
        let (first, _) = next_record(None, "a".to_owned(), 10);
        let (second, _) = next_record(Some(first), "a".to_owned(), 20);
        assert_eq!(second.crashes, [20]);
        assert_eq!(next_record(Some(second.clone()), "b".to_owned(), 30).0.crashes, [0_u64; 0]);
        let ended = next_record(None, "a".to_owned(), 40);
        assert_eq!((ended.0.crashes, ended.1), (vec![], None));
        // Impossible values: times in the future.
        let odd = RunRecord { crashes: vec![u64::MAX; 9], aside_until: Some(u64::MAX), ..second };
        let (record, left) = next_record(Some(odd), "a".to_owned(), 50);
        assert_eq!((record.crashes, left), (vec![50], None));
    }

    proptest! {
        #[test]
        fn the_crash_record_and_the_pass_through_time_are_bounded(gaps in prop::collection::vec(0..120_000_u64, 1..30)) {
            let (mut now, mut before) = (0, None);
            for gap in gaps {
                now += gap;
                let (record, left) = next_record(before.take(), "boot".to_owned(), now);
                prop_assert!(record.crashes.len() <= CRASH_COUNT);
                prop_assert!(left.is_none_or(|left| left > Duration::ZERO && left <= PASSTHROUGH_TIME));
                before = Some(record);
            }
        }
    }

    #[test]
    fn a_crash_record_is_read_back_and_an_invalid_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = || StateDir::new(dir.path().to_owned(), "http://m".to_owned());
        let path = dir.path().join(NAME);
        for crashes in 0..3 {
            assert_eq!(folder().record_start().aside, None, "{crashes}");
        }
        let one = folder();
        assert_eq!(one.record_start().aside, Some(PASSTHROUGH_TIME));
        // A second process on the same folder detects nothing and changes nothing.
        let before = std::fs::read(&path).unwrap();
        assert_eq!(folder().record_start().aside, None);
        folder().record_end();
        assert_eq!(std::fs::read(&path).unwrap(), before);
        one.record_end();
        one.record_end();
        assert!(!path.exists());
        for text in ["", "{", "[]", "{\"format\":2,\"boot\":\"\",\"crashes\":[],\"aside_until\":null}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(one.record_start().aside, None, "{text}");
            let left: RunRecord = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(left.crashes, [0_u64; 0], "{text}");
        }
    }
}
