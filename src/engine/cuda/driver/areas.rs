//! Copies to the device beside the kernels: a second stream, and two buffers of host memory.
//!
//! Events order the streams and the host without a wait for all of their operations:
//! - The host writes a buffer after the copy from it has ended (`copied`).
//! - The stream of the kernels reads a region after the copy to it (`copied`).
//! - The stream of the copies writes a region after it has been read (`released`).

use cudarc::driver::{result, sys};

use super::status::{check, ignore_failure};
use crate::cuda::device::{DeviceAddress, STAGED_BYTES_MAX, StagedBytes, StagingArea};
use crate::cuda::fault::{DeviceError, INVALID_VALUE};

const STAGE: &str = "the staged copy to the device";
const WAIT_FLAGS: sys::CUevent_wait_flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;

/// A stream of copies, and the buffers of both areas.
pub(super) struct CopyAreas {
    // Dropped in this order, and the stream is waited for before.
    areas: [CopyArea; 2],
    stream: CopyStream,
}

struct CopyStream(sys::CUstream);

struct CopyArea {
    buffer: PinnedBuffer,
    /// The last copy from the buffer to the device.
    copied: DriverEvent,
    /// The last copy from the region on the device.
    released: DriverEvent,
}

struct PinnedBuffer(*mut u8);

struct DriverEvent(sys::CUevent);

// === impl CopyAreas ===

impl CopyAreas {
    /// Creates the stream and the buffers in the context that is bound.
    pub(super) fn new() -> Result<Self, DeviceError> {
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = CopyStream(check("the creation of a stream", result::stream::create(kind))?);
        Ok(Self { areas: [CopyArea::new()?, CopyArea::new()?], stream })
    }

    /// Copies bytes to the region of an area. They can be reused when the call returns.
    pub(super) fn stage(&mut self, area: StagingArea, to: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        let CopyArea { buffer, copied, released } = area.pick(self.areas.each_mut());
        // SAFETY: the event exists. One that was not recorded does not wait.
        check(STAGE, unsafe { result::event::synchronize(copied.0) })?;
        let staged = buffer.fill(bytes)?;
        let stream = self.stream.0;
        // SAFETY: the event and the stream exist.
        check(STAGE, unsafe { result::stream::wait_event(stream, released.0, WAIT_FLAGS) })?;
        // SAFETY: the region of the area has room for the bytes, and the buffer is not written
        // before the copy has ended.
        check(STAGE, unsafe { result::memcpy_htod_async(to.0, staged, stream) })?;
        // SAFETY: the event and the stream exist.
        let recorded = check(STAGE, unsafe { result::event::record(copied.0, stream) });
        if recorded.is_err() {
            // Without the event, nothing else holds the buffer until the copy has ended.
            self.stream.synchronize();
        }
        recorded
    }

    /// Copies staged bytes within the device, in the stream of the kernels.
    pub(super) fn copy(
        &mut self,
        staged: StagedBytes,
        to: DeviceAddress,
        kernels: sys::CUstream,
    ) -> Result<(), DeviceError> {
        let StagedBytes { area, from, bytes } = staged;
        let CopyArea { copied, released, .. } = area.pick(self.areas.each_mut());
        // SAFETY: the event and the stream exist.
        check(STAGE, unsafe { result::stream::wait_event(kernels, copied.0, WAIT_FLAGS) })?;
        // SAFETY: both regions have room for the bytes, and they do not overlap.
        check(STAGE, unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, kernels) })?;
        // SAFETY: the event and the stream exist.
        check(STAGE, unsafe { result::event::record(released.0, kernels) })
    }
}

impl Drop for CopyAreas {
    fn drop(&mut self) {
        self.stream.synchronize();
    }
}

// === impl CopyStream ===

impl CopyStream {
    /// Waits for all copies. After an error there are none any more.
    fn synchronize(&self) {
        // SAFETY: the stream exists until it is dropped.
        ignore_failure(unsafe { result::stream::synchronize(self.0) });
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: the stream is not used again.
        ignore_failure(unsafe { result::stream::destroy(self.0) });
    }
}

// === impl CopyArea ===

impl CopyArea {
    fn new() -> Result<Self, DeviceError> {
        Ok(Self { buffer: PinnedBuffer::new()?, copied: DriverEvent::new()?, released: DriverEvent::new()? })
    }
}

// === impl PinnedBuffer ===

impl PinnedBuffer {
    fn new() -> Result<Self, DeviceError> {
        // SAFETY: a context is bound.
        let start = check("the allocation of host memory", unsafe { result::malloc_host(STAGED_BYTES_MAX, 0) })?;
        let start: *mut u8 = start.cast();
        // SAFETY: the memory has this size, and nothing else uses it.
        unsafe { start.write_bytes(0, STAGED_BYTES_MAX) };
        Ok(Self(start))
    }

    /// Writes bytes to the start of the buffer, and returns them there.
    fn fill(&mut self, bytes: &[u8]) -> Result<&[u8], DeviceError> {
        if bytes.len() > STAGED_BYTES_MAX {
            let detail = format!("{} bytes, and at most {STAGED_BYTES_MAX} are staged", bytes.len());
            return Err(DeviceError::new(STAGE, INVALID_VALUE, detail));
        }
        // SAFETY: the memory has at least this size, and was initialised by `new`. The caller has
        // waited for the last copy from it.
        let staged = unsafe { std::slice::from_raw_parts_mut(self.0, bytes.len()) };
        staged.copy_from_slice(bytes);
        Ok(staged)
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated by `new`, and the owner has waited for the stream.
        ignore_failure(unsafe { result::free_host(self.0.cast()) });
    }
}

// === impl DriverEvent ===

impl DriverEvent {
    fn new() -> Result<Self, DeviceError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        check("the creation of an event", result::event::create(flags)).map(Self)
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        // SAFETY: the event is not used again.
        ignore_failure(unsafe { result::event::destroy(self.0) });
    }
}
