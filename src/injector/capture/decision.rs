//! The capture mode of a single port, and the reasons not to capture it.

use serde_json::Value;

use crate::access::text;
use crate::api::v1alpha1::CaptureMode;
use crate::app_listen::AppListen;
use crate::effective::InjectionSettings;
use crate::planned::PortCapture;
use crate::ports::{self, PortCandidate};
use crate::recipe::{MoveKind, RecipeChoice, RecipeMatch};
use crate::referrers::{self, Referrers};
use crate::{InjectionContext, ObjectSource, RedirectUse};

/// A candidate with its preliminary mode.
pub(super) struct PortDecision {
    pub(super) port: PortCandidate,
    pub(super) named: Referrers,
    /// Reason why its name cannot be moved.
    pub(super) unmovable: Option<String>,
    pub(super) mode: PortCapture,
}

pub(super) struct CaptureOptions<'a> {
    pub(super) pod: &'a Value,
    context: &'a InjectionContext,
    pub(super) requested: CaptureMode,
    /// Use of a redirect if no annotation requests one.
    redirect: RedirectUse,
    pub(super) app_listen: Option<&'a AppListen>,
    pub(super) recipe_choice: RecipeChoice,
    /// The recipes that may be applied.
    pub(super) recipes: &'a [RecipeMatch],
    /// `true` for a native sidecar.
    native: bool,
}

// === impl CaptureOptions ===

impl<'a> CaptureOptions<'a> {
    /// Creates the options of a pod. `redirect` is the permitted use of a redirect.
    pub(super) fn new(
        pod: &'a Value,
        context: &'a InjectionContext,
        settings: &'a InjectionSettings,
        redirect: RedirectUse,
        recipes: &'a [RecipeMatch],
    ) -> Self {
        Self {
            pod,
            context,
            requested: settings.capture,
            redirect,
            app_listen: settings.app_listen.as_ref(),
            recipe_choice: settings.recipe,
            recipes,
            native: settings.is_native(context),
        }
    }

    /// Returns the container that the `app-listen` override applies to.
    pub(super) fn listen_container(&self) -> Option<&'a str> {
        self.app_listen.and_then(|app_listen| app_listen.container.as_deref())
    }

    /// Decides the mode of a port by itself, without regard to other ports of its container.
    pub(super) fn decide(&self, port: PortCandidate) -> PortDecision {
        let (pod, context) = (self.pod, self.context);
        let named = referrers::find(&port, pod, &context.namespace, context.referrers.iter());
        let local = self.local_reason(&port, &named);
        let is_local = local.is_some();
        let unmovable = local
            .or_else(|| ports::immovable_reason(pod, &port, self.native))
            .or_else(|| unresolved_name_reason(&port, self.native, context));
        let mode = if is_local { PortCapture::None } else { self.select_mode(&port, &named, unmovable.is_none()) };
        let unmovable = unmovable.or_else(|| rule_conflict(&port, &named));
        PortDecision { port, named, unmovable, mode }
    }

    fn is_recipe_named(&self) -> bool {
        matches!(self.recipe_choice, RecipeChoice::Named(_))
    }

    /// Returns the reason not to capture a port that the server already has on loopback and that no
    /// object refers to. Capturing it would expose the port to other pods, past a proxy inside the
    /// pod.
    fn local_reason(&self, port: &PortCandidate, named: &Referrers) -> Option<String> {
        if self.requested != CaptureMode::Auto || self.is_recipe_named() || *named != Referrers::default() {
            return None;
        }
        let recipe = self.recipes.iter().find(|recipe| recipe.container == port.container)?;
        let container =
            ports::application_containers(self.pod).find(|own| text(own, &["name"]) == Some(&port.container))?;
        recipe.is_local(port.number, container).then(|| {
            format!(
                "{} listens only on loopback with port {} of container {}, and no object refers to the port",
                recipe.name(),
                port.number,
                port.container
            )
        })
    }

    /// Returns the capture mode. `movable` is set if the port's name can move to the sidecar.
    fn select_mode(&self, port: &PortCandidate, named: &Referrers, movable: bool) -> PortCapture {
        let by_name = if movable { PortCapture::Named } else { PortCapture::None };
        let is_target = self.listen_container() == Some(port.container.as_str());
        let recipe = self.recipes.iter().find(|recipe| recipe.container == port.container);
        let moved = recipe.and_then(|recipe| recipe.move_kind(port.number)).map(|kind| match kind {
            MoveKind::Loopback => PortCapture::Loopback,
            MoveKind::Number => PortCapture::Moved,
        });
        match (self.requested, moved) {
            // Without an override the application is expected to listen on loopback by its own
            // configuration. With one, only the container that it applies to is.
            (CaptureMode::Loopback, _) if is_target || self.app_listen.is_none() => PortCapture::Loopback,
            (CaptureMode::Redirect, _) => PortCapture::Redirect,
            (CaptureMode::Auto, _) if self.redirect == RedirectUse::Always => PortCapture::Redirect,
            // In a file the Services may be missing, so it is unknown whether moving the name
            // suffices. Capturing the number always suffices.
            (CaptureMode::Auto, _)
                if is_target && self.context.view == ObjectSource::Files && *named == Referrers::default() =>
            {
                PortCapture::Loopback
            }
            // A Service that is created later may use the number.
            (CaptureMode::Auto, Some(moved)) if self.is_recipe_named() || *named == Referrers::default() => moved,
            // A `hostPort` keeps leading to the number.
            (CaptureMode::Auto, _)
                if movable && named.by_number.is_empty() && named.rules.is_empty() && port.host_port.is_none() =>
            {
                PortCapture::Named
            }
            (CaptureMode::Auto, _) if is_target => PortCapture::Loopback,
            (CaptureMode::Auto, Some(moved)) => moved,
            (CaptureMode::Auto, _) if self.redirect == RedirectUse::WhenNeeded => PortCapture::Redirect,
            // The rule would drop callers on their way to the sidecar's port.
            (CaptureMode::Auto, _) if !named.rules.is_empty() => PortCapture::None,
            (CaptureMode::Named | CaptureMode::Loopback | CaptureMode::Auto, _) => by_name,
        }
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

/// Returns the reason not to move a name to a native sidecar on a cluster before Kubernetes 1.33,
/// where a native sidecar can be forced by annotation or policy but Services do not resolve its
/// ports.
fn unresolved_name_reason(port: &PortCandidate, native: bool, context: &InjectionContext) -> Option<String> {
    (native && !context.supports_native_sidecars).then(|| {
        format!(
            "port name {} of container {} cannot move to a native sidecar before Kubernetes 1.33, where Services do not resolve it (native-sidecar is Always)",
            port.name.as_deref().unwrap_or_default(),
            port.container
        )
    })
}
