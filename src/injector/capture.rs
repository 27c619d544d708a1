//! Selection of a capture mode for each port, from the objects that refer to the port and from the
//! permissions of the pod.
//!
//! No mode suits every pod. `Named` moves the port's name to the sidecar and changes nothing else;
//! callers that use the port number bypass the sidecar. `Loopback` requires an application with a
//! configurable listen address. `Redirect` requires an init container with `NET_ADMIN`.

use serde_json::Value;

use super::access::{at, list, text};
use super::allocator::PortAllocator;
use super::app_listen::AppListen;
use super::effective::InjectionSettings;
use super::planned::{PlannedPort, PortCapture};
use super::ports::{self, PortCandidate};
use super::recipe::{self, MoveKind, RecipeChoice, RecipeMatch};
use super::referrers::{self, Referrers};
use super::{InjectionContext, ObjectSource, RedirectUse, SkipReason, SkippedPod, listen_target, probe_ports};
use crate::api::v1alpha1::CaptureMode;

/// The capture decisions for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CapturePlan {
    /// One entry for each port number, in the order of declaration.
    pub(super) ports: Vec<PlannedPort>,
    /// The recipes in use.
    pub(super) recipes: Vec<RecipeMatch>,
    /// Warnings other than those about a single port.
    pub(super) warnings: Vec<String>,
    /// Facts about uncaptured ports that move together with captured ones.
    pub(super) notes: Vec<String>,
}

/// Capture options of a pod.
struct CaptureOptions<'a> {
    wish: CaptureMode,
    /// Use of a redirect if no annotation requests one.
    redirect: RedirectUse,
    knob: Option<&'a AppListen>,
    view: ObjectSource,
    /// Container that the `app-listen` override applies to.
    told: Option<String>,
    recipes: &'a [RecipeMatch],
    /// `true` if an annotation names the recipe.
    is_recipe_named: bool,
}

/// A candidate with its preliminary mode.
struct PortDecision {
    port: PortCandidate,
    named: Referrers,
    /// Reason why its name cannot be moved.
    unmovable: Option<String>,
    mode: PortCapture,
}

/// Selects a capture mode for every candidate.
///
/// # Errors
/// A redirect is requested but forbidden, or no port number is free.
pub(super) fn plan(
    pod: &Value,
    context: &InjectionContext,
    overrides: &InjectionSettings,
    candidates: Vec<PortCandidate>,
    numbers: &mut PortAllocator,
) -> Result<CapturePlan, SkippedPod> {
    let forbidden = forbidden(pod, context);
    let redirect = if forbidden.is_none() { context.redirect } else { RedirectUse::Never };
    if let (CaptureMode::Redirect, Some(skipped)) = (overrides.capture, forbidden) {
        return Err(skipped);
    }
    let knob = overrides.app_listen.as_ref();
    let told = knob.and_then(|knob| knob.container.clone());
    // Recipes apply in mode `Auto` only, and an `app-listen` override takes precedence over them.
    let recipes = match overrides.recipe {
        _ if knob.is_some() || overrides.capture != CaptureMode::Auto => Vec::new(),
        RecipeChoice::None => Vec::new(),
        RecipeChoice::Auto => recipe::find(pod, None),
        RecipeChoice::Named(name) => recipe::find(pod, Some(name)),
    };
    // The sidecar must not use a port of a known server, even if the server's recipe is not
    // applied.
    numbers.take(recipe::find(pod, None).iter().flat_map(RecipeMatch::all_ports))?;
    let is_recipe_named = matches!(overrides.recipe, RecipeChoice::Named(_));
    let wish = overrides.capture;
    let allowed = CaptureOptions { wish, redirect, knob, view: context.view, told, recipes: &recipes, is_recipe_named };
    let native = overrides.is_native(context);
    let decide = |port: PortCandidate| {
        let named = referrers::of(&port, pod, &context.namespace, context.referrers.iter());
        let local = allowed.local(pod, &port, &named);
        let is_local = local.is_some();
        let unmovable = local
            .or_else(|| ports::unmovable(pod, &port, native))
            .or_else(|| unresolved_name_reason(&port, native, context));
        let mode = if is_local { PortCapture::None } else { allowed.mode(&port, &named, unmovable.is_none()) };
        let unmovable = unmovable.or_else(|| rule_conflict(&port, &named));
        PortDecision { port, named, unmovable, mode }
    };
    let mut decided: Vec<PortDecision> = candidates.into_iter().map(&decide).collect();
    let mut plan = CapturePlan::default();
    // A setting moves several listeners at once, so the modes of a container's ports depend on each
    // other.
    match &recipes[..] {
        [] => plan.warnings = extend_loopback(pod, allowed.told.as_deref(), &mut decided, decide),
        _ => plan.extend_recipes(pod, &recipes, &mut decided, decide),
    }
    plan.warnings.extend(unused_recipe(overrides.recipe, &recipes));
    let is_recipe_sought = knob.is_none() && wish == CaptureMode::Auto && overrides.recipe == RecipeChoice::Auto;
    // Duplicates: a repeated name is dropped here, a repeated number is merged in `add`.
    let firsts = plan.drop_shadowed_names(decided);
    if context.view == ObjectSource::Files {
        plan.unseen(&firsts);
    }
    for each in firsts {
        plan.add(each, numbers)?;
    }
    if allowed.wish == CaptureMode::Loopback {
        plan.warn_unconfigured_containers(&allowed);
    }
    if is_recipe_sought {
        plan.warn_unmatched_servers(pod, &recipes);
    }
    if let (Some(knob), Some(told)) = (allowed.knob, &allowed.told) {
        plan.warnings.extend(listen_target::unused_app_listen(knob, told, allowed.wish, &plan.ports));
    }
    if plan.ports.len() > ports::CAPTURED_MAX {
        return Err(SkipReason::TooLarge.because(format!("more than {} ports would be captured", ports::CAPTURED_MAX)));
    }
    Ok(plan)
}

