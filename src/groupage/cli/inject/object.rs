//! Injection into the pod templates of one object, and its reversal, with a report of both.

use serde_json::Value;

use super::context::ManifestContext;
use super::display_name;
use super::hints;
use super::refusal::LocatedRefusal;
use super::report::ObjectReport;
use crate::injector::{self, InjectionOutcome, KeyLocation, TemplateLocation};

/// Report of an object that runs pods but has no pod template at a known place.
const NOT_FOUND: &str =
    "its pod templates are not at a known path; annotate them, and the webhook adds the sidecar to the pods";

/// Changes one object, or returns the reasons for a refusal.
pub(super) type ObjectFn<'a> = &'a mut dyn FnMut(&Value, &mut ObjectReport) -> Result<Value, Vec<LocatedRefusal>>;

/// Applies the work to an object, or to every item of a list.
pub(super) fn map_items(
    object: &Value,
    work: ObjectFn<'_>,
    report: &mut ObjectReport,
) -> Result<Value, Vec<LocatedRefusal>> {
    let is_list =
        object.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == "List" || kind.ends_with("List"));
    let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| is_list) else {
        return work(object, report);
    };
    let mut after = object.clone();
    let mut problems = Vec::new();
    let mut changed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match map_items(item, work, report) {
            Ok(item) => changed.push(item),
            Err(more) => problems.extend(more.into_iter().map(|mut wrong| {
                wrong.path.splice(0..0, ["items".to_owned(), index.to_string()]);
                wrong
            })),
        }
    }
    if let Some(items) = after.get_mut("items") {
        *items = Value::Array(changed);
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

/// Adds the sidecar to the pod templates of an object, and reports what was done.
pub(super) fn inject_object(
    object: &Value,
    around: &ManifestContext,
    report: &mut ObjectReport,
) -> Result<Value, Vec<LocatedRefusal>> {
    let places = match injector::template_locations(object) {
        Ok(places) => places,
        Err(reason) => {
            report.push(&format!("{} left unchanged: {reason}", display_name(object)));
            return Ok(object.clone());
        }
    };
    for hint in hints::misplaced_keys(object, &places) {
        report.push(&format!("{}: {hint}", display_name(object)));
    }
    if places.is_empty() && hints::has_pods(object) {
        report.push(&format!("{} left unchanged: {NOT_FOUND}", display_name(object)));
    }
    let mut after = object.clone();
    let mut problems = Vec::new();
    for place in places {
        let name = template_name(object, &place);
        let template = place.get(object);
        let context = around.context(object, &place);
        match injector::inject(template, &context) {
            InjectionOutcome::Injected(injected) => {
                let is_new = injected.pod != *template;
                if is_new {
                    report.push_injected(&name);
                } else {
                    report.push(&format!("{name} unchanged: it already has the sidecar"));
                }
                injected.report.facts.iter().for_each(|fact| report.push_fact(fact));
                injected.report.warnings.iter().for_each(|warning| report.push_warning(warning));
                place.set(&mut after, injected.pod);
            }
            InjectionOutcome::Skipped(skipped) => {
                report.push(&format!("{name} skipped ({}): {}", skipped.reason.as_str(), skipped.detail));
            }
            InjectionOutcome::Refused(refused) => problems.extend(refused.into_iter().map(|problem| {
                let map = if problem.holder == KeyLocation::Annotation { "annotations" } else { "labels" };
                let within = if problem.holder == KeyLocation::Namespace { &[] } else { &place.path[..] };
                let path = within.iter().chain(&["metadata", map, &problem.key]).map(|&key| key.to_owned()).collect();
                let namespace = (problem.holder == KeyLocation::Namespace).then(|| context.namespace.name.clone());
                let message = format!("error[{}]: {name}: {}", problem.code, problem.message);
                LocatedRefusal { path, namespace, message }
            })),
        }
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

/// Removes the sidecar from the pod templates of an object.
pub(super) fn uninject_object(object: &Value, report: &mut ObjectReport) -> Result<Value, Vec<LocatedRefusal>> {
    let mut after = object.clone();
    for place in injector::template_locations(object).unwrap_or_default() {
        if let Some(uninjected) = injector::uninject(place.get(object)) {
            report.push(&format!("{} uninjected", template_name(object, &place)));
            uninjected.warnings.iter().for_each(|warning| report.push_warning(warning));
            place.set(&mut after, uninjected.pod);
        }
    }
    Ok(after)
}

/// Returns the name of an object, followed by the name of the template if it has several.
fn template_name(object: &Value, place: &TemplateLocation) -> String {
    match place.label() {
        "" => display_name(object),
        template => format!("{} {template}", display_name(object)),
    }
}
