//! Planted bugs: edits of the PTX that a mistake in the source would cause. Each has to be caught,
//! and by the check that is stated: a suite that passes proves little unless it can fail.

use groupage_ptx::FaultKind;

use crate::fixture::KernelError;
use crate::gemm::ProductShape;
use crate::manifest::LoadedKernel;
use crate::storage::StorageFormat;
use crate::{attention, gemm, layer_norm, pooling};

/// The check that catches a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detector {
    /// The comparison with the reference.
    Numbers,
    Bounds,
    Alignment,
    /// A read of bytes that were never written.
    Poison,
    /// A read of bytes that an asynchronous copy has not written.
    IncompleteCopy,
    SharedRace,
    GlobalRace,
    /// A barrier or shuffle without all lanes.
    Convergence,
}

/// An edit of the PTX: an occurrence of a text, counted from zero, and its replacement.
type PtxEdit = (&'static str, usize, &'static str);

/// A planted bug.
#[derive(Debug)]
struct PlantedBug {
    mistake: &'static str,
    kernel: &'static str,
    edit: PtxEdit,
    detector: Detector,
}

const BUGS: &[PlantedBug] = &[
    bug("waits for one group too few", ATTENTION, ("wait_group 1;", 0, "wait_group 2;"), Detector::IncompleteCopy),
    bug("no barrier after the copies", ATTENTION, ("bar.sync \t0;", 0, ""), Detector::Poison),
    bug("no barrier before the next copy", ATTENTION, ("bar.sync \t0;", 1, ""), Detector::IncompleteCopy),
    bug("values are not transposed", ATTENTION, ("x4.trans.", 3, "x4."), Detector::Numbers),
    bug("copies one row too many", ATTENTION, ("setp.lt.s32", 0, "setp.le.s32"), Detector::Bounds),
    bug("masks one key too few", ATTENTION, ("setp.lt.s32 \t%p11", 0, "setp.le.s32 \t%p11"), Detector::Numbers),
    bug(
        "never masks keys",
        ATTENTION,
        ("setp.le.s32 \t%p10, %r578, %r3", 0, "setp.ge.s32 \t%p10, 1, 0"),
        Detector::Numbers,
    ),
    bug("swizzle of the values", ATTENTION, ("xor.b32  \t%r515", 0, "or.b32  \t%r515"), Detector::Numbers),
    bug("half of the warp in a shuffle", ATTENTION, (", %r495;", 0, ", 65535;"), Detector::Convergence),
    bug("waits for one group too few", PRODUCT, ("wait_group 2;", 0, "wait_group 3;"), Detector::IncompleteCopy),
    bug("no barrier in the main loop", PRODUCT, ("bar.sync \t0;", 0, ""), Detector::Poison),
    bug("a stage of the ring that is in flight", PRODUCT, (", 12288;", 1, ", 4096;"), Detector::IncompleteCopy),
    bug(
        "a copy is missing",
        PRODUCT,
        ("cp.async.cg.shared.global [%r40], [%rd30], 16, %r41;", 0, ""),
        Detector::Poison,
    ),
    bug("copies to half a chunk", PRODUCT, ("[%r38]", 0, "[%r38+8]"), Detector::Alignment),
    bug("copies to the rows of the next warp", PRODUCT, ("[%r40]", 0, "[%r38+512]"), Detector::SharedRace),
    bug("bias of the next columns", PRODUCT, ("[%rd8];", 0, "[%rd8+4];"), Detector::Bounds),
    bug("no residual", PRODUCT, ("shl.b32 \t%r419", 0, "and.b32 \t%r419"), Detector::Numbers),
    bug("rows are written without a bound", PRODUCT, ("@%p28 bra", 0, "@!%p28 bra"), Detector::Bounds),
    bug("rows are returned without a bound", NORM, ("@%p1 bra \t$L__BB0_34;", 0, ""), Detector::Bounds),
    bug("distance of a butterfly", NORM, ("%r196, %r192", 0, "4, %r192"), Detector::Numbers),
    bug("all blocks write the first rows", NORM, ("%ctaid.x", 1, "0"), Detector::GlobalRace),
    bug("no barrier after the partial sums", POOL, ("bar.sync \t0;", 0, ""), Detector::Poison),
    bug("a partial sum is not stored", POOL, ("st.shared.f32 \t[%rd43], %f65;", 0, ""), Detector::Poison),
    bug("a barrier under a condition", POOL, ("bar.sync \t0;", 0, "@%p13 bar.sync 0;"), Detector::Convergence),
    bug("all sequences write the first vector", POOL, ("%ctaid.x", 1, "0"), Detector::GlobalRace),
];

const ATTENTION: &str = "attention_32";
const PRODUCT: &str = "gemm_bias_residual_64";
const NORM: &str = "residual_layer_norm";
const POOL: &str = "pool_mean";
const STORAGE: StorageFormat = StorageFormat::BFloat16;

const fn bug(mistake: &'static str, kernel: &'static str, edit: PtxEdit, detector: Detector) -> PlantedBug {
    PlantedBug { mistake, kernel, edit, detector }
}

/// Runs a kernel on shapes that reach all of its branches.
fn check(kernel: &LoadedKernel) -> Result<(), KernelError> {
    match kernel.entry.name.as_str() {
        ATTENTION => attention::check(kernel, STORAGE, &[5, 64, 1, 130], 2, 32),
        PRODUCT => gemm::check(kernel, STORAGE, ProductShape { rows: 70, columns: 72, depth: 256 }),
        NORM => layer_norm::check_residual(kernel, STORAGE, 7, 384),
        _ => pooling::check(kernel, STORAGE, (384, 384), true),
    }
}

/// Replaces one occurrence of a text.
fn edit(ptx: &str, (text, occurrence, replacement): PtxEdit) -> String {
    let (at, _) = ptx.match_indices(text).nth(occurrence).unwrap_or_else(|| panic!("{text:?} is not in the PTX"));
    let (before, rest) = ptx.split_at(at);
    format!("{before}{}", rest.replacen(text, replacement, 1))
}

fn detector_of(error: &KernelError) -> Option<Detector> {
    let KernelError::Fault(fault) = error else { return Some(Detector::Numbers) };
    assert!(fault.location.is_some(), "the fault has a place: {fault}");
    Some(match fault.kind {
        FaultKind::OutOfBounds { .. } => Detector::Bounds,
        FaultKind::Misaligned { .. } => Detector::Alignment,
        FaultKind::Uninitialized { .. } => Detector::Poison,
        FaultKind::IncompleteCopy { .. } => Detector::IncompleteCopy,
        FaultKind::SharedRace { .. } => Detector::SharedRace,
        FaultKind::GlobalRace { .. } => Detector::GlobalRace,
        FaultKind::DivergentWarp { .. } => Detector::Convergence,
        _ => return None,
    })
}

#[test]
fn kernels_without_an_edit_pass() {
    for kernel in [ATTENTION, PRODUCT, NORM, POOL] {
        check(&LoadedKernel::load(kernel, STORAGE)).unwrap();
    }
}

#[test]
fn planted_bugs_are_caught_by_the_check_that_is_stated() {
    let mut wrong = Vec::new();
    for bug in BUGS {
        let kernel = LoadedKernel::edited(bug.kernel, STORAGE, |ptx| edit(&ptx, bug.edit));
        let result = check(&kernel);
        println!("{}, {}: {result:?}", bug.kernel, bug.mistake);
        let found = result.as_ref().err().and_then(detector_of);
        if found != Some(bug.detector) {
            wrong.push(format!("{}, {}: {found:?}, not {:?}: {result:?}", bug.kernel, bug.mistake, bug.detector));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
