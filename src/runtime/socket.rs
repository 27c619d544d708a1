//! Listening sockets for the data ports and the admin ports.
//!
//! `[::]` means all addresses of both families regardless of the machine's default, and all IPv4
//! addresses if IPv6 is not available, so that single-stack and dual-stack pods need no other
//! setting.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use socket2::SockRef;

/// Maximum length of the kernel's accept queue, the kernel's own default limit
/// (`net.core.somaxconn`). A connection beyond it is retried by its client after a second.
const BACKLOG: i32 = 4096;

/// Number of unsent bytes of a response from which on the kernel takes no more. Writers are woken
/// at half of it, which is as much as hyper buffers. Without a limit it takes megabytes for each
/// client that does not read, which count towards the memory limit of the pod.
const UNSENT_MAX: u32 = 128 << 10;

/// Binds a non-blocking listener.
///
/// # Errors
/// Returns an error if the address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    bind_available(address, bind_exact)
}

/// Binds with `bind`, and binds all IPv4 addresses if all addresses are requested without IPv6.
fn bind_available<T>(address: SocketAddr, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind(address) {
        Err(error) if is_every_v6(address) && has_no_v6(&error) => {
            bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
        }
        bound => bound,
    }
}

fn bind_exact(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted sidecar binds its port again although old connections are in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // A single IPv6 address coexists with an IPv4 socket on the same port; the unspecified
        // address accepts both families.
        sockopt::set_ipv6_v6only(&socket, !is_every_v6(address))?;
    }
    // Accepted connections inherit the option. A kernel without it serves all the same.
    SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_MAX).ok();
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

const fn is_every_v6(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unspecified())
}

/// Returns `true` if the kernel does not support IPv6, or it is disabled in the network namespace.
fn has_no_v6(error: &io::Error) -> bool {
    let none = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    none.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use groupage_testkit::report_skipped;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_bind_to_all_addresses_accepts_both_families() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() && bind("[::1]:0".parse().unwrap()).is_ok() {
            TcpStream::connect(("::1", port)).unwrap();
        } else {
            report_skipped("no IPv6 on loopback: only IPv4 is tested");
        }
    }

    #[test]
    fn accepted_connections_hold_few_unsent_bytes() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(SockRef::from(&accepted).tcp_notsent_lowat().unwrap(), UNSENT_MAX);
    }

    #[test]
    fn a_bind_to_one_address_excludes_others_and_fails_if_it_is_taken() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(bind(address).is_err());
        assert!(TcpStream::connect(("127.0.0.2", address.port())).is_err());
    }

    #[test]
    fn without_ipv6_a_bind_to_all_addresses_accepts_ipv4() {
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let without_v6 =
                |address: SocketAddr| if address.is_ipv6() { Err(io::Error::from(errno)) } else { bind_exact(address) };
            let listener = bind_available("[::]:0".parse().unwrap(), without_v6).unwrap();
            let address = listener.local_addr().unwrap();
            assert_eq!(address.ip(), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            TcpStream::connect(("127.0.0.1", address.port())).unwrap();
        }
    }

    #[test]
    fn the_fallback_to_ipv4_keeps_the_port_and_replaces_nothing_else() {
        let bound = |address: &str, errno: Errno| {
            let refuse_v6 =
                |address: SocketAddr| if address.is_ipv6() { Err(io::Error::from(errno)) } else { Ok(address) };
            bind_available(address.parse().unwrap(), refuse_v6).map_err(|error| error.raw_os_error())
        };
        assert_eq!(bound("[::]:8080", Errno::AFNOSUPPORT), Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080))));
        assert_eq!(bound("[::]:8080", Errno::ADDRINUSE), Err(Some(Errno::ADDRINUSE.raw_os_error())));
        assert_eq!(bound("[::1]:8080", Errno::ADDRNOTAVAIL), Err(Some(Errno::ADDRNOTAVAIL.raw_os_error())));
    }
}
