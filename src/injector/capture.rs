//! Selection of a capture mode for each port, from the objects that refer to the port and from the
//! permissions of the pod.
//!
//! No mode suits every pod. `Named` moves the port's name to the sidecar and changes nothing else;
//! callers that use the port number bypass the sidecar. `Loopback` requires an application with a
//! configurable listen address. `Redirect` requires an init container with `NET_ADMIN`.

use serde_json::Value;

use super::access::{at, list, text};
use super::overrides::{AppListen, Overrides, RecipeChoice};
use super::ports::{self, Candidate, Numbers};
use super::recipe::{self, MoveKind, RecipeMatch};
use super::referrers::{self, Referrers};
use super::{Context, RedirectUse, Skip, Skipped, View, dialled, told};
use crate::api::v1alpha1::Capture;

/// Capture mode of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Mode {
    /// The port's name moves to the sidecar.
    Named,
    /// The application listens on loopback, the sidecar on the pod's addresses.
    Loopback,
    /// A recipe moves the application to another port, and the sidecar listens on its number.
    Moved,
    /// The kernel redirects inbound connections to the sidecar.
    Redirect,
    /// The sidecar listens, but no reference to the port leads to it.
    None,
}

/// The capture decisions for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// One entry for each port number, in the order of declaration.
    pub(super) ports: Vec<Planned>,
    /// The recipes in use.
    pub(super) recipes: Vec<RecipeMatch>,
    /// Warnings other than those about a single port.
    pub(super) warnings: Vec<String>,
    /// Facts about uncaptured ports that move together with captured ones.
    pub(super) notes: Vec<String>,
}

/// A port and its capture mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) port: Candidate,
    /// Other names of the same port number, which moved with it.
    pub(super) also: Vec<String>,
    pub(super) mode: Mode,
    /// Port number of the sidecar's listener. With `Loopback` it equals the application's port
    /// number, on the pod's addresses.
    pub(super) listen: u16,
    /// Port number of the application. It differs from the declared number only with `Moved`.
    pub(super) application: u16,
    /// Traffic that bypasses the sidecar, or that is lost on the way to it.
    pub(super) bypass: Vec<String>,
    /// Reason why no reference to the port leads to the sidecar, for mode `None`.
    pub(super) uncaptured: Option<String>,
}

/// Capture options of a pod.
struct Allowed<'a> {
    wish: Capture,
    /// Use of a redirect if no annotation requests one.
    redirect: RedirectUse,
    knob: Option<&'a AppListen>,
    view: View,
    /// Container that the `app-listen` override applies to.
    told: Option<String>,
    recipes: &'a [RecipeMatch],
    /// `true` if an annotation names the recipe.
    is_recipe_named: bool,
}

/// A candidate with its preliminary mode.
struct Decided {
    port: Candidate,
    named: Referrers,
    /// Reason why its name cannot be moved.
    unmovable: Option<String>,
    mode: Mode,
}

