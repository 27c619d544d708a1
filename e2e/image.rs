//! Packs container images without Docker and without a registry: one static binary each, as OCI
//! archives.
//!
//! `groupage` is the released image: statically linked (`crt-static`, for `FROM scratch`), with the
//! engine on the CPU, symbols split off into a separate file, user 65532. A static binary cannot load
//! the library of a GPU's driver. The image of the test kit contains `stand-in`. The
//! binaries contain no absolute paths of the build machine.

mod oci;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use self::oci::ImageContents;
use super::TestError;
use super::tools::{cache_dir, cargo_target, repository_root, run_quietly};

/// Maximum compressed size of the image, which nodes have to download.
const BYTES_MAX: u64 = 12 * 1024 * 1024;
/// Names of the binaries: the product, and the simulated model server and client.
const PRODUCT: &str = "groupage";
const TEST_KIT: &str = "stand-in";
/// Cargo profile of the released binary.
const RELEASE: &str = "dist";
/// Features of the released binary beyond the default ones.
const FEATURES: &str = "engine";
/// Inputs of the binary: sources, and files that they include.
const SOURCES: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", ".cargo", "src", "manifests", "docs/configuration.md", "examples/scenarios"];
/// Maximum number of cached builds, about 150 MiB each.
const KEPT_MAX: usize = 2;
/// User and group ID without privileges, which own no file of a node.
const USER: &str = "65532:65532";
/// Architecture of the image, in Go's naming.
const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => "unknown",
};

/// A container image and its archive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImageArchive {
    /// `HOST/NAME:TAG`.
    pub(crate) reference: String,
    /// Path of the OCI archive.
    pub(crate) archive: PathBuf,
}

/// Returns the reference of the released image.
pub(crate) fn reference() -> String {
    format!("groupage.dev/groupage:{}", env!("CARGO_PKG_VERSION"))
}

/// Implements `just image`: builds and packs the image, and prints its size.
pub(crate) fn pack_product(profile: &str) -> Result<ImageArchive, TestError> {
    let built = build(profile)?;
    let binary = strip_symbols(&built.join(PRODUCT))?;
    strip_symbols(&built.join(TEST_KIT))?;
    let archive = image_dir()?.join("groupage.tar");
    let contents = ImageContents { entrypoint: &["/groupage"], ..image_contents(&binary) };
    let bytes = oci::pack(&archive, &reference(), &contents)?;
    println!(
        "{}: {}, {:.2} MiB compressed, {:.2} MiB unpacked",
        archive.display(),
        reference(),
        mebibytes(bytes),
        mebibytes(std::fs::metadata(&binary)?.len())
    );
    // Images of other profiles are larger, but they are never downloaded by users.
    if profile == RELEASE && bytes > BYTES_MAX {
        return Err(format!("the image is larger than {:.0} MiB compressed", mebibytes(BYTES_MAX)).into());
    }
    Ok(ImageArchive { reference: reference(), archive })
}

/// Packs the image of the test kit, a simulated model server and a client, from the binary that
/// [`pack_product`] has built.
pub(crate) fn pack_test_kit() -> Result<ImageArchive, TestError> {
    let archive = image_dir()?.join("stand-in.tar");
    let reference = format!("groupage.test/stand-in:{}", env!("CARGO_PKG_VERSION"));
    let binary = image_dir()?.join(TEST_KIT);
    let contents = ImageContents { entrypoint: &["/stand-in"], ..image_contents(&binary) };
    oci::pack(&archive, &reference, &contents)?;
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
    oci::pack(&archive, &reference, &ImageContents { entrypoint: &["/pause"], ..image_contents(&binary) })?;
    Ok(ImageArchive { reference, archive })
}

