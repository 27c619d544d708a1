//! Port numbers of a server's listeners, as far as its container declares them.

use serde_json::Value;

use super::command::env_entry;
use super::recipe_match::RecipeMatch;
use super::safety::{UNSEEN_SETTINGS, UNSEEN_VARIABLES};
use super::table::{MoveSetting, PORT_IF_SET, ServerListener};
use crate::access::text;
use crate::ports;

// === impl RecipeMatch ===

impl RecipeMatch {
    /// Returns the port numbers of a listener, as far as the container declares them. A flag that
    /// may be repeated yields several; `None` if a number cannot be determined.
    pub(super) fn numbers(&self, listener: &ServerListener, container: &Value) -> Option<Vec<u16>> {
        let known = |name: &str| {
            let entry = env_entry(container, name)?;
            // A variable without a literal value (`valueFrom`) yields the empty string: it is set,
            // but its value is unknown.
            Some(text(entry, &["value"]).unwrap_or_default())
        };
        let mut declared = ports::container_ports(container).map(|port| port.number);
        let only = declared.next().filter(|_| declared.next().is_none());
        let resolve = |given: &str| resolve_port(given, known).or(only);
        let of_address = |address: &str| match port_of(address) {
            _ if address.is_empty() => only,
            _ if address.starts_with("unix:") || address.starts_with("fd:") => None,
            Some(port) => resolve(port),
            None => Some(listener.port),
        };
        if let MoveSetting::Bind(flags) = listener.setting {
            let bound: Option<Vec<u16>> = self.flag_values(flags).map(|(_, _, value)| of_address(value)).collect();
            let bound = bound?;
            let is_unseen = self.flag_values(UNSEEN_SETTINGS).next().is_some()
                || UNSEEN_VARIABLES.iter().any(|name| known(name).is_some());
            if bound.is_empty() && is_unseen && ports::container_ports(container).count() > 1 {
                return None;
            }
            // gunicorn reads `PORT` only as the default of `bind`, which a configuration file
            // overrides. The port of such a file is the declared one, so the only declared port
            // takes precedence.
            let unbound = || only.or_else(|| listener.port_env.and_then(known).map_or(Some(listener.port), resolve));
            return if bound.is_empty() { unbound().map(|number| vec![number]) } else { Some(bound) };
        }
        let given = match listener.setting {
            MoveSetting::BindEnv(name, _) => known(name).map(of_address),
            _ => {
                let flag = self.flag_values(listener.port_flags).map(|(_, _, value)| value).last();
                flag.or_else(|| listener.port_env.and_then(known)).map(resolve)
            }
        };
        if given.is_none() && listener.port == PORT_IF_SET {
            return Some(Vec::new());
        }
        // A port that is set in an invisible place (a file, the image) is assumed to be the only
        // declared one.
        let own =
            self.recipe.listeners.iter().filter(|each| !matches!(each.setting, MoveSetting::WithFirst(_))).count();
        let is_only = own == 1 && !matches!(listener.setting, MoveSetting::WithFirst(_));
        let unseen = || only.filter(|_| is_only).unwrap_or(listener.port);
        given.unwrap_or_else(|| Some(unseen())).map(|number| vec![number])
    }
}

/// Returns the port of an address as written: `0.0.0.0:8000`, `[::]:$(PORT)`,
/// `http://0.0.0.0:8080`.
pub(super) fn port_of(address: &str) -> Option<&str> {
    let address = address.rsplit_once("//").map_or(address, |(_, address)| address);
    if let Some((_, port)) = address.split_once(":$") {
        return address.get(address.len() - port.len() - 1..);
    }
    let (host, port) = address.rsplit_once(':')?;
    // An IPv6 address without brackets has no port.
    (!host.contains(':') || host.ends_with(']')).then_some(port)
}

/// Parses a number, or resolves a variable reference to one.
fn resolve_port<'a>(text: &str, variable: impl Fn(&str) -> Option<&'a str>) -> Option<u16> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0);
    if let Some(number) = number(text) {
        return Some(number);
    }
    let inner = text.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.or_else(|| text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')));
    let inner = inner.or_else(|| text.strip_prefix('$'))?;
    let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
    variable(name).or(default).and_then(number)
}
