//! Images without Docker and without a registry: one static binary each, packed here as OCI archives.
//!
//! `groupage` is the release as users get it: built with the C library inside (`crt-static`, so `FROM scratch`), symbols split off into a file beside it,
//! user 65532. The stand-in is the same bytes with another entrypoint. The binary names no folder of the machine that built it but relative ones.

mod oci;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use self::oci::Contents;
use super::Fault;
use super::tools::{cache, cargo_target, quietly, root};

/// What a node may have to download (compressed).
const BYTES_MAX: u64 = 12 * 1024 * 1024;
/// The profile of what is released.
const RELEASE: &str = "release";
/// What the binary is made of: sources, and what these include.
const SOURCES: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", ".cargo", "src", "manifests", "docs/configuration.md", "examples/scenarios"];
/// Binaries of the image that are kept, some 100 MiB each.
const KEPT_MAX: usize = 2;
/// Nobody: owns no file of a node.
const USER: &str = "65532:65532";
/// The processor of the image, in the words of Go.
const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => "unknown",
};

/// An image and its archive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Image {
    /// `HOST/NAME:TAG`.
    pub(crate) reference: String,
    /// The OCI archive.
    pub(crate) archive: PathBuf,
}

/// The reference of what is released.
pub(crate) fn reference() -> String {
    format!("groupage.dev/groupage:{}", env!("CARGO_PKG_VERSION"))
}

/// `just image`: builds, packs, and says how large it is.
pub(crate) fn product(profile: &str) -> Result<Image, Fault> {
    let binary = stripped(&build(profile)?)?;
    let archive = folder()?.join("groupage.tar");
    let contents = Contents { entrypoint: &["/groupage"], ..contents(&binary) };
    let bytes = oci::pack(&archive, &reference(), &contents)?;
    println!(
        "{}: {}, {:.2} MiB compressed, {:.2} MiB unpacked",
        archive.display(),
        reference(),
        mebibytes(bytes),
        mebibytes(std::fs::metadata(&binary)?.len())
    );
    // Other profiles are larger, and no node of a user's downloads what they make.
    if profile == RELEASE && bytes > BYTES_MAX {
        return Err(format!("the image is larger than {:.0} MiB compressed", mebibytes(BYTES_MAX)).into());
    }
    Ok(Image { reference: reference(), archive })
}

/// The stand-in model and caller, of the binary that [`product`] has left.
pub(crate) fn stand_in() -> Result<Image, Fault> {
    let archive = folder()?.join("stand-in.tar");
    let reference = format!("groupage.test/stand-in:{}", env!("CARGO_PKG_VERSION"));
    let binary = binary()?;
    let contents = Contents { entrypoint: &["/groupage", "stand-in"], ..contents(&binary) };
    oci::pack(&archive, &reference, &contents)?;
    Ok(Image { reference, archive })
}

/// The program that [`product`] has left.
pub(crate) fn binary() -> Result<PathBuf, Fault> {
    Ok(folder()?.join("groupage"))
}

/// What holds a pod's namespaces open.
pub(crate) fn pause() -> Result<Image, Fault> {
    let binary = folder()?.join("pause");
    let source = root().join("e2e/image/pause.c");
    quietly(Command::new("cc").args(["-Os", "-static", "-s", "-o"]).arg(&binary).arg(source))?;
    let archive = folder()?.join("pause.tar");
    let reference = "groupage.test/pause:1".to_owned();
    oci::pack(&archive, &reference, &Contents { entrypoint: &["/pause"], ..contents(&binary) })?;
    Ok(Image { reference, archive })
}

fn contents(binary: &Path) -> Contents<'_> {
    Contents { binary, entrypoint: &[], user: USER, architecture: ARCHITECTURE, version: env!("CARGO_PKG_VERSION") }
}

