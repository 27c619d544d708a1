//! Netlink socket: lists existing rules, commits a transaction, and converts the kernel's errors to
//! messages.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::RedirectError;
use super::message::{DUMP, NetlinkMessage, NetlinkReply, REQUEST, replies};
use super::ruleset::{GET_CHAIN, GET_RULE, NetlinkBatch, RedirectStep};

/// Receive timeout. The kernel answers synchronously unless it has to load a module first.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Size of the receive buffer, larger than the kernel's largest datagram (32 KiB,
/// `NLMSG_GOODSIZE`).
const READ_BYTES: usize = 64 << 10;
/// Maximum size of the listed rules. A Kubernetes node with thousands of Services has some MiB, a
/// pod a few KiB.
const LISTED_BYTES_MAX: usize = 16 << 20;
/// Files in which the kernel lists the tables of legacy iptables, one for each IP version.
const LEGACY_TABLE_FILES: [&str; 2] = ["/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"];

/// A connection to the kernel's `nf_tables` in the network namespace of this process.
#[derive(Debug)]
pub(super) struct NfTablesSocket {
    socket: OwnedFd,
    sequence: u32,
}

// === impl NfTablesSocket ===

impl NfTablesSocket {
    pub(super) fn open() -> Result<Self, RedirectError> {
        let open = || {
            let flags = SocketFlags::CLOEXEC;
            let socket =
                rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
            sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
            rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
            Ok(socket)
        };
        let socket = open().map_err(|errno: Errno| to_redirect_error(RedirectStep::Socket, errno))?;
        // Above the sequence numbers of a transaction.
        Ok(Self { socket, sequence: 1 << 16 })
    }

    /// Lists every chain, as raw netlink messages.
    pub(super) fn list_chains(&mut self) -> Result<Vec<Vec<u8>>, RedirectError> {
        self.list(GET_CHAIN)
    }

    /// Lists every rule, as raw netlink messages.
    pub(super) fn list_rules(&mut self) -> Result<Vec<Vec<u8>>, RedirectError> {
        self.list(GET_RULE)
    }

    fn list(&mut self, kind: u16) -> Result<Vec<Vec<u8>>, RedirectError> {
        self.try_list(kind).map_err(|errno| to_redirect_error(RedirectStep::ListRules, errno))
    }

    fn try_list(&mut self, kind: u16) -> Result<Vec<Vec<u8>>, Errno> {
        self.sequence += 1;
        let message = NetlinkMessage::new(kind, REQUEST | DUMP, self.sequence, (0, 0)).finish();
        self.send(&message)?;
        let (mut all, mut bytes) = (Vec::new(), 0);
        loop {
            let read = self.read()?;
            let mut done = false;
            for reply in replies(&read) {
                match reply {
                    NetlinkReply::Ack { sequence, errno } if sequence == self.sequence && errno != 0 => {
                        return Err(Errno::from_raw_os_error(errno));
                    }
                    NetlinkReply::Done { errno: 0 } => done = true,
                    NetlinkReply::Done { errno } => return Err(Errno::from_raw_os_error(errno)),
                    NetlinkReply::Ack { .. } | NetlinkReply::Item(_) => {}
                }
            }
            bytes += read.len();
            all.push(read);
            if done {
                return Ok(all);
            }
            if bytes > LISTED_BYTES_MAX {
                return Err(Errno::TOOBIG);
            }
        }
    }

