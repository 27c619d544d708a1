//! Host memory that the device reads and writes directly.
//!
//! A copy of other host memory goes through such a buffer of the driver, which may or may not be
//! done when the call returns. With a buffer of our own, it is known when the bytes can be reused.

use cudarc::driver::{result, sys};

use super::status::{check, ignore_failure};
use crate::cuda::device::DeviceAddress;
use crate::cuda::fault::DeviceError;

/// Size of the buffer: the inputs and results of most batches, and a chunk of weights.
const STAGING_BYTES: usize = 4 << 20;

/// A buffer for copies in both directions.
pub(super) struct StagingBuffer {
    start: *mut u8,
    /// `true` if a copy to the device may still read the buffer.
    is_busy: bool,
}

// === impl StagingBuffer ===

impl StagingBuffer {
    /// Allocates the buffer in the context that is bound.
    pub(super) fn new() -> Result<Self, DeviceError> {
        // Not write-combined, because such memory is slow to read.
        // SAFETY: a context is bound.
        let start = check("the allocation of host memory", unsafe { result::malloc_host(STAGING_BYTES, 0) })?;
        let start: *mut u8 = start.cast();
        // SAFETY: the memory has this size, and nothing else uses it.
        unsafe { start.write_bytes(0, STAGING_BYTES) };
        Ok(Self { start, is_busy: false })
    }

    /// Copies bytes to the device. They can be reused when the call returns.
    pub(super) fn upload(&mut self, stream: sys::CUstream, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        for (number, chunk) in bytes.chunks(STAGING_BYTES).enumerate() {
            if self.is_busy {
                self.synchronize(stream)?;
            }
            let staged = self.part(chunk.len());
            staged.copy_from_slice(chunk);
            let to = to.offset(number * STAGING_BYTES);
            // SAFETY: callers copy to regions that they have allocated, and the buffer is not
            // written before the stream has been waited for.
            let copied = unsafe { result::memcpy_htod_async(to.0, staged, stream) };
            check("the copy to the device", copied)?;
            self.is_busy = true;
        }
        Ok(())
    }

    /// Waits for all operations of the stream and copies bytes from the device.
    pub(super) fn download(
        &mut self,
        stream: sys::CUstream,
        from: DeviceAddress,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        for (number, chunk) in bytes.chunks_mut(STAGING_BYTES).enumerate() {
            let staged = self.part(chunk.len());
            let from = from.offset(number * STAGING_BYTES);
            // SAFETY: callers copy from regions that they have allocated. Copies to the device that
            // read the buffer precede this one in the stream, which is waited for before the next
            // use.
            let copied = unsafe { result::memcpy_dtoh_async(staged, from.0, stream) };
            // The stream is waited for even after an error, so that nothing writes the buffer
            // later.
            let ended = self.synchronize(stream);
            check("the copy from the device", copied).and(ended)?;
            chunk.copy_from_slice(self.part(chunk.len()));
        }
        Ok(())
    }

    /// Waits for all operations of the stream.
    fn synchronize(&mut self, stream: sys::CUstream) -> Result<(), DeviceError> {
        // SAFETY: callers pass a stream that exists.
        check("the execution of kernels", unsafe { result::stream::synchronize(stream) })?;
        self.is_busy = false;
        Ok(())
    }

    /// Returns the first bytes of the buffer, at most [`STAGING_BYTES`].
    fn part(&mut self, bytes: usize) -> &mut [u8] {
        let bytes = bytes.min(STAGING_BYTES);
        // SAFETY: the memory has at least this size, and was initialised by `new`.
        unsafe { std::slice::from_raw_parts_mut(self.start, bytes) }
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `new`, and the owner has waited for the stream.
        ignore_failure(unsafe { result::free_host(self.start.cast()) });
    }
}
