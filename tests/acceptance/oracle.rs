//! Oracles: bounds on what any policy can reach, for comparison.

mod clairvoyant;
mod smdp;

pub(crate) use clairvoyant::clairvoyant;
pub(crate) use smdp::solve_smdp;
