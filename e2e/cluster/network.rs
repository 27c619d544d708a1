//! Mounts and network addresses inside the namespaces.
//!
//! Addresses are taken from 198.18.0.0/15 (RFC 2544, never routed) and `fd00::/8`. The node's
//! address is a /32 on the loopback device, since a `dummy` device is not always available. The
//! bridge is created before the network plugin uses it and carries the default route: otherwise a
//! process outside the pods has no route to a Service's address, and its connect fails before
//! nftables processes it.

use std::process::Command;

use crate::TestError;
use crate::programs::run_quietly;

/// IPv4 address of the node.
pub(super) const HOST: &str = "198.18.0.1";
/// IPv6 address of the node.
pub(super) const HOST6: &str = "fd00:18::1";
/// Address ranges of pods.
pub(super) const PODS: [&str; 2] = ["198.18.64.0/24", "fd00:64::/64"];
/// Address ranges of Services.
pub(super) const SERVICES: &str = "198.19.0.0/16,fd00:19::/112";
/// Address of the API server's Service, the first of the range.
pub(super) const SERVICE_OF_THE_API: &str = "198.19.0.1";

const LINKS: &str = "\
link set lo up
addr add 198.18.0.1/32 dev lo
addr add fd00:18::1/128 dev lo
link add cni0 type bridge
addr add 198.18.64.1/24 dev cni0
addr add fd00:64::1/64 dev cni0 nodad
link set cni0 up
route add default dev cni0
-6 route add default dev cni0
";

/// Folders that some programs write to regardless of their configuration. Each run mounts its own.
const PRIVATE_DIRS: [&str; 3] = ["/run", "/var/log", "/var/lib/cni"];

/// Makes the mounts of this process private and mounts in-memory file systems on the folders in
/// [`PRIVATE_DIRS`]. They vanish with the namespace.
pub(super) fn set_up_mounts() -> Result<(), TestError> {
    run_quietly(Command::new("mount").args(["--make-rprivate", "/"]))?;
    for folder in PRIVATE_DIRS {
        std::fs::create_dir_all(folder)?;
        run_quietly(Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder]))?;
    }
    std::fs::create_dir_all("/run/lock")?;
    Ok(())
}

/// Configures addresses, bridge and routes.
pub(super) fn set_up_links() -> Result<(), TestError> {
    for line in LINKS.lines() {
        run_quietly(Command::new("ip").args(line.split(' '))).map_err(|fault| format!("{line}: {fault}"))?;
    }
    for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{setting}"), "1")?;
    }
    Ok(())
}
