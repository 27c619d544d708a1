//! Shared libraries that a dynamically linked binary requires, as `ldd` of the build machine lists
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TestError;
use crate::programs::run_quietly;

/// Library that every dynamically linked program requires, and beside which the others of glibc are.
const C_LIBRARY: &str = "libc.so.6";
/// Libraries of glibc that the driver of NVIDIA requires and that the binary may not.
const DRIVER_LIBRARIES: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// Returns the paths of the libraries of a binary, of its loader, and of those that the library of a
/// driver requires in addition.
pub(super) fn required_by(binary: &Path) -> Result<Vec<PathBuf>, TestError> {
    let listed = run_quietly(Command::new("ldd").arg(binary))?;
    let mut paths = parse(&listed)?;
    let c_library = paths.iter().find(|path| path.ends_with(C_LIBRARY));
    let folder = c_library.and_then(|path| path.parent()).ok_or("the binary is linked without libc.so.6")?.to_owned();
    paths.extend(DRIVER_LIBRARIES.map(|name| folder.join(name)).into_iter().filter(|path| path.exists()));
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Parses lines as `libm.so.6 => /lib/libm.so.6 (0x7f…)`, and `/lib64/ld-linux-x86-64.so.2 (0x7f…)` for
/// the loader. Objects of the kernel have no path.
fn parse(listed: &str) -> Result<Vec<PathBuf>, TestError> {
    let mut paths = Vec::new();
    for line in listed.lines() {
        let place = line.split_once("=>").map_or(line, |(_, place)| place).trim();
        if place.starts_with("not found") {
            return Err(format!("a library is missing: {}", line.trim()).into());
        }
        let path = place.split_once(" (").map_or(place, |(path, _)| path);
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}