// === impl CaptureOptions ===

impl CaptureOptions<'_> {
    /// Returns the reason not to capture a port that the server already has on loopback and that no
    /// object refers to. Capturing it would expose the port to other pods, past a proxy inside the
    /// pod.
    fn local(&self, pod: &Value, port: &PortCandidate, named: &Referrers) -> Option<String> {
        if self.wish != CaptureMode::Auto || self.is_recipe_named || *named != Referrers::default() {
            return None;
        }
        let recipe = self.recipes.iter().find(|recipe| recipe.container == port.container)?;
        let container = ports::applications(pod).find(|own| text(own, &["name"]) == Some(&port.container))?;
        recipe.is_local(port.number, container).then(|| {
            format!(
                "{} listens only on loopback with port {} of container {}, and no object refers to the port",
                recipe.name(),
                port.number,
                port.container
            )
        })
    }

    fn mode(&self, port: &PortCandidate, named: &Referrers, movable: bool) -> PortCapture {
        let by_name = if movable { PortCapture::Named } else { PortCapture::None };
        let told = self.told.as_ref() == Some(&port.container);
        let recipe = self.recipes.iter().find(|recipe| recipe.container == port.container);
        let moved = recipe.and_then(|recipe| recipe.moves(port.number)).map(|kind| match kind {
            MoveKind::Loopback => PortCapture::Loopback,
            MoveKind::Number => PortCapture::Moved,
        });
        match (self.wish, moved) {
            // Without an override the application is expected to listen on loopback by its own
            // configuration. With one, only the container that it applies to is.
            (CaptureMode::Loopback, _) if told || self.knob.is_none() => PortCapture::Loopback,
            (CaptureMode::Redirect, _) => PortCapture::Redirect,
            (CaptureMode::Auto, _) if self.redirect == RedirectUse::Always => PortCapture::Redirect,
            // In a file the Services may be missing, so it is unknown whether moving the name
            // suffices. Capturing the number always suffices.
            (CaptureMode::Auto, _) if told && self.view == ObjectSource::Files && *named == Referrers::default() => {
                PortCapture::Loopback
            }
            // A Service that is created later may use the number.
            (CaptureMode::Auto, Some(moved)) if self.is_recipe_named || *named == Referrers::default() => moved,
            // A `hostPort` keeps leading to the number.
            (CaptureMode::Auto, _)
                if movable && named.by_number.is_empty() && named.rules.is_empty() && port.host_port.is_none() =>
            {
                PortCapture::Named
            }
            (CaptureMode::Auto, _) if told => PortCapture::Loopback,
            (CaptureMode::Auto, Some(moved)) => moved,
            (CaptureMode::Auto, _) if self.redirect == RedirectUse::WhenNeeded => PortCapture::Redirect,
            // The rule would drop callers on their way to the sidecar's port.
            (CaptureMode::Auto, _) if !named.rules.is_empty() => PortCapture::None,
            (CaptureMode::Named | CaptureMode::Loopback | CaptureMode::Auto, _) => by_name,
        }
    }
}

