//! Loads, stores and asynchronous copies.

use super::{BlockState, from_bytes};
use crate::bits::{LANES, LaneValues, lanes_in, low_word, sign_extend, to_index, truncate};
use crate::fault::{FaultKind, LaneFault, MemorySpace};
use crate::instruction::{BitWidth, MemoryOperand, Operand, Operation, ScalarType};
use crate::warp::{COPY_BYTES_MAX, Warp};

/// Bytes of the widest vector: `.v4.u32` and `.v2.u64`.
const VECTOR_BYTES_MAX: usize = 16;

/// Returns the address in each lane. Addresses of shared and local memory have 32 bits, in
/// registers of 32 or 64 bits.
pub(super) fn addresses(warp: &Warp, block: &BlockState<'_>, space: MemorySpace, address: MemoryOperand) -> LaneValues {
    let base = warp.read(address.base, &block.geometry);
    base.map(|base| {
        let sum = base.wrapping_add(address.offset.cast_unsigned());
        if space == MemorySpace::Global { sum } else { truncate(sum, BitWidth::Word) }
    })
}

/// Runs a function for each active lane and its address.
fn for_lanes(
    active: u32,
    addresses: &LaneValues,
    mut access: impl FnMut(usize, u64) -> Result<(), FaultKind>,
) -> Result<(), LaneFault> {
    for lane in lanes_in(active) {
        let address = addresses.get(lane).copied().unwrap_or(0);
        access(lane, address).map_err(|kind| LaneFault::of_lane(lane, kind))?;
    }
    Ok(())
}

/// Loads one or more values in each active lane.
pub(super) fn load(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    let Operation::Load { space, scalar, is_constant, targets, address } = operation else { return Ok(()) };
    let addresses = addresses(warp, block, *space, *address);
    let width = scalar.width();
    let bytes = width.bytes() * targets.len();
    let origin = block.origin(warp);
    for_lanes(active, &addresses, |lane, address| {
        let mut buffer = [0; VECTOR_BYTES_MAX];
        let source = match space {
            MemorySpace::Global => block.global.read(address, bytes, bytes, (origin, *is_constant))?,
            MemorySpace::Shared => block.shared.read(address, bytes, warp.index)?,
            MemorySpace::Local => warp.local.read(lane, address, bytes)?,
        };
        buffer.iter_mut().zip(source).for_each(|(target, source)| *target = *source);
        for (target, element) in targets.iter().zip(buffer.chunks_exact(width.bytes())) {
            warp.write_lane(*target, lane, extend(*scalar, from_bytes(element)));
        }
        Ok(())
    })
}

/// Extends a loaded value to its register. A signed value narrower than 32 bits is sign-extended to
/// them, and others are zero-extended.
fn extend(scalar: ScalarType, value: u64) -> u64 {
    match scalar {
        ScalarType::Signed(width @ (BitWidth::Byte | BitWidth::Half)) => {
            truncate(sign_extend(value, width).cast_unsigned(), BitWidth::Word)
        }
        _ => value,
    }
}

/// Stores one or more values in each active lane.
pub(super) fn store(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    (space, width): (MemorySpace, BitWidth),
    sources: &[Operand],
    address: MemoryOperand,
    active: u32,
) -> Result<(), LaneFault> {
    let addresses = addresses(warp, block, space, address);
    let origin = block.origin(warp);
    let bytes = width.bytes() * sources.len();
    let mut data = [[0; VECTOR_BYTES_MAX]; LANES];
    // Gather the bytes of each lane: the elements of its vector, one after the other.
    for (element, source) in sources.iter().enumerate() {
        let values = warp.read(*source, &block.geometry);
        for (data, value) in data.iter_mut().zip(values) {
            let target = data.iter_mut().skip(element * width.bytes()).take(width.bytes());
            target.zip(value.to_le_bytes()).for_each(|(target, byte)| *target = byte);
        }
    }
    for_lanes(active, &addresses, |lane, address| {
        let data = data.get(lane).and_then(|data| data.get(..bytes)).unwrap_or_default();
        match space {
            MemorySpace::Global => block.global.write(address, data, origin),
            MemorySpace::Shared => block.shared.write(address, data, warp.index),
            MemorySpace::Local => warp.local.write(lane, address, data),
        }
    })
}

/// Begins, commits and completes asynchronous copies.
///
/// The hardware may read the source and write the target at any time between the start of the copy
/// and the wait for it. Here the source is read at the start, and the target is written at the
/// wait. The checks of shared memory make an access of the target in between a fault.
pub(super) fn copy(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    match operation {
        Operation::CopyAsync { .. } => begin_copy(warp, block, operation, active),
        Operation::CommitCopies => {
            warp.copies.commit(active);
            Ok(())
        }
        Operation::WaitCopies { pending } => {
            for copy in warp.copies.take_complete(active, *pending) {
                let written = block.shared.end_copy(copy.target, copy.data(), warp.index);
                written.map_err(|kind| LaneFault::of_lane(copy.lane, kind))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reads the source of an asynchronous copy in each active lane, and begins to write its target. If
/// fewer than `size` bytes are read, the rest of the target becomes zero.
fn begin_copy(
    warp: &mut Warp,
    block: &mut BlockState<'_>,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    let Operation::CopyAsync { target, source, size, length } = operation else { return Ok(()) };
    let targets = addresses(warp, block, MemorySpace::Shared, *target);
    let sources = addresses(warp, block, MemorySpace::Global, *source);
    let lengths = warp.read(length.unwrap_or(Operand::Immediate(*size as u64)), &block.geometry);
    let origin = block.origin(warp);
    for_lanes(active, &targets, |lane, target| {
        let length = to_index(u64::from(low_word(lengths.get(lane).copied().unwrap_or(0))));
        if length > *size {
            return Err(FaultKind::CopyLength { length, size: *size });
        }
        let source = sources.get(lane).copied().unwrap_or(0);
        // The whole copy has to be aligned, also if fewer bytes or none are read.
        block.global.check_address(source, *size)?;
        let mut data = [0; COPY_BYTES_MAX];
        if length > 0 {
            let bytes = block.global.read(source, length, *size, (origin, false))?;
            data.iter_mut().zip(bytes).for_each(|(target, source)| *target = *source);
        }
        block.shared.begin_copy(target, *size, warp.index)?;
        warp.copies.push(lane, target, data, *size);
        Ok(())
    })
}
