//! Execution of one instruction by the active lanes of a warp.

mod arithmetic;
mod float;
mod bitfield;
mod compare;
mod convert;
mod memory_access;
mod matrix;
mod shuffle;

use crate::bits::{LANES, LaneValues, truncate};
use crate::fault::LaneFault;
use crate::instruction::{Operand, Operation, Register};
use crate::memory::{AccessOrigin, GlobalMemory, SharedMemory};
use crate::warp::{BlockGeometry, Warp};

/// The state that the warps of a block share.
#[derive(Debug)]
pub(crate) struct BlockState<'a> {
    pub(crate) geometry: BlockGeometry,
    /// Number of the block in the grid.
    pub(crate) number: u32,
    /// Arguments of the launch, in the layout of the parameters of the kernel.
    pub(crate) parameters: &'a [u8],
    pub(crate) global: &'a mut GlobalMemory,
    pub(crate) shared: SharedMemory,
}

// === impl BlockState ===

impl BlockState<'_> {
    /// Returns the origin of the accesses of a warp to global memory.
    const fn origin(&self, warp: &Warp) -> AccessOrigin {
        AccessOrigin { block: self.number, warp: warp.index, epoch: self.shared.epoch() }
    }
}

/// Executes an instruction other than branches, returns and barriers, which `grid` executes.
/// `active` is a mask of the lanes that take part, with one bit each.
pub(crate) fn execute(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    if let Some((target, values)) = compute(warp, &block.geometry, operation) {
        warp.write(target, &values, active);
        return Ok(());
    }
    match operation {
        Operation::Split { part, low, high, source } => {
            let values = warp.read(*source, &block.geometry);
            warp.write(*low, &values.map(|value| truncate(value, *part)), active);
            warp.write(*high, &values.map(|value| truncate(value >> part.bits(), *part)), active);
            Ok(())
        }
        Operation::LoadParameter { target, offset, width } => {
            let bytes = block.parameters.get(*offset..offset + width.bytes()).unwrap_or_default();
            warp.write(*target, &[from_bytes(bytes); LANES], active);
            Ok(())
        }
        Operation::Load { .. } => memory_access::load(warp, block, operation, active),
        Operation::Store { space, width, sources, address } => {
            memory_access::store(warp, block, (*space, *width), sources, *address, active)
        }
        Operation::CopyAsync { .. } | Operation::CommitCopies | Operation::WaitCopies { .. } => {
            memory_access::copy(warp, block, operation, active)
        }
        Operation::Shuffle { .. } | Operation::WarpBarrier { .. } => {
            shuffle::execute(warp, &block.geometry, operation, active)
        }
        Operation::LoadMatrices { .. } | Operation::MultiplyMatrices { .. } => {
            matrix::execute(warp, block, operation, active)
        }
        _ => Ok(()),
    }
}

/// Computes the result of an instruction that reads registers of its own lane and writes one, in
/// all lanes. Returns `None` for other instructions.
fn compute(warp: &Warp, geometry: &BlockGeometry, operation: &Operation) -> Option<(Register, LaneValues)> {
    let read = |operand: Operand| warp.read(operand, geometry);
    Some(match operation {
        Operation::Unary { operator, scalar, flush, target, source } => {
            (*target, arithmetic::unary(*operator, *scalar, *flush, &read(*source)))
        }
        Operation::Binary { operator, scalar, flush, target, sources } => {
            let [a, b] = sources.map(read);
            (*target, arithmetic::binary(*operator, *scalar, *flush, (&a, &b)))
        }
        Operation::Ternary { operator, scalar, flush, target, sources } => {
            let values = sources.map(read);
            (*target, arithmetic::ternary(*operator, *scalar, *flush, &values))
        }
        Operation::InsertBits { target, source, base, position, length } => {
            let values = [*source, *base, *position, *length].map(read);
            (*target, bitfield::insert(&values))
        }
        Operation::Compare { comparison, scalar, target, sources, combination } => {
            let [a, b] = sources.map(read);
            let result = compare::compare(*comparison, *scalar, &a, &b);
            (*target, combination.map_or(result, |with| compare::combine(with, &result, &read(with.predicate))))
        }
        Operation::Select { width, target, sources, predicate } => {
            let ([a, b], chosen) = (sources.map(read), read(*predicate));
            (*target, map3(&[a, b, chosen], |a, b, chosen| truncate(if chosen == 0 { b } else { a }, *width)))
        }
        Operation::Convert { from, to, target, source } => (*target, convert::convert(*from, *to, &read(*source))),
        Operation::PackFloats { format, target, high, low } => {
            (*target, convert::pack(*format, &read(*high), &read(*low)))
        }
        Operation::Join { part, target, low, high } => {
            let join = |low, high| truncate(low, *part) | truncate(high, *part) << part.bits();
            (*target, map2(&read(*low), &read(*high), join))
        }
        _ => return None,
    })
}

/// Applies a function of two values lane by lane.
fn map2(a: &LaneValues, b: &LaneValues, function: impl Fn(u64, u64) -> u64) -> LaneValues {
    let mut result = *a;
    for (result, b) in result.iter_mut().zip(b) {
        *result = function(*result, *b);
    }
    result
}

/// Applies a function of three values lane by lane.
fn map3([a, b, c]: &[LaneValues; 3], function: impl Fn(u64, u64, u64) -> u64) -> LaneValues {
    let mut result = *a;
    for ((result, b), c) in result.iter_mut().zip(b).zip(c) {
        *result = function(*result, *b, *c);
    }
    result
}

/// Returns a little-endian value of at most 8 bytes.
fn from_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests;
