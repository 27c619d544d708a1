//! cuBLASLt, loaded at run time where it is installed.
//!
//! The library stores matrices by columns. A matrix of `n` rows by `m` that is stored by rows is one
//! of `m` rows by `n` that is stored by columns, so the transpose of the result is computed:
//! `outᵀ = weight · inputᵀ`, of which the weight is transposed by the library.
//!
//! No call of this module has run on a GPU. `gemm_choice` compares its products with those of the
//! kernels at the start.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;

use crate::cuda::device::DeviceAddress;
use crate::cuda::fault::{DeviceError, INVALID_VALUE, LAUNCH_FAILED, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::cuda::gemm_provider::{GemmCall, GemmPlan, GemmProvider, GemmShape};
use crate::cuda::storage_format::StorageFormat;

/// Size of the workspace: what NVIDIA recommends for compute capability 9.0 (cuBLAS documentation,
/// "cublasSetWorkspace"), and more than older devices need.
const WORKSPACE_BYTES: usize = 32 << 20;
const PLAN: &str = "the plan of a product";
const MULTIPLY: &str = "the launch of a product";

/// The library, with its plans.
pub(super) struct CublasProvider {
    // Dropped before the library.
    plans: Vec<CublasPlan>,
    library: LibraryHandle,
    stream: CUstream,
}

/// Descriptors and the algorithm of a shape.
struct CublasPlan {
    product: ProductDescriptor,
    weight: MatrixLayout,
    input: MatrixLayout,
    out: MatrixLayout,
    algorithm: sys::cublasLtMatmulAlgo_t,
    has_residual: bool,
}

struct LibraryHandle(sys::cublasLtHandle_t);

struct ProductDescriptor(sys::cublasLtMatmulDesc_t);

struct MatrixLayout(sys::cublasLtMatrixLayout_t);

struct PlanPreference(sys::cublasLtMatmulPreference_t);

// === impl CublasProvider ===

impl CublasProvider {
    /// Opens the library, in the context that is bound. `None` if it is not installed or does not
    /// start.
    pub(super) fn open(stream: CUstream) -> Option<Self> {
        // SAFETY: the library has no constructors with requirements.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let library = LibraryHandle(result::create_handle().ok()?);
        Some(Self { plans: Vec::new(), library, stream })
    }
}

impl GemmProvider for CublasProvider {
    fn name(&self) -> String {
        // SAFETY: the library is loaded.
        format!("cuBLASLt {}", unsafe { sys::cublasLtGetVersion() })
    }

    fn workspace_bytes(&self) -> usize {
        WORKSPACE_BYTES
    }

    fn plan(&mut self, shape: GemmShape) -> Result<Option<GemmPlan>, DeviceError> {
        match CublasPlan::new(&self.library, shape) {
            Ok(plan) => {
                self.plans.push(plan);
                Ok(Some(GemmPlan(self.plans.len() - 1)))
            }
            Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => Ok(None),
            Err(error) => Err(describe(PLAN, error)),
        }
    }

    fn multiply(&mut self, call: &GemmCall) -> Result<(), DeviceError> {
        let Some(plan) = self.plans.get(call.plan.0) else {
            return Err(DeviceError::new(MULTIPLY, INVALID_VALUE, "no such plan".to_owned()));
        };
        plan.product.set_bias(call.bias).map_err(|error| describe(MULTIPLY, error))?;
        let (alpha, beta) = (1_f32, if plan.has_residual { 1_f32 } else { 0_f32 });
        // Without a residual the result takes its place, and is not read.
        let added = if plan.has_residual { call.residual } else { call.out };
        // SAFETY: the handles live as long as the provider. Addresses are of regions that live as
        // long as the device, with the shapes of the plan. The library reads the factors before the
        // call returns.
        let launched = unsafe {
            result::matmul(
                self.library.0,
                plan.product.0,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                pointer(call.weight),
                plan.weight.0,
                pointer(call.input),
                plan.input.0,
                pointer(added),
                plan.out.0,
                pointer(call.out),
                plan.out.0,
                &raw const plan.algorithm,
                pointer(call.workspace),
                WORKSPACE_BYTES,
                self.stream.cast(),
            )
        };
        launched.map_err(|error| describe(MULTIPLY, error))
    }
}

/// Returns an address as the library takes it.
fn pointer(address: DeviceAddress) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(address.0).unwrap_or(0))
}