/// Selects a capture mode for every candidate.
///
/// # Errors
/// A redirect is requested but forbidden, or no port number is free.
pub(super) fn plan(
    pod: &Value,
    context: &Context,
    overrides: &Overrides,
    candidates: Vec<Candidate>,
    numbers: &mut Numbers,
) -> Result<Plan, Skipped> {
    let forbidden = forbidden(pod, context);
    let redirect = if forbidden.is_none() { context.redirect } else { RedirectUse::Never };
    if let (Capture::Redirect, Some(skipped)) = (overrides.capture, forbidden) {
        return Err(skipped);
    }
    let knob = overrides.app_listen.as_ref();
    let told = knob.and_then(|knob| knob.container.clone());
    // Recipes apply in mode `Auto` only, and an `app-listen` override takes precedence over them.
    let recipes = match overrides.recipe {
        _ if knob.is_some() || overrides.capture != Capture::Auto => Vec::new(),
        RecipeChoice::None => Vec::new(),
        RecipeChoice::Auto => recipe::find(pod, None),
        RecipeChoice::Named(name) => recipe::find(pod, Some(name)),
    };
    // The sidecar must not use a port of a known server, even if the server's recipe is not
    // applied.
    numbers.take(recipe::find(pod, None).iter().flat_map(RecipeMatch::numbers_of_all))?;
    let is_recipe_named = matches!(overrides.recipe, RecipeChoice::Named(_));
    let wish = overrides.capture;
    let allowed = Allowed { wish, redirect, knob, view: context.view, told, recipes: &recipes, is_recipe_named };
    let native = overrides.is_native(context);
    let decide = |port: Candidate| {
        let named = referrers::of(&port, pod, &context.namespace, context.referrers.iter());
        let local = allowed.local(pod, &port, &named);
        let is_local = local.is_some();
        let unmovable =
            local.or_else(|| ports::unmovable(pod, &port, native)).or_else(|| unseen_name(&port, native, context));
        let mode = if is_local { Mode::None } else { allowed.mode(&port, &named, unmovable.is_none()) };
        let unmovable = unmovable.or_else(|| ruled_out(&port, &named));
        Decided { port, named, unmovable, mode }
    };
    let mut decided: Vec<Decided> = candidates.into_iter().map(&decide).collect();
    let mut plan = Plan::default();
    // A setting moves several listeners at once, so the modes of a container's ports depend on each
    // other.
    match &recipes[..] {
        [] => plan.warnings = whole_containers(pod, allowed.told.as_deref(), &mut decided, decide),
        _ => plan.whole_recipes(pod, &recipes, &mut decided, decide),
    }
    plan.warnings.extend(unused_recipe(overrides.recipe, &recipes));
    let is_recipe_sought = knob.is_none() && wish == Capture::Auto && overrides.recipe == RecipeChoice::Auto;
    // Duplicates: a repeated name is dropped here, a repeated number is merged in `add`.
    let firsts = plan.second_to_none(decided);
    if context.view == View::Files {
        plan.unseen(&firsts);
    }
    for each in firsts {
        plan.add(each, numbers)?;
    }
    if allowed.wish == Capture::Loopback {
        plan.untold(&allowed);
    }
    if is_recipe_sought {
        plan.unread_servers(pod, &recipes);
    }
    if let (Some(knob), Some(told)) = (allowed.knob, &allowed.told) {
        plan.warnings.extend(told::in_vain(knob, told, allowed.wish, &plan.ports));
    }
    if plan.ports.len() > ports::CAPTURED_MAX {
        return Err(Skip::TooLarge.because(format!("more than {} ports would be captured", ports::CAPTURED_MAX)));
    }
    Ok(plan)
}

// === impl Planned ===

impl Planned {
    /// Returns the names that refer to this port. The sidecar's port has them if they were moved.
    pub(super) fn all_names(&self) -> Vec<&str> {
        self.port.name.iter().chain(&self.also).map(String::as_str).collect()
    }

    /// Returns the names that were moved to the sidecar.
    pub(super) fn names(&self) -> Vec<&str> {
        if self.mode == Mode::Named { self.all_names() } else { Vec::new() }
    }
}

// === impl Allowed ===

