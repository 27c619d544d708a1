//! The volume of a pod that has the model, and its mount in the sidecar. It is read-only, so that
//! the sidecar cannot change what the other containers read.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::{EngineSettings, MODEL_PATH};
use crate::access::{find_named, list, text};
use crate::{SkipReason, SkippedPod};

/// Mount path of a volume with models that no container mounts.
pub(super) const MODELS: &str = "/models";
/// Directories that the sidecar needs itself. A volume mounted at one of them, or above it, would
/// hide its contents.
const RESERVED: [&str; 7] = ["/dev", "/etc", "/groupage", "/proc", "/run", "/sys", "/var/run"];
/// Lists of containers with the mounts that show where a volume has its files. If both mount a volume
/// at the same path, the path of the model is that which the application has.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelMount {
    /// Directory of the model in the sidecar.
    pub(super) directory: String,
    /// Name of the volume.
    pub(super) volume: String,
    /// Entry of `volumeMounts`.
    pub(super) value: Value,
}

/// A volume as a container mounts it.
#[derive(Debug, Clone, Copy)]
struct ContainerMount<'a> {
    volume: &'a str,
    path: &'a str,
    sub_path: Option<&'a str>,
}

// === impl ModelMount ===

impl ModelMount {
    /// Finds the volume of a model: the one that is named, otherwise the one that a container mounts
    /// at the directory or above it. It is mounted where a container mounts it, so that the directory
    /// is the same in both. A volume that no container mounts is mounted at [`MODELS`], or if the
    /// directory is absolute, there.
    ///
    /// # Errors
    /// No volume has the directory.
    pub(super) fn find(pod: &Value, settings: &EngineSettings) -> Result<Self, SkippedPod> {
        let EngineSettings { model, volume, .. } = settings;
        let Some(model) = &super::parse_path(model) else {
            return Err(SkipReason::NoModelVolume
                .with_detail(format!("engine.model of its policy is {model:?}; expected {MODEL_PATH}")));
        };
        let is_wanted = |mount: &ContainerMount<'_>| volume.as_deref().is_none_or(|name| name == mount.volume);
        let above = mounts(pod).filter(|mount| is_wanted(mount) && mount.contains(model));
        // The deepest mount hides those above it. Of two at the same path this is the first.
        let found = above.min_by_key(|mount| Reverse(mount.path.len()));
        if let Some(mount) = found {
            return Self::new(model.clone(), mount);
        }
        let Some(name) = volume.as_deref() else {
            return Err(SkipReason::NoModelVolume.with_detail(format!(
                "no container mounts a volume at {model}: mount the volume with the model there, or name it in groupage.dev/engine-volume"
            )));
        };
        let is_mounted = mounts(pod).any(|mount| mount.volume == name);
        // The volumes of a StatefulSet's claims are in its pods, and not in its template.
        if !is_mounted && find_named(list(pod, &["spec", "volumes"]), name).is_none() {
            return Err(SkipReason::NoModelVolume
                .with_detail(format!("it has no volume named {name}, as groupage.dev/engine-volume requires")));
        }
        let (directory, path) = match model.strip_prefix('/') {
            Some(_) => (model.clone(), model.as_str()),
            None => (format!("{MODELS}/{model}"), MODELS),
        };
        Self::new(directory, ContainerMount { volume: name, path, sub_path: None })
    }

    fn new(directory: String, mount: ContainerMount<'_>) -> Result<Self, SkippedPod> {
        let ContainerMount { volume, path, sub_path } = mount;
        let shown = if path.is_empty() { "/" } else { path };
        if let Some(reserved) = RESERVED.iter().find(|reserved| hides(path, reserved)) {
            return Err(SkipReason::NoModelVolume.with_detail(format!(
                "volume {volume} would be mounted at {shown}, where it hides {reserved} of the sidecar: mount it elsewhere, such as {MODELS}"
            )));
        }
        let mut value = json!({"name": volume, "mountPath": path, "readOnly": true});
        if let Some(sub_path) = sub_path {
            value["subPath"] = json!(sub_path);
        }
        Ok(Self { directory, volume: volume.to_owned(), value })
    }
}

// === impl ContainerMount ===

impl ContainerMount<'_> {
    fn contains(&self, directory: &str) -> bool {
        is_at_or_below(directory, self.path)
    }
}

