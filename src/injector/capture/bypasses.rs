//! Traffic of a port that bypasses the sidecar.

use crate::planned::PortCapture;
use crate::ports::PortCandidate;
use crate::referrers::Referrers;

/// Returns the traffic that reaches the application without the sidecar, and the traffic that is
/// lost on the way to the sidecar.
pub(crate) fn bypass(port: &PortCandidate, mode: PortCapture, listen: u16, named: Referrers) -> Vec<String> {
    let name = port.name.as_deref().filter(|_| mode == PortCapture::Named);
    let around = named.by_number.into_iter().map(|by| {
        let way = match name.filter(|_| by.may_name) {
            Some(name) => format!("use the port name {name}"),
            None if by.may_name => "name the port in the pod template, then use that name".to_owned(),
            None => "only app-listen or Redirect captures these calls".to_owned(),
        };
        format!("{}, bypassing the sidecar: {way}", by.text)
    });
    let mut bypass: Vec<String> = match mode {
        // The name leads to another port number now, which a rule for the old number does not
        // cover.
        PortCapture::Named => around
            .chain(
                named
                    .rules
                    .into_iter()
                    .map(|rule| format!("{rule}, but callers now connect to {listen}: list {listen} too")),
            )
            .collect(),
        // A name that was not moved leads to the application itself.
        PortCapture::None => around
            .chain(named.by_name.into_iter().map(|by| {
                format!(
                    "{by} leads to the application, bypassing the sidecar: only app-listen or Redirect captures these calls"
                )
            }))
            .collect(),
        // The port keeps its number, so every reference leads to the sidecar.
        PortCapture::Loopback | PortCapture::Moved | PortCapture::Redirect => return Vec::new(),
    };
    if let Some(host) = port.host_port {
        bypass.push(format!("hostPort {host} leads directly to the application"));
    }
    bypass
}
