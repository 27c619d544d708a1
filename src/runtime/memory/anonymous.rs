//! The anonymous memory of the process: what it has allocated, without files that it has mapped.

use std::path::Path;

use super::machine::proc_bytes;

/// Returns the resident anonymous memory in bytes (`RssAnon` of `proc_pid_status(5)`), under a root
/// that is `/` except in tests. `None` if the kernel does not report it.
#[must_use]
pub fn anonymous_bytes(root: &Path) -> Option<u64> {
    proc_bytes(&std::fs::read_to_string(root.join("proc/self/status")).ok()?, "RssAnon:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_kibibytes() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        assert_eq!(anonymous_bytes(root.path()), None);
        for (text, bytes) in [("VmRSS:\t 9 kB\nRssAnon:\t    2048 kB\n", Some(2 << 20)), ("RssAnon: 1\n", None)] {
            std::fs::write(root.path().join("proc/self/status"), text).unwrap();
            assert_eq!(anonymous_bytes(root.path()), bytes, "{text}");
        }
    }
}
