//! Errors of a launch, and where they happened.

use std::fmt;

/// An error that ended a launch, or a copy between host and device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}", FaultPlace(self))]
pub struct DeviceFault {
    /// Kernel that ran, if the error is of a launch.
    pub kernel: Option<String>,
    /// Instruction that failed; `None` if the launch was refused before the first one.
    pub location: Option<Box<FaultLocation>>,
    /// The error.
    pub kind: FaultKind,
}

/// The instruction at which a launch stopped, and the thread that executed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultLocation {
    /// Line of the PTX, from 1.
    pub line: usize,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the warp in the block.
    pub warp: usize,
    /// Lane of the warp, if the error is of one lane.
    pub lane: Option<usize>,
}

/// A space of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySpace {
    /// Global memory, visible to all blocks.
    Global,
    /// Shared memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
}

/// A kind of error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The module has no kernel of this name.
    #[error("the module has no kernel of this name; it has {known}")]
    UnknownKernel {
        /// Names of its kernels.
        known: String,
    },
    /// The arguments do not match the parameters.
    #[error("{problem}; pass the parameters in the order of the kernel's signature")]
    BadArguments {
        /// The first difference.
        problem: String,
    },
    /// The shape of the grid or of a block is not allowed.
    #[error("{problem}")]
    BadShape {
        /// The limit that is exceeded.
        problem: String,
    },
    /// A copy between host and device, or an access of a thread, is not within an allocation or
    /// within the memory of its space.
    #[error("{bytes} bytes at {space} address {address:#x} are outside of {limit}")]
    OutOfBounds {
        /// Memory that is accessed.
        space: MemorySpace,
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: usize,
        /// The memory that the address should be in.
        limit: String,
    },
    /// An access is not aligned to its length.
    #[error("{bytes} bytes at {space} address {address:#x} are not aligned to their length")]
    Misaligned {
        /// Memory that is accessed.
        space: MemorySpace,
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// A read of bytes that nothing has written.
    #[error("{bytes} bytes at {space} address {address:#x} are read before they are written")]
    Uninitialized {
        /// Memory that is read.
        space: MemorySpace,
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// A read of a register that the lane has not written.
    #[error("{register} is read before it is written")]
    UnsetRegister {
        /// Name of the register.
        register: String,
    },
    /// A read of bytes that an asynchronous copy writes, before the copy was waited for.
    #[error("{bytes} bytes at shared address {address:#x} are read before their asynchronous copy is waited for")]
    IncompleteCopy {
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// A write of bytes that an asynchronous copy writes, before the copy was waited for.
    #[error("{bytes} bytes at shared address {address:#x} are written while an asynchronous copy to them is pending")]
    PendingCopy {
        /// First byte.
        address: u64,
        /// Length of the access.
        bytes: usize,
    },
    /// An asynchronous copy reads more than it writes, which PTX leaves undefined.
    #[error("an asynchronous copy of {size} bytes reads {length}")]
    CopyLength {
        /// Bytes that are read.
        length: usize,
        /// Bytes that are written.
        size: usize,
    },
    /// Accesses of two warps to shared memory without a barrier between them, one of them a write.
    #[error("shared address {address:#x}: {access} without a barrier after {other}")]
    SharedRace {
        /// First location of the conflict.
        address: u64,
        /// The access of this warp.
        access: &'static str,
        /// The access of the other warp.
        other: String,
    },
    /// Accesses of two blocks to global memory, or of two warps of a block without a barrier
    /// between them, one of them a write.
    #[error("global address {address:#x}: {access} after {other}, in one launch")]
    GlobalRace {
        /// First location of the conflict.
        address: u64,
        /// The access of this warp.
        access: &'static str,
        /// The access of the other block or warp.
        other: String,
    },
    /// A location is written in a launch that reads it through the cache for read-only data.
    #[error("global address {address:#x} is written, and read by ld.global.nc, in one launch")]
    ReadOnlyWrite {
        /// The location.
        address: u64,
    },
    /// Some lanes of a warp reach an instruction that needs all lanes that have not returned, or
    /// all lanes that it names.
    #[error("{instruction} is executed by lanes {active:#010x} of {expected:#010x}")]
    DivergentWarp {
        /// The instruction.
        instruction: &'static str,
        /// Mask of the lanes that execute it.
        active: u32,
        /// Mask of the lanes that have to.
        expected: u32,
    },
    /// A shuffle reads a lane that does not execute it.
    #[error("shfl.sync reads lane {source_lane}, which does not execute it")]
    InactiveSource {
        /// The lane that is read.
        source_lane: usize,
    },
    /// The instructions of a launch exceed the limit.
    #[error("the launch exceeded {limit} instructions; a loop may not end")]
    InstructionLimit {
        /// Maximum number of instructions of all warps.
        limit: u64,
    },
    /// A warp reached the end of the kernel without `ret`.
    #[error("the kernel ends without ret")]
    MissingReturn,
}

/// A fault before its location is known: that of a lane, or of the whole warp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneFault {
    pub(crate) lane: Option<usize>,
    pub(crate) kind: FaultKind,
}

/// Shows where a fault happened.
struct FaultPlace<'a>(&'a DeviceFault);

// === impl LaneFault ===

impl LaneFault {
    pub(crate) const fn of_warp(kind: FaultKind) -> Self {
        Self { lane: None, kind }
    }

    pub(crate) const fn of_lane(lane: usize, kind: FaultKind) -> Self {
        Self { lane: Some(lane), kind }
    }
}

// === impl DeviceFault ===

impl From<FaultKind> for DeviceFault {
    fn from(kind: FaultKind) -> Self {
        Self { kernel: None, location: None, kind }
    }
}

// === impl MemorySpace ===

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
        })
    }
}

// === impl FaultPlace ===

impl fmt::Display for FaultPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kernel) = &self.0.kernel else { return Ok(()) };
        write!(f, "kernel {kernel}")?;
        if let Some(FaultLocation { line, block: [x, y, z], warp, lane }) = self.0.location.as_deref().copied() {
            write!(f, ", line {line}, block ({x}, {y}, {z}), warp {warp}")?;
            if let Some(lane) = lane {
                write!(f, ", lane {lane}")?;
            }
        }
        f.write_str(": ")
    }
}
