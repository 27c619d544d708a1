//! Exchange of registers between lanes, and barriers of a warp.

use crate::bits::{LANES, LaneValues, lanes_in, low_word, to_index, truncate};
use crate::fault::{FaultKind, LaneFault};
use crate::instruction::{BitWidth, Operand, Operation, ShuffleMode};
use crate::warp::{BlockGeometry, Warp};

/// Largest distance and lane of a shuffle.
const LANE_MASK: u64 = 31;

/// Executes an instruction of this group.
pub(super) fn execute(
    warp: &mut Warp,
    geometry: &BlockGeometry,
    operation: &Operation,
    active: u32,
) -> Result<(), LaneFault> {
    match operation {
        Operation::WarpBarrier { members } => check_members(&warp.read(*members, geometry), "bar.warp.sync", active),
        Operation::Shuffle { mode, target, valid, source, lane, clamp, members } => {
            check_members(&warp.read(*members, geometry), "shfl.sync", active)?;
            let read = |operand: Operand| warp.read(operand, geometry);
            // An immediate source has more bits than the type.
            let values = read(*source).map(|value| truncate(value, BitWidth::Word));
            let (distances, clamps) = (read(*lane), read(*clamp));
            let mut results = values;
            let mut within = [0; LANES];
            for lane in lanes_in(active) {
                let of = |lanes: &LaneValues| lanes.get(lane).copied().unwrap_or(0);
                let chosen = source_lane(*mode, lane, of(&distances), of(&clamps));
                let from = chosen.unwrap_or(lane);
                if active >> from & 1 == 0 {
                    return Err(LaneFault::of_lane(lane, FaultKind::InactiveSource { source_lane: from }));
                }
                if let Some((result, value)) = results.get_mut(lane).zip(values.get(from)) {
                    *result = *value;
                }
                if let Some(within) = within.get_mut(lane) {
                    *within = u64::from(chosen.is_some());
                }
            }
            warp.write(*target, &results, active);
            if let Some(valid) = valid {
                warp.write(*valid, &within, active);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The lanes that execute the instruction have to be those that it names, since the warp would wait
/// for the others.
fn check_members(members: &LaneValues, instruction: &'static str, active: u32) -> Result<(), LaneFault> {
    for lane in lanes_in(active) {
        let expected = low_word(members.get(lane).copied().unwrap_or(0));
        if expected != active {
            return Err(LaneFault::of_lane(lane, FaultKind::DivergentWarp { instruction, active, expected }));
        }
    }
    Ok(())
}

/// Returns the lane that a lane reads; none if it is outside of the segment, where the lane keeps
/// its own value. By the pseudocode of `shfl.sync` in the PTX manual.
fn source_lane(mode: ShuffleMode, lane: usize, distance: u64, clamp: u64) -> Option<usize> {
    let distance = to_index(distance & LANE_MASK);
    let (clamp, segment) = (to_index(clamp & LANE_MASK), to_index(clamp >> 8 & LANE_MASK));
    let last = lane & segment | clamp & !segment;
    let first = lane & segment;
    match mode {
        ShuffleMode::Up => lane.checked_sub(distance).filter(|from| *from >= last),
        ShuffleMode::Down => Some(lane + distance).filter(|from| *from <= last),
        ShuffleMode::Butterfly => Some(lane ^ distance).filter(|from| *from <= last),
        ShuffleMode::Index => Some(first | distance & !segment).filter(|from| *from <= last),
    }
}
