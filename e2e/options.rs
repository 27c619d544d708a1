//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// End-to-end tests on a real cluster.
#[derive(Debug, Clone, Parser)]
#[command(name = "e2e", max_term_width = 120)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Options {
    /// Parts of the names of cases; none: all
    #[arg(value_name = "CASE")]
    pub(crate) cases: Vec<String>,
    /// Run the cases at full length: what takes minutes is shortened otherwise
    #[arg(long)]
    pub(crate) all: bool,
    /// Name the cases and stop
    #[arg(long)]
    pub(crate) list: bool,
    /// Pack the image into target/image and stop; needs neither root nor Go
    #[arg(long)]
    pub(crate) image: bool,
    /// Start the cluster and give a shell in it, with KUBECONFIG set, in place of the cases
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) shell: bool,
    /// Use this cluster; what needs a node of ours is skipped
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// How its nodes get the images: run with each archive as last argument, such as `kind load image-archive`
    #[arg(long, value_name = "COMMAND", requires = "kubeconfig")]
    pub(crate) load_images: Option<String>,
    /// Where its nodes get the images, in place of `groupage.dev` and `groupage.test`
    #[arg(long, value_name = "REGISTRY", requires = "kubeconfig")]
    pub(crate) registry: Option<String>,
    /// The profile of the binary in the image; `sim` builds quickest
    #[arg(long, value_name = "NAME", default_value = "release")]
    pub(crate) profile: String,
    /// Second process: the first one of its namespaces
    #[arg(long, value_name = "KIT", hide = true)]
    pub(crate) init: Option<PathBuf>,
    /// Third process: inside
    #[arg(long, value_name = "KIT", hide = true)]
    pub(crate) inside: Option<PathBuf>,
}