// === impl CapturePlan ===

impl CapturePlan {
    /// Moves all captured ports of a server if its recipe moves at least one of them, and records
    /// the recipes that move any.
    fn extend_recipes(
        &mut self,
        pod: &Value,
        recipes: &[RecipeMatch],
        decided: &mut Vec<PortDecision>,
        decide: impl Fn(PortCandidate) -> PortDecision,
    ) {
        for recipe in recipes {
            let own = |each: &&mut PortDecision| each.port.container == recipe.container;
            let moves = |each: &PortDecision| matches!(each.mode, PortCapture::Loopback | PortCapture::Moved);
            if !decided.iter_mut().filter(own).any(|each| moves(each)) {
                continue;
            }
            // Ports that the container's own probes and scrapes use must be captured too, because
            // they move to loopback with the others.
            let container = ports::applications(pod).find(|own| text(own, &["name"]) == Some(&recipe.container));
            for number in container
                .map(probe_ports::by_itself)
                .unwrap_or_default()
                .into_iter()
                .chain(probe_ports::scraped_ports(pod))
            {
                let is_local = container.is_some_and(|container| recipe.is_local(number, container));
                if recipe.moves(number).is_some() && !is_local && !decided.iter().any(|each| each.port.number == number)
                {
                    let container = recipe.container.clone();
                    decided.push(decide(PortCandidate { container, name: None, number, host_port: None }));
                }
            }
            let is_local = |number| container.is_some_and(|container| recipe.is_local(number, container));
            for each in decided
                .iter_mut()
                .filter(own)
                .filter(|each| each.mode != PortCapture::None || !is_local(each.port.number))
            {
                match recipe.moves(each.port.number) {
                    Some(MoveKind::Loopback) => each.mode = PortCapture::Loopback,
                    Some(MoveKind::Number) => each.mode = PortCapture::Moved,
                    None => {}
                }
            }
            let captured = |number: u16| {
                decided
                    .iter()
                    .filter(|each| moves(each))
                    .any(|each| each.port.number == number && each.port.container == recipe.container)
            };
            self.notes.extend(recipe.along(captured).into_iter().map(|number| {
                format!(
                    "container {}: recipe {} also moves port {number} to loopback; declare it if other pods call it",
                    recipe.container,
                    recipe.name()
                )
            }));
            self.recipes.push(recipe.clone());
        }
    }

