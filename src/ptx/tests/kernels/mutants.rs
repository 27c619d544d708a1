//! Planted bugs: edits of the PTX that a mistake in the source would cause. Each has to be caught,
//! and by the check that is stated: a suite that passes proves little unless it can fail.

use groupage_ptx::FaultKind;

use crate::fixture::KernelError;
use crate::gemm::ProductShape;
use crate::manifest::LoadedKernel;
use crate::storage::StorageFormat;
use crate::{attention, gemm, head, layer_norm, pooling};

/// The check that catches a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detector {
    /// The comparison with the reference.
    Numbers,
    Bounds,
    Alignment,
    /// A read of bytes that were never written.
    Poison,
    /// A read of a register that was never written.
    UnsetRegister,
    /// A read of bytes that an asynchronous copy has not written.
    IncompleteCopy,
    /// A write of bytes that an asynchronous copy is to write.
    PendingCopy,
    SharedRace,
    GlobalRace,
    /// A write of what is read through the cache for read-only data.
    ReadOnlyWrite,
    /// A barrier or shuffle without all lanes.
    Convergence,
}

/// An edit of the PTX: a text, which of its occurrences is meant, counted from zero, and its
/// replacement.
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
    bug("sums without initial zeros", PRODUCT, ("mov.f32 \t%f417, 0f00000000;", 0, ""), Detector::UnsetRegister),
    bug("a stage is copied twice", PRODUCT, ("%r102, 4096;", 0, "%r102, 0;"), Detector::PendingCopy),
    bug(
        "stores to the target of a copy",
        PRODUCT,
        ("16, %r39;", 0, "16, %r39;\nst.shared.u32 [%r38], %r39;"),
        Detector::PendingCopy,
    ),
    bug("bias of the next columns", PRODUCT, ("[%rd8];", 0, "[%rd8+4];"), Detector::Bounds),
    bug("no residual", PRODUCT, ("shl.b32 \t%r419", 0, "and.b32 \t%r419"), Detector::Numbers),
    bug("rows are written without a bound", PRODUCT, ("@%p28 bra", 0, "@!%p28 bra"), Detector::Bounds),
    bug("rows are returned without a bound", NORM, ("@%p1 bra \t$L__BB0_34;", 0, ""), Detector::Bounds),
    bug("distance of a butterfly", NORM, ("%r196, %r192", 0, "4, %r192"), Detector::Numbers),
    bug("all blocks write the first rows", NORM, ("%ctaid.x", 1, "0"), Detector::GlobalRace),
    bug("all warps write the first row", NORM, ("%r405, %r410, 5;", 0, "%r405, %r410, 7;"), Detector::GlobalRace),
    bug("writes over the input", NORM, ("norm_param_4];", 0, "norm_param_0];"), Detector::ReadOnlyWrite),
    bug("rows are returned without a bound", EMBEDDING, ("@%p1 bra \t$L__BB0_42;", 0, ""), Detector::Bounds),
    bug("number of the next token", EMBEDDING, ("[%rd18];", 0, "[%rd18+4];"), Detector::Bounds),
    bug("types are never added", EMBEDDING, ("setp.eq.s64 \t%p10", 0, "setp.ge.s64 \t%p10"), Detector::Numbers),
    bug("a row without initial zeros", EMBEDDING, ("mov.f32 \t%f675, 0f00000000;", 0, ""), Detector::UnsetRegister),
    bug("sums of half of the warp", EMBEDDING, ("%r250, %r251,", 0, "%r250, 0,"), Detector::Numbers),
    bug("row of the next sequence", DENSE, ("%r19, [%rd26];", 0, "%r19, [%rd26+4];"), Detector::Bounds),
    bug("a lane without an initial zero", DENSE, ("mov.f32 \t%f153, 0f00000000;", 0, ""), Detector::UnsetRegister),
    bug("distance of a butterfly", DENSE, ("%r186, %r188,", 0, "%r186, 8,"), Detector::Numbers),
    bug("inverted bound of the columns", LOGITS, ("@%p1 bra", 0, "@!%p1 bra"), Detector::Bounds),
    bug("half of the warp in a shuffle", LOGITS, ("%r127, %r129;", 0, "%r127, 65535;"), Detector::Convergence),
    bug("all sequences write the first logits", LOGITS, ("%ctaid.y", 2, "0"), Detector::GlobalRace),
    bug("waits for one group too few", ATTENTION_64, ("wait_group 1;", 0, "wait_group 2;"), Detector::IncompleteCopy),
    bug("no barrier before the next copy", ATTENTION_64, ("bar.sync \t0;", 1, ""), Detector::IncompleteCopy),
    bug("masks one key too few", ATTENTION_64, ("setp.lt.s32 \t%p17", 0, "setp.le.s32 \t%p17"), Detector::Numbers),
    bug("swizzle of the keys", ATTENTION_64, ("xor.b32  \t%r547", 0, "or.b32  \t%r547"), Detector::Numbers),
    bug(
        "does not wait for the last group",
        ATTENTION_128,
        ("wait_group 0;", 0, "wait_group 1;"),
        Detector::IncompleteCopy,
    ),
    bug("values are not transposed", ATTENTION_128, ("x4.trans.", 5, "x4."), Detector::Numbers),
    bug("copies one row too many", ATTENTION_128, ("setp.lt.s32", 0, "setp.le.s32"), Detector::Bounds),
    bug("no barrier after the partial sums", POOL, ("bar.sync \t0;", 0, ""), Detector::Poison),
    bug("a partial sum is not stored", POOL, ("st.shared.f32 \t[%rd43], %f65;", 0, ""), Detector::Poison),
    bug("a barrier under a condition", POOL, ("bar.sync \t0;", 0, "@%p13 bar.sync 0;"), Detector::Convergence),
    bug("all sequences write the first vector", POOL, ("%ctaid.x", 1, "0"), Detector::GlobalRace),
];

