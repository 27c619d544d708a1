//! Execution of a grid of blocks, up to a limit of instructions.
//!
//! Blocks run one after another. Of a block, each warp runs to its next barrier before the next
//! warp runs. A generator shuffles the order of the blocks, and that of the warps after each
//! barrier, because a GPU guarantees none.

use groupage_batching::rng::SplitMix64;

use crate::bits::to_index;
use crate::execute::{BlockState, execute};
use crate::fault::{DeviceFault, FaultKind, FaultLocation, LaneFault};
use crate::instruction::{Instruction, Operand, Operation, Register};
use crate::memory::{GlobalMemory, SharedMemory};
use crate::parser::Kernel;
use crate::warp::{BlockGeometry, Warp, WarpFragment};

/// A launch, after a check of its shape and arguments against the kernel.
#[derive(Debug)]
pub(crate) struct GridLaunch<'a> {
    pub(crate) kernel: &'a Kernel,
    /// Blocks of the grid.
    pub(crate) blocks: [u32; 3],
    /// Threads of a block.
    pub(crate) threads: [u32; 3],
    /// Dynamic shared memory of a block, beside the static one that the kernel declares.
    pub(crate) shared_bytes: usize,
    /// Arguments in the layout of the parameters of the kernel.
    pub(crate) parameters: &'a [u8],
    /// Maximum number of instructions of all warps together.
    pub(crate) instruction_limit: u64,
}

/// The reason why a warp stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WarpStop {
    /// The warp waits at a barrier.
    Barrier,
    /// All lanes have returned.
    Finished,
}

/// The effect of an instruction on the execution of its warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepResult {
    Continue,
    Barrier,
}

// === impl GridLaunch ===

impl GridLaunch<'_> {
    /// Runs all blocks, and returns the number of instructions that the warps executed.
    pub(crate) fn run(&self, global: &mut GlobalMemory, rng: &mut SplitMix64) -> Result<u64, DeviceFault> {
        let [width, height, depth] = self.blocks;
        let mut order: Vec<u32> = (0..width * height * depth).collect();
        shuffle(&mut order, rng);
        let mut instructions = 0;
        global.begin_launch();
        for number in order {
            let block = [number % width, number / width % height, number / (width * height)];
            let geometry = BlockGeometry { block, blocks: self.blocks, threads: self.threads };
            let shared = SharedMemory::new(self.kernel.shared_bytes + self.shared_bytes);
            let parameters = self.parameters;
            let mut state = BlockState { geometry, number, parameters, global, shared };
            self.run_block(&mut state, &mut instructions, rng)?;
        }
        Ok(instructions)
    }

    /// Runs the warps of a block, and adds their instructions to `instructions`. Each warp runs to
    /// its next barrier. When all warps have reached it or have returned, the next epoch of the
    /// shared memory begins.
    fn run_block(
        &self,
        state: &mut BlockState<'_>,
        instructions: &mut u64,
        rng: &mut SplitMix64,
    ) -> Result<(), DeviceFault> {
        let threads: u32 = self.threads.iter().product();
        let count = u8::try_from(threads.div_ceil(32)).unwrap_or(u8::MAX);
        let new_warp =
            |index| Warp::new(index, &state.geometry, self.kernel.register_names.len(), self.kernel.local_bytes);
        let mut running: Vec<Warp> = (0..count).map(new_warp).collect();
        while !running.is_empty() {
            shuffle(&mut running, rng);
            let mut waiting = Vec::with_capacity(running.len());
            for mut warp in running {
                if self.run_warp(&mut warp, state, instructions)? == WarpStop::Barrier {
                    waiting.push(warp);
                }
            }
            state.shared.pass_barrier();
            running = waiting;
        }
        Ok(())
    }

    /// Runs a warp until it waits at a barrier or all of its lanes have returned.
    fn run_warp(
        &self,
        warp: &mut Warp,
        state: &mut BlockState<'_>,
        instructions: &mut u64,
    ) -> Result<WarpStop, DeviceFault> {
        loop {
            let Some(fragment) = take_first(&mut warp.fragments) else { return Ok(WarpStop::Finished) };
            let Some(instruction) = self.kernel.instructions.get(fragment.at) else {
                let line = self.kernel.instructions.last().map_or(0, |last| last.line);
                return Err(self.fault(line, warp, state, LaneFault::of_warp(FaultKind::MissingReturn)));
            };
            if *instructions >= self.instruction_limit {
                let kind = FaultKind::InstructionLimit { limit: self.instruction_limit };
                return Err(self.fault(instruction.line, warp, state, LaneFault::of_warp(kind)));
            }
            *instructions += 1;
            let result = self.active_lanes(warp, instruction, fragment.lanes);
            let result = result.and_then(|active| step(warp, state, instruction, fragment, active));
            match result.map_err(|fault| self.fault(instruction.line, warp, state, fault))? {
                StepResult::Continue => {}
                StepResult::Barrier => return Ok(WarpStop::Barrier),
            }
        }
    }

    /// Returns the lanes that execute the instruction: those for which its guard predicate holds.
    /// Fails if a lane has not written a register that it reads, the predicate included.
    fn active_lanes(&self, warp: &Warp, instruction: &Instruction, lanes: u32) -> Result<u32, LaneFault> {
        let mut unwritten = None;
        let mut check = |register: Register, lanes: u32| match warp.unwritten(register, lanes) {
            0 => {}
            lanes => unwritten = unwritten.or(Some((register, lanes))),
        };
        if let Some(guard) = instruction.guard {
            check(guard.predicate, lanes);
        }
        let active = lanes & instruction.guard.map_or(u32::MAX, |guard| warp.holds(guard));
        instruction.operation.visit_sources(|operand| {
            if let Operand::Register(register) = operand {
                check(register, active);
            }
        });
        let Some((register, lanes)) = unwritten else { return Ok(active) };
        let name = self.kernel.register_names.get(register.0).cloned().unwrap_or_default();
        Err(LaneFault::of_lane(lanes.trailing_zeros() as usize, FaultKind::UnsetRegister { register: name }))
    }

    /// Adds the kernel and the location to a fault.
    fn fault(&self, line: usize, warp: &Warp, state: &BlockState<'_>, fault: LaneFault) -> DeviceFault {
        let (block, warp) = (state.geometry.block, usize::from(warp.index));
        let location = FaultLocation { line, block, warp, lane: fault.lane };
        DeviceFault { kernel: Some(self.kernel.name.clone()), location: Some(Box::new(location)), kind: fault.kind }
    }
}

