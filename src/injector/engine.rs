//! A sidecar that executes a model itself, in place of a model server: the directory of the model,
//! the volume that has it, the ports that callers reach, and the resources.
//!
//! Such a sidecar captures no port. It listens on the ports to which the Services of the pod lead,
//! so the containers of the pod must not declare them.

mod mount;
mod ports;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::mount::{MODELS, ModelMount};
use super::message::listed;
use super::ports::PortCandidate;
use super::status::{EngineStatus, InjectionStatus};
use super::{CONTAINER, InjectionContext, SkippedPod};
use crate::api::v1alpha1::{EngineDevice, EngineSpec, OpenEnum, PortRef};

/// Name of the resource that the device plugin of NVIDIA offers. A request for it applies to one
/// container.
const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Repository of the images of the release.
const RELEASE_REPOSITORY: &str = "groupage.dev/groupage";
/// End of the tag of the variant that is built with CUDA support.
const CUDA_TAG_SUFFIX: &str = "-cuda";
/// Maximum length of the directory of a model. Those in the examples have some tens of characters.
const PATH_CHARS_MAX: usize = 256;

/// Default CPU request: a core, because a batch on less is slower than most latency targets. The
/// engine uses all cores of the node unless a limit is set.
pub(super) const CPU_REQUEST: &str = "1";
/// Default memory request and limit. Weights in 32 bits and intermediate results of 16 384 tokens
/// have, by their sizes, 0.6 GiB for an encoder of 86 million parameters (BERT base), and 1.5 GiB for
/// one of 303 million (BERT large); the rest is for the proxy and a tokenizer of some 10,000 words.
/// One of 250,000, as of XLM-RoBERTa, takes hundreds of MiB, which is too much beside 1.5 GiB.
/// Embeddings of tokens are read from the files as they are needed. The kernel reclaims the memory of
/// its cache of files under pressure.
pub(super) const MEMORY_REQUEST: &str = "1Gi";
pub(super) const MEMORY_LIMIT: &str = "2Gi";
/// Number of seconds in which the process starts. It opens the files of the model before it listens,
/// perhaps on a network volume; weights are packed afterwards.
pub(super) const START_SECONDS: u32 = 300;

/// Allowed values of the annotation `groupage.dev/engine`.
pub(super) const MODEL_PATH: &str =
    "the absolute directory of a model, or with groupage.dev/engine-volume a path in that volume, without . and ..";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineSettings {
    /// Directory of the model: absolute, or relative to the root of the volume.
    pub(super) model: String,
    pub(super) device: EngineDevice,
    /// Name of the volume. `None` for the one that a container mounts at the directory.
    pub(super) volume: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnginePort {
    pub(super) number: u16,
    /// Its name. A container declares a number once, so there is at most one.
    pub(super) name: Option<String>,
}

/// Decisions about the engine of a pod.
#[derive(Debug, Clone)]
pub(super) struct EnginePlan {
    device: EngineDevice,
    mount: ModelMount,
    pub(super) ports: Vec<EnginePort>,
    /// Facts about the ports.
    notes: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) status: EngineStatus,
}

/// Returns a directory of a model without its trailing slash, or `None` if it is invalid.
pub(super) fn parse_path(text: &str) -> Option<String> {
    let trimmed = text.trim_end_matches('/');
    let relative = trimmed.strip_prefix('/').unwrap_or(trimmed);
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let fits = trimmed.chars().count() <= PATH_CHARS_MAX && !trimmed.chars().any(char::is_control);
    (fits && relative.split('/').all(is_plain)).then(|| trimmed.to_owned())
}

