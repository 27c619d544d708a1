//! The memory pressure of the process: the usage of its control group relative to the limit, both
//! without a model that the process executes.
//!
//! The budgets bound the memory that is accounted for. Memory that is not, such as socket buffers,
//! windows and pages retained by the allocator, appears here. Envoy's overload manager reacts in
//! similar steps.

use std::time::Duration;

use super::cgroup::ControlGroup;

/// Interval between two measurements. A peer on a fast network sends at most about 100 MiB in it,
/// and reading two small files takes about 50 µs.
const INTERVAL: Duration = Duration::from_millis(100);

/// Number of failed measurements in a row after which connections are accepted again: 5 s. Without
/// file descriptors none can be accepted anyway.
const FAILED_MAX: u32 = 50;

/// A level of memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PressureLevel {
    /// Below 80 %.
    None,
    /// From 80 %: the byte budget is halved.
    Shrink,
    /// From 90 %: the byte budget is reduced to an eighth, and idle connections are evicted.
    Refuse,
    /// From 95 %: in addition, no connection is accepted.
    Stop,
}

// === impl PressureLevel ===

impl PressureLevel {
    /// Returns the level at `used` bytes under a limit.
    #[must_use]
    pub const fn of(used: u64, limit: u64) -> Self {
        let percent = used.saturating_mul(100) / if limit == 0 { 1 } else { limit };
        match percent {
            0..80 => Self::None,
            80..90 => Self::Shrink,
            90..95 => Self::Refuse,
            _ => Self::Stop,
        }
    }

    /// Returns the level after this number of failed measurements in a row. Reading fails if no
    /// file descriptor is left, and the group may be as full as before.
    fn without_usage(self, failed: u32) -> Self {
        if failed < FAILED_MAX { self } else { self.min(Self::Shrink) }
    }
}

/// Monitors a control group and reports each change of the level, as long as the future is polled.
///
/// From [`PressureLevel::Refuse`] on, every measurement is reported, so that eviction continues.
pub async fn watch_pressure(group: ControlGroup, mut on_level: impl FnMut(PressureLevel)) {
    let (mut before, mut failed) = (PressureLevel::None, 0_u32);
    loop {
        tokio::time::sleep(INTERVAL).await;
        let used = group.usage();
        failed = if used.is_some() { 0 } else { failed.saturating_add(1) };
        if failed == FAILED_MAX {
            tracing::warn!("the memory usage of the control group cannot be read");
        }
        let level = used.map_or_else(|| before.without_usage(failed), |used| PressureLevel::of(used, group.limit()));
        if level != before {
            tracing::info!(?level, used, limit = group.limit(), "memory pressure changed");
        }
        if level != before || level >= PressureLevel::Refuse {
            on_level(level);
        }
        before = level;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_at_80_90_and_95_percent() {
        use PressureLevel::{None, Refuse, Shrink, Stop};
        for (used, level) in [(0, None), (79, None), (80, Shrink), (89, Shrink), (90, Refuse), (95, Stop), (120, Stop)]
        {
            assert_eq!(PressureLevel::of(used, 100), level, "{used}");
        }
        assert_eq!(PressureLevel::of(1, 0), Stop);
        assert_eq!([Stop.without_usage(FAILED_MAX - 1), Stop.without_usage(FAILED_MAX)], [Stop, Shrink]);
        assert_eq!(None.without_usage(FAILED_MAX), None);
    }

    /// A folder with a control group of 1000 bytes that uses 850.
    fn group_folder() -> (tempfile::TempDir, std::path::PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/fs/cgroup");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        for (file, text) in [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "1000"),
            ("sys/fs/cgroup/memory.current", "900"),
            ("sys/fs/cgroup/memory.stat", "inactive_file 50\n"),
        ] {
            std::fs::write(root.path().join(file), text).unwrap();
        }
        (root, folder)
    }

    #[tokio::test]
    async fn model_memory_does_not_count_as_pressure() {
        let (root, folder) = group_folder();
        let group = ControlGroup::find(root.path()).unwrap().without_model(800);
        let (reported, mut levels) = tokio::sync::mpsc::channel(16);
        let watching = tokio::spawn(watch_pressure(group, move |level| _ = reported.try_send(level)));
        // The first level that is reported follows from the change: 160 of 200 bytes.
        std::fs::write(folder.join("memory.current"), "1010").unwrap();
        assert_eq!(levels.recv().await, Some(PressureLevel::Shrink));
        std::fs::write(folder.join("memory.current"), "900").unwrap();
        assert_eq!(levels.recv().await, Some(PressureLevel::None));
        watching.abort();
    }

    #[tokio::test]
    async fn a_group_that_fills_up_is_reported() {
        let (root, folder) = group_folder();
        let group = ControlGroup::find(root.path()).unwrap();
        let (reported, mut levels) = tokio::sync::mpsc::channel(16);
        let watching = tokio::spawn(watch_pressure(group, move |level| _ = reported.try_send(level)));
        assert_eq!(levels.recv().await, Some(PressureLevel::Shrink));
        std::fs::write(folder.join("memory.current"), "1000").unwrap();
        assert_eq!(levels.recv().await, Some(PressureLevel::Stop));
        std::fs::remove_file(folder.join("memory.current")).unwrap();
        for _ in 0..3 {
            assert_eq!(levels.recv().await, Some(PressureLevel::Stop), "unknown usage ends no pressure");
        }
        watching.abort();
    }
}
