//! An interpreter of PTX, the assembly language of CUDA, that tests kernels without a GPU.
//!
//! [`Module::parse`] reads PTX as NVRTC writes it. [`Device`] has the shape of the CUDA driver API:
//! it allocates global memory, copies to and from it, and launches a kernel over a grid of blocks.
//! A launch computes the results, and stops at the first error that a GPU would not report:
//!
//! | check | stops at |
//! |---|---|
//! | bounds, alignment | an access outside of its memory, or not aligned to its length |
//! | poison | a read of bytes that nothing has written |
//! | registers | a read of a register that the lane has not written |
//! | copies | a read or write of bytes that a pending asynchronous copy writes |
//! | shared races | accesses of two warps without a barrier between them, one of them a write |
//! | global races | the same in global memory, and accesses of two blocks in one launch |
//! | constants | a write of what `ld.global.nc` reads in the same launch |
//! | convergence | a barrier, shuffle or matrix instruction without the lanes that it needs |
//!
//! Warps run in lockstep: of the lanes of a warp, those with the smallest program counter go first,
//! which reconverges structured branches. Warps and blocks run one after another, in an order that
//! a seed shuffles. [`DeviceFault`] names kernel, line of the PTX, block, warp and lane.
//!
//! # Limits
//!
//! Tensor-core sums are f32 additions in ascending order, and `approx` functions are exact to a
//! rounding; hardware differs within the bounds that the PTX manual states. Races between the lanes
//! of a warp, the memory model and all matters of speed are out of scope. A subset of the
//! instructions of compute capability 8.0 is supported; any other is an error of the parser that
//! names the line.

mod bits;
mod instruction;
mod parser;
mod fault;
mod memory;
mod warp;
mod execute;
mod grid;
mod device;

pub use device::{Device, KernelArgument, LaunchReport, LaunchShape};
pub use fault::{DeviceFault, FaultKind, FaultLocation, MemorySpace};
pub use memory::DevicePointer;
pub use parser::{Module, ParseError};