impl Allowed<'_> {
    /// Returns the reason not to capture a port that the server already has on loopback and that no
    /// object refers to. Capturing it would expose the port to other pods, past a proxy inside the
    /// pod.
    fn local(&self, pod: &Value, port: &Candidate, named: &Referrers) -> Option<String> {
        if self.wish != Capture::Auto || self.is_recipe_named || *named != Referrers::default() {
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

    fn mode(&self, port: &Candidate, named: &Referrers, movable: bool) -> Mode {
        let by_name = if movable { Mode::Named } else { Mode::None };
        let told = self.told.as_ref() == Some(&port.container);
        let recipe = self.recipes.iter().find(|recipe| recipe.container == port.container);
        let moved = recipe.and_then(|recipe| recipe.moves(port.number)).map(|kind| match kind {
            MoveKind::Loopback => Mode::Loopback,
            MoveKind::Number => Mode::Moved,
        });
        match (self.wish, moved) {
            // Without an override the application is expected to listen on loopback by its own
            // configuration. With one, only the container that it applies to is.
            (Capture::Loopback, _) if told || self.knob.is_none() => Mode::Loopback,
            (Capture::Redirect, _) => Mode::Redirect,
            (Capture::Auto, _) if self.redirect == RedirectUse::Always => Mode::Redirect,
            // In a file the Services may be missing, so it is unknown whether moving the name
            // suffices. Capturing the number always suffices.
            (Capture::Auto, _) if told && self.view == View::Files && *named == Referrers::default() => Mode::Loopback,
            // A Service that is created later may use the number.
            (Capture::Auto, Some(moved)) if self.is_recipe_named || *named == Referrers::default() => moved,
            // A `hostPort` keeps leading to the number.
            (Capture::Auto, _)
                if movable && named.by_number.is_empty() && named.rules.is_empty() && port.host_port.is_none() =>
            {
                Mode::Named
            }
            (Capture::Auto, _) if told => Mode::Loopback,
            (Capture::Auto, Some(moved)) => moved,
            (Capture::Auto, _) if self.redirect == RedirectUse::WhenNeeded => Mode::Redirect,
            // The rule would drop callers on their way to the sidecar's port.
            (Capture::Auto, _) if !named.rules.is_empty() => Mode::None,
            (Capture::Named | Capture::Loopback | Capture::Auto, _) => by_name,
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Moves all captured ports of a server if its recipe moves at least one of them, and records
    /// the recipes that move any.
    fn whole_recipes(
        &mut self,
        pod: &Value,
        recipes: &[RecipeMatch],
        decided: &mut Vec<Decided>,
        decide: impl Fn(Candidate) -> Decided,
    ) {
        for recipe in recipes {
            let own = |each: &&mut Decided| each.port.container == recipe.container;
            let moves = |each: &Decided| matches!(each.mode, Mode::Loopback | Mode::Moved);
            if !decided.iter_mut().filter(own).any(|each| moves(each)) {
                continue;
            }
            // Ports that the container's own probes and scrapes use must be captured too, because
            // they move to loopback with the others.
            let container = ports::applications(pod).find(|own| text(own, &["name"]) == Some(&recipe.container));
            for number in
                container.map(dialled::by_itself).unwrap_or_default().into_iter().chain(dialled::by_scrapes(pod))
            {
                let is_local = container.is_some_and(|container| recipe.is_local(number, container));
                if recipe.moves(number).is_some() && !is_local && !decided.iter().any(|each| each.port.number == number)
                {
                    let container = recipe.container.clone();
                    decided.push(decide(Candidate { container, name: None, number, host_port: None }));
                }
            }
            let is_local = |number| container.is_some_and(|container| recipe.is_local(number, container));
            for each in
                decided.iter_mut().filter(own).filter(|each| each.mode != Mode::None || !is_local(each.port.number))
            {
                match recipe.moves(each.port.number) {
                    Some(MoveKind::Loopback) => each.mode = Mode::Loopback,
                    Some(MoveKind::Number) => each.mode = Mode::Moved,
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
    fn second_to_none(&mut self, decided: Vec<Decided>) -> Vec<Decided> {
        let mut firsts: Vec<Decided> = Vec::new();
        for each in decided {
            let first = firsts.iter().find(|first| {
                each.port.name.is_some()
                    && first.port.name == each.port.name
                    && first.port.container != each.port.container
            });
            let Some(first) = first.filter(|_| matches!(each.mode, Mode::Named | Mode::None)) else {
                firsts.push(each);
                continue;
            };
            let Candidate { container, name, number, .. } = &each.port;
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
    fn unseen(&mut self, decided: &[Decided]) {
        let alone = |each: &&Decided| {
            each.mode == Mode::Named && each.named.by_name.is_empty() && each.named.by_number.is_empty()
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

    fn add(&mut self, each: Decided, numbers: &mut Numbers) -> Result<(), Skipped> {
        let Decided { port, named, unmovable, mode } = each;
        if let Some(there) = self.ports.iter_mut().find(|there| there.port.number == port.number) {
            // The number is declared twice. One process listens on it, whichever container declares
            // it.
            match (there.mode, mode) {
                (Mode::Named, Mode::Named) => {
                    let more = port.name.filter(|name| !there.all_names().contains(&name.as_str()));
                    there.also.extend(more);
                }
                (Mode::None, Mode::Named) => {
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
            Mode::Loopback => (port.number, port.number),
            Mode::Moved => (port.number, numbers.listen()?),
            Mode::Named | Mode::Redirect | Mode::None => (numbers.listen()?, port.number),
        };
        let bypass = bypass(&port, mode, listen, named);
        let uncaptured = unmovable.filter(|_| mode == Mode::None);
        self.ports.push(Planned { port, also: Vec::new(), mode, listen, application, bypass, uncaptured });
        Ok(())
    }

    /// Warns about known servers that match no recipe, if a recipe could have captured a port.
    fn unread_servers(&mut self, pod: &Value, recipes: &[RecipeMatch]) {
        for container in ports::applications(pod) {
            let name = text(container, &["name"]).unwrap_or_default();
            let is_left = |planned: &Planned| planned.port.container == name && planned.mode == Mode::None;
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
    fn untold(&mut self, allowed: &Allowed<'_>) {
        let Some(told) = &allowed.told else {
            let ports = self.ports.iter().filter(|planned| planned.mode == Mode::Loopback);
            self.warnings.extend(ports.map(|planned| {
                format!(
                    "container {} must listen on 127.0.0.1:{} by its own configuration: app-listen is not set",
                    planned.port.container, planned.port.number
                )
            }));
            return;
        };
        let others = self.ports.iter().filter(|planned| planned.mode != Mode::Loopback);
        self.warnings.extend(others.map(|planned| {
            format!(
                "port {} of container {} is not captured by Loopback: app-listen applies to container {told}",
                planned.port.number, planned.port.container
            )
        }));
    }
}

/// Returns the reason not to move a name if rules admit calls to the port's number only.
fn ruled_out(port: &Candidate, named: &Referrers) -> Option<String> {
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
fn unseen_name(port: &Candidate, native: bool, context: &Context) -> Option<String> {
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
fn whole_containers(
    pod: &Value,
    told: Option<&str>,
    decided: &mut Vec<Decided>,
    decide: impl Fn(Candidate) -> Decided,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let moved: Vec<String> =
        decided.iter().filter(|each| each.mode == Mode::Loopback).map(|each| each.port.container.clone()).collect();
    for container in ports::applications(pod) {
        if !text(container, &["name"]).is_some_and(|name| moved.iter().any(|moved| moved == name)) {
            continue;
        }
        for port in ports::of_container(container) {
            match decided.iter_mut().find(|known| known.port == port) {
                Some(known) => known.mode = Mode::Loopback,
                None => decided.push(Decided { mode: Mode::Loopback, ..decide(port) }),
            }
        }
        let name = text(container, &["name"]).unwrap_or_default();
        if told != Some(name) {
            continue;
        }
        warnings.extend(ports::not_tcp(container).map(|(number, protocol)| {
            format!(
                "container {name}: app-listen may also move port {number} ({protocol}) to loopback, where other pods cannot reach it: the sidecar captures only TCP"
            )
        }));
        let declared = |number: u16| ports::declared(pod).any(|port| port.number == number) || ports::is_meshs(number);
        for number in dialled::by_itself(container).into_iter().filter(|number| !declared(*number)) {
            match decided.iter_mut().find(|known| known.port.number == number) {
                Some(known) if known.port.container == name => known.mode = Mode::Loopback,
                Some(_) => {}
                None => {
                    let port = Candidate { container: name.to_owned(), name: None, number, host_port: None };
                    decided.push(Decided { mode: Mode::Loopback, ..decide(port) });
                }
            }
        }
    }
    warnings
}

/// Returns the traffic that reaches the application without the sidecar, and the traffic that is
/// lost on the way to the sidecar.
pub(super) fn bypass(port: &Candidate, mode: Mode, listen: u16, named: Referrers) -> Vec<String> {
    let name = port.name.as_deref().filter(|_| mode == Mode::Named);
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
        Mode::Named => around
            .chain(
                named
                    .rules
                    .into_iter()
                    .map(|rule| format!("{rule}, but callers now connect to {listen}: list {listen} too")),
            )
            .collect(),
        // A name that was not moved leads to the application itself.
        Mode::None => around
            .chain(named.by_name.into_iter().map(|by| {
                format!(
                    "{by} leads to the application, bypassing the sidecar: only app-listen or Redirect captures these calls"
                )
            }))
            .collect(),
        // The port keeps its number, so every reference leads to the sidecar.
        Mode::Loopback | Mode::Moved | Mode::Redirect => return Vec::new(),
    };
    if let Some(host) = port.host_port {
        bypass.push(format!("hostPort {host} leads directly to the application"));
    }
    bypass
}

/// Returns the reason why a redirect is forbidden, or `None` if it is allowed.
fn forbidden(pod: &Value, context: &Context) -> Option<Skipped> {
    if context.redirect == RedirectUse::Never {
        return Some(Skip::RedirectForbidden.because(
            "the installation adds no init container with NET_ADMIN (injector.redirect of the chart, or --redirect offline, is Never); an annotation cannot override this",
        ));
    }
    let enforced = context.namespace.labels.get("pod-security.kubernetes.io/enforce").map(String::as_str);
    if let Some(level @ ("restricted" | "baseline")) = enforced {
        return Some(
            Skip::RedirectForbidden
                .because(format!("the namespace enforces Pod Security {level}, which forbids NET_ADMIN")),
        );
    }
    if is_meshed(pod, context) {
        return Some(Skip::RedirectMeshed.because(
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
fn is_meshed(pod: &Value, context: &Context) -> bool {
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
        let Context { namespace, .. } = context;
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
