//! The state of a warp: registers, program counters, local memory and asynchronous copies.

mod copies;

pub(crate) use copies::{COPY_BYTES_MAX, CopyQueue};

use crate::bits::{ALL_LANES, LANES, LaneValues};
use crate::instruction::{InstructionGuard, Operand, Register, SpecialRegister};
use crate::memory::LocalMemory;

/// Shape of a launch, and the position of a block in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockGeometry {
    /// Position of the block in the grid (`%ctaid`).
    pub(crate) block: [u32; 3],
    /// Number of blocks of the grid in each dimension (`%nctaid`).
    pub(crate) blocks: [u32; 3],
    /// Number of threads of a block in each dimension (`%ntid`).
    pub(crate) threads: [u32; 3],
}

/// Lanes of a warp that have the same program counter. Sets of lanes are masks with one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WarpFragment {
    /// The program counter: index of the next instruction.
    pub(crate) at: usize,
    pub(crate) lanes: u32,
}

/// A warp of a block.
#[derive(Debug)]
pub(crate) struct Warp {
    /// Number of the warp in its block.
    pub(crate) index: u8,
    registers: Vec<LaneValues>,
    /// Lanes that have written each register. In the others, its value is undefined on a GPU.
    written: Vec<u32>,
    /// Lanes that have not returned, by program counter. When an instruction begins, no two
    /// fragments have the same one.
    pub(crate) fragments: Vec<WarpFragment>,
    pub(crate) local: LocalMemory,
    pub(crate) copies: CopyQueue,
    /// `%tid` of the lanes in each dimension.
    threads: [LaneValues; 3],
}

// === impl Warp ===

impl Warp {
    /// Creates a warp at the first instruction of a kernel.
    pub(crate) fn new(index: u8, geometry: &BlockGeometry, register_count: usize, local_bytes: usize) -> Self {
        let [width, height, depth] = geometry.threads.map(u64::from);
        let first = u64::from(index) * LANES as u64;
        // The last warp of a block may have fewer threads than lanes.
        let live = (width * height * depth).saturating_sub(first);
        let lanes = if live >= LANES as u64 { ALL_LANES } else { (1 << live) - 1 };
        // Number of the thread of each lane in its block, from which its position follows.
        let numbers: LaneValues = std::array::from_fn(|lane| first + lane as u64);
        let threads = [
            numbers.map(|thread| thread % width),
            numbers.map(|thread| thread / width % height),
            numbers.map(|thread| thread / (width * height)),
        ];
        Self {
            index,
            registers: vec![[0; LANES]; register_count],
            written: vec![0; register_count],
            fragments: vec![WarpFragment { at: 0, lanes }],
            local: LocalMemory::new(local_bytes),
            copies: CopyQueue::default(),
            threads,
        }
    }

    /// Returns the lanes that have not returned.
    pub(crate) fn live_lanes(&self) -> u32 {
        self.fragments.iter().fold(0, |lanes, fragment| lanes | fragment.lanes)
    }

    /// Returns the value of an operand in all lanes.
    pub(crate) fn read(&self, operand: Operand, geometry: &BlockGeometry) -> LaneValues {
        match operand {
            Operand::Register(register) => self.register(register),
            Operand::Immediate(value) => [value; LANES],
            Operand::Special(special) => self.special(special, geometry),
        }
    }

    /// Returns a register in all lanes.
    pub(crate) fn register(&self, register: Register) -> LaneValues {
        self.registers.get(register.0).copied().unwrap_or([0; LANES])
    }

    /// Returns those of some lanes that have not written a register.
    pub(crate) fn unwritten(&self, register: Register, lanes: u32) -> u32 {
        lanes & !self.written.get(register.0).copied().unwrap_or(0)
    }

    /// Writes a register in some lanes.
    pub(crate) fn write(&mut self, register: Register, values: &LaneValues, lanes: u32) {
        self.mark_written(register, lanes);
        let Some(target) = self.registers.get_mut(register.0) else { return };
        if lanes == ALL_LANES {
            *target = *values;
            return;
        }
        for (lane, (target, value)) in target.iter_mut().zip(values).enumerate() {
            if lanes >> lane & 1 == 1 {
                *target = *value;
            }
        }
    }

    /// Writes a register in one lane.
    pub(crate) fn write_lane(&mut self, register: Register, lane: usize, value: u64) {
        self.mark_written(register, 1 << lane);
        if let Some(target) = self.registers.get_mut(register.0).and_then(|lanes| lanes.get_mut(lane)) {
            *target = value;
        }
    }

    fn mark_written(&mut self, register: Register, lanes: u32) {
        if let Some(written) = self.written.get_mut(register.0) {
            *written |= lanes;
        }
    }

    /// Returns the lanes in which the guard predicate of an instruction holds.
    pub(crate) fn holds(&self, guard: InstructionGuard) -> u32 {
        let values = self.register(guard.predicate);
        let set = values.iter().enumerate().fold(0, |set, (lane, value)| set | u32::from(*value != 0) << lane);
        if guard.negated { !set } else { set }
    }

    fn special(&self, special: SpecialRegister, geometry: &BlockGeometry) -> LaneValues {
        let uniform = |values: &[u32; 3], dimension: usize| [values.get(dimension).map_or(0, |v| u64::from(*v)); LANES];
        match special {
            SpecialRegister::Thread(dimension) => self.threads.get(dimension).copied().unwrap_or([0; LANES]),
            SpecialRegister::Threads(dimension) => uniform(&geometry.threads, dimension),
            SpecialRegister::Block(dimension) => uniform(&geometry.block, dimension),
            SpecialRegister::Blocks(dimension) => uniform(&geometry.blocks, dimension),
            SpecialRegister::Lane => std::array::from_fn(|lane| lane as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_numbered_by_dimension_and_the_last_warp_is_partial() {
        let geometry = BlockGeometry { block: [0; 3], blocks: [1; 3], threads: [10, 2, 2] };
        let warp = Warp::new(1, &geometry, 0, 0);
        assert_eq!(warp.live_lanes(), 0xff, "40 threads");
        let at = |dimension| warp.read(Operand::Special(SpecialRegister::Thread(dimension)), &geometry)[5];
        assert_eq!([at(0), at(1), at(2)], [7, 1, 1], "thread 37");
    }
}
