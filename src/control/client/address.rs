//! Address of a controller, as a host and a port.

use std::fmt;

/// Address of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerAddress {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

// === impl ControllerAddress ===

impl ControllerAddress {
    /// Parses `host:port`, with an IPv6 address in brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let plain = bare.is_some() || !host.contains(':');
        let fits =
            !host.is_empty() && host.len() <= 253 && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        (plain && fits).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for (text, host) in [("a.b.svc:9444", "a.b.svc"), ("10.0.0.1:1", "10.0.0.1"), ("[fd00::1]:65535", "fd00::1")] {
            let address = ControllerAddress::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.to_string().as_str()), (host, text));
        }
        for wrong in ["", "a", "a:", ":1", "a:0", "a:65536", "fd00::1:9444", "a b:1", "a/b:1", "[]:1", "ä:1"] {
            assert_eq!(ControllerAddress::parse(wrong), None, "{wrong}");
        }
    }
}