fn image_contents(binary: &Path) -> ImageContents<'_> {
    ImageContents {
        binary,
        entrypoint: &[],
        user: USER,
        architecture: ARCHITECTURE,
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// `target/image`.
fn image_dir() -> Result<PathBuf, TestError> {
    let folder = cargo_target().join("image");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Builds the statically linked binaries and returns their folder.
///
/// A release build takes minutes, so it is cached beside Kubernetes by a hash of its inputs. A new
/// checkout finds it there.
fn build(profile: &str) -> Result<PathBuf, TestError> {
    if profile != RELEASE {
        return cargo_build(profile, cargo_target());
    }
    let folder = cache_dir()?.join("release");
    let kept = folder.join(input_hash(profile)?);
    if !kept.exists() {
        println!("building the binaries of the images, some 15 minutes the first time; kept as {}", kept.display());
        let built = cargo_build(profile, &cache_dir()?.join("target"))?;
        std::fs::create_dir_all(&folder)?;
        prune(&folder)?;
        // Written under another name first, so that an interrupted copy is not mistaken for a
        // complete one.
        let partial = kept.with_extension(std::process::id().to_string());
        std::fs::create_dir_all(&partial)?;
        for name in [PRODUCT, TEST_KIT] {
            std::fs::copy(built.join(name), partial.join(name))?;
        }
        std::fs::rename(partial, &kept)?;
    }
    Ok(kept)
}

/// Builds the binaries in this target folder and returns the folder that contains them. Cargo skips
/// the build if nothing changed.
fn cargo_build(profile: &str, into: &Path) -> Result<PathBuf, TestError> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).ok_or("no home folder")?;
    // The flags are encoded, since a path may contain a space. `--target` keeps them from build
    // scripts.
    let flags =
        ["-Ctarget-feature=+crt-static", &format!("--remap-path-prefix={}=/cargo", home.display())].join("\x1f");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--bin", PRODUCT, "--bin", TEST_KIT, "--profile", profile, "--target", &target]);
    cargo.args(["--features", FEATURES]).arg("--target-dir").arg(into);
    cargo.current_dir(repository_root()).env("CARGO_ENCODED_RUSTFLAGS", flags);
    if profile == RELEASE {
        // The binaries are independent of earlier builds.
        cargo.env("CARGO_INCREMENTAL", "0");
    } else {
        cargo.env_remove("CARGO_INCREMENTAL");
    }
    if !cargo.status()?.success() {
        return Err("the static binaries could not be built".into());
    }
    let profile = if profile == "dev" { "debug" } else { profile };
    Ok(into.join(target).join(profile))
}

/// Returns a folder name that is derived from the inputs of a build: sources, lock file and compiler.
fn input_hash(profile: &str) -> Result<String, TestError> {
    let mut made_of = blake3::Hasher::new();
    let compiler = run_quietly(Command::new("rustc").arg("-vV"))?;
    made_of.update(profile.as_bytes()).update(FEATURES.as_bytes()).update(compiler.as_bytes());
    for place in SOURCES {
        let mut files = Vec::new();
        list(&repository_root().join(place), &mut files)?;
        files.sort();
        for file in files {
            let bytes = std::fs::read(&file)?;
            let name = file.strip_prefix(repository_root())?.to_string_lossy().into_owned();
            // Lengths are included, so that different trees never hash the same input.
            made_of.update(&name.len().to_le_bytes()).update(name.as_bytes());
            made_of.update(&bytes.len().to_le_bytes()).update(&bytes);
        }
    }
    let name = made_of.finalize().to_hex();
    Ok(format!("groupage-{}", name.get(..16).unwrap_or(name.as_str())))
}

/// Collects the files of a folder, recursively, or the file itself.
fn list(place: &Path, files: &mut Vec<PathBuf>) -> Result<(), TestError> {
    if place.is_dir() {
        for entry in std::fs::read_dir(place)? {
            list(&entry?.path(), files)?;
        }
    } else {
        files.push(place.to_owned());
    }
    Ok(())
}

/// Removes all but the newest cached builds, to make room for one more.
fn prune(folder: &Path) -> Result<(), TestError> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        all.push((entry.metadata()?.modified()?, entry.path()));
    }
    all.sort();
    for (_, old) in all.iter().rev().skip(KEPT_MAX - 1) {
        // Before there were two binaries, a build was a file.
        if old.is_dir() { std::fs::remove_dir_all(old)? } else { std::fs::remove_file(old)? }
    }
    Ok(())
}

/// Copies a binary to `target/image` without symbols. The symbols are kept in a separate file, which
/// resolves addresses of a backtrace.
fn strip_symbols(binary: &Path) -> Result<PathBuf, TestError> {
    let bare = image_dir()?.join(binary.file_name().ok_or("a binary without a name")?);
    run_quietly(Command::new("objcopy").arg("--only-keep-debug").arg(binary).arg(bare.with_extension("debug")))?;
    run_quietly(Command::new("objcopy").arg("--strip-all").arg(binary).arg(&bare))?;
    Ok(bare)
}

#[expect(clippy::cast_precision_loss, reason = "sizes for display")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1024 * 1024)
}
