//! `injection.appListen`: the settings by which a policy makes an application listen on loopback.
//!
//! A policy may be written by users without permission to write workloads, so it sets addresses and
//! ports only, by the names from which servers read their own address. Any other variable or
//! argument would be code that runs in the pod (`LD_PRELOAD`, `PYTHONPATH`), or would connect the
//! application to another server (`HTTP_PROXY`, `VAULT_ADDR`). The names are listed instead of
//! derived from their last words, because `X_HOST` is the own address of one program and the server
//! of another. The annotation of a workload accepts any of them, because its author chooses the
//! image too.

use std::net::Ipv4Addr;

/// Forms a list of names.
macro_rules! list {
    ($($name:literal),+) => {
        &[$($name),+]
    };
}

/// Forms a pattern that matches one of the names. They contain no character with a meaning in a
/// regular expression.
macro_rules! any_of {
    ($first:literal $(, $name:literal)*) => {
        concat!("(", $first $(, "|", $name)*, ")")
    };
}

/// The known variables, in the form of `list` or `any_of`: those of the servers with a recipe, of
/// BentoML, Flask, Granian and `LocalAI`, and names in general use.
macro_rules! variables {
    ($form:ident) => {
        $form!(
            "ADDR",
            "ADDRESS",
            "BENTOML_HOST",
            "BENTOML_PORT",
            "BIND",
            "BIND_ADDR",
            "BIND_ADDRESS",
            "BIND_HOST",
            "BIND_PORT",
            "FLASK_RUN_HOST",
            "FLASK_RUN_PORT",
            "GRANIAN_HOST",
            "GRANIAN_PORT",
            "GRPC_PORT",
            "HOST",
            "HOSTNAME",
            "HTTP_PORT",
            "LISTEN",
            "LISTEN_ADDR",
            "LISTEN_ADDRESS",
            "LISTEN_HOST",
            "LISTEN_PORT",
            "LLAMA_ARG_HOST",
            "LLAMA_ARG_PORT",
            "LOCALAI_ADDRESS",
            "METRICS_PORT",
            "MLFLOW_HOST",
            "MLFLOW_PORT",
            "MLSERVER_GRPC_PORT",
            "MLSERVER_HOST",
            "MLSERVER_HTTP_PORT",
            "MLSERVER_METRICS_PORT",
            "OLLAMA_HOST",
            "PORT",
            "PROMETHEUS_PORT",
            "TS_GRPC_INFERENCE_ADDRESS",
            "TS_GRPC_INFERENCE_PORT",
            "TS_GRPC_MANAGEMENT_ADDRESS",
            "TS_GRPC_MANAGEMENT_PORT",
            "TS_INFERENCE_ADDRESS",
            "TS_MANAGEMENT_ADDRESS",
            "TS_METRICS_ADDRESS",
            "UVICORN_HOST",
            "UVICORN_PORT"
        )
    };
}

/// The known flags without their dashes, in the form of `list` or `any_of`: those of the servers
/// with a recipe, and names in general use.
macro_rules! flags {
    ($form:ident) => {
        $form!(
            "addr",
            "address",
            "bind",
            "bind-addr",
            "bind-address",
            "grpc-address",
            "grpc-host",
            "grpc-port",
            "grpc_port",
            "host",
            "hostname",
            "http-address",
            "http-host",
            "http-port",
            "http_port",
            "ip",
            "listen",
            "listen-addr",
            "listen-address",
            "listen-host",
            "listen-port",
            "metrics-address",
            "metrics-port",
            "port",
            "prometheus-port",
            "prometheus_metrics_port",
            "rest_api_port"
        )
    };
}

/// Pattern of a port, of at most five digits.
macro_rules! port {
    () => {
        "([0-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
    };
}

/// Pattern of a loopback address or a port.
macro_rules! address {
    () => {
        concat!(
            "((https?|grpc|tcp)://)?(",
            port!(),
            r"|(localhost|127(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}|::1|\[::1\])(:",
            port!(),
            ")?)"
        )
    };
}

/// Pattern of a variable or an argument with its value.
macro_rules! setting {
    () => {
        concat!("(env:", variables!(any_of), "=|arg:--?", flags!(any_of), "(=| +))", address!())
    };
}

const VARIABLES: &[&str] = variables!(list);
const FLAGS: &[&str] = flags!(list);
/// Schemes that may precede an address to listen on, as in the addresses of `TorchServe`.
const SCHEMES: [&str; 4] = ["http://", "https://", "grpc://", "tcp://"];

/// Regular expression for the API server of what a policy may set: a container, then variables and
/// arguments separated by commas. It matches exactly the texts that [`is_app_listen`] accepts.
pub(super) const PATTERN: &str = concat!("^([a-z0-9-]+/)?", setting!(), "(, *", setting!(), ")*$");

/// Returns `true` if a policy may set this value.
pub(super) fn is_app_listen(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let settings = match text.split_once('/') {
        Some((container, settings)) if !container.is_empty() && container.bytes().all(fits) => settings,
        _ => text,
    };
    split_overrides(settings).iter().all(|one| is_listen_override(one))
}

/// Returns `true` for a known variable or flag that sets a loopback address or a port to listen on.
#[must_use]
pub fn is_listen_override(text: &str) -> bool {
    if let Some(variable) = text.strip_prefix("env:") {
        return variable
            .split_once('=')
            .is_some_and(|(name, value)| VARIABLES.contains(&name) && is_listen_value(value));
    }
    let Some(flag) = text.strip_prefix("arg:-") else { return false };
    let flag = flag.strip_prefix('-').unwrap_or(flag);
    let two_words = || flag.split_once(' ').map(|(name, value)| (name, value.trim_start_matches(' ')));
    flag.split_once('=').or_else(two_words).is_some_and(|(name, value)| FLAGS.contains(&name) && is_listen_value(value))
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
mod tests;
