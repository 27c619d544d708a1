//! A memory cgroup (v1 or v2) for one process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// A memory cgroup, which is removed on drop.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    folder: PathBuf,
    peak: &'static str,
}

// === impl MemoryGroup ===

impl MemoryGroup {
    /// Creates a cgroup of a name below that of this process, with a limit in bytes.
    pub(crate) fn make(name: &str, limit: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mount = Path::new("/sys/fs/cgroup");
        let mut why = "no memory controller".to_owned();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let path = path.trim_start_matches('/');
            let (base, file, peak) = match controllers {
                "memory" => (mount.join("memory").join(path), "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
                "" if mount.join(path).join("memory.max").exists() || mount.join("cgroup.subtree_control").exists() => {
                    (mount.join(path), "memory.max", "memory.peak")
                }
                _ => continue,
            };
            let folder = base.join(format!("groupage-{name}-{}", std::process::id()));
            let made = fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), limit.to_string()));
            match made {
                Ok(()) => return Ok(Self { folder, peak }),
                Err(error) => {
                    fs::remove_dir(&folder).ok();
                    why = format!("{}: {error}", folder.display());
                }
            }
        }
        Err(why)
    }

    /// Writes a script that enters the cgroup and then executes a binary, so that the limit holds
    /// from the first instruction of the binary.
    pub(crate) fn wrapped(&self, binary: &Path, folder: &Path) -> io::Result<PathBuf> {
        let script = folder.join("groupage");
        let procs = self.folder.join("cgroup.procs");
        let text = format!("#!/bin/sh\necho $$ > '{}'\nexec '{}' \"$@\"\n", procs.display(), binary.display());
        // Another process writes the script. A descriptor of this one would be inherited by a
        // process that a concurrent run starts, and a file that is open for writing cannot be
        // executed (ETXTBSY).
        let write = "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let status = Command::new("/bin/sh").args(["-c", write, "sh"]).arg(text).arg(&script).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("cannot write {}: {status}", script.display())));
        }
        Ok(script)
    }

    /// Returns the peak memory usage of the cgroup.
    pub(crate) fn peak(&self) -> String {
        let bytes = fs::read_to_string(self.folder.join(self.peak)).ok().and_then(|text| text.trim().parse().ok());
        bytes.map_or_else(|| "?".to_owned(), |bytes: u64| format!("{} MiB", bytes >> 20))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The process has already exited. If the removal fails, the empty cgroup costs nothing.
        fs::remove_dir(&self.folder).ok();
    }
}