/// `target/image`.
fn folder() -> Result<PathBuf, Fault> {
    let folder = cargo_target().join("image");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The binary with the C library in it.
///
/// What is released takes minutes to build, so it is kept beside Kubernetes by what it is made of: a checkout that is new finds it there.
fn build(profile: &str) -> Result<PathBuf, Fault> {
    if profile != RELEASE {
        return cargo(profile, cargo_target());
    }
    let folder = cache()?.join("release");
    let kept = folder.join(made_of(profile)?);
    if !kept.exists() {
        println!("building the binary of the image, some 8 minutes at first; it is kept as {}", kept.display());
        let built = cargo(profile, &cache()?.join("target"))?;
        std::fs::create_dir_all(&folder)?;
        prune(&folder)?;
        // Beside its place first: what was interrupted is not taken for whole.
        let partial = kept.with_extension(std::process::id().to_string());
        std::fs::copy(built, &partial)?;
        std::fs::rename(partial, &kept)?;
    }
    Ok(kept)
}

/// Builds it in this folder; nothing when it is there already and nothing has changed.
fn cargo(profile: &str, into: &Path) -> Result<PathBuf, Fault> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).ok_or("no home folder")?;
    // Encoded, since a path may have a blank in it. `--target`, so that build scripts are built as always.
    let flags =
        ["-Ctarget-feature=+crt-static", &format!("--remap-path-prefix={}=/cargo", home.display())].join("\x1f");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--bin", "groupage", "--profile", profile, "--target", &target]);
    cargo.arg("--target-dir").arg(into);
    cargo.current_dir(root()).env("CARGO_ENCODED_RUSTFLAGS", flags);
    if profile == RELEASE {
        // Its bytes depend on nothing that was built before.
        cargo.env("CARGO_INCREMENTAL", "0");
    } else {
        cargo.env_remove("CARGO_INCREMENTAL");
    }
    if !cargo.status()?.success() {
        return Err("the static binary could not be built".into());
    }
    let profile = if profile == "dev" { "debug" } else { profile };
    Ok(into.join(target).join(profile).join("groupage"))
}

/// A name for what a binary is made of: the sources, what is locked, the compiler.
fn made_of(profile: &str) -> Result<String, Fault> {
    let mut made_of = blake3::Hasher::new();
    let compiler = quietly(Command::new("rustc").arg("-vV"))?;
    made_of.update(profile.as_bytes()).update(compiler.as_bytes());
    for place in SOURCES {
        let mut files = Vec::new();
        list(&root().join(place), &mut files)?;
        files.sort();
        for file in files {
            let bytes = std::fs::read(&file)?;
            let name = file.strip_prefix(root())?.to_string_lossy().into_owned();
            // Lengths, so that no two trees read the same.
            made_of.update(&name.len().to_le_bytes()).update(name.as_bytes());
            made_of.update(&bytes.len().to_le_bytes()).update(&bytes);
        }
    }
    let name = made_of.finalize().to_hex();
    Ok(format!("groupage-{}", name.get(..16).unwrap_or(name.as_str())))
}

/// The files of a folder and those below it, or the file itself.
fn list(place: &Path, files: &mut Vec<PathBuf>) -> Result<(), Fault> {
    if place.is_dir() {
        for entry in std::fs::read_dir(place)? {
            list(&entry?.path(), files)?;
        }
    } else {
        files.push(place.to_owned());
    }
    Ok(())
}

/// Leaves the newest of the binaries that are kept, before another one comes.
fn prune(folder: &Path) -> Result<(), Fault> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        all.push((entry.metadata()?.modified()?, entry.path()));
    }
    all.sort();
    for (_, old) in all.iter().rev().skip(KEPT_MAX - 1) {
        std::fs::remove_file(old)?;
    }
    Ok(())
}

/// A copy without symbols; they stand beside it, for whoever has an address of a backtrace.
fn stripped(binary: &Path) -> Result<PathBuf, Fault> {
    let (bare, debug) = (folder()?.join("groupage"), folder()?.join("groupage.debug"));
    quietly(Command::new("objcopy").arg("--only-keep-debug").arg(binary).arg(&debug))?;
    quietly(Command::new("objcopy").arg("--strip-all").arg(binary).arg(&bare))?;
    Ok(bare)
}

#[expect(clippy::cast_precision_loss, reason = "sizes for people")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1024 * 1024)
}
