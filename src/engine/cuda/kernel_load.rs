//! The load of a kernel from the cache, or from its PTX.

use super::cubin_cache::{CubinCache, CubinKey};
use super::device::DeviceProperties;
use super::fault::DeviceError;
use super::kernel_image::KernelImage;

/// Compiles PTX and loads the result: the driver, or a fake one in tests.
pub(crate) trait KernelLinker {
    /// Loaded machine code.
    type Module;

    /// Compiles PTX to machine code.
    fn compile(&mut self, image: &KernelImage) -> Result<Vec<u8>, DeviceError>;

    /// Loads machine code.
    fn load(&mut self, image: &KernelImage, cubin: &[u8]) -> Result<Self::Module, DeviceError>;
}

/// A loaded kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelModule<M> {
    pub(crate) module: M,
    /// `true` if it was compiled, for lack of an entry of the cache.
    pub(crate) is_compiled: bool,
}

/// Loads a kernel from the cache, or compiles it and adds it to the cache.
///
/// # Errors
/// The linker does not accept the PTX, or what it compiled. No error of the cache is returned.
pub(crate) fn load_kernel<L: KernelLinker>(
    linker: &mut L,
    image: &KernelImage,
    properties: &DeviceProperties,
    cache: Option<&CubinCache>,
) -> Result<KernelModule<L::Module>, DeviceError> {
    let (ptx_sha256, DeviceProperties { capability, driver_version, .. }) = (image.sha256.clone(), properties);
    let key = CubinKey { ptx_sha256, capability: *capability, driver_version: *driver_version };
    if let Some(cubin) = cache.and_then(|cache| cache.read(&key)) {
        match linker.load(image, &cubin) {
            Ok(module) => return Ok(KernelModule { module, is_compiled: false }),
            Err(error) if error.is_fatal() => return Err(error),
            // A cubin that the driver does not load is compiled again, as a damaged one.
            Err(_) => {}
        }
    }
    let cubin = linker.compile(image)?;
    let module = linker.load(image, &cubin)?;
    if let Some(cache) = cache {
        // A cache that cannot be written, as in a read-only directory, costs time at the next
        // start, and nothing else.
        drop(cache.write(&key, &cubin));
    }
    Ok(KernelModule { module, is_compiled: true })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cuda::fault::{INVALID_VALUE, LAUNCH_FAILED};
    use crate::cuda::storage_format::StorageFormat;

    /// A linker whose machine code is a number and the name of the kernel, and that loads its own
    /// number only.
    struct FakeLinker {
        number: u8,
        compiled: usize,
        /// Code of the error for machine code of another number.
        code: u32,
    }

    // === impl FakeLinker ===

    impl FakeLinker {
        fn new(number: u8) -> Self {
            Self { number, compiled: 0, code: INVALID_VALUE }
        }

        fn load_from(&mut self, cache: Option<&CubinCache>) -> Result<KernelModule<Vec<u8>>, DeviceError> {
            load_kernel(self, &image(StorageFormat::Bf16), &properties(13_000), cache)
        }
    }

    impl KernelLinker for FakeLinker {
        type Module = Vec<u8>;

        fn compile(&mut self, image: &KernelImage) -> Result<Vec<u8>, DeviceError> {
            self.compiled += 1;
            Ok([&[self.number], image.name.as_bytes()].concat())
        }

        fn load(&mut self, image: &KernelImage, cubin: &[u8]) -> Result<Vec<u8>, DeviceError> {
            if cubin == [&[self.number], image.name.as_bytes()].concat() {
                return Ok(cubin.to_vec());
            }
            Err(DeviceError::new("the load of a kernel", self.code, String::new()))
        }
    }

    fn image(storage: StorageFormat) -> KernelImage {
        KernelImage::find("pool_mean", storage).unwrap()
    }

    fn properties(driver_version: u32) -> DeviceProperties {
        let name = "a GPU".to_owned();
        DeviceProperties { name, capability: (9, 0), multiprocessors: 1, memory_bytes: 1, driver_version }
    }

    #[test]
    fn a_kernel_is_compiled_once_for_each_driver_and_format() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, mut linker) = (CubinCache::new(folder.path()), FakeLinker::new(1));
        let mut load =
            |driver, storage| load_kernel(&mut linker, &image(storage), &properties(driver), Some(&cache)).unwrap();
        let (bf16, f16) = (StorageFormat::Bf16, StorageFormat::F16);
        let (first, again) = (load(13_000, bf16), load(13_000, bf16));
        let others = [load(12_080, bf16), load(13_000, f16)].map(|kernel| kernel.is_compiled);
        assert_eq!((first.is_compiled, again.is_compiled, others), (true, false, [true; 2]));
        assert_eq!(first.module, again.module);
        assert_eq!(linker.compiled, 3);
        assert!(linker.load_from(None).unwrap().is_compiled, "without a directory nothing is kept");
    }

    #[test]
    fn machine_code_that_is_damaged_or_not_accepted_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        FakeLinker::new(1).load_from(Some(&cache)).unwrap();
        // The hash of this entry is right, as of one that another kind of driver wrote.
        let mut linker = FakeLinker::new(2);
        assert!(linker.load_from(Some(&cache)).unwrap().is_compiled);
        assert!(!linker.load_from(Some(&cache)).unwrap().is_compiled);
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        fs::write(&path, "not a cubin").unwrap();
        assert!(linker.load_from(Some(&cache)).unwrap().is_compiled);
        assert!(!linker.load_from(Some(&cache)).unwrap().is_compiled);
        assert_eq!(linker.compiled, 2);
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut linker = FakeLinker::new(1);
        for _ in 0..2 {
            assert!(linker.load_from(Some(&CubinCache::new(&file))).unwrap().is_compiled);
        }
    }

    #[test]
    fn a_damaged_context_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        FakeLinker::new(1).load_from(Some(&cache)).unwrap();
        let mut linker = FakeLinker { code: LAUNCH_FAILED, ..FakeLinker::new(2) };
        assert!(linker.load_from(Some(&cache)).unwrap_err().is_fatal());
        assert_eq!(linker.compiled, 0);
    }
}