    /// Commits a transaction, which the kernel applies completely or not at all.
    pub(super) fn commit(&self, transaction: &NetlinkBatch) -> Result<(), RedirectError> {
        self.send(&transaction.bytes()).map_err(|errno| to_redirect_error(RedirectStep::Transaction, errno))?;
        loop {
            let read = self.read().map_err(|errno| to_redirect_error(RedirectStep::Transaction, errno))?;
            for reply in replies(&read) {
                // The first error is returned; the kernel reports errors in the order of the
                // messages.
                match reply {
                    NetlinkReply::Ack { sequence, errno: 0 } if sequence == transaction.acknowledged_sequence() => {
                        return Ok(());
                    }
                    NetlinkReply::Ack { errno: 0, .. } | NetlinkReply::Done { .. } | NetlinkReply::Item(_) => {}
                    NetlinkReply::Ack { sequence, errno } => {
                        return Err(to_redirect_error(transaction.step(sequence), Errno::from_raw_os_error(errno)));
                    }
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, bytes, SendFlags::empty())).map(drop)
    }

    fn read(&self) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; READ_BYTES];
        let (_, length) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::TRUNC))?;
        if length > READ_BYTES {
            return Err(Errno::MSGSIZE);
        }
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Returns a warning about rules that may redirect a port and cannot be listed.
pub(super) fn legacy_iptables_warning() -> Option<String> {
    let found = LEGACY_TABLE_FILES.iter().find(|path| has_nat(Path::new(path)))?;
    let command = if found.contains("ip6") { "ip6tables" } else { "iptables" };
    Some(format!(
        "legacy iptables has a nat table here, which cannot be read and may redirect these ports: check with {command}-legacy -t nat -S PREROUTING"
    ))
}

fn has_nat(names: &Path) -> bool {
    std::fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "nat"))
}

/// Maps an error at a step to its cause.
fn to_redirect_error(step: RedirectStep, errno: Errno) -> RedirectError {
    let unsupported_errnos = [Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::NOENT];
    match step {
        _ if matches!(errno, Errno::PERM | Errno::ACCESS) => RedirectError::MissingCapability,
        RedirectStep::Socket | RedirectStep::ListRules | RedirectStep::Transaction
            if unsupported_errnos.contains(&errno) =>
        {
            RedirectError::NfTablesUnavailable
        }
        // Only a table, chain or rule needs kernel features beyond `nf_tables` itself: the table
        // needs its family, the chain needs NAT, the rule needs its expressions.
        RedirectStep::Table | RedirectStep::Chain | RedirectStep::Rule(_) if unsupported_errnos.contains(&errno) => {
            RedirectError::NatUnavailable
        }
        step => RedirectError::Kernel { step, source: io::Error::from(errno) },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Redirect;
    use super::*;

    #[test]
    fn errors_of_the_kernel_are_explained() {
        let rule = RedirectStep::Rule(Redirect { port: 8080, listen: 15080 });
        let cases = [
            (RedirectStep::ListRules, Errno::PERM, "NET_ADMIN"),
            (RedirectStep::Socket, Errno::ACCESS, "NET_ADMIN"),
            (rule, Errno::PERM, "NET_ADMIN"),
            (RedirectStep::Socket, Errno::PROTONOSUPPORT, "no nf_tables"),
            (RedirectStep::ListRules, Errno::INVAL, "no nf_tables"),
            (RedirectStep::Transaction, Errno::OPNOTSUPP, "no nf_tables"),
            (RedirectStep::Table, Errno::AFNOSUPPORT, "cannot redirect"),
            (RedirectStep::Chain, Errno::NOENT, "cannot redirect"),
            (rule, Errno::NOENT, "cannot redirect"),
            (rule, Errno::NOMEM, "writing the rule of port 8080: "),
            (RedirectStep::ListRules, Errno::TOOBIG, "reading the existing rules: "),
            (RedirectStep::Transaction, Errno::AGAIN, "writing the rules: "),
        ];
        for (step, errno, words) in cases {
            let message = to_redirect_error(step, errno).to_string();
            assert!(message.contains(words), "{step:?} {errno:?}: {message}");
        }
    }

    #[test]
    fn legacy_iptables_nat_tables_are_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names");
        assert!(!has_nat(&path));
        for (text, found) in [("", false), ("filter\n", false), ("filter\nnat\n", true)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(has_nat(&path), found, "{text:?}");
        }
    }
}