/// Returns the mounts of all containers. A mount with an expression as its path depends on the
/// variables of its container, and is left out.
fn mounts(pod: &Value) -> impl Iterator<Item = ContainerMount<'_>> {
    let containers = CONTAINERS.iter().flat_map(|key| list(pod, &["spec", key]));
    let mounts = containers.flat_map(|container| list(container, &["volumeMounts"]));
    mounts.filter(|mount| text(mount, &["subPathExpr"]).is_none_or(str::is_empty)).filter_map(|mount| {
        Some(ContainerMount {
            volume: text(mount, &["name"])?,
            path: text(mount, &["mountPath"])?.trim_end_matches('/'),
            sub_path: text(mount, &["subPath"]).filter(|path| !path.is_empty()),
        })
    })
}

fn is_at_or_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns `true` if a mount at `path` hides files at `reserved`, or is inside of it.
fn hides(path: &str, reserved: &str) -> bool {
    is_at_or_below(path, reserved) || is_at_or_below(reserved, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::EngineDevice;

    fn pod(mounts: &Value) -> Value {
        json!({"spec": {
            "volumes": [{"name": "models", "emptyDir": {}}, {"name": "other", "emptyDir": {}}],
            "initContainers": [{"name": "fetch", "volumeMounts": mounts}],
            "containers": [{"name": "app"}],
        }})
    }

    fn find(mounts: &Value, model: &str, volume: Option<&str>) -> Result<(String, Value), String> {
        let settings =
            EngineSettings { model: model.to_owned(), device: EngineDevice::Auto, volume: volume.map(str::to_owned) };
        let found = ModelMount::find(&pod(mounts), &settings);
        found.map(|mount| (mount.directory, mount.value)).map_err(|skipped| {
            assert_eq!(skipped.reason, SkipReason::NoModelVolume);
            skipped.detail
        })
    }

    fn mount(name: &str, path: &str) -> Value {
        json!({"name": name, "mountPath": path, "readOnly": true})
    }

    #[test]
    fn the_volume_is_mounted_where_a_container_mounts_it() {
        let mounts = json!([{"name": "other", "mountPath": "/data"}, {"name": "models", "mountPath": "/data/models/"}]);
        let found = find(&mounts, "/data/models/m", None).unwrap();
        assert_eq!(found, ("/data/models/m".to_owned(), mount("models", "/data/models")));
        assert_eq!(find(&mounts, "/data/x", None).unwrap().1, mount("other", "/data"));
        assert_eq!(find(&mounts, "/data/models/m", Some("other")).unwrap().1, mount("other", "/data"));
        let part = json!([{"name": "models", "mountPath": "/m", "subPath": "a/b"}]);
        assert_eq!(find(&part, "/m", None).unwrap().1["subPath"], "a/b");
    }

    #[test]
    fn the_mount_of_the_application_precedes_that_of_an_init_container() {
        let mut both = pod(&json!([{"name": "other", "mountPath": "/models"}]));
        both["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "models", "mountPath": "/models/"}]);
        let settings = EngineSettings { model: "/models/m".to_owned(), device: EngineDevice::Auto, volume: None };
        assert_eq!(ModelMount::find(&both, &settings).unwrap().volume, "models");
    }

    #[test]
    fn a_named_volume_needs_no_mount_of_a_container() {
        let relative = find(&json!([]), "a/m", Some("models")).unwrap();
        assert_eq!(relative, ("/models/a/m".to_owned(), mount("models", "/models")));
        let absolute = find(&json!([]), "/srv/m", Some("models")).unwrap();
        assert_eq!(absolute, ("/srv/m".to_owned(), mount("models", "/srv/m")));
    }

    #[test]
    fn a_model_without_a_volume_is_refused_with_advice() {
        let mounts = json!([
            {"name": "models", "mountPath": "/mod"},
            {"name": "other", "mountPath": "/models", "subPathExpr": "$(POD)"},
        ]);
        let missing = find(&mounts, "/models/m", None).unwrap_err();
        assert!(missing.contains("/models/m") && missing.contains("engine-volume"), "{missing}");
        assert!(find(&mounts, "/models/../m", None).unwrap_err().contains("engine.model"));
        assert!(find(&json!([]), "m", Some("absent")).unwrap_err().contains("no volume named absent"));
        for path in ["/", "/var", "/var/run/groupage", "/proc/x", "/etc"] {
            let model = format!("{}/m", path.trim_end_matches('/'));
            let hidden = find(&json!([{"name": "models", "mountPath": path}]), &model, Some("models"));
            assert!(hidden.is_err_and(|reason| reason.contains("hides")), "{path}");
        }
    }
}
