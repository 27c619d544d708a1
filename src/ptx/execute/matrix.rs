//! Tensor-core instructions: loads and products of matrices in fragment layout.
//!
//! The layouts are those of the sections "Matrix Fragments for mma.m16n8k16" and "ldmatrix" of the
//! PTX manual.

use super::BlockState;
use super::convert::widen_half;
use super::memory_access::addresses;
use crate::bits::{ALL_LANES, LANES, LaneValues, from_f32, low_half, to_f32};
use crate::fault::{FaultKind, LaneFault, MemorySpace};
use crate::instruction::{HalfFormat, MemoryOperand, Operation, Register};
use crate::warp::Warp;

/// Number of rows, and of columns, of a matrix of `ldmatrix`.
const MATRIX_SIZE: usize = 8;
/// Bytes of one of its rows: its elements have 16 bits.
const ROW_BYTES: usize = 16;
/// Shape of a product: `d[M][N] = a[M][K] * b[K][N] + c[M][N]`.
const M: usize = 16;
const N: usize = 8;
const K: usize = 16;

/// The 16-bit elements of a matrix of `ldmatrix`, by row and column.
type MatrixRows = [[u16; MATRIX_SIZE]; MATRIX_SIZE];

/// Executes an instruction of this group. All of them need the whole warp.
pub(super) fn execute(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    if active != ALL_LANES {
        let instruction = if matches!(operation, Operation::LoadMatrices { .. }) { "ldmatrix" } else { "mma.sync" };
        return Err(LaneFault::of_warp(FaultKind::DivergentWarp { instruction, active, expected: ALL_LANES }));
    }
    match operation {
        Operation::LoadMatrices { transposed, targets, address } => load(warp, block, *transposed, targets, *address),
        Operation::MultiplyMatrices { format, d, a, b, c } => {
            let a = unpack_a(*format, &a.map(|register| warp.register(register)));
            let b = unpack_b(*format, &b.map(|register| warp.register(register)));
            let mut sums = unpack_c(&c.map(|register| warp.register(register)));
            multiply(&mut sums, &a, &b);
            for (register, values) in d.iter().zip(pack_c(&sums)) {
                warp.write(*register, &values, ALL_LANES);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Loads one matrix into each target register. Lanes `8i` to `8i + 7` have the addresses of the
/// rows of matrix `i`. Lane `l` receives two neighbours of row `l / 4`, or of column `l / 4` if
/// transposed.
fn load(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    transposed: bool,
    targets: &[Register],
    address: MemoryOperand,
) -> Result<(), LaneFault> {
    let addresses = addresses(warp, block, MemorySpace::Shared, address);
    for (matrix, (target, row_addresses)) in targets.iter().zip(addresses.chunks_exact(MATRIX_SIZE)).enumerate() {
        let mut rows = MatrixRows::default();
        for (number, (row, address)) in rows.iter_mut().zip(row_addresses).enumerate() {
            let bytes = block.shared.read(*address, ROW_BYTES, warp.index);
            let bytes = bytes.map_err(|kind| LaneFault::of_lane(matrix * MATRIX_SIZE + number, kind))?;
            for (value, pair) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = pair.iter().rev().fold(0, |value, byte| value << 8 | u16::from(*byte));
            }
        }
        let values = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            let (low, high) = if transposed {
                (rows[column][row], rows[column + 1][row])
            } else {
                (rows[row][column], rows[row][column + 1])
            };
            u64::from(low) | u64::from(high) << 16
        });
        warp.write(*target, &values, ALL_LANES);
    }
    Ok(())
}

/// Returns both halves of a register of a lane as f32.
fn halves(format: HalfFormat, value: u64) -> [f32; 2] {
    [widen_half(format, low_half(value)), widen_half(format, low_half(value >> 16))]
}

/// Assembles matrix `a` from its fragments. Register `i` of lane `l` has two elements of row
/// `l / 4 + 8 (i % 2)`: those of column `2 (l % 4) + 8 (i / 2)` and the next.
fn unpack_a(format: HalfFormat, registers: &[LaneValues; 4]) -> [[f32; K]; M] {
    let mut matrix = [[0.0; K]; M];
    for (i, values) in registers.iter().enumerate() {
        for (lane, value) in values.iter().enumerate() {
            let (row, column) = (lane / 4 + 8 * (i % 2), lane % 4 * 2 + 8 * (i / 2));
            [matrix[row][column], matrix[row][column + 1]] = halves(format, *value);
        }
    }
    matrix
}

/// Assembles matrix `b` from its fragments. Register `i` of lane `l` has two elements of column
/// `l / 4`: those of row `2 (l % 4) + 8 i` and the next.
fn unpack_b(format: HalfFormat, registers: &[LaneValues; 2]) -> [[f32; N]; K] {
    let mut matrix = [[0.0; N]; K];
    for (i, values) in registers.iter().enumerate() {
        for (lane, value) in values.iter().enumerate() {
            let (row, column) = (lane % 4 * 2 + 8 * i, lane / 4);
            [matrix[row][column], matrix[row + 1][column]] = halves(format, *value);
        }
    }
    matrix
}

/// Returns the row and the column of the element of matrices `c` and `d` that register `i` of a
/// lane has, an f32.
const fn position_c(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2)
}

fn unpack_c(registers: &[LaneValues; 4]) -> [[f32; N]; M] {
    let mut matrix = [[0.0; N]; M];
    for (i, values) in registers.iter().enumerate() {
        for (lane, value) in values.iter().enumerate() {
            let (row, column) = position_c(lane, i);
            matrix[row][column] = to_f32(*value);
        }
    }
    matrix
}

fn pack_c(matrix: &[[f32; N]; M]) -> [LaneValues; 4] {
    let mut registers = [[0; LANES]; 4];
    for (i, values) in registers.iter_mut().enumerate() {
        for (lane, value) in values.iter_mut().enumerate() {
            let (row, column) = position_c(lane, i);
            *value = from_f32(matrix[row][column]);
        }
    }
    registers
}

/// Adds the product of `a` and `b` to the sums, in ascending order of `k` and in f32. The products
/// are exact: 16-bit floats have at most 11 significant bits.
fn multiply(sums: &mut [[f32; N]; M], a: &[[f32; K]; M], b: &[[f32; N]; K]) {
    for (sums, a) in sums.iter_mut().zip(a) {
        for (factor, b) in a.iter().zip(b) {
            for (sum, value) in sums.iter_mut().zip(b) {
                *sum += factor * value;
            }
        }
    }
}
