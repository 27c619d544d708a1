//! `injection.appListen`: the settings by which a policy makes an application listen on loopback.
//!
//! A policy may be written by users without permission to write workloads, so it sets addresses and
//! ports only. Any other variable or argument would be code that runs in the pod (`LD_PRELOAD`,
//! `PYTHONPATH`, a proxy for its calls). The annotation of a workload accepts any of them, because
//! its author chooses the image too.

use std::net::Ipv4Addr;

/// Pattern of a name that ends with one of [`LISTEN_WORDS`], in any letter case.
macro_rules! name {
    () => {
        concat!(
            "([A-Za-z0-9._-]*[._-])?",
            "([Hh][Oo][Ss][Tt]([Nn][Aa][Mm][Ee])?|[Ii][Pp]|[Bb][Ii][Nn][Dd]|[Ll][Ii][Ss][Tt][Ee][Nn]|",
            "[Aa][Dd][Dd][Rr]([Ee][Ss][Ss])?|[Pp][Oo][Rr][Tt])"
        )
    };
}

/// Pattern of a variable or an argument with a loopback address or a port.
macro_rules! address {
    () => {
        concat!(
            "(env:",
            name!(),
            "=|arg:-",
            name!(),
            "[= ] *)((https?|grpc|tcp)://)?",
            r"([0-9]{1,5}|(localhost|127(\.[0-9]{1,3}){3}|::1|\[::1\])(:[0-9]{1,5})?)"
        )
    };
}

/// Last words of names that contain an address or a port to listen on.
const LISTEN_WORDS: [&str; 8] = ["host", "hostname", "ip", "bind", "listen", "addr", "address", "port"];
/// Words of names that contain the address of another process, to which an application connects.
const PEER_WORDS: [&str; 18] = [
    "proxy",
    "kubernetes",
    "docker",
    "database",
    "db",
    "redis",
    "postgres",
    "mysql",
    "mongo",
    "kafka",
    "broker",
    "upstream",
    "remote",
    "peer",
    "otel",
    "otlp",
    "master",
    "target",
];
/// Schemes that may precede an address to listen on, as in the addresses of `TorchServe`.
const SCHEMES: [&str; 4] = ["http://", "https://", "grpc://", "tcp://"];

/// Regular expression for the API server of what a policy may set: a container, then variables and
/// arguments separated by commas.
pub(super) const PATTERN: &str = concat!("^([a-z0-9-]+/)?", address!(), "(, *", address!(), ")*$");

/// Returns `true` if a policy may set this value.
pub(super) fn is_app_listen(text: &str) -> bool {
    let within = |text: &str, may: fn(char) -> bool| !text.is_empty() && text.chars().all(may);
    let container = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let way = match text.split_once('/') {
        Some((name, way)) if within(name, container) => way,
        _ => text,
    };
    let another =
        |part: &str| part.trim().split_once('/').is_some_and(|(name, way)| within(name, container) && is_override(way));
    !way.split(',').any(another) && split_overrides(way).iter().all(|one| is_listen_override(one))
}

/// Returns `true` for a variable or an argument that sets a loopback address or a port to listen
/// on.
#[must_use]
pub fn is_listen_override(text: &str) -> bool {
    let parts = match (text.strip_prefix("env:"), text.strip_prefix("arg:")) {
        (Some(variable), _) => variable.split_once('='),
        (None, Some(argument)) => argument.strip_prefix('-').and_then(|flag| flag.split_once(['=', ' '])),
        (None, None) => None,
    };
    parts.is_some_and(|(name, value)| is_listen_name(name) && is_listen_value(value.trim_start_matches(' ')))
}

fn is_listen_name(name: &str) -> bool {
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    let is_one_of = |words: &[&str], part: &str| words.iter().any(|word| word.eq_ignore_ascii_case(part));
    let mut parts = name.split(['.', '_', '-']);
    fits && !parts.clone().any(|part| is_one_of(&PEER_WORDS, part))
        && parts.next_back().is_some_and(|last| is_one_of(&LISTEN_WORDS, last))
}

fn is_listen_value(value: &str) -> bool {
    let address = SCHEMES.iter().find_map(|scheme| value.strip_prefix(scheme)).unwrap_or(value);
    let is_port =
        |text: &str| text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    let is_loopback = |host: &str| {
        matches!(host, "localhost" | "::1" | "[::1]") || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
    };
    is_port(address)
        || is_loopback(address)
        || address.rsplit_once(':').is_some_and(|(host, port)| is_port(port) && is_loopback(host))
}

fn is_override(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("arg:")
}

/// Splits a list of variables and arguments at commas, without the container prefix. A value may
/// contain a comma too, so a comma ends it only if another variable or argument follows.
#[must_use]
pub fn split_overrides(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for part in text.split(',') {
        let begun = part.trim_start_matches(' ');
        match found.last_mut() {
            Some(_) if is_override(begun) => found.push(begun.to_owned()),
            Some(last) => {
                last.push(',');
                last.push_str(part);
            }
            None => found.push(part.to_owned()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_listen_accepts_only_addresses_and_ports() {
        for good in [
            "env:OLLAMA_HOST=127.0.0.1:11434",
            "env:HOST=::1",
            "env:TS_INFERENCE_ADDRESS=http://127.0.0.1:8080",
            "server/arg:--http-address=127.0.0.1,arg:--grpc-address=127.0.0.1",
            "arg:--host 127.0.0.1",
            "arg:--port=9001",
            "arg:--bind=[::1]:8000",
            "env:MLSERVER_HOST=localhost",
        ] {
            assert!(is_app_listen(good), "{good}");
        }
        for bad in [
            "server/env:LD_PRELOAD=/models/evil.so",
            "env:LD_PRELOAD=127.0.0.1",
            "env:PATH=127.0.0.1",
            "env:PYTHONPATH=127.0.0.1",
            "env:PYTHONSTARTUP=/x",
            "env:HTTP_PROXY=http://127.0.0.1:1",
            "env:https_proxy=127.0.0.1:1",
            "env:HTTP_PROXY_HOST=127.0.0.1",
            "env:KUBERNETES_SERVICE_HOST=127.0.0.1",
            "env:DOCKER_HOST=tcp://127.0.0.1:1",
            "env:HOST=0.0.0.0",
            "env:HOST=10.0.0.1:80",
            "env:HOST=$(touch x)",
            "env:HOST=127.0.0.1 --reload",
            "env:A HOST=127.0.0.1",
            "env:HOST=127.0.0.1,env:LD_AUDIT=127.0.0.1",
            "arg:--host=127.0.0.1 --app-dir=/x",
            "arg:--config=127.0.0.1",
            "arg:127.0.0.1",
            "arg:--host",
            "env:PORT=65536",
            "env:PORT=",
        ] {
            assert!(!is_app_listen(bad), "{bad}");
        }
    }
}