/// Returns the settings of the engine in a policy that differ from those of a pod, which only a new
/// pod gets; `None` if the sidecar of the pod executes no model. `status` and `annotations` are those
/// of the pod; settings of annotations take precedence over the policy.
#[must_use]
pub fn outdated_engine_settings(
    status: &str,
    annotations: &BTreeMap<String, String>,
    spec: Option<&EngineSpec>,
) -> Option<Vec<&'static str>> {
    let engine = InjectionStatus::parse(status)?.engine?;
    let model = spec.and_then(|spec| parse_path(spec.model.as_deref()?));
    let model = model.map(|model| if model.starts_with('/') { model } else { format!("{MODELS}/{model}") });
    let device = match spec.and_then(|spec| spec.device.clone()) {
        Some(OpenEnum::Known(device)) => device,
        Some(OpenEnum::Other(_)) | None => EngineDevice::Auto,
    };
    let mut outdated = Vec::new();
    if !annotations.contains_key("groupage.dev/engine") && model.as_ref() != Some(&engine.model) {
        outdated.push("engine.model");
    }
    if !annotations.contains_key("groupage.dev/engine-device") && engine.device != format!("{device:?}") {
        outdated.push("engine.device");
    }
    Some(outdated)
}

// === impl EngineSettings ===

impl EngineSettings {
    /// Returns `true` if the directory is relative, and no volume is named that has it.
    pub(super) fn lacks_volume(&self) -> bool {
        self.volume.is_none() && !self.model.starts_with('/')
    }
}

// === impl EnginePlan ===

impl EnginePlan {
    /// Selects the volume and the ports. `native` is `true` for a native sidecar.
    ///
    /// # Errors
    /// No volume has the model, or a port is in use.
    pub(super) fn new(
        pod: &Value,
        context: &InjectionContext,
        settings: &EngineSettings,
        requested: &[PortRef],
        native: bool,
    ) -> Result<Self, SkippedPod> {
        let mount = ModelMount::find(pod, settings)?;
        let ports::PortSelection { ports, notes, mut warnings } = ports::select(pod, &context.referrers, requested)?;
        let device = settings.device;
        let resolves_names = !native || context.supports_native_sidecars;
        let names: Vec<String> = ports.iter().filter_map(|port| port.name.clone()).collect();
        if !resolves_names {
            warnings.extend(ports.iter().filter_map(unresolved_name_warning));
        }
        if device == EngineDevice::Cuda {
            warnings.extend(release_image_warning(&context.sidecar.image));
        }
        let (declared, declared_names) = ports::of_other_containers(pod);
        let status = EngineStatus {
            model: mount.directory.clone(),
            volume: mount.volume.clone(),
            device: format!("{device:?}"),
            ports: ports.iter().map(|port| port.number).collect(),
            // A Service with a name that it does not resolve leads nowhere.
            names: if resolves_names { names } else { Vec::new() },
            declared,
            declared_names,
        };
        Ok(Self { device, mount, ports, notes, warnings, status })
    }

    /// Returns the ports as those of the sidecar, for the allocation of its other ports.
    pub(super) fn candidates(&self) -> Vec<PortCandidate> {
        let candidate = |port: &EnginePort| PortCandidate {
            container: CONTAINER.to_owned(),
            name: None,
            number: port.number,
            host_port: None,
        };
        self.ports.iter().map(candidate).collect()
    }

    /// Returns the arguments of the process.
    pub(super) fn args(&self) -> Vec<String> {
        // Flag and value are one argument, so a directory can never be parsed as a flag.
        let flags = [format!("--engine={}", self.mount.directory), format!("--engine-device={:?}", self.device)];
        let listen = self.ports.iter().map(|port| format!("--listen=[::]:{}", port.number));
        flags.into_iter().chain(listen).collect()
    }

    /// Returns the mount of the volume with the model.
    pub(super) fn volume_mount(&self) -> &Value {
        &self.mount.value
    }

    /// Returns `true` if the sidecar requests a GPU.
    pub(super) fn needs_gpu(&self) -> bool {
        self.device == EngineDevice::Cuda
    }

    /// Adds the request for a GPU. Kubernetes requires that the limit of such a resource equals its
    /// request.
    pub(super) fn add_gpu(&self, resources: &mut Value) {
        if self.needs_gpu() {
            for kind in ["requests", "limits"] {
                resources[kind][GPU_RESOURCE] = json!("1");
            }
        }
    }

    pub(super) fn lowest_port(&self) -> Option<u16> {
        self.ports.iter().map(|port| port.number).min()
    }

