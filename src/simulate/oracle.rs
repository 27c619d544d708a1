//! What no policy can beat: the yardsticks of the simulator.

mod clairvoyant;
mod smdp;

pub use clairvoyant::clairvoyant;
pub use smdp::{Smdp, smdp};