/// Returns the error of the driver that is the closest to a status of the library. After a failed
/// execution nothing is known about the context.
fn describe(operation: &'static str, error: CublasError) -> DeviceError {
    let code = match error.0 {
        sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => OUT_OF_MEMORY,
        sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED | sys::cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH => {
            NOT_SUPPORTED
        }
        sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED | sys::cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR => {
            LAUNCH_FAILED
        }
        _ => INVALID_VALUE,
    };
    DeviceError::new(operation, code, format!("{error}"))
}

/// Returns the type of the numbers of a format.
const fn data_type(storage: StorageFormat) -> sys::cudaDataType_t {
    match storage {
        StorageFormat::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        StorageFormat::F16 => sys::cudaDataType_t::CUDA_R_16F,
    }
}

/// Ignores the error of freeing a handle, on which nothing depends.
fn ignore_failure(_: Result<(), CublasError>) {}

// === impl CublasPlan ===

impl CublasPlan {
    fn new(library: &LibraryHandle, shape: GemmShape) -> Result<Self, CublasError> {
        let GemmShape { rows, columns, depth, has_residual, storage } = shape;
        let product = ProductDescriptor::new()?;
        let weight = MatrixLayout::new(depth, columns, storage)?;
        let input = MatrixLayout::new(depth, rows, storage)?;
        let out = MatrixLayout::new(columns, rows, storage)?;
        let preference = PlanPreference::new()?;
        // SAFETY: all handles exist.
        let found = unsafe {
            result::get_matmul_algo_heuristic(library.0, product.0, weight.0, input.0, out.0, out.0, preference.0)
        };
        Ok(Self { product, weight, input, out, algorithm: found?.algo, has_residual })
    }
}

// === impl ProductDescriptor ===

impl ProductDescriptor {
    /// Creates the descriptor of a product with the transpose of the weight and with a bias.
    fn new() -> Result<Self, CublasError> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let this = Self(result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)?);
        // `CUBLAS_OP_T`.
        let transposed: i32 = 1;
        this.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, &transposed)?;
        let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
        this.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        Ok(this)
    }

    /// Sets the address of the bias, which has the type of the result.
    fn set_bias(&self, bias: DeviceAddress) -> Result<(), CublasError> {
        self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.0)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CublasError> {
        // SAFETY: the descriptor exists, and the library copies the value, which has this size.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
    }
}

impl Drop for ProductDescriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is not used again.
        ignore_failure(unsafe { result::destroy_matmul_desc(self.0) });
    }
}

// === impl MatrixLayout ===

impl MatrixLayout {
    /// Creates the layout of a matrix that is stored by columns without gaps.
    fn new(rows: usize, columns: usize, storage: StorageFormat) -> Result<Self, CublasError> {
        // Sizes of a model and of a batch are below 2^32.
        let gap = i64::try_from(rows).unwrap_or(i64::MAX);
        result::create_matrix_layout(data_type(storage), rows as u64, columns as u64, gap).map(Self)
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: the layout is not used again.
        ignore_failure(unsafe { result::destroy_matrix_layout(self.0) });
    }
}

// === impl PlanPreference ===

impl PlanPreference {
    /// Creates the preference for algorithms that use at most the workspace.
    fn new() -> Result<Self, CublasError> {
        let this = Self(result::create_matmul_pref()?);
        // Parts of a sum are added in 32 bits, as the kernels do, and not in the type of the result.
        let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        this.set(attribute, &reductions)?;
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        this.set(attribute, &WORKSPACE_BYTES)?;
        Ok(this)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<(), CublasError> {
        // SAFETY: the preference exists, and the library copies the value, which has this size.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
    }
}

impl Drop for PlanPreference {
    fn drop(&mut self) {
        // SAFETY: the preference is not used again.
        ignore_failure(unsafe { result::destroy_matmul_pref(self.0) });
    }
}

// === impl LibraryHandle ===

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again.
        ignore_failure(unsafe { result::destroy_handle(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cudarc` panics at the first call of a function of a library that it does not find.
    #[test]
    fn a_machine_without_the_library_has_none_and_does_not_panic() {
        // SAFETY: the library has no constructors with requirements.
        let is_present = unsafe { sys::is_culib_present() };
        // One that is present does not start without a GPU, and is not tested here on one.
        assert!(is_present || CublasProvider::open(std::ptr::null_mut()).is_none());
    }
}
