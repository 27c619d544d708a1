//! Choice of a pod's injection settings: annotations take precedence over the policy, the policy
//! over the defaults of the installation.
//!
//! If one annotation is invalid, the pod is not injected, because a partial application would be a
//! configuration that no user chose. A policy covers several workloads, so a value of it that does
//! not fit this pod is no error.

use serde_json::Value;

use super::annotation::{AnnotationReader, AnnotationValues, PORTS_MAX, drain};
use super::app_listen::{AppListen, POLICY_LISTENS};
use super::effective::InjectionSettings;
use super::engine::{EngineSettings, MODEL_PATH};
use super::recipe::RecipeChoice;
use super::status::InjectionStatus;
use super::{AnnotationError, InjectionContext, NamedPolicy, listen_target, message, policy};
use crate::api::v1alpha1::{CaptureMode, EngineDevice, NativeSidecar, OpenEnum, PortRef};
use crate::config;
use crate::config::quantity::{CPU, MEMORY};

/// Reads the settings of a pod and the resulting warnings. `known` is the status of an earlier
/// pass.
///
/// # Errors
/// Returns every annotation that is invalid.
pub(super) fn read(
    pod: &Value,
    known: Option<&InjectionStatus>,
    context: &InjectionContext,
) -> Result<(InjectionSettings, Vec<String>), Vec<AnnotationError>> {
    let mut reader = AnnotationReader::new(pod);
    let mut warnings = reader.check_keys();
    let own = reader.values();
    let policy = policy::select_policy(pod, context, own.policy.as_deref(), &mut warnings).cloned();
    let engine = read_engine(&own, policy.as_ref(), &mut reader, &mut warnings);
    let under = policy.as_ref().and_then(|policy| policy.spec.injection.clone()).unwrap_or_default();
    let ports = own.ports.unwrap_or_else(|| valid_ports(under.ports));
    let settle = |app_listen: AppListen| with_container(app_listen, pod, known, &context.referrers, &ports);
    let app_listen = own.app_listen.map(settle).and_then(|settled| match settled {
        Ok(app_listen) => Some(app_listen),
        Err(allowed) => {
            reader.record_invalid("app-listen", &allowed);
            None
        }
    });
    reader.finish()?;
    let app_listen = match (&under.app_listen, &policy) {
        (Some(text), Some(policy)) => or_of_policy(app_listen, text, &policy.name, settle, &mut warnings),
        _ => app_listen,
    };
    let recipe = own.recipe.unwrap_or_else(|| recipe_of_policy(under.recipe.as_deref(), &mut warnings));
    // A value that this version cannot parse leaves the default.
    let valid = |text: Option<String>, is_valid: fn(&str) -> bool| text.filter(|text| is_valid(text));
    let settings = InjectionSettings {
        capture: own.capture.or_else(|| supported_value(under.capture)).unwrap_or(CaptureMode::Auto),
        ports,
        app_listen,
        recipe,
        cpu_request: own.cpu_request.or_else(|| valid(under.cpu_request, |text| CPU.contains(text))),
        memory_request: own.memory_request.or_else(|| valid(under.memory_request, |text| MEMORY.contains(text))),
        memory_limit: own.memory_limit.or_else(|| valid(under.memory_limit, |text| MEMORY.contains(text))),
        log_level: own
            .log_level
            .or_else(|| valid(under.log_level, config::is_log_level))
            .unwrap_or_else(|| context.sidecar.log_level.clone()),
        native: own.native.or_else(|| supported_value(under.native_sidecar)).unwrap_or(NativeSidecar::Auto),
        drain_timeout: own.drain_timeout.or_else(|| drain(&under.drain_timeout?.0)),
        mode: own.mode,
        engine,
        policy,
    };
    Ok((settings, warnings))
}

