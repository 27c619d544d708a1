//! The registers that an instruction reads.

use super::{Operand, Operation};

// === impl Operation ===

impl Operation {
    /// Calls a function with each operand that the instruction reads in its active lanes.
    pub(crate) fn visit_sources(&self, mut visit: impl FnMut(Operand)) {
        match self {
            Self::Unary { source, .. } | Self::Convert { source, .. } | Self::Split { source, .. } => visit(*source),
            Self::Binary { sources, .. } => sources.iter().copied().for_each(visit),
            Self::Ternary { sources, .. } => sources.iter().copied().for_each(visit),
            Self::InsertBits { source, base, position, length, .. } => {
                [*source, *base, *position, *length].into_iter().for_each(visit);
            }
            Self::Compare { sources, combination, .. } => {
                let predicate = combination.map(|combination| combination.predicate);
                sources.iter().copied().chain(predicate).for_each(visit);
            }
            Self::Select { sources, predicate, .. } => {
                sources.iter().copied().chain([*predicate]).for_each(visit);
            }
            Self::PackFloats { high, low, .. } | Self::Join { high, low, .. } => {
                [*high, *low].into_iter().for_each(visit);
            }
            Self::Store { sources, address, .. } => {
                sources.iter().copied().chain([address.base]).for_each(visit);
            }
            Self::Load { address, .. } | Self::LoadMatrices { address, .. } => visit(address.base),
            Self::WarpBarrier { members } => visit(*members),
            Self::Shuffle { source, lane, clamp, members, .. } => {
                [*source, *lane, *clamp, *members].into_iter().for_each(visit);
            }
            Self::MultiplyMatrices { a, b, c, .. } => {
                a.iter().chain(b).chain(c).for_each(|register| visit(Operand::Register(*register)));
            }
            Self::CopyAsync { target, source, length, .. } => {
                [target.base, source.base].into_iter().chain(*length).for_each(visit);
            }
            Self::LoadParameter { .. }
            | Self::Branch { .. }
            | Self::Return
            | Self::Barrier
            | Self::CommitCopies
            | Self::WaitCopies { .. } => {}
        }
    }
}
