//! Packs container images without Docker and without a registry, as OCI archives.
//!
//! The released image has two variants (see [`ImageVariant`]), both with symbols split off into a
//! separate file and user 65532. The image of the test kit contains `stand-in`. The binaries contain
//! no absolute paths of the build machine.

mod build;
mod libraries;
mod oci;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use self::build::RELEASE;
use self::oci::{ImageContents, ImageFile};
use super::TestError;
use super::programs::{cargo_target, repository_root, run_quietly};

/// Names of the binaries: the product, and the simulated model server and client.
const PRODUCT: &str = "groupage";
const TEST_KIT: &str = "stand-in";
/// User and group ID without privileges, which own no file of a node.
const USER: &str = "65532:65532";
/// Architecture of the image, in Go's naming.
const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => "unknown",
};

/// Environment of the image with CUDA support. The runtime of NVIDIA mounts the driver that these
/// capabilities name: into the folders of libraries of Debian or of Red Hat, or, on nodes of Google,
/// into a folder of its own. `NVIDIA_VISIBLE_DEVICES` is not set: the device plugin sets it for
/// containers that request a GPU, and others are to have none.
const CUDA_ENVIRONMENT: [&str; 2] = [
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64",
];

/// Variant of the released image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImageVariant {
    /// One statically linked binary (`crt-static`, for `FROM scratch`), with the engine on the CPU.
    Static,
    /// A dynamically linked binary with the engine on the GPU or the CPU, and the libraries of glibc:
    /// a static binary cannot load the library of a GPU's driver.
    Cuda,
}

/// A container image and its archive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImageArchive {
    /// `HOST/NAME:TAG`.
    pub(crate) reference: String,
    /// Path of the OCI archive.
    pub(crate) archive: PathBuf,
}

/// Implements `just image`: builds and packs a variant of the image, and prints its size.
pub(crate) fn pack_product(variant: ImageVariant, profile: &str) -> Result<ImageArchive, TestError> {
    let built = build::build(variant, profile)?;
    let binary = strip_symbols(&built.join(PRODUCT), &variant.folder()?)?;
    let mut contents = image_contents(&binary)?;
    match variant {
        ImageVariant::Static => drop(strip_symbols(&built.join(TEST_KIT), &image_dir()?)?),
        ImageVariant::Cuda => {
            for library in libraries::required_by(&binary)? {
                contents.files.push(ImageFile::new(&library, &library)?);
            }
            contents.environment = &CUDA_ENVIRONMENT;
        }
    }
    let archive = variant.folder()?.join("groupage.tar");
    let bytes = oci::pack(&archive, &variant.reference(), &contents)?;
    println!(
        "{}: {}, {:.2} MiB compressed, {:.2} MiB unpacked",
        archive.display(),
        variant.reference(),
        mebibytes(bytes),
        mebibytes(contents.files.iter().map(|file| file.bytes.len() as u64).sum())
    );
    // Images of other profiles are larger, but they are never downloaded by users.
    if profile == RELEASE && bytes > variant.bytes_max() {
        return Err(format!("the image is larger than {:.0} MiB compressed", mebibytes(variant.bytes_max())).into());
    }
    Ok(ImageArchive { reference: variant.reference(), archive })
}

/// Packs the image of the test kit, a simulated model server and a client, from the binary that
/// [`pack_product`] has built.
pub(crate) fn pack_test_kit() -> Result<ImageArchive, TestError> {
    let archive = image_dir()?.join("stand-in.tar");
    let reference = format!("groupage.test/stand-in:{}", env!("CARGO_PKG_VERSION"));
    let binary = image_dir()?.join(TEST_KIT);
    oci::pack(&archive, &reference, &image_contents(&binary)?)?;
    Ok(ImageArchive { reference, archive })
}

/// Returns the path of the binary built by [`pack_product`].
pub(crate) fn binary_path() -> Result<PathBuf, TestError> {
    Ok(image_dir()?.join(PRODUCT))
}

/// Builds and packs the pause image, which keeps a pod's namespaces open.
pub(crate) fn pack_pause() -> Result<ImageArchive, TestError> {
    let binary = image_dir()?.join("pause");
    let source = repository_root().join("e2e/image/pause.c");
    run_quietly(Command::new("cc").args(["-Os", "-static", "-s", "-o"]).arg(&binary).arg(source))?;
    let archive = image_dir()?.join("pause.tar");
    let reference = "groupage.test/pause:1".to_owned();
    oci::pack(&archive, &reference, &image_contents(&binary)?)?;
    Ok(ImageArchive { reference, archive })
}

/// Contents of an image with one file, which is its command.
fn image_contents(binary: &Path) -> Result<ImageContents<'static>, TestError> {
    let name = binary.file_name().and_then(|name| name.to_str()).ok_or("a binary without a name")?;
    let entrypoint = format!("/{name}");
    Ok(ImageContents {
        files: vec![ImageFile::new(binary, Path::new(&entrypoint))?],
        entrypoint,
        environment: &[],
        user: USER,
        architecture: ARCHITECTURE,
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// `target/image`.
fn image_dir() -> Result<PathBuf, TestError> {
    let folder = cargo_target().join("image");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Copies a binary to a folder without symbols. The symbols are kept in a separate file, which
/// resolves addresses of a backtrace.
fn strip_symbols(binary: &Path, into: &Path) -> Result<PathBuf, TestError> {
    let bare = into.join(binary.file_name().ok_or("a binary without a name")?);
    run_quietly(Command::new("objcopy").arg("--only-keep-debug").arg(binary).arg(bare.with_extension("debug")))?;
    run_quietly(Command::new("objcopy").arg("--strip-all").arg(binary).arg(&bare))?;
    Ok(bare)
}

#[expect(clippy::cast_precision_loss, reason = "sizes for display")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1024 * 1024)
}

// === impl ImageVariant ===

impl ImageVariant {
    /// Returns the reference of the released image.
    pub(crate) fn reference(self) -> String {
        let suffix = if self == Self::Cuda { "-cuda" } else { "" };
        format!("groupage.dev/groupage:{}{suffix}", env!("CARGO_PKG_VERSION"))
    }

    /// Maximum compressed size of the image, which nodes have to download.
    fn bytes_max(self) -> u64 {
        let mebibytes = match self {
            Self::Static => 12,
            // The libraries of glibc have 2 MiB.
            Self::Cuda => 15,
        };
        mebibytes * 1024 * 1024
    }

    /// Folder of the archive and its files.
    fn folder(self) -> Result<PathBuf, TestError> {
        let folder = match self {
            Self::Static => image_dir()?,
            Self::Cuda => image_dir()?.join("cuda"),
        };
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}