/// Removes and returns the lanes with the smallest program counter. Lanes at a higher one wait
/// until the others have reached it, and then continue together with them (reconvergence).
fn take_first(fragments: &mut Vec<WarpFragment>) -> Option<WarpFragment> {
    if fragments.len() <= 1 {
        return fragments.pop();
    }
    let at = fragments.iter().map(|fragment| fragment.at).min()?;
    let mut lanes = 0;
    fragments.retain(|fragment| {
        if fragment.at == at {
            lanes |= fragment.lanes;
        }
        fragment.at != at
    });
    Some(WarpFragment { at, lanes })
}

/// Executes one instruction with the active lanes of a fragment that was removed from the warp, and
/// adds the lanes to the warp again, at their next instruction.
fn step(
    warp: &mut Warp,
    state: &mut BlockState<'_>,
    instruction: &Instruction,
    fragment: WarpFragment,
    active: u32,
) -> Result<StepResult, LaneFault> {
    let next = fragment.at + 1;
    match &instruction.operation {
        Operation::Branch { target } => {
            continue_at(warp, *target, active);
            continue_at(warp, next, fragment.lanes & !active);
        }
        Operation::Return => continue_at(warp, next, fragment.lanes & !active),
        Operation::Barrier => {
            // A barrier requires all lanes of the warp that have not returned.
            let expected = fragment.lanes | warp.live_lanes();
            if active != expected {
                let kind = FaultKind::DivergentWarp { instruction: "bar.sync", active, expected };
                return Err(LaneFault::of_warp(kind));
            }
            continue_at(warp, next, active);
            return Ok(StepResult::Barrier);
        }
        operation => {
            if active != 0 {
                execute(warp, state, operation, active)?;
            }
            continue_at(warp, next, fragment.lanes);
        }
    }
    Ok(StepResult::Continue)
}

/// Adds the lanes to the warp, with their next instruction.
fn continue_at(warp: &mut Warp, at: usize, lanes: u32) {
    if lanes != 0 {
        warp.fragments.push(WarpFragment { at, lanes });
    }
}

/// Shuffles the items (Fisher–Yates).
fn shuffle<T>(items: &mut [T], rng: &mut SplitMix64) {
    for end in (1..items.len()).rev() {
        let other = rng.next_u64() % (end as u64 + 1);
        items.swap(end, to_index(other));
    }
}
