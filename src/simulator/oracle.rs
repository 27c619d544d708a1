//! Oracles: bounds on what any policy can reach, for comparison.

mod clairvoyant;
mod smdp;

pub use clairvoyant::clairvoyant;
pub use smdp::{SmdpSolution, solve_smdp};
