//! Address and trust anchor of the controller, from the environment variables that the injector
//! sets for a sidecar.
//!
//! An invalid address is reported and leaves the process without a controller, because serving
//! never depends on one.

use std::fmt;
use std::path::PathBuf;

/// Default port, that of the control stream's Service.
const PORT: u16 = 9444;
/// Default port of a URL.
const PORT_HTTPS: u16 = 443;
/// Path at which the injector mounts the sidecar's token.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Connection settings of the controller.
#[derive(Clone, PartialEq, Eq)]
pub struct ControllerEndpoint {
    /// Host name or IP address, without brackets: the address to connect to, and the name that its
    /// certificate must contain.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// CA bundle that verifies its certificate.
    pub ca: Option<CaBundle>,
    /// File that contains the token of the pod.
    pub token: PathBuf,
}

/// A CA bundle, inline or in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaBundle {
    /// Inline PEM text.
    Pem(String),
    /// Path of a file, which may change while the process runs.
    File(PathBuf),
}

// === impl ControllerEndpoint ===

impl ControllerEndpoint {
    /// Reads the settings from the environment; `None` if no controller is configured.
    ///
    /// # Errors
    /// `GROUPAGE_CONTROLLER` is not an address.
    pub fn from_environment() -> Result<Option<Self>, String> {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the settings from any set of variables. An empty variable counts as absent.
    ///
    /// # Errors
    /// The same as for [`ControllerEndpoint::from_environment`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let one = |name| get(name).filter(|value| !value.is_empty());
        let Some(address) = one("GROUPAGE_CONTROLLER").filter(|address| !address.eq_ignore_ascii_case("off")) else {
            return Ok(None);
        };
        let Some((host, port)) = parse_address(&address) else {
            return Err(format!(
                "GROUPAGE_CONTROLLER cannot be `{address:.200}`: give HOST:PORT, https://HOST:PORT or off"
            ));
        };
        let ca = one("GROUPAGE_CA")
            .map(|ca| if ca.contains("-----BEGIN") { CaBundle::Pem(ca) } else { CaBundle::File(PathBuf::from(ca)) });
        Ok(Some(Self {
            host,
            port,
            ca,
            token: one("GROUPAGE_TOKEN_FILE").map_or_else(|| PathBuf::from(TOKEN), PathBuf::from),
        }))
    }
}

impl fmt::Debug for ControllerEndpoint {
    /// Omits the bundle, which has about a hundred lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerEndpoint")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Returns `true` if a sidecar accepts the text as the address of a controller.
#[must_use]
pub fn is_controller_address(text: &str) -> bool {
    parse_address(text).is_some()
}

fn parse_address(text: &str) -> Option<(String, u16)> {
    let (rest, otherwise) = match text.split_once("://") {
        Some(("https", rest)) => (rest.strip_suffix('/').unwrap_or(rest), PORT_HTTPS),
        Some(_) => return None,
        None => (text, PORT),
    };
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (
                host.parse::<std::net::Ipv6Addr>().ok()?.to_string(),
                after.strip_prefix(':').map_or(after.is_empty().then_some(None), |port| Some(Some(port)))?,
            )
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (rest.to_owned(), None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None => otherwise,
    };
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    let fits = !host.is_empty() && host.len() <= 253 && host.bytes().all(letter);
    fits.then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<ControllerEndpoint>, String> {
        ControllerEndpoint::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_url() {
        for (text, host, port) in [
            ("groupage-stream.groupage-system.svc:9444", "groupage-stream.groupage-system.svc", 9444),
            ("controller", "controller", PORT),
            ("https://controller", "controller", 443),
            ("https://controller:8443/", "controller", 8443),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("[fd00::1]:2", "fd00::1", 2),
            ("https://[fd00::1]", "fd00::1", 443),
        ] {
            let found = read(&[("GROUPAGE_CONTROLLER", text)]).unwrap().unwrap();
            assert_eq!((found.host.as_str(), found.port), (host, port), "{text}");
        }
        for wrong in ["http://a:1", ":1", "a:0", "a:b", "a:1:2", "fd00::1", "[a]:1", "[::1]x", "a/b:1", "a b"] {
            let error = read(&[("GROUPAGE_CONTROLLER", wrong)]).unwrap_err();
            assert!(error.contains("HOST:PORT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn without_an_address_there_is_no_controller() {
        assert_eq!(read(&[]), Ok(None));
        for off in ["off", "OFF", ""] {
            assert_eq!(read(&[("GROUPAGE_CONTROLLER", off)]), Ok(None));
        }
    }

    #[test]
    fn a_bundle_is_pem_or_a_file_that_holds_it() {
        let with = |ca| read(&[("GROUPAGE_CONTROLLER", "a:1"), ("GROUPAGE_CA", ca)]).unwrap().unwrap();
        let pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        assert_eq!(with(pem).ca, Some(CaBundle::Pem(pem.to_owned())));
        assert_eq!(with("/ca/bundle.pem").ca, Some(CaBundle::File(PathBuf::from("/ca/bundle.pem"))));
        assert_eq!(with("").ca, None);
        assert_eq!(with("").token, PathBuf::from(TOKEN));
        assert!(!format!("{:?}", with(pem)).contains("BEGIN"));
    }
}
