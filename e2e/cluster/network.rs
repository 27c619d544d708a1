//! Mounts and addresses inside the namespaces.
//!
//! Addresses are of 198.18.0.0/15 (RFC 2544, never routed) and `fd00::/8`. The node's is a /32 on the loopback device, since a `dummy` device may not exist.
//! The bridge is there before the network plugin asks for it and carries the default route: otherwise a process outside the pods has no route to a
//! Service's address, and its connect fails before nftables sees it.

use std::process::Command;

use crate::Fault;
use crate::tools::quietly;

/// The node.
pub(super) const HOST: &str = "198.18.0.1";
/// The node.
pub(super) const HOST6: &str = "fd00:18::1";
/// Pods.
pub(super) const PODS: [&str; 2] = ["198.18.64.0/24", "fd00:64::/64"];
/// Services.
pub(super) const SERVICES: &str = "198.19.0.0/16,fd00:19::/112";
/// The first of them.
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

/// Folders of the node that programs write to whatever they are told; here they are this run's own.
const OWN: [&str; 3] = ["/run", "/var/log", "/var/lib/cni"];

/// Makes this process's mounts its own, with what is written to in memory: it vanishes with the namespace.
pub(super) fn mounts() -> Result<(), Fault> {
    quietly(Command::new("mount").args(["--make-rprivate", "/"]))?;
    for folder in OWN {
        std::fs::create_dir_all(folder)?;
        quietly(Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder]))?;
    }
    std::fs::create_dir_all("/run/lock")?;
    Ok(())
}

/// Addresses, bridge and routes.
pub(super) fn links() -> Result<(), Fault> {
    for line in LINKS.lines() {
        quietly(Command::new("ip").args(line.split(' '))).map_err(|fault| format!("{line}: {fault}"))?;
    }
    for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(format!("/proc/sys/net/{setting}"), "1")?;
    }
    Ok(())
}
