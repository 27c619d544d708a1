//! Builds the binaries of the images, and keeps release builds by a hash of their inputs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ImageVariant, PRODUCT, TEST_KIT};
use crate::TestError;
use crate::programs::{cache_dir, cargo_target, repository_root, run_quietly};

/// Cargo profile of the released binaries.
pub(super) const RELEASE: &str = "dist";
/// Inputs of a binary: sources, and files that they include.
const SOURCES: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", ".cargo", "src", "manifests", "docs/configuration.md", "examples/scenarios"];
/// Maximum number of cached builds of a variant, about 150 MiB each.
const KEPT_MAX: usize = 2;

/// Builds the binaries of a variant and returns their folder.
///
/// A release build takes minutes, so it is cached beside Kubernetes by a hash of its inputs. A new
/// checkout finds it there.
pub(super) fn build(variant: ImageVariant, profile: &str) -> Result<PathBuf, TestError> {
    if profile != RELEASE {
        return cargo_build(variant, profile, cargo_target());
    }
    let folder = cache_dir()?.join(variant.cache_name());
    let kept = folder.join(input_hash(variant, profile)?);
    if !kept.exists() {
        println!("building the binaries of the image, some 15 minutes the first time; kept as {}", kept.display());
        let built = cargo_build(variant, profile, &cache_dir()?.join("target"))?;
        std::fs::create_dir_all(&folder)?;
        prune(&folder)?;
        // Written under another name first, so that an interrupted copy is not mistaken for a
        // complete one.
        let partial = kept.with_extension(std::process::id().to_string());
        std::fs::create_dir_all(&partial)?;
        for name in variant.binaries() {
            std::fs::copy(built.join(name), partial.join(name))?;
        }
        std::fs::rename(partial, &kept)?;
    }
    Ok(kept)
}

/// Builds the binaries in this target folder and returns the folder that contains them. Cargo skips
/// the build if nothing changed.
fn cargo_build(variant: ImageVariant, profile: &str, into: &Path) -> Result<PathBuf, TestError> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).ok_or("no home folder")?;
    // The flags are encoded, since a path may contain a space. `--target` keeps them from build
    // scripts.
    let linking = format!("-Ctarget-feature={}crt-static", if variant == ImageVariant::Static { '+' } else { '-' });
    let flags = [linking, format!("--remap-path-prefix={}=/cargo", home.display())].join("\x1f");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--profile", profile, "--target", &target, "--features", variant.features()]);
    for name in variant.binaries() {
        cargo.args(["--bin", name]);
    }
    cargo.arg("--target-dir").arg(into);
    cargo.current_dir(repository_root()).env("CARGO_ENCODED_RUSTFLAGS", flags);
    if profile == RELEASE {
        // The binaries are independent of earlier builds.
        cargo.env("CARGO_INCREMENTAL", "0");
    } else {
        cargo.env_remove("CARGO_INCREMENTAL");
    }
    if !cargo.status()?.success() {
        return Err("the binaries of the image could not be built".into());
    }
    let profile = if profile == "dev" { "debug" } else { profile };
    Ok(into.join(target).join(profile))
}

/// Returns a folder name that is derived from the inputs of a build: sources, lock file and compiler.
fn input_hash(variant: ImageVariant, profile: &str) -> Result<String, TestError> {
    let mut made_of = blake3::Hasher::new();
    let compiler = run_quietly(Command::new("rustc").arg("-vV"))?;
    made_of.update(profile.as_bytes()).update(variant.features().as_bytes()).update(compiler.as_bytes());
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
    Ok(format!("{PRODUCT}-{}", name.get(..16).unwrap_or(name.as_str())))
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
        std::fs::remove_dir_all(old)?;
    }
    Ok(())
}

// === impl ImageVariant ===

impl ImageVariant {
    /// Features of the binary beyond the default ones.
    fn features(self) -> &'static str {
        match self {
            Self::Static => "engine",
            Self::Cuda => "cuda",
        }
    }

    /// Names of the binaries to build. The test kit is packed from the static build.
    fn binaries(self) -> &'static [&'static str] {
        match self {
            Self::Static => &[PRODUCT, TEST_KIT],
            Self::Cuda => &[PRODUCT],
        }
    }

    /// Name of the folder of its cached builds.
    fn cache_name(self) -> &'static str {
        match self {
            Self::Static => "release",
            Self::Cuda => "release-cuda",
        }
    }
}
