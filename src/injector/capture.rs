//! Selection of a capture mode for each port, from the objects that refer to the port and from the
//! permissions of the pod.
//!
//! No mode suits every pod. `Named` moves the port's name to the sidecar and changes nothing else;
//! callers that use the port number bypass the sidecar. `Loopback` requires an application with a
//! configurable listen address. `Redirect` requires an init container with `NET_ADMIN`.

mod bypasses;
mod capture_plan;
mod containers;
mod decision;
mod redirect;

use serde_json::Value;

use self::decision::{CaptureOptions, PortDecision};
use super::allocator::PortAllocator;
use super::effective::InjectionSettings;
use super::ports::{self, PortCandidate};
use super::recipe::{self, RecipeChoice, RecipeMatch};
use super::{InjectionContext, ObjectSource, SkipReason, SkippedPod};
use crate::api::v1alpha1::CaptureMode;

pub(super) use self::bypasses::bypass;
pub(super) use self::capture_plan::CapturePlan;

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
    let redirect = redirect::permitted_use(pod, context, overrides.capture)?;
    let recipes = applicable_recipes(pod, overrides);
    // The sidecar must not use a port of a known server, even if the server's recipe is not
    // applied.
    numbers.reserve(recipe::find_matches(pod, None).iter().flat_map(RecipeMatch::all_ports))?;
    let options = CaptureOptions::new(pod, context, overrides, redirect, &recipes);
    let mut decided: Vec<PortDecision> = candidates.into_iter().map(|port| options.decide(port)).collect();
    let mut plan = CapturePlan::default();
    match options.recipes {
        [] => plan.warnings = containers::extend_loopback(&options, &mut decided),
        _ => plan.extend_recipes(&options, &mut decided),
    }
    plan.warn_unused_recipe(&options);
    // Duplicates: a repeated name is dropped here, a repeated number is merged in `add`.
    let firsts = plan.drop_shadowed_names(decided);
    if context.view == ObjectSource::Files {
        plan.warn_unseen_services(&firsts);
    }
    for each in firsts {
        plan.add(each, numbers)?;
    }
    plan.warn_options(&options);
    if plan.ports.len() > ports::CAPTURED_MAX {
        return Err(
            SkipReason::TooLarge.with_detail(format!("more than {} ports would be captured", ports::CAPTURED_MAX))
        );
    }
    Ok(plan)
}

/// Returns the recipes that may be applied. Recipes apply in mode `Auto` only, and an `app-listen`
/// override takes precedence over them.
fn applicable_recipes(pod: &Value, overrides: &InjectionSettings) -> Vec<RecipeMatch> {
    match overrides.recipe {
        _ if overrides.app_listen.is_some() || overrides.capture != CaptureMode::Auto => Vec::new(),
        RecipeChoice::None => Vec::new(),
        RecipeChoice::Auto => recipe::find_matches(pod, None),
        RecipeChoice::Named(name) => recipe::find_matches(pod, Some(name)),
    }
}
