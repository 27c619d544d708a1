//! Context of an injection: the other objects of the manifests that matter for a pod.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{InjectArgs, ManifestFile, is_off};
use crate::injector::{
    ControllerEndpoint, InjectionContext, InjectionErrorCode, NamedPolicy, NamedProfile, Namespace, ObjectSource,
    REFERRERS, SidecarDefaults, TemplateLocation,
};

/// Objects of the manifests that an injection takes into account, by namespace.
pub(super) struct ManifestContext {
    /// Context shared by all namespaces.
    common: InjectionContext,
    default_namespace: String,
    spaces: BTreeMap<String, InjectionContext>,
}

/// Objects of one namespace.
#[derive(Default)]
struct NamespaceObjects {
    namespace: Namespace,
    policies: Vec<NamedPolicy>,
    profiles: Vec<NamedProfile>,
    referrers: Vec<Value>,
}

/// Namespaces found while the manifests are searched.
struct NamespaceCollector<'a> {
    default_namespace: &'a str,
    found: BTreeMap<String, NamespaceObjects>,
    /// Network policies of the whole cluster.
    everywhere: Vec<Value>,
}

// === impl ManifestContext ===

impl ManifestContext {
    /// Searches the manifests.
    ///
    /// # Errors
    /// A policy or profile among them cannot be read.
    pub(super) fn new(args: &InjectArgs, ca: String, sources: &[ManifestFile]) -> Result<Self, String> {
        let mut sidecar = SidecarDefaults::default();
        if let Some(image) = &args.image {
            sidecar.image.clone_from(image);
        }
        let controller =
            (!is_off(&args.controller)).then(|| ControllerEndpoint { address: args.controller.clone(), ca });
        let common = InjectionContext {
            sidecar,
            controller,
            own_namespace: own_namespace(&args.controller).to_owned(),
            inject_by_default: true,
            view: ObjectSource::Files,
            redirect: args.redirect,
            supports_native_sidecars: !args.plain_container,
            ..InjectionContext::default()
        };
        let mut spaces =
            NamespaceCollector { default_namespace: &args.namespace, found: BTreeMap::new(), everywhere: Vec::new() };
        for source in sources {
            for document in &source.documents {
                spaces.collect(&document.value).map_err(|what| {
                    format!(
                        "error[{}]: {}, line {}: {what}",
                        InjectionErrorCode::Unreadable,
                        source.name,
                        document.line
                    )
                })?;
            }
        }
        let everywhere = spaces.everywhere;
        let common = InjectionContext { referrers: everywhere.clone().into(), ..common };
        let known = |(name, mut space): (String, NamespaceObjects)| {
            space.referrers.extend(everywhere.iter().cloned());
            let context = InjectionContext {
                namespace: space.namespace,
                policies: space.policies.into(),
                profiles: space.profiles.into(),
                referrers: space.referrers.into(),
                ..common.clone()
            };
            (name, context)
        };
        let spaces = spaces.found.into_iter().map(known).collect();
        Ok(Self { common, default_namespace: args.namespace.clone(), spaces })
    }

    /// Returns the context of a pod.
    pub(super) fn context(&self, object: &Value, place: &TemplateLocation) -> InjectionContext {
        let name = namespace(object).unwrap_or(&self.default_namespace).to_owned();
        let mut context = self.spaces.get(&name).unwrap_or(&self.common).clone();
        context.namespace.name = name;
        context.workload = place.workload.clone();
        context
    }
}

// === impl NamespaceCollector ===

impl NamespaceCollector<'_> {
    fn collect(&mut self, object: &Value) -> Result<(), String> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let name = text("/metadata/name").unwrap_or_default().to_owned();
        let is_ours = text("/apiVersion").is_some_and(|version| version.starts_with("groupage.dev/"));
        match text("/kind") {
            Some("Namespace") => {
                let texts = |path: &str| {
                    let map = object.pointer(path).and_then(Value::as_object);
                    let each = map.into_iter().flatten().filter(|(_, value)| !value.is_null()).map(|(key, value)| {
                        (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                    });
                    each.collect()
                };
                let (labels, annotations) = (texts("/metadata/labels"), texts("/metadata/annotations"));
                let space = self.found.entry(name.clone()).or_default();
                space.namespace = Namespace { name, labels, annotations };
            }
            Some("CiliumClusterwideNetworkPolicy") => self.everywhere.push(object.clone()),
            Some(kind) if REFERRERS.contains(&kind) => self.space(object).referrers.push(object.clone()),
            Some("BatchPolicy") if is_ours => {
                let spec = parse_spec(object, &name)?;
                let created = text("/metadata/creationTimestamp").unwrap_or_default().to_owned();
                self.space(object).policies.push(NamedPolicy { name, created, spec });
            }
            Some("BatchProfile") if is_ours => {
                let spec = parse_spec(object, &name)?;
                self.space(object).profiles.push(NamedProfile { name, spec });
            }
            Some(kind) if kind.ends_with("List") => {
                for item in object.get("items").and_then(Value::as_array).into_iter().flatten() {
                    self.collect(item)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn space(&mut self, object: &Value) -> &mut NamespaceObjects {
        let name = namespace(object).unwrap_or(self.default_namespace).to_owned();
        self.found.entry(name).or_default()
    }
}

/// Returns the namespace of the Groupage installation, as far as files reveal it: the namespace of
/// the controller's Service, else the default of the chart and of `groupage install`.
fn own_namespace(controller: &str) -> &str {
    let host = controller.rsplit_once("://").map_or(controller, |(_, rest)| rest);
    let host = host.split([':', '/']).next().unwrap_or_default();
    let mut labels = host.split('.').skip(1);
    match (labels.next(), labels.next()) {
        (Some(namespace), Some("svc")) => namespace,
        _ => "groupage-system",
    }
}

fn namespace(object: &Value) -> Option<&str> {
    object.pointer("/metadata/namespace").and_then(Value::as_str)
}

/// Deserializes the `spec` of an object. `groupage validate` reports its errors in more detail.
fn parse_spec<T: serde::de::DeserializeOwned + Default>(object: &Value, name: &str) -> Result<T, String> {
    let Some(spec) = object.get("spec") else { return Ok(T::default()) };
    serde_json::from_value(spec.clone())
        .map_err(|error| format!("{} {name} cannot be read: {error}", object["kind"].as_str().unwrap_or_default()))
}
