//! Command-line options.

use std::path::PathBuf;

use clap::Parser;

use super::image::ImageVariant;

/// End-to-end tests on a real cluster.
#[derive(Debug, Clone, Parser)]
#[command(name = "e2e", max_term_width = 120)]
pub(crate) struct Options {
    /// Parts of the names of cases to run; all if none is given
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<String>,
    /// Run the cases at full length; steps that take minutes are shortened otherwise
    #[arg(long)]
    pub(crate) all: bool,
    /// List the cases and exit
    #[arg(long)]
    pub(crate) list: bool,
    /// Pack an image into target/image and exit; requires neither root nor Go
    #[arg(long, value_name = "VARIANT", num_args = 0..=1, default_missing_value = "static")]
    pub(crate) image: Option<ImageVariant>,
    /// Start the cluster and open a shell in it, with KUBECONFIG set, instead of running the cases
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) shell: bool,
    /// Use an existing cluster; cases that require a local node are skipped
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Command that loads an image archive onto its nodes; the path is appended as last argument,
    /// as for `kind load image-archive`
    #[arg(long, value_name = "COMMAND", requires = "kubeconfig")]
    pub(crate) load_images: Option<String>,
    /// Registry from which its nodes pull the images, instead of `groupage.dev` and `groupage.test`
    #[arg(long, value_name = "REGISTRY", requires = "kubeconfig")]
    pub(crate) registry: Option<String>,
    /// Cargo profile of the binary in the image; `sim` builds fastest
    #[arg(long, value_name = "NAME", default_value = "dist")]
    pub(crate) profile: String,
    /// Internal: second process, the init process of the namespaces
    #[arg(long, value_name = "KIT", hide = true)]
    pub(crate) init: Option<PathBuf>,
    /// Internal: third process, which runs the cases inside the namespaces
    #[arg(long, value_name = "KIT", hide = true)]
    pub(crate) inside: Option<PathBuf>,
}
