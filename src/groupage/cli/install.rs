//! `groupage install`: prints the manifests of an installation, as input of
//! `kubectl apply --server-side -f -`.
//!
//! It prints `manifests/install.yaml`, which is rendered from the Helm chart, so that the chart is
//! the only source of an installation. Other values than the ones below require the chart, or
//! kustomize over `manifests`.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::injector::RedirectUse;

/// The installation with its default values.
const INSTALL: &str = include_str!("../../../manifests/install.yaml");
/// The CRD manifests.
const CRDS: &str = include_str!("../../../manifests/crds.yaml");
/// Values in the manifest that are replaced by arguments. A test verifies that they occur for no
/// other purpose.
const NAMESPACE: &str = "groupage-system";
const IMAGE: &str = concat!("groupage.dev/groupage:", env!("CARGO_PKG_VERSION"));
const REDIRECT: &str = "--redirect=WhenNeeded";

/// Arguments of `groupage install`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Namespace of the controller
    #[arg(short, long, default_value = NAMESPACE)]
    namespace: String,
    /// Print the namespace too, as one for restricted pods only. `groupage-system` is always
    /// printed; any other namespace is assumed to be yours, and deleting what was printed would
    /// delete it with all its contents
    #[arg(long)]
    create_namespace: bool,
    /// Image of the controller and of the sidecars
    #[arg(long, default_value = IMAGE)]
    image: String,
    /// Add an init container with `NET_ADMIN` that redirects ports: for the ports that no other way
    /// captures, for none, or for all. Namespaces that enforce Pod Security baseline or restricted
    /// never get it
    #[arg(long, value_name = "WhenNeeded|Never|Always", default_value = "WhenNeeded")]
    redirect: RedirectUse,
    /// Leave out the CRDs, if they are installed separately
    #[arg(long)]
    without_crds: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match text(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("× {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the manifests.
///
/// # Errors
/// If a value would change the structure of the YAML.
fn text(args: &Args) -> Result<String, String> {
    let plain =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/:@".contains(&b));
    let label = |text: &str| {
        text.len() <= 63 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if !plain(&args.namespace) || !label(&args.namespace) {
        return Err(format!("{:?} is not a namespace name", args.namespace));
    }
    if !plain(&args.image) {
        return Err(format!("{:?} is not an image reference", args.image));
    }
    let own = args.namespace == NAMESPACE || args.create_namespace;
    // The manifest begins with the namespace.
    let all = if own { INSTALL } else { INSTALL.split_once("\n---\n").map_or(INSTALL, |(_, others)| others) };
    let redirect = format!("--redirect={}", args.redirect.as_str());
    let install = all.replace(NAMESPACE, &args.namespace).replace(IMAGE, &args.image).replace(REDIRECT, &redirect);
    Ok(if args.without_crds { install } else { format!("{CRDS}---\n{install}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(namespace: &str, image: &str) -> Args {
        Args {
            namespace: namespace.to_owned(),
            create_namespace: false,
            image: image.to_owned(),
            redirect: RedirectUse::WhenNeeded,
            without_crds: false,
        }
    }

    #[test]
    fn a_namespace_other_than_the_default_is_created_only_on_request() {
        let printed = |namespace: &str, create_namespace: bool| {
            let text = text(&Args { create_namespace, ..args(namespace, IMAGE) }).unwrap();
            let found = crate::cli::yaml::documents(&text).unwrap();
            found.iter().filter(|document| document.value["kind"] == "Namespace").count()
        };
        assert_eq!([printed(NAMESPACE, false), printed("ml", false), printed("ml", true)], [1, 0, 1]);
        let count = |args: &Args| crate::cli::yaml::documents(&text(args).unwrap()).unwrap().len();
        assert_eq!(count(&args("ml", IMAGE)) + 1, count(&args(NAMESPACE, IMAGE)), "and nothing else is left out");
    }

    #[test]
    fn namespace_and_image_replace_those_of_the_manifest() {
        let args = Args { redirect: RedirectUse::Never, ..args("ml", "reg.example/groupage@sha256:0") };
        let text = text(&args).unwrap();
        assert!(!text.contains(NAMESPACE) && !text.contains(IMAGE));
        let found = crate::cli::yaml::documents(&text).unwrap();
        let deployment = found.iter().find(|document| document.value["kind"] == "Deployment").unwrap();
        let container = &deployment.value["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(deployment.value["metadata"]["namespace"], "ml");
        assert_eq!(container["image"], "reg.example/groupage@sha256:0");
        let args = container["args"].as_array().unwrap();
        assert!(args.contains(&"--redirect=Never".into()), "{args:?}");
        assert!(args.contains(&"--sidecar-image=reg.example/groupage@sha256:0".into()), "{args:?}");
        assert!(found.iter().any(|document| document.value["kind"] == "CustomResourceDefinition"));
    }

    #[test]
    fn invalid_namespaces_and_images_are_refused() {
        for (namespace, image) in [("a b", IMAGE), ("", IMAGE), ("A", IMAGE), ("a", "x\ny"), ("a", "x y"), ("a", "")] {
            assert!(text(&args(namespace, image)).is_err(), "{namespace:?} {image:?}");
        }
    }
}
