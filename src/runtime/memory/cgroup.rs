//! The control group of the process: its memory limit and memory usage.
//!
//! Both versions of control groups are supported (`cgroup-v2.rst` and `cgroup-v1/memory.rst` in the
//! Linux kernel documentation).

use std::path::{Path, PathBuf};

/// Values from this size on mean that there is no limit: version 1 reports "unlimited" as a number
/// of the size of the address space.
const UNLIMITED: u64 = 1 << 60;

/// The control group of this process, with the smallest memory limit among it and its ancestors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    /// The group's own folder. Usage is read from it and not from an ancestor, which includes other
    /// processes.
    folder: PathBuf,
    names: &'static CgroupNames,
    /// Memory limit in bytes.
    limit: u64,
    /// Memory of a model that the process executes, in bytes; 0 for none.
    model: u64,
}

/// Names of files, and of counters in `memory.stat`, in one version of control groups.
#[derive(Debug, PartialEq, Eq)]
struct CgroupNames {
    limit_file: &'static str,
    usage_file: &'static str,
    inactive_file: &'static str,
    active_file: &'static str,
}

const VERSION_1: CgroupNames = CgroupNames {
    limit_file: "memory.limit_in_bytes",
    usage_file: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file",
    active_file: "total_active_file",
};
const VERSION_2: CgroupNames = CgroupNames {
    limit_file: "memory.max",
    usage_file: "memory.current",
    inactive_file: "inactive_file",
    active_file: "active_file",
};

// === impl ControlGroup ===

impl ControlGroup {
    /// Finds the control group under a root, which is `/` except in tests. Returns `None` if no
    /// limit applies.
    #[must_use]
    pub fn find(root: &Path) -> Option<Self> {
        let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mount = root.join("sys/fs/cgroup");
        groups
            .lines()
            .filter_map(|line| {
                // `0::/path` is version 2, `4:memory:/path` is version 1.
                let mut parts = line.splitn(3, ':');
                let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
                let (base, names) = match controllers {
                    "" => (mount.clone(), &VERSION_2),
                    listed if listed.split(',').any(|name| name == "memory") => (mount.join("memory"), &VERSION_1),
                    _ => return None,
                };
                Self::find_smallest_limit(&base, path.trim_start_matches('/'), names)
            })
            .min_by_key(|group| group.limit)
    }

    /// Finds the smallest limit from a group up to the mount. In a container the path may be that
    /// of the host and not exist here; the mount is then the group itself.
    fn find_smallest_limit(base: &Path, path: &str, names: &'static CgroupNames) -> Option<Self> {
        let path = base.join(path);
        let groups = || path.ancestors().take_while(|folder| folder.starts_with(base));
        let limits = groups().filter_map(|folder| read_number(&folder.join(names.limit_file)));
        let limit = limits.filter(|bytes| *bytes < UNLIMITED).min()?;
        let folder = groups().find(|folder| folder.exists())?.to_owned();
        Some(Self { folder, names, limit, model: 0 })
    }

    /// Returns the group without the memory of a model: limit and usage are those of the rest of the
    /// process.
    ///
    /// The memory of a model has a fixed maximum, so it is no sign of pressure, however large its
    /// share of the limit is. The kernel keeps the pages of its files that are read often as active
    /// file pages, and can drop them at any time, so active file pages do not count as used either.
    #[must_use]
    pub fn without_model(self, bytes: u64) -> Self {
        Self { model: bytes, ..self }
    }

    /// Returns the memory limit in bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit.saturating_sub(self.model)
    }

    /// Returns the bytes in use without reclaimable file pages, which is the working set as defined
    /// by the kubelet. `None` if the kernel does not report it.
    #[must_use]
    pub fn usage(&self) -> Option<u64> {
        let used = read_number(&self.folder.join(self.names.usage_file))?;
        let stat = std::fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let pages = |wanted: &str| -> u64 {
            let find = |line: &str| line.split_once(' ').filter(|(name, _)| *name == wanted)?.1.parse().ok();
            stat.lines().find_map(find).unwrap_or(0)
        };
        let active = if self.model == 0 { 0 } else { pages(self.names.active_file) };
        let reclaimable = pages(self.names.inactive_file).saturating_add(active);
        Some(used.saturating_sub(reclaimable).saturating_sub(self.model))
    }
}

/// Reads a file that consists of one number. `None` for a missing file, and for `max`.
fn read_number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_limit_is_the_smallest_of_the_tree_and_the_usage_that_of_the_group() {
        let root = root(&[
            ("proc/self/cgroup", "0::/kube/pod/box\n"),
            ("sys/fs/cgroup/kube/pod/box/memory.max", "max\n"),
            ("sys/fs/cgroup/kube/pod/box/memory.current", "1000\n"),
            ("sys/fs/cgroup/kube/pod/box/memory.stat", "anon 700\ninactive_file 300\n"),
            ("sys/fs/cgroup/kube/pod/memory.max", "134217728\n"),
            ("sys/fs/cgroup/kube/pod/memory.current", "99999999\n"),
            ("sys/fs/cgroup/kube/memory.max", "268435456\n"),
        ]);
        let group = ControlGroup::find(root.path()).unwrap();
        assert_eq!((group.limit(), group.usage()), (134_217_728, Some(700)));
    }

    #[test]
    fn a_model_is_neither_usage_nor_a_part_of_the_limit() {
        let root = root(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "2000\n"),
            ("sys/fs/cgroup/memory.current", "1990\n"),
            ("sys/fs/cgroup/memory.stat", "anon 1700\ninactive_file 40\nactive_file 250\n"),
        ]);
        let group = ControlGroup::find(root.path()).unwrap();
        assert_eq!(
            (group.limit(), group.usage()),
            (2000, Some(1950)),
            "active file pages are a part of the working set"
        );
        let rest = group.without_model(1600);
        assert_eq!((rest.limit(), rest.usage()), (400, Some(100)));
        let loading = rest.without_model(1800);
        assert_eq!((loading.limit(), loading.usage()), (200, Some(0)), "a model that is not loaded yet");
    }

    #[test]
    fn version_1_is_supported_and_its_maximum_number_is_no_limit() {
        let limited = root(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n"),
        ]);
        let group = ControlGroup::find(limited.path()).unwrap();
        assert_eq!((group.limit(), group.usage()), (67_108_864, Some(4096)), "the group's own path is the host's");
        let unlimited = root(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(ControlGroup::find(unlimited.path()), None);
        assert_eq!(ControlGroup::find(Path::new("/nowhere")), None);
    }
}