    /// Describes the engine in the report.
    pub(super) fn facts(&self) -> Vec<String> {
        let port = |port: &EnginePort| match &port.name {
            None => port.number.to_string(),
            Some(name) => format!("{} (named {name})", port.number),
        };
        let ports: Vec<String> = self.ports.iter().map(port).collect();
        let ModelMount { directory, volume, .. } = &self.mount;
        let mut facts = vec![format!(
            "the sidecar executes the model {directory} of volume {volume}, device {:?}, on port{} {}",
            self.device,
            if ports.len() == 1 { "" } else { "s" },
            listed(&ports)
        )];
        facts.extend_from_slice(&self.notes);
        if self.needs_gpu() {
            facts.push(format!("the sidecar requests {GPU_RESOURCE}: 1"));
        }
        facts
    }
}

/// Returns the warning about a port name of a native sidecar on a cluster where Services do not
/// resolve it.
fn unresolved_name_warning(port: &EnginePort) -> Option<String> {
    let EnginePort { number, name } = port;
    let name = name.as_ref()?;
    Some(format!(
        "Services do not resolve port name {name} of a native sidecar before Kubernetes 1.33 (native-sidecar is Always): use {number} as their targetPort"
    ))
}

/// Returns the warning about an image without CUDA support, for that of the release. The variant of
/// an image that is named by its digest alone is unknown.
fn release_image_warning(image: &str) -> Option<String> {
    let tag = image.strip_prefix(RELEASE_REPOSITORY)?.strip_prefix(':')?;
    let (tag, _) = tag.split_once('@').unwrap_or((tag, ""));
    (!tag.ends_with(CUDA_TAG_SUFFIX)).then(|| {
        format!(
            "image {image} of the release is built without CUDA support, so the sidecar will not start: set image.tag of the chart to {tag}{CUDA_TAG_SUFFIX}, which applies to the controller and all sidecars"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_image_of_the_release_is_known_to_have_no_cuda() {
        for (image, is_release) in [
            ("groupage.dev/groupage:1", true),
            ("groupage.dev/groupage:1@sha256:0", true),
            ("groupage.dev/groupage:1-cuda", false),
            ("groupage.dev/groupage:1-cuda@sha256:0", false),
            ("groupage.dev/groupage@sha256:0", false),
            ("groupage.dev/groupage-cuda:1", false),
            ("mirror/groupage:1", false),
        ] {
            assert_eq!(release_image_warning(image).is_some(), is_release, "{image}");
        }
    }

    #[test]
    fn settings_of_a_policy_that_differ_from_those_of_the_pod_are_outdated() {
        let status = |model: &str| {
            let engine = json!({"model": model, "volume": "v", "device": "Cpu", "ports": [8080]});
            json!({"version": "1", "form": "native", "metrics": 9190, "admin": 9191, "hash": "h", "engine": engine})
                .to_string()
        };
        let spec = |text: &str| serde_json::from_str::<EngineSpec>(text).unwrap();
        let found = |model: &str, annotations: &[&str], text: &str| {
            let annotations = annotations.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
            outdated_engine_settings(&status(model), &annotations, Some(&spec(text))).unwrap()
        };
        let none = [] as [&str; 0];
        assert_eq!(found("/m", &[], r#"{"model": "/m/", "device": "Cpu"}"#), none);
        assert_eq!(found("/models/m", &[], r#"{"model": "m", "device": "Cpu"}"#), none);
        assert_eq!(found("/m", &[], r#"{"model": "/n", "device": "Cpu"}"#), ["engine.model"]);
        assert_eq!(found("/m", &[], "{}"), ["engine.model", "engine.device"]);
        let own = ["groupage.dev/engine", "groupage.dev/engine-device"];
        assert_eq!(found("/m", &own, r#"{"model": "/n", "device": "Cuda"}"#), none);
        assert_eq!(outdated_engine_settings("{}", &BTreeMap::new(), None), None);
    }

    #[test]
    fn a_path_has_neither_empty_nor_relative_parts() {
        for (text, path) in [("/models/m/", "/models/m"), ("m", "m"), ("a/b", "a/b"), ("/a b", "/a b")] {
            assert_eq!(parse_path(text).as_deref(), Some(path));
        }
        for text in ["", "/", "//", "/models//m", "/models/../etc", "./m", "m\n", &"m".repeat(300)] {
            assert_eq!(parse_path(text), None, "{text}");
        }
    }
}