    /// Drops a port if its name resolves to an earlier container, because no caller reaches it by
    /// that name. The name is still moved together with the first one, because a Service resolves
    /// to the next container that has the name.
    fn drop_shadowed_names(&mut self, decided: Vec<PortDecision>) -> Vec<PortDecision> {
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
    fn unseen(&mut self, decided: &[PortDecision]) {
        let alone = |each: &&PortDecision| {
            each.mode == PortCapture::Named && each.named.by_name.is_empty() && each.named.by_number.is_empty()
        };
        let mut numbers: Vec<String> = decided.iter().filter(alone).map(|each| each.port.number.to_string()).collect();
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

    fn add(&mut self, each: PortDecision, numbers: &mut PortAllocator) -> Result<(), SkippedPod> {
        let PortDecision { port, named, unmovable, mode } = each;
        if let Some(there) = self.ports.iter_mut().find(|there| there.port.number == port.number) {
            // The number is declared twice. One process listens on it, whichever container declares
            // it.
            match (there.mode, mode) {
                (PortCapture::Named, PortCapture::Named) => {
                    let more = port.name.filter(|name| !there.all_names().contains(&name.as_str()));
                    there.also.extend(more);
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
            PortCapture::Moved => (port.number, numbers.listen()?),
            PortCapture::Named | PortCapture::Redirect | PortCapture::None => (numbers.listen()?, port.number),
        };
        let bypass = bypass(&port, mode, listen, named);
        let uncaptured = unmovable.filter(|_| mode == PortCapture::None);
        self.ports.push(PlannedPort { port, also: Vec::new(), mode, listen, application, bypass, uncaptured });
        Ok(())
    }

    /// Warns about known servers that match no recipe, if a recipe could have captured a port.
    fn warn_unmatched_servers(&mut self, pod: &Value, recipes: &[RecipeMatch]) {
        for container in ports::applications(pod) {
            let name = text(container, &["name"]).unwrap_or_default();
            let is_left = |planned: &PlannedPort| planned.port.container == name && planned.mode == PortCapture::None;
            if !self.ports.iter().any(is_left) || recipes.iter().any(|recipe| recipe.container == name) {
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
    fn warn_unconfigured_containers(&mut self, allowed: &CaptureOptions<'_>) {
        let Some(told) = &allowed.told else {
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
                "port {} of container {} is not captured by Loopback: app-listen applies to container {told}",
                planned.port.number, planned.port.container
            )
        }));
    }
}

/// Returns the reason not to move a name if rules admit calls to the port's number only.
fn rule_conflict(port: &PortCandidate, named: &Referrers) -> Option<String> {
    let rules = (!named.rules.is_empty()).then(|| named.rules.join("; "))?;
    Some(format!(
        "{rules}, and by the name of port {} of container {} callers would connect to another (list that too, and set \
         groupage.dev/capture: Named)",
        port.number, port.container
    ))
}

/// Returns a warning if the requested recipe matches no container.
fn unused_recipe(choice: RecipeChoice, recipes: &[RecipeMatch]) -> Option<String> {
    let RecipeChoice::Named(name) = choice else { return None };
    recipes.is_empty().then(|| {
        format!(
            "recipe {name} is not used: no container has a command or an image that it matches, or capture is not Auto"
        )
    })
}

/// Returns the reason not to move a name to a native sidecar on a cluster before Kubernetes 1.33,
/// where a native sidecar can be forced by annotation or policy but Services do not resolve its
/// ports.
fn unresolved_name_reason(port: &PortCandidate, native: bool, context: &InjectionContext) -> Option<String> {
    (native && !context.native).then(|| {
        format!(
            "port name {} of container {} cannot move to a native sidecar before Kubernetes 1.33, where Services do not resolve it (native-sidecar is Always)",
            port.name.as_deref().unwrap_or_default(),
            port.container
        )
    })
}

/// Extends mode `Loopback` to all ports of a container, because an `app-listen` override moves all
/// listeners of its application. In the container of the override this includes undeclared ports
/// that the container's own probes and hooks connect to. A container without an override is not
/// reconfigured: its probes keep reaching undeclared ports, and the sidecar could not listen there.
/// Returns warnings about ports that move but are not captured.
fn extend_loopback(
    pod: &Value,
    told: Option<&str>,
    decided: &mut Vec<PortDecision>,
    decide: impl Fn(PortCandidate) -> PortDecision,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let moved: Vec<String> = decided
        .iter()
        .filter(|each| each.mode == PortCapture::Loopback)
        .map(|each| each.port.container.clone())
        .collect();
    for container in ports::applications(pod) {
        if !text(container, &["name"]).is_some_and(|name| moved.iter().any(|moved| moved == name)) {
            continue;
        }
        for port in ports::of_container(container) {
            match decided.iter_mut().find(|known| known.port == port) {
                Some(known) => known.mode = PortCapture::Loopback,
                None => decided.push(PortDecision { mode: PortCapture::Loopback, ..decide(port) }),
            }
        }
        let name = text(container, &["name"]).unwrap_or_default();
        if told != Some(name) {
            continue;
        }
        warnings.extend(ports::non_tcp_ports(container).map(|(number, protocol)| {
            format!(
                "container {name}: app-listen may also move port {number} ({protocol}) to loopback, where other pods cannot reach it: the sidecar captures only TCP"
            )
        }));
        let declared =
            |number: u16| ports::declared(pod).any(|port| port.number == number) || ports::is_istio_port(number);
        for number in probe_ports::by_itself(container).into_iter().filter(|number| !declared(*number)) {
            match decided.iter_mut().find(|known| known.port.number == number) {
                Some(known) if known.port.container == name => known.mode = PortCapture::Loopback,
                Some(_) => {}
                None => {
                    let port = PortCandidate { container: name.to_owned(), name: None, number, host_port: None };
                    decided.push(PortDecision { mode: PortCapture::Loopback, ..decide(port) });
                }
            }
        }
    }
    warnings
}

/// Returns the traffic that reaches the application without the sidecar, and the traffic that is
/// lost on the way to the sidecar.
pub(super) fn bypass(port: &PortCandidate, mode: PortCapture, listen: u16, named: Referrers) -> Vec<String> {
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

/// Returns the reason why a redirect is forbidden, or `None` if it is allowed.
fn forbidden(pod: &Value, context: &InjectionContext) -> Option<SkippedPod> {
    if context.redirect == RedirectUse::Never {
        return Some(SkipReason::RedirectForbidden.because(
            "the installation adds no init container with NET_ADMIN (injector.redirect of the chart, or --redirect offline, is Never); an annotation cannot override this",
        ));
    }
    let enforced = context.namespace.labels.get("pod-security.kubernetes.io/enforce").map(String::as_str);
    if let Some(level @ ("restricted" | "baseline")) = enforced {
        return Some(
            SkipReason::RedirectForbidden
                .because(format!("the namespace enforces Pod Security {level}, which forbids NET_ADMIN")),
        );
    }
    if is_meshed(pod, context) {
        return Some(SkipReason::RedirectMeshed.because(
            "a mesh already redirects this pod's ports, and two redirects would conflict: use Named or Loopback",
        ));
    }
    None
}

/// Containers of meshes that redirect, and init containers that set up the redirects.
const MESH_CONTAINERS: [&str; 8] = [
    "istio-proxy",
    "istio-init",
    "istio-validation",
    "linkerd-proxy",
    "linkerd-init",
    "linkerd-network-validator",
    "kuma-sidecar",
    "consul-dataplane",
];

/// Keys of labels and annotations that enable a mesh for a pod or namespace, with the values that
/// enable it; an empty list accepts any value. A different value on the pod disables the mesh,
/// whatever its namespace has.
const MESH_KEYS: [(&str, &[&str]); 7] = [
    ("sidecar.istio.io/inject", &["true"]),
    ("istio-injection", &["enabled"]),
    ("istio.io/rev", &[]),
    ("istio.io/dataplane-mode", &["ambient"]),
    ("linkerd.io/inject", &["enabled", "ingress"]),
    ("kuma.io/sidecar-injection", &["enabled", "true"]),
    ("consul.hashicorp.com/connect-inject", &["true"]),
];

/// Returns `true` if a redirecting mesh is in the pod, or will be injected.
fn is_meshed(pod: &Value, context: &InjectionContext) -> bool {
    let mut containers = list(pod, &["spec", "containers"]).iter().chain(list(pod, &["spec", "initContainers"]));
    if containers.any(|container| text(container, &["name"]).is_some_and(|name| MESH_CONTAINERS.contains(&name))) {
        return true;
    }
    let yes = |words: &[&str], said: &str| words.is_empty() || words.iter().any(|word| word.eq_ignore_ascii_case(said));
    let pods_own = |key: &str| {
        let maps = ["labels", "annotations"].map(|map| at(pod, &["metadata", map]));
        maps.into_iter().find_map(|map| map.get(key)?.as_str()).map(str::to_owned)
    };
    let namespaces = |key: &str| {
        let InjectionContext { namespace, .. } = context;
        namespace.labels.get(key).or_else(|| namespace.annotations.get(key)).map(String::as_str)
    };
    let asked = |key: &str, words: &[&str]| {
        pods_own(key).map_or_else(|| namespaces(key).is_some_and(|said| yes(words, said)), |said| yes(words, &said))
    };
    let no_sidecar = pods_own("sidecar.istio.io/inject").is_some_and(|said| !said.eq_ignore_ascii_case("true"));
    MESH_KEYS
        .iter()
        // The pod's own opt-out takes precedence over the keys that add Istio's sidecar to a whole
        // namespace.
        .filter(|(key, _)| !(no_sidecar && matches!(*key, "istio-injection" | "istio.io/rev")))
        .any(|(key, words)| asked(key, words))
}
