//! Parser of `app-listen` overrides, which make an application listen on loopback.

use super::shape::is_dns_label;
use crate::config;

/// Allowed values of the annotation, for a message.
pub(super) const APP_LISTEN: &str = "env:NAME=VALUE or arg:ARGUMENT, several separated by commas, with CONTAINER/ in front if the pod has several containers";
/// Allowed values in a policy, for a message.
pub(super) const POLICY_LISTENS: &str = "a policy can set only a loopback address or a port, by a known setting of a server, such as HOST or --host (listed in docs/injection.md); the annotation app-listen of the workload can set any";

/// An override that makes an application listen on loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AppListen {
    /// The container; `None` until it is selected.
    pub(super) container: Option<String>,
    /// The settings, at least one. A server with a listener for each protocol has a flag for each.
    pub(super) overrides: Vec<ListenOverride>,
}

/// A single setting of an `app-listen` override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListenOverride {
    /// An environment variable and its value.
    Env(String, String),
    /// An argument, such as `--host=127.0.0.1`, or a flag and its value as two words, for servers
    /// that do not accept `=`.
    Arg(Vec<String>),
}

// === impl AppListen ===

impl AppListen {
    /// Parses the override of a policy, which may set addresses and ports only.
    pub(super) fn parse_policy(text: &str) -> Option<Self> {
        let parsed = Self::parse(text)?;
        let (_, rest) = parsed.container.as_ref().and_then(|_| text.split_once('/')).unwrap_or(("", text));
        config::split_overrides(rest).iter().all(|one| config::is_listen_override(one)).then_some(parsed)
    }

    /// Parses an override; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (container, rest) = match text.split_once('/') {
            // A value may contain a slash too; a container name contains no colon.
            Some((container, rest)) if !container.is_empty() && !container.contains(':') => {
                (Some(container.to_owned()), rest)
            }
            _ => (None, text),
        };
        // All settings apply to one container. A container name in a later part would otherwise
        // become part of the preceding value.
        let another = |part: &str| {
            let (name, setting) = part.trim().split_once('/').unwrap_or_default();
            is_dns_label(name) && (setting.starts_with("env:") || setting.starts_with("arg:"))
        };
        if rest.split(',').any(another) {
            return None;
        }
        let overrides: Option<Vec<ListenOverride>> =
            config::split_overrides(rest).iter().map(|one| ListenOverride::parse(one)).collect();
        Some(Self { container, overrides: overrides? })
    }
}

// === impl ListenOverride ===

impl ListenOverride {
    fn parse(text: &str) -> Option<Self> {
        if let Some(argument) = text.strip_prefix("arg:") {
            // No server accepts two flags in one argument.
            let fits = !argument.is_empty() && !argument.contains(" --");
            return fits.then(|| Self::Arg(split_argument(argument)));
        }
        let (name, value) = text.strip_prefix("env:")?.split_once('=')?;
        // The API server's rule for names of variables.
        let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        named.then(|| Self::Env(name.to_owned(), value.to_owned()))
    }
}

/// Splits a flag and its value at the space between them; any other text is one argument.
fn split_argument(argument: &str) -> Vec<String> {
    match argument.split_once(' ') {
        Some((flag, value)) if flag.starts_with('-') && !flag.contains('=') && !value.trim().contains(' ') => {
            vec![flag.to_owned(), value.trim().to_owned()]
        }
        _ => vec![argument.to_owned()],
    }
}
