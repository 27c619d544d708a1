//! Kernels of the forward pass, each for any instruction set.

mod activate;
mod gemm;
mod math;
mod norm;
mod pack;
mod softmax;

pub(super) use self::activate::GateRows;
pub(super) use self::gemm::{GemmTask, InitialValue, InputMatrix};
pub(super) use self::norm::NormalizeRows;
pub(super) use self::pack::{PackedMatrix, PackedView, pack_columns, pack_rows, packed_len};
pub(super) use self::softmax::{ScaleRow, SoftmaxRow};
