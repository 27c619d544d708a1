//! The pressure on the memory of the process: how near its control group is to its limit.
//!
//! The budgets bound what is counted; what is not (socket buffers, windows, pages that the
//! allocator keeps) shows here. Envoy's overload manager has the same steps.

use std::time::Duration;

use super::cgroup::ControlGroup;

/// Between two looks: a peer over a fast network sends some 100 MiB in it at most, and two small
/// files are read in some 50 µs.
const INTERVAL: Duration = Duration::from_millis(100);

/// A level of memory pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PressureLevel {
    /// Below 80 %.
    None,
    /// From 80 %: the budget of bytes is halved.
    Shrink,
    /// From 90 %: an eighth of the budget stays, and idle connections make room.
    Refuse,
    /// From 95 %: no connection is accepted either.
    Stop,
}

// === impl PressureLevel ===

impl PressureLevel {
    /// The level at `used` bytes under a limit.
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
}

/// Watches a control group for as long as it is polled, and reports each change of the level.
///
/// At [`PressureLevel::Refuse`] and above each look is reported, so that more can be made free.
pub async fn watch_pressure(group: ControlGroup, mut on_level: impl FnMut(PressureLevel)) {
    let mut before = PressureLevel::None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        // Without a descriptor left it cannot be read: another bound is at work then.
        let used = group.usage().unwrap_or(0);
        let level = PressureLevel::of(used, group.limit());
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
    }

    #[tokio::test]
    async fn a_group_that_fills_up_is_reported() {
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
        let group = ControlGroup::find(root.path()).unwrap();
        let (reported, mut levels) = tokio::sync::mpsc::channel(16);
        let watching = tokio::spawn(watch_pressure(group, move |level| _ = reported.try_send(level)));
        assert_eq!(levels.recv().await, Some(PressureLevel::Shrink));
        std::fs::write(folder.join("memory.current"), "1000").unwrap();
        assert_eq!(levels.recv().await, Some(PressureLevel::Stop));
        watching.abort();
    }
}
