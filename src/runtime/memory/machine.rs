//! The memory of the machine, beside the memory limit of the control group.

use std::path::Path;

use super::cgroup::ControlGroup;

/// Memory of the machine in bytes, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineMemory {
    /// All of it.
    pub total: Option<u64>,
    /// What can be allocated without swapping.
    pub available: Option<u64>,
    /// Memory limit of the control group; `None` if no limit applies.
    pub limit: Option<u64>,
}

// === impl MachineMemory ===

impl MachineMemory {
    /// Reads it from the operating system, under a root that is `/` except in tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let limit = ControlGroup::find(root).map(|group| group.limit());
        Self { total: proc_bytes(&text, "MemTotal:"), available: proc_bytes(&text, "MemAvailable:"), limit }
    }

    /// Returns the memory that this process can take now: what is available, or the limit.
    #[must_use]
    pub fn usable(self) -> Option<u64> {
        [self.available, self.limit].into_iter().flatten().min()
    }

    /// Returns the memory of which a share is taken: the limit or, if there is none or less memory,
    /// all memory of the machine.
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        [self.total, self.limit].into_iter().flatten().min()
    }
}

/// Returns a value in a file of `/proc`, whose unit is KiB (`proc_meminfo(5)`).
pub(super) fn proc_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kibibytes() {
        let text = "MemTotal:       16384256 kB\nMemFree:  1 kB\nMemAvailable:    8192 kB\nHugePages_Total:       0\n";
        assert_eq!(proc_bytes(text, "MemTotal:"), Some(16_384_256 * 1024));
        assert_eq!(proc_bytes(text, "MemAvailable:"), Some(8 << 20));
        assert_eq!((proc_bytes(text, "HugePages_Total:"), proc_bytes("", "MemTotal:")), (None, None));
    }

    #[test]
    fn the_smaller_of_memory_and_limit_counts() {
        let memory = MachineMemory { total: Some(4 << 30), available: Some(3 << 30), limit: Some(1 << 30) };
        assert_eq!((memory.usable(), memory.whole()), (Some(1 << 30), Some(1 << 30)));
        let unlimited = MachineMemory { limit: None, ..memory };
        assert_eq!((unlimited.usable(), unlimited.whole()), (Some(3 << 30), Some(4 << 30)));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 4 kB\nMemAvailable: 1 kB\n").unwrap();
        let found = MachineMemory::read(root.path());
        assert_eq!(found, MachineMemory { total: Some(4096), available: Some(1024), limit: None });
        assert_eq!(MachineMemory::read("/nowhere".as_ref()), MachineMemory::default());
    }
}
