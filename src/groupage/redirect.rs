//! Redirects ports of a pod to its sidecar, by rules in the kernel's `nf_tables`.
//!
//! The rules are written over netlink, because the image contains no tool that could write them:
//! one table of the family `inet` (IPv4 and IPv6) with one chain at the prerouting hook. An inbound
//! connection to a captured port arrives at the sidecar's port. A process of the pod that connects
//! to the port, on loopback or on the pod's own address, uses the loopback device and is not
//! redirected. So the sidecar reaches its application, and no rule has to match the sender.
//!
//! ```text
//! outside ──▶ eth0 ──▶ prerouting: tcp, port 8080 ──▶ 15080, the sidecar ──▶ lo ──▶ 8080, the app
//! ```
//! The table is replaced in one transaction, because an init container may run again. `message`
//! encodes and decodes netlink, `ruleset` builds the transaction, `conflicts` finds existing rules
//! that redirect the same ports; all three are pure. `kernel` is the socket.
//!
//! This module excludes the removal of the rules (they end with the pod's network namespace) and
//! the choice of the redirected ports (`injector`).

mod kernel;
mod message;
mod conflicts;
mod ruleset;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use self::conflicts::{ForeignRules, RedirectConflict};
use self::kernel::NfTablesSocket;
pub use self::ruleset::RedirectStep;

/// Maximum number of redirects, equal to the number of ports that a sidecar captures (`injector`).
/// A transaction with that many rules is about 18 KiB, far below the limit of one send on the
/// socket.
pub const REDIRECTS_MAX: usize = 64;

/// A port and the port that it is redirected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Redirect {
    /// Port of the application.
    pub port: u16,
    /// Port of the sidecar.
    pub listen: u16,
}

/// Result of a successful write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Descriptions of existing rules that may redirect a port before the new rules do.
    pub warnings: Vec<String>,
}

/// Reason why no rule was written.
#[derive(Debug, Error)]
pub enum RedirectError {
    /// The redirects are invalid.
    #[error("{0}")]
    InvalidArgument(String),
    /// The process lacks the capability `NET_ADMIN`.
    #[error(
        "the kernel rejects rules from this process: it needs the capability NET_ADMIN in the pod's network (Pod Security levels below privileged forbid it: use capture Named or Loopback instead)"
    )]
    MissingCapability,
    /// The kernel has no `nf_tables`.
    #[error(
        "the kernel has no nf_tables (module nf_tables, CONFIG_NF_TABLES): no port can be redirected on this node; use capture Named or Loopback instead"
    )]
    NfTablesUnavailable,
    /// The kernel has `nf_tables`, but cannot redirect with it.
    #[error(
        "the kernel's nf_tables cannot redirect in the family inet (Linux 5.2 or later with nft_chain_nat and nft_redir): no port can be redirected on this node; use capture Named or Loopback instead"
    )]
    NatUnavailable,
    /// An existing rule redirects a port.
    #[error(
        "{0}: two redirects of one port conflict; use capture Named or Loopback instead, or exclude the pod from the other redirect"
    )]
    PortAlreadyRedirected(String),
    /// Any other error.
    #[error("{step}: {source}")]
    Kernel {
        /// The step that failed.
        step: RedirectStep,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

// === impl Redirect ===

impl FromStr for Redirect {
    type Err = String;

    /// Parses `PORT=LISTEN`, the format that the injector writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0);
        let both = text.split_once('=').and_then(|(port, listen)| Some((number(port)?, number(listen)?)));
        let (port, listen) = both.ok_or("expected PORT=LISTEN, both 1 to 65535, as in 8080=15080")?;
        if port == listen {
            return Err(format!("port {port} would be redirected to itself"));
        }
        Ok(Self { port, listen })
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {} is redirected to {}", self.port, self.listen)
    }
}

/// Writes the rules of these redirects into the network namespace of this process, and replaces
/// those of an earlier write. May block for some milliseconds, and longer if the kernel has to load
/// a module.
///
/// # Errors
/// Returns the reason if no rule was changed.
pub fn install(redirects: &[Redirect]) -> Result<WriteReport, RedirectError> {
    check(redirects)?;
    let mut kernel = NfTablesSocket::open()?;
    let others = ForeignRules::read(&kernel.list_chains()?, &kernel.list_rules()?);
    let mut warnings = Vec::new();
    for redirect in redirects {
        match others.find_conflict(redirect.port) {
            None => {}
            Some(RedirectConflict { by, is_certain: true }) => return Err(RedirectError::PortAlreadyRedirected(by)),
            Some(RedirectConflict { by, is_certain: false }) => warnings.push(by),
        }
    }
    warnings.extend(kernel::legacy_iptables_warning());
    kernel.commit(&ruleset::build_transaction(redirects))?;
    Ok(WriteReport { warnings })
}

