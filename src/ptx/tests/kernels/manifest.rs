//! The manifest of the kernels and their PTX.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use groupage_ptx::{LaunchShape, Module};
use serde::Deserialize;

use crate::storage::StorageFormat;

/// `ptx/manifest.json`, as the build script writes it.
#[derive(Debug, Deserialize)]
pub(crate) struct KernelManifest {
    /// SHA-256 of every source by name.
    pub(crate) sources: BTreeMap<String, String>,
    pub(crate) kernels: Vec<KernelEntry>,
}

/// A kernel of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct KernelEntry {
    pub(crate) name: String,
    pub(crate) storage: String,
    pub(crate) file: String,
    pub(crate) sha256: String,
    pub(crate) source: String,
    pub(crate) parameters: Vec<KernelParameter>,
    /// Limits of the integer parameters by name.
    pub(crate) limits: BTreeMap<String, ParameterLimit>,
    pub(crate) threads: u32,
    pub(crate) dynamic_shared_bytes: usize,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct KernelParameter {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// The values of a parameter that a kernel can compute.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct ParameterLimit {
    pub(crate) multiple_of: Option<usize>,
    pub(crate) max: Option<usize>,
}

/// A kernel that is ready to launch.
#[derive(Debug, Clone)]
pub(crate) struct LoadedKernel {
    pub(crate) entry: KernelEntry,
    pub(crate) module: Module,
}

// === impl KernelManifest ===

impl KernelManifest {
    pub(crate) fn read() -> Self {
        serde_json::from_str(&read("ptx/manifest.json")).unwrap()
    }
}

// === impl LoadedKernel ===

impl LoadedKernel {
    /// Loads a committed kernel.
    pub(crate) fn load(name: &str, storage: StorageFormat) -> Self {
        Self::edited(name, storage, |ptx| ptx)
    }

    /// Loads a committed kernel after an edit of its PTX.
    pub(crate) fn edited(name: &str, storage: StorageFormat, edit: impl FnOnce(String) -> String) -> Self {
        let manifest = KernelManifest::read();
        let found = manifest.kernels.into_iter().find(|entry| entry.name == name && entry.storage == storage.name());
        let entry = found.unwrap_or_else(|| panic!("no kernel {name} for {storage:?}"));
        let module = Module::parse(&edit(read(&format!("ptx/{}", entry.file)))).unwrap();
        Self { entry, module }
    }

    pub(crate) fn shape(&self, blocks: [usize; 3]) -> LaunchShape {
        let blocks = blocks.map(|count| u32::try_from(count).unwrap());
        LaunchShape { blocks, threads: [self.entry.threads, 1, 1], shared_bytes: self.entry.dynamic_shared_bytes }
    }
}

/// Folder of the kernels.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/cuda/kernels")
}

fn read(name: &str) -> String {
    let path = folder().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn sha256(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_manifest_has_the_hashes_of_all_sources_and_of_all_ptx() {
    let manifest = KernelManifest::read();
    let mut sources = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            sources.insert(name.clone(), sha256(&read(&name)));
        }
    }
    assert_eq!(manifest.sources, sources, "the PTX is stale; run src/engine/cuda/kernels/build.py");
    for kernel in &manifest.kernels {
        assert_eq!(kernel.sha256, sha256(&read(&format!("ptx/{}", kernel.file))), "{} was edited", kernel.file);
        assert!(sources.contains_key(&kernel.source), "{}", kernel.source);
    }
    let committed = std::fs::read_dir(folder().join("ptx")).unwrap().count();
    assert_eq!(committed, manifest.kernels.len() + 1, "files in ptx that the manifest does not name");
}

#[test]
fn the_table_of_registers_is_that_of_the_sources_and_has_no_spills() {
    let manifest = KernelManifest::read();
    let hashes: String = manifest.sources.iter().map(|(name, hash)| format!("{name} {hash}\n")).collect();
    let table = read("registers.txt");
    let digest = table.lines().find_map(|line| line.strip_prefix("# sources ")).unwrap();
    assert_eq!(digest, sha256(&hashes), "registers.txt is stale; run src/engine/cuda/kernels/build.py --gates");
    let mut expected: BTreeSet<String> = manifest
        .kernels
        .iter()
        .flat_map(|kernel| ["sm_80", "sm_90"].map(|set| format!("{} {set}", kernel.file.trim_end_matches(".ptx"))))
        .collect();
    let is_kernel = |line: &&str| !line.starts_with('#') && !line.starts_with("kernel ");
    for line in table.lines().filter(is_kernel) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [kernel, set, registers, stores, loads, _] = columns[..] else { panic!("{line}") };
        assert!(expected.remove(&format!("{kernel} {set}")), "{line}");
        assert!(registers.parse::<u32>().unwrap() <= 255 && stores == "0" && loads == "0", "{line}");
    }
    assert_eq!(expected, BTreeSet::new(), "kernels without a line");
}

#[test]
fn the_manifest_describes_the_kernels() {
    for entry in KernelManifest::read().kernels {
        let ptx = read(&format!("ptx/{}", entry.file));
        let module = Module::parse(&ptx).unwrap();
        assert_eq!(module.kernel_names().collect::<Vec<_>>(), [entry.name.as_str()]);
        assert_eq!(entry.parameters.len(), ptx.matches(".param .").count(), "{}", entry.file);
        for parameter in &entry.parameters {
            assert!(["pointer", "u32", "f32"].contains(&parameter.kind.as_str()), "{parameter:?}");
        }
        assert!(entry.parameters.iter().any(|parameter| parameter.name == "out"), "{}", entry.file);
        let is_size = |name: &String| entry.parameters.iter().any(|known| known.name == *name && known.kind == "u32");
        assert!(entry.limits.keys().all(is_size), "{}: {:?}", entry.file, entry.limits);
        assert!(ptx.contains(&format!(".maxntid {}, 1, 1", entry.threads)), "{}", entry.file);
    }
}

/// PTX without `.rn` allows the driver to fuse a product and a sum, in each kernel as it likes (PTX
/// ISA 8.4, "add", "mul", "sub" of floating point).
#[test]
fn sums_and_products_state_their_rounding() {
    for entry in KernelManifest::read().kernels {
        let ptx = read(&format!("ptx/{}", entry.file));
        for name in ["add", "sub", "mul"] {
            let unrounded = [format!("{name}.f32"), format!("{name}.ftz.f32")];
            assert!(!unrounded.iter().any(|text| ptx.contains(text)), "{}: {name} without .rn", entry.file);
        }
    }
}
