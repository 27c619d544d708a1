//! Packs files as an OCI image archive: a tar of an image layout (opencontainers/image-spec,
//! `image-layout.md`), as accepted by containerd, podman and skopeo.
//!
//! The output is reproducible: it contains no timestamps, no user names, and no folder order. The
//! image has one layer.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use aws_lc_rs::digest;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use tar::{Builder, Header};

use crate::TestError;

/// A file of an image.
#[derive(Debug, Clone)]
pub(super) struct ImageFile {
    /// Path without the root.
    path: String,
    pub(super) bytes: Vec<u8>,
}

/// Contents of an image.
#[derive(Debug, Clone)]
pub(super) struct ImageContents<'a> {
    pub(super) files: Vec<ImageFile>,
    /// Command that starts the container.
    pub(super) entrypoint: String,
    /// Variables, as `NAME=VALUE`.
    pub(super) environment: &'a [&'a str],
    /// `UID:GID`.
    pub(super) user: &'a str,
    /// Architecture, in Go's naming.
    pub(super) architecture: &'a str,
    /// Version of the contents.
    pub(super) version: &'a str,
}

/// Writes the archive. Returns the number of bytes that a node has to download.
pub(super) fn pack(archive: &Path, reference: &str, contents: &ImageContents<'_>) -> Result<u64, TestError> {
    let mut layer = Builder::new(Vec::new());
    for file in &contents.files {
        append(&mut layer, &file.path, &file.bytes, 0o755)?;
    }
    let layer = layer.into_inner()?;
    let unpacked = sha256(&layer);
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(&layer)?;
    let layer = gzip.finish()?;
    let config = serde_json::to_vec(&json!({
        "architecture": contents.architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [contents.entrypoint],
            "Env": contents.environment,
            "User": contents.user,
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                "org.opencontainers.image.title": env!("CARGO_PKG_NAME"),
                "org.opencontainers.image.description": env!("CARGO_PKG_DESCRIPTION"),
                "org.opencontainers.image.version": contents.version,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [unpacked]},
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": [descriptor("layer.v1.tar+gzip", &layer)],
    }))?;
    let mut described = descriptor("manifest.v1+json", &manifest);
    described["platform"] = json!({"architecture": contents.architecture, "os": "linux"});
    described["annotations"] = json!({
        // The full reference for containerd, and the tag for the image layout.
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rsplit(':').next().unwrap_or("latest"),
    });
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described],
    }))?;
    let mut tar = Builder::new(BufWriter::new(File::create(archive)?));
    append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    append(&mut tar, "index.json", &index, 0o644)?;
    for blob in [&config, &manifest, &layer] {
        append(&mut tar, &format!("blobs/{}", sha256(blob).replace(':', "/")), blob, 0o644)?;
    }
    tar.into_inner()?.flush()?;
    Ok([&config, &manifest, &layer].iter().map(|blob| blob.len() as u64).sum())
}

fn descriptor(kind: &str, blob: &[u8]) -> Value {
    json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": sha256(blob), "size": blob.len()})
}

fn sha256(bytes: &[u8]) -> String {
    let hex: String =
        digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn append(tar: &mut Builder<impl Write>, path: &str, bytes: &[u8], mode: u32) -> Result<(), TestError> {
    let mut header = Header::new_ustar();
    header.set_path(path)?;
    header.set_size(bytes.len() as u64);
    header.set_mode(mode);
    // Fixed owner and time, for reproducibility.
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    tar.append(&header, bytes)?;
    Ok(())
}

// === impl ImageFile ===

impl ImageFile {
    /// Reads a file, which is placed at a path of the image.
    pub(super) fn new(source: &Path, path: &Path) -> Result<Self, TestError> {
        let path = path.strip_prefix("/").unwrap_or(path).to_str().ok_or("a path that is not UTF-8")?.to_owned();
        Ok(Self { path, bytes: std::fs::read(source)? })
    }
}