const ATTENTION: &str = "attention_32";
const ATTENTION_64: &str = "attention_64";
const ATTENTION_128: &str = "attention_128";
const PRODUCT: &str = "gemm_bias_residual_64";
const NORM: &str = "residual_layer_norm";
const EMBEDDING: &str = "embedding_layer_norm";
const POOL: &str = "pool_mean";
const DENSE: &str = "head_dense_tanh";
const LOGITS: &str = "head_logits";
const STORAGE: StorageFormat = StorageFormat::BFloat16;

const fn bug(mistake: &'static str, kernel: &'static str, edit: PtxEdit, detector: Detector) -> PlantedBug {
    PlantedBug { mistake, kernel, edit, detector }
}

/// Runs a kernel on shapes that reach all of its branches.
fn check(kernel: &LoadedKernel) -> Result<(), KernelError> {
    let load = |name| LoadedKernel::load(name, STORAGE);
    match kernel.entry.name.as_str() {
        ATTENTION => attention::check(kernel, STORAGE, &[5, 64, 1, 130], 2, 32),
        ATTENTION_64 => attention::check(kernel, STORAGE, &[5, 130], 2, 64),
        ATTENTION_128 => attention::check(kernel, STORAGE, &[5, 65], 1, 128),
        EMBEDDING => layer_norm::check_embedding(kernel, STORAGE, (9, 384), true),
        DENSE => head::check(kernel, &load(LOGITS), STORAGE, (136, 3)),
        LOGITS => head::check(&load(DENSE), kernel, STORAGE, (136, 3)),
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

/// Returns the check that failed, or `None` if no bug is meant for it.
fn detector_of(error: &KernelError) -> Option<Detector> {
    let KernelError::Fault(fault) = error else { return Some(Detector::Numbers) };
    assert!(fault.location.is_some(), "the fault has a location: {fault}");
    Some(match fault.kind {
        FaultKind::OutOfBounds { .. } => Detector::Bounds,
        FaultKind::Misaligned { .. } => Detector::Alignment,
        FaultKind::Uninitialized { .. } => Detector::Poison,
        FaultKind::UnsetRegister { .. } => Detector::UnsetRegister,
        FaultKind::IncompleteCopy { .. } => Detector::IncompleteCopy,
        FaultKind::PendingCopy { .. } => Detector::PendingCopy,
        FaultKind::SharedRace { .. } => Detector::SharedRace,
        FaultKind::GlobalRace { .. } => Detector::GlobalRace,
        FaultKind::ReadOnlyWrite { .. } => Detector::ReadOnlyWrite,
        FaultKind::DivergentWarp { .. } => Detector::Convergence,
        _ => return None,
    })
}

#[test]
fn kernels_without_an_edit_pass() {
    for kernel in [ATTENTION, ATTENTION_64, ATTENTION_128, PRODUCT, NORM, EMBEDDING, POOL, DENSE, LOGITS] {
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
