//! Check of `Host`, which keeps the pages of browsers away from the ports for metrics and the local
//! API on loopback.
//!
//! The name of a page may change its address to 127.0.0.1 (DNS rebinding). The browser then sends
//! requests of the page to a server on the user's machine, or through a `kubectl port-forward` to
//! one in a pod, and lets the page read the responses. `Host` still has the name of the page.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};

use super::LocalAddress;

/// Message for a rejected request.
pub const REFUSAL: &str = "the request must have one Host header, which must name a loopback address";

/// Returns `true` if a request arrived on an address of the network, or names a loopback address.
///
/// Every peer in the cluster may use any name for the address of the pod. A request whose local
/// address is not known counts as one on loopback.
#[must_use]
pub fn is_remote_or_loopback(request: &Request) -> bool {
    let is_remote = request.extensions().get::<LocalAddress>().is_some_and(|local| !local.is_loopback());
    is_remote || names_loopback(request.headers())
}

/// Returns `true` if the only `Host` header names a loopback address. Of two headers, another
/// recipient may evaluate the other one, so both are rejected (RFC 9112, section 3.2).
#[must_use]
pub fn names_loopback(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.to_str().is_ok_and(is_loopback_name)
}

fn is_loopback_name(host: &str) -> bool {
    // Browsers send no user information in `Host`, and the host is the part after its `@`.
    let Some(authority) = host.parse::<Authority>().ok().filter(|authority| !authority.as_str().contains('@')) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    const LOOPBACK: [&str; 5] = ["127.0.0.1:9191", "localhost", "LOCALHOST:1", "[::1]:9191", "127.9.9.9"];
    const FOREIGN: [&str; 7] = [
        "",
        "example.com",
        "10.0.0.1:9191",
        "localhost.evil.com",
        "localhost:80@evil.com",
        "[2001:db8::1]:80",
        "127.0.0.1.evil.com",
    ];

    const NONE: &[&str] = &[];

    fn request(local: Option<&str>, hosts: &[&str]) -> Request {
        let mut request = Request::new(Body::empty());
        for host in hosts {
            request.headers_mut().append(header::HOST, host.parse().unwrap());
        }
        if let Some(local) = local {
            request.extensions_mut().insert(LocalAddress(local.parse().unwrap()));
        }
        request
    }

    #[test]
    fn only_loopback_names_are_local() {
        for host in LOOPBACK {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in FOREIGN {
            assert!(!is_loopback_name(host), "{host}");
        }
    }

    #[test]
    fn one_host_header_is_required() {
        assert!(names_loopback(request(None, &["localhost"]).headers()));
        for hosts in [NONE, &["localhost", "localhost"], &["localhost", "h"], &["h", "localhost"]] {
            assert!(!names_loopback(request(None, hosts).headers()), "{hosts:?}");
        }
    }

    #[test]
    fn a_connection_on_loopback_needs_a_loopback_host() {
        for local in [None, Some("127.0.0.1:9190"), Some("[::1]:9190"), Some("[::ffff:127.0.0.1]:9190")] {
            for host in LOOPBACK {
                assert!(is_remote_or_loopback(&request(local, &[host])), "{local:?} {host}");
            }
            for host in FOREIGN {
                assert!(!is_remote_or_loopback(&request(local, &[host])), "{local:?} {host}");
            }
            assert!(!is_remote_or_loopback(&request(local, &["localhost", "localhost"])), "{local:?}");
        }
        for local in ["10.0.0.1:9190", "[2001:db8::1]:9190", "[::ffff:10.0.0.1]:9190"] {
            for hosts in [NONE, &["localhost"], &["pod.example"], &["a", "b"]] {
                assert!(is_remote_or_loopback(&request(Some(local), hosts)), "{local} {hosts:?}");
            }
        }
    }
}
