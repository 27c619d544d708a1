//! Resource requests and limits of the sidecar, chosen so that the pod keeps its quality of service
//! class.
//!
//! A Guaranteed pod stays Guaranteed. A sidecar without equal limits and requests would make it
//! Burstable, and the pod would lose its exclusive cores (istio#33283).

use serde_json::{Value, json};

use super::access::{at, list, text};
use super::effective::InjectionSettings;
use super::{InjectionContext, SkipReason, SkippedPod, engine};
use crate::config::quantity::{self, Milli};

/// Default CPU of a sidecar in a Guaranteed pod. It is also the limit there, and at 50m a call
/// could be throttled for up to 95 of each 100 ms.
const GUARANTEED_CPU: &str = "200m";
/// Maximum default CPU limit of a sidecar in a pod that limits every container, in millicores. The
/// sidecar serves calls on one thread unless `--threads` is set, so one core throttles it least.
const LIMITED_CPU: Milli = 1000;
/// Minimum memory with which the sidecar starts, in thousandths of a byte: [`quantity::MEMORY`].
const MEMORY_MIN: Milli = (16 << 20) * 1000;

/// Resources of the sidecar, with notes and warnings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SidecarResources {
    pub(super) value: Value,
    /// Pod-level requests that must be added explicitly, with their amounts.
    pub(super) pod_requests: Vec<(String, Value)>,
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// CPU request, memory request and memory limit of the sidecar.
type SidecarAmounts = (Milli, Milli, Milli);

/// Computes the sidecar's resources in this pod.
///
/// # Errors
/// The pod-level `resources` leave no room.
pub(super) fn plan(
    pod: &Value,
    overrides: &InjectionSettings,
    context: &InjectionContext,
) -> Result<SidecarResources, SkippedPod> {
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let whole = has_pod_resources(pod);
    let guaranteed = !whole && is_guaranteed(pod);
    let mut amounts = choose_amounts(overrides, context, guaranteed, &mut notes);
    if whole {
        amounts = fit_pod_resources(pod, amounts, &mut notes)?;
    }
    let value = if guaranteed {
        keep_guaranteed(amounts, &mut notes)
    } else {
        if !whole && is_best_effort(pod) {
            warnings
                .push("the pod was BestEffort and is now Burstable, because the sidecar requests resources".to_owned());
        }
        // Pod-level resources are limited as a whole, and a quota then requires no limit of each
        // container.
        let largest = largest_cpu_limit(pod).filter(|_| !whole);
        limit_amounts(amounts, largest, &mut notes)
    };
    let pod_requests = defaulted_requests(pod);
    notes.extend(pod_requests.iter().map(|(name, amount)| {
        let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        format!("the pod-level request of {name} is set to its limit, {amount}: otherwise the API server would derive it from the sidecar's request")
    }));
    Ok(SidecarResources { value, pod_requests, notes, warnings })
}

/// Returns the amounts of the overrides, or the defaults.
fn choose_amounts(
    overrides: &InjectionSettings,
    context: &InjectionContext,
    guaranteed: bool,
    notes: &mut Vec<String>,
) -> SidecarAmounts {
    let defaults = &context.sidecar;
    let read = |text: &str| quantity::parse(text).unwrap_or_default();
    let (default_cpu, default_memory, default_limit) = match &overrides.engine {
        Some(_) => (engine::CPU_REQUEST, engine::MEMORY_REQUEST, engine::MEMORY_LIMIT),
        None => {
            let cpu = if guaranteed { GUARANTEED_CPU } else { defaults.cpu_request.as_str() };
            (cpu, defaults.memory_request.as_str(), defaults.memory_limit.as_str())
        }
    };
    let cpu = read(overrides.cpu_request.as_deref().unwrap_or(default_cpu));
    let mut limit = read(overrides.memory_limit.as_deref().unwrap_or(default_limit));
    let requested = overrides.memory_request.as_deref().map(read);
    if overrides.memory_limit.is_none() {
        // A memory request without a limit raises the limit to the request.
        limit = limit.max(requested.unwrap_or_default());
    }
    let memory = requested.unwrap_or_else(|| read(default_memory)).min(limit);
    if requested.is_some_and(|requested| requested > memory) {
        notes.push("memory-request is above memory-limit: the limit is used for both".to_owned());
    }
    (cpu, memory, limit)
}

/// Returns limits equal to the requests, so that the pod stays Guaranteed.
fn keep_guaranteed((cpu, _, limit): SidecarAmounts, notes: &mut Vec<String>) -> Value {
    let both = json!({"cpu": quantity::format_cpu(cpu), "memory": quantity::format_memory(limit)});
    notes.push(format!(
        "the pod stays Guaranteed: the sidecar's limits equal its requests, cpu {}",
        quantity::format_cpu(cpu)
    ));
    json!({"requests": both, "limits": both})
}

/// Returns the requests and limits, with a CPU limit if every container has one, of which `largest`
/// is the largest.
fn limit_amounts((cpu, memory, limit): SidecarAmounts, largest: Option<Milli>, notes: &mut Vec<String>) -> Value {
    let mut limits = json!({"memory": quantity::format_memory(limit)});
    if let Some(largest) = largest {
        let most = quantity::format_cpu(cpu.max(LIMITED_CPU.min(largest)));
        notes.push(format!(
            "every container has a CPU limit, which a ResourceQuota may require: the sidecar's is {most}"
        ));
        limits["cpu"] = json!(most);
    }
    json!({
        "requests": {"cpu": quantity::format_cpu(cpu), "memory": quantity::format_memory(memory)},
        "limits": limits,
    })
}