fn check(redirects: &[Redirect]) -> Result<(), RedirectError> {
    let invalid = |reason: String| Err(RedirectError::InvalidArgument(reason));
    if redirects.is_empty() {
        return invalid("no port given: use --redirect PORT=LISTEN".to_owned());
    }
    if redirects.len() > REDIRECTS_MAX {
        return invalid(format!("{} ports given, and a sidecar captures at most {REDIRECTS_MAX}", redirects.len()));
    }
    let twice = redirects
        .iter()
        .enumerate()
        .find(|(at, redirect)| redirects.iter().take(*at).any(|before| before.port == redirect.port));
    twice.map_or(Ok(()), |(_, redirect)| invalid(format!("port {} is given twice", redirect.port)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::fd::AsFd as _;
    use std::process::{Command, Stdio};

    use super::message::{NetlinkReply, replies};
    use super::*;
    use crate::testkit::report_skipped;

    #[test]
    fn a_redirect_is_parsed_from_two_different_port_numbers() {
        assert_eq!("8080=15080".parse(), Ok(Redirect { port: 8080, listen: 15080 }));
        for wrong in ["", "8080", "8080:15080", "0=1", "1=0", "8080=", "=15080", "8080=65536", " 8080=1", "8080=8080"] {
            assert!(wrong.parse::<Redirect>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn invalid_redirects_are_refused_without_the_kernel() {
        let many: Vec<Redirect> = (1..=65).map(|port| Redirect { port, listen: 15080 }).collect();
        let twice =
            [Redirect { port: 80, listen: 1 }, Redirect { port: 81, listen: 2 }, Redirect { port: 80, listen: 3 }];
        for (redirects, reason) in [(&[][..], "no port"), (&many, "65 ports"), (&twice, "port 80 is given twice")] {
            let error = install(redirects).unwrap_err();
            assert!(matches!(&error, RedirectError::InvalidArgument(text) if text.contains(reason)), "{error}");
        }
        assert!(check(&many[..64]).is_ok());
    }

    /// Runs a test in its own network namespace, or reports why it cannot.
    fn in_own_network(work: impl FnOnce() + Send) {
        let holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo there; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let there = holder.ok().and_then(|mut holder| {
            let mut line = String::new();
            BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
            (line == "there\n").then_some(holder)
        });
        let Some(mut holder) = there else {
            report_skipped("cannot create a network namespace (requires root and unshare)");
            return;
        };
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
                if matches!(
                    NfTablesSocket::open().and_then(|mut kernel| kernel.list_chains()),
                    Err(RedirectError::NfTablesUnavailable)
                ) {
                    report_skipped("the kernel has no nf_tables");
                } else {
                    work();
                }
            });
        });
        drop(holder.stdin.take());
        holder.wait().unwrap();
    }

    fn items(listed: &[Vec<u8>]) -> usize {
        listed.iter().flat_map(|read| replies(read)).filter(|reply| matches!(reply, NetlinkReply::Item(_))).count()
    }

    #[test]
    fn our_table_is_replaced_completely_and_foreign_redirects_are_kept() {
        in_own_network(|| {
            let [web, grpc] = [Redirect { port: 8080, listen: 15080 }, Redirect { port: 9000, listen: 15081 }];
            let counted = || {
                let mut kernel = NfTablesSocket::open().unwrap();
                (items(&kernel.list_chains().unwrap()), items(&kernel.list_rules().unwrap()))
            };
            for (redirects, rules) in [(&[web, grpc][..], 2), (&[web, grpc], 2), (&[grpc], 1)] {
                assert_eq!(install(redirects).unwrap(), WriteReport::default());
                assert_eq!(counted(), (1, rules));
            }
            // The same ruleset of another owner, under a name of the same length.
            let mut theirs = ruleset::build_transaction(&[web]);
            for part in &mut theirs.parts {
                let found = part.bytes.windows(8).position(|bytes| bytes == b"groupage");
                if let Some(at) = found {
                    part.bytes[at..at + 8].copy_from_slice(b"somebody");
                }
            }
            NfTablesSocket::open().unwrap().commit(&theirs).unwrap();
            assert_eq!(counted(), (2, 2));
            let error = install(&[grpc, web]).unwrap_err().to_string();
            let message = "port 8080 is already redirected by chain prerouting of table inet somebody: ";
            assert!(error.starts_with(message), "{error}");
            assert_eq!(counted(), (2, 2), "nothing was changed");
            assert_eq!(install(&[grpc]).unwrap(), WriteReport::default());
        });
    }

    #[test]
    fn a_transaction_that_the_kernel_refuses_changes_nothing() {
        in_own_network(|| {
            let mut wrong = ruleset::build_transaction(&[Redirect { port: 8080, listen: 15080 }]);
            for part in wrong.parts.iter_mut().filter(|part| matches!(part.step, RedirectStep::Rule(_))) {
                let found = part.bytes.windows(5).position(|bytes| bytes == b"redir").unwrap();
                part.bytes[found..found + 5].copy_from_slice(b"nosuc");
            }
            let mut kernel = NfTablesSocket::open().unwrap();
            let error = kernel.commit(&wrong).unwrap_err();
            assert!(matches!(error, RedirectError::NatUnavailable), "{error}");
            assert_eq!(items(&kernel.list_chains().unwrap()), 0);
        });
    }
}
