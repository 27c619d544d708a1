//! Maximum lengths of the lists in a status. Its types, the schemas and the controller apply them.

/// Maximum number of conditions of an object. The controller writes seven, and other controllers
/// may add their own.
pub const CONDITIONS_MAX: usize = 16;
/// Maximum number of entries in `podTunings`. An entry has about 300 bytes, so the list remains far
/// below the size limit of etcd.
pub const POD_TUNINGS_MAX: usize = 100;
/// Maximum number of entries in `learned`: profiles in use times kinds of accelerators in use.
pub const LEARNED_MAX: usize = 16;
/// Maximum number of points of a learned curve: sizes 1, 2, 4 … 32768.
pub const CURVE_MAX: usize = 16;
/// Maximum number of arms of an experiment, as in the spec.
pub const ARMS_MAX: usize = 16;
/// Maximum number of policies in `usedBy`.
pub const USED_BY_MAX: usize = 100;