/// Returns the settings of the engine: the model of the annotation, otherwise that of the policy;
/// `None` if neither names one.
fn read_engine(
    own: &AnnotationValues,
    policy: Option<&NamedPolicy>,
    reader: &mut AnnotationReader<'_>,
    warnings: &mut Vec<String>,
) -> Option<EngineSettings> {
    let under = policy.and_then(|policy| policy.spec.engine.clone()).unwrap_or_default();
    let Some(model) = own.engine.clone().or(under.model) else {
        if own.engine_device.is_some() || own.engine_volume.is_some() {
            warnings.push(
                "groupage.dev/engine-device and groupage.dev/engine-volume are not used: set groupage.dev/engine, or engine.model of the policy, to the directory of a model".to_owned(),
            );
        }
        return None;
    };
    if own.capture.is_some() || own.app_listen.is_some() || own.recipe.is_some() {
        warnings.push(
            "groupage.dev/capture, groupage.dev/app-listen and groupage.dev/recipe are not used: a sidecar that executes a model captures no port".to_owned(),
        );
    }
    let device = own.engine_device.or_else(|| supported_value(under.device)).unwrap_or(EngineDevice::Auto);
    let settings = EngineSettings { model, device, volume: own.engine_volume.clone() };
    if own.engine.is_some() && settings.lacks_volume() {
        reader.record_invalid("engine", MODEL_PATH);
    }
    Some(settings)
}

/// Returns a value that this version supports. A newer one in a policy leaves the default, so that
/// an older controller keeps working.
fn supported_value<T>(word: Option<OpenEnum<T>>) -> Option<T> {
    match word? {
        OpenEnum::Known(word) => Some(word),
        OpenEnum::Other(_) => None,
    }
}

fn valid_ports(ports: Option<Vec<PortRef>>) -> Vec<PortRef> {
    // A port name contains a letter, so a string of digits is a number.
    let read = |port: PortRef| match &port {
        PortRef::Name(name) => name.parse().map_or(port, PortRef::Number),
        PortRef::Number(_) => port,
    };
    let ports = ports.into_iter().flatten().map(read).filter(|port| *port != PortRef::Number(0));
    ports.take(PORTS_MAX).collect()
}

/// Selects the container that an `app-listen` override applies to.
///
/// # Errors
/// Returns a description of the values that are valid in this pod.
fn with_container(
    app_listen: AppListen,
    pod: &Value,
    known: Option<&InjectionStatus>,
    objects: &[Value],
    ports: &[PortRef],
) -> Result<AppListen, String> {
    let container = match &app_listen.container {
        Some(name) if listen_target::is_application(pod, name) => Some(name.clone()),
        Some(_) => return Err(format!("a container of the application: {}", listen_target::applications(pod))),
        None => listen_target::select_container(pod, known, objects, &app_listen, ports).map_err(|left| {
            format!("CONTAINER/ in front: it could apply to each of the containers {}", message::listed(&left))
        })?,
    };
    Ok(AppListen { container, ..app_listen })
}

/// Returns the `app-listen` override of the annotation, `own`, otherwise that of the policy with
/// this name. `settle` selects its container.
fn or_of_policy(
    own: Option<AppListen>,
    text: &str,
    name: &str,
    settle: impl Fn(AppListen) -> Result<AppListen, String>,
    warnings: &mut Vec<String>,
) -> Option<AppListen> {
    let read = AppListen::parse_policy(text);
    if read.is_none() && AppListen::parse(text).is_some() {
        warnings.push(format!("appListen of policy {name} is not used: {POLICY_LISTENS}"));
    }
    if own.is_some() {
        return own;
    }
    match settle(read?) {
        Ok(app_listen) => Some(app_listen),
        Err(allowed) => {
            warnings.push(format!("appListen of policy {name} is not used: for this pod, expected {allowed}"));
            None
        }
    }
}

fn recipe_of_policy(text: Option<&str>, warnings: &mut Vec<String>) -> RecipeChoice {
    let text = text.unwrap_or("Auto");
    RecipeChoice::parse(text).unwrap_or_else(|| {
        warnings.push(format!(
            "recipe {text} of the policy is unknown, and Auto applies: expected {}",
            RecipeChoice::allowed()
        ));
        RecipeChoice::Auto
    })
}