/// Reduces a CPU request, a memory request and a memory limit to the room that the pod-level
/// resources leave.
fn fit_pod_resources(
    pod: &Value,
    (cpu, memory, limit): SidecarAmounts,
    notes: &mut Vec<String>,
) -> Result<SidecarAmounts, SkippedPod> {
    let requested = (cpu, memory);
    let most = amount(pod, &["spec", "resources", "limits", "memory"]).unwrap_or(Milli::MAX);
    let cpu = remaining_request(pod, "cpu").map_or(cpu, |room| cpu.min(room));
    let memory = remaining_request(pod, "memory").map_or(memory, |room| memory.min(room)).min(most);
    for (resource, room, least) in [("cpu", cpu, 1), ("memory", memory, MEMORY_MIN)] {
        if room < least {
            return Err(SkipReason::NoRoom.with_detail(format!(
                "the containers' requests leave no {resource} of the pod-level resources for the sidecar: raise spec.resources, or lower a container's request"
            )));
        }
    }
    if (cpu, memory) != requested {
        notes.push(format!(
            "the pod-level resources leave cpu {} and memory {} for the sidecar",
            quantity::format_cpu(cpu),
            quantity::format_memory(memory)
        ));
    }
    Ok((cpu, memory, limit.min(most)))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(pod, &["spec", "containers"]).iter().chain(list(pod, &["spec", "initContainers"]))
}

/// Parses the quantity at a path. It may be a JSON number.
fn amount(value: &Value, path: &[&str]) -> Option<Milli> {
    match at(value, path) {
        Value::String(text) => quantity::parse(text),
        Value::Number(number) => quantity::parse(&number.to_string()),
        _ => None,
    }
}

/// Returns `true` if the pod has pod-level resources, which then determine its quality of service
/// class (KEP-2837, "pod level resources").
fn has_pod_resources(pod: &Value) -> bool {
    ["requests", "limits"].iter().any(|kind| {
        let set = at(pod, &["spec", "resources", kind]).as_object();
        set.is_some_and(|set| {
            set.iter().any(|(name, amount)| {
                (matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-")) && !amount.is_null()
            })
        })
    })
}

/// Returns the pod-level limits that the API server would use as the default of an absent pod-level
/// request. This holds if no container has a request or limit for the resource. With the sidecar's
/// request, the default would become the sum of the containers' requests (`defaultPodRequests` in
/// Kubernetes, `pkg/apis/core/v1/defaults.go`), that is the sidecar's alone, and a Guaranteed pod
/// would lose its class.
fn defaulted_requests(pod: &Value) -> Vec<(String, Value)> {
    let has_resource = |value: &Value, kind: &str, name: &str| !at(value, &["resources", kind, name]).is_null();
    let spec = at(pod, &["spec"]);
    let requests = at(spec, &["resources", "requests"]);
    let limits = ["cpu", "memory"].into_iter().filter(|name| {
        amount(spec, &["resources", "limits", name]).is_some()
            && (requests.is_null() || requests.is_object())
            && !has_resource(spec, "requests", name)
            && !containers(pod).any(|own| has_resource(own, "requests", name) || has_resource(own, "limits", name))
    });
    limits.map(|name| (name.to_owned(), at(spec, &["resources", "limits", name]).clone())).collect()
}

/// Returns `true` if every container has limits for CPU and memory, and requests that are equal or
/// absent.
fn is_guaranteed(pod: &Value) -> bool {
    let mut any = false;
    containers(pod).all(|container| {
        any = true;
        ["cpu", "memory"].iter().all(|resource| {
            let limit = amount(container, &["resources", "limits", resource]);
            let request = amount(container, &["resources", "requests", resource]);
            limit.is_some_and(|limit| limit > 0) && (request.is_none() || request == limit)
        })
    }) && any
}

/// Returns the largest CPU limit if every container has one. A `ResourceQuota` of `limits.cpu`
/// rejects a pod with a container that has none, including init containers. No container exceeds
/// the maximum of a `LimitRange`.
fn largest_cpu_limit(pod: &Value) -> Option<Milli> {
    let limits = containers(pod)
        .map(|container| amount(container, &["resources", "limits", "cpu"]).filter(|limit| *limit > 0))
        .collect::<Option<Vec<_>>>()?;
    limits.into_iter().max()
}

/// Returns `true` if no container has requests or limits for CPU or memory.
fn is_best_effort(pod: &Value) -> bool {
    containers(pod).all(|container| {
        ["requests", "limits"].iter().all(|kind| {
            ["cpu", "memory"]
                .iter()
                .all(|resource| amount(container, &["resources", kind, resource]).is_none_or(|amount| amount == 0))
        })
    })
}

/// Returns the part of the pod-level request that its containers do not use; `None` if the pod sets
/// neither request nor limit.
fn remaining_request(pod: &Value, resource: &str) -> Option<Milli> {
    let whole = amount(pod, &["spec", "resources", "requests", resource])
        .or_else(|| amount(pod, &["spec", "resources", "limits", resource]))?;
    let lasting = |container: &&Value| {
        let is_init = list(pod, &["spec", "initContainers"]).contains(container);
        !is_init || text(container, &["restartPolicy"]) == Some("Always")
    };
    let requested = containers(pod).filter(lasting).filter_map(|container| {
        amount(container, &["resources", "requests", resource])
            .or_else(|| amount(container, &["resources", "limits", resource]))
    });
    Some(whole - requested.sum::<Milli>())
}
