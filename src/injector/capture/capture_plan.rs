//! The capture plan of a pod: its ports with the numbers of both listeners, and warnings.

use super::bypasses::bypass;
use super::decision::{CaptureOptions, PortDecision};
use crate::access::text;
use crate::allocator::PortAllocator;
use crate::api::v1alpha1::CaptureMode;
use crate::planned::{PlannedPort, PortCapture};
use crate::ports::{self, PortCandidate};
use crate::recipe::{self, RecipeChoice, RecipeMatch};
use crate::{SkippedPod, listen_target};

/// The capture decisions for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CapturePlan {
    /// One entry for each port number, in the order of declaration.
    pub(crate) ports: Vec<PlannedPort>,
    pub(crate) recipes: Vec<RecipeMatch>,
    /// Warnings other than those about a single port.
    pub(crate) warnings: Vec<String>,
    /// Facts about uncaptured ports that move together with captured ones.
    pub(crate) notes: Vec<String>,
}

// === impl CapturePlan ===

impl CapturePlan {
    /// Warns if the requested recipe matches no container.
    pub(super) fn warn_unused_recipe(&mut self, options: &CaptureOptions<'_>) {
        let RecipeChoice::Named(name) = options.recipe_choice else { return };
        if options.recipes.is_empty() {
            self.warnings.push(format!(
                "recipe {name} is not used: no container has a command or an image that it matches, or capture is not Auto"
            ));
        }
    }

    /// Drops a port if its name resolves to an earlier container, because no caller reaches it by
    /// that name. The name is still moved together with the first one, because a Service resolves
    /// to the next container that has the name.
    pub(super) fn drop_shadowed_names(&mut self, decided: Vec<PortDecision>) -> Vec<PortDecision> {
        let mut firsts: Vec<PortDecision> = Vec::new();
        for each in decided {
            let first = firsts.iter().find(|first| {
                each.port.name.is_some()
                    && first.port.name == each.port.name
                    && first.port.container != each.port.container
            });
            let Some(first) = first.filter(|_| matches!(each.mode, PortCapture::Named | PortCapture::None)) else {
                firsts.push(each);
                continue;
            };
            let PortCandidate { container, name, number, .. } = &each.port;
            let name = name.as_deref().unwrap_or_default();
            self.warnings.push(format!(
                "port name {name} is declared in the containers {} and {container}: it resolves to the first, and {container} is reachable only by {number}, bypassing the sidecar",
                first.port.container
            ));
            self.warnings.extend(each.named.by_number.iter().map(|by| format!("{}, bypassing the sidecar", by.text)));
        }
        firsts
    }

    /// Warns about ports without a known Service. A Service that refers to the number would bypass
    /// the sidecar.
    pub(super) fn warn_unseen_services(&mut self, decided: &[PortDecision]) {
        let unreferenced = |each: &&PortDecision| {
            each.mode == PortCapture::Named && each.named.by_name.is_empty() && each.named.by_number.is_empty()
        };
        let mut numbers: Vec<String> =
            decided.iter().filter(unreferenced).map(|each| each.port.number.to_string()).collect();
        numbers.dedup();
        if numbers.is_empty() {
            return;
        }
        let (s, one) = if numbers.len() == 1 { ("", "the number") } else { ("s", "a number") };
        self.warnings.push(format!(
            "no Service in these files refers to port{s} {}: a Service with {one} as targetPort would bypass the sidecar; add it with -f, and use the port name in it",
            numbers.join(", ")
        ));
    }

    /// Adds a port with the numbers of both listeners.
    ///
    /// # Errors
    /// No port number is free.
    pub(super) fn add(&mut self, each: PortDecision, numbers: &mut PortAllocator) -> Result<(), SkippedPod> {
        let PortDecision { port, named, unmovable, mode } = each;
        if let Some(there) = self.ports.iter_mut().find(|there| there.port.number == port.number) {
            // The number is declared twice. One process listens on it, whichever container declares
            // it.
            match (there.mode, mode) {
                (PortCapture::Named, PortCapture::Named) => {
                    let more = port.name.filter(|name| !there.all_names().contains(&name.as_str()));
                    there.other_names.extend(more);
                }
                (PortCapture::None, PortCapture::Named) => {
                    there.bypass = bypass(&port, mode, there.listen, named);
                    there.uncaptured = None;
                    there.port = port;
                    there.mode = mode;
                }
                _ => {}
            }
            return Ok(());
        }
        let (listen, application) = match mode {
            PortCapture::Loopback => (port.number, port.number),
            PortCapture::Moved => (port.number, numbers.next_listen_port()?),
            PortCapture::Named | PortCapture::Redirect | PortCapture::None => {
                (numbers.next_listen_port()?, port.number)
            }
        };
        let bypass = bypass(&port, mode, listen, named);
        let uncaptured = unmovable.filter(|_| mode == PortCapture::None);
        self.ports.push(PlannedPort { port, other_names: Vec::new(), mode, listen, application, bypass, uncaptured });
        Ok(())
    }

    /// Warns about options that are incomplete or without effect, once all ports are added.
    pub(super) fn warn_options(&mut self, options: &CaptureOptions<'_>) {
        if options.requested == CaptureMode::Loopback {
            self.warn_unconfigured_containers(options);
        }
        let is_recipe_sought = options.app_listen.is_none()
            && options.requested == CaptureMode::Auto
            && options.recipe_choice == RecipeChoice::Auto;
        if is_recipe_sought {
            self.warn_unmatched_servers(options);
        }
        if let (Some(app_listen), Some(target)) = (options.app_listen, options.listen_container()) {
            self.warnings.extend(listen_target::unused_app_listen(app_listen, target, options.requested, &self.ports));
        }
    }

    /// Warns about known servers that match no recipe, if a recipe could have captured a port.
    fn warn_unmatched_servers(&mut self, options: &CaptureOptions<'_>) {
        for container in ports::application_containers(options.pod) {
            let name = text(container, &["name"]).unwrap_or_default();
            let is_left = |planned: &PlannedPort| planned.port.container == name && planned.mode == PortCapture::None;
            if !self.ports.iter().any(is_left) || options.recipes.iter().any(|recipe| recipe.container == name) {
                continue;
            }
            self.warnings.extend(recipe::named_server(container).map(|server| {
                format!(
                    "container {name} has {server} in its command, but no recipe matches the command: write address and port \
                     as plain arguments, or set groupage.dev/app-listen"
                )
            }));
        }
    }

    /// Warns about containers that must listen on loopback without an override that configures it.
    fn warn_unconfigured_containers(&mut self, options: &CaptureOptions<'_>) {
        let Some(target) = options.listen_container() else {
            let ports = self.ports.iter().filter(|planned| planned.mode == PortCapture::Loopback);
            self.warnings.extend(ports.map(|planned| {
                format!(
                    "container {} must listen on 127.0.0.1:{} by its own configuration: app-listen is not set",
                    planned.port.container, planned.port.number
                )
            }));
            return;
        };
        let others = self.ports.iter().filter(|planned| planned.mode != PortCapture::Loopback);
        self.warnings.extend(others.map(|planned| {
            format!(
                "port {} of container {} is not captured by Loopback: app-listen applies to container {target}",
                planned.port.number, planned.port.container
            )
        }));
    }
}
