//! A model server in this process: the HTTP routes of common servers for embeddings and reranking,
//! answered by an executor of `groupage_engine`.
//!
//! ```text
//! ModelRoute::find ─▶ prepare (tokenise) ─▶ worker (one thread, one executor) ─▶ render
//!   pure                blocking pool          packed batches                     blocking pool
//! ```
//! - `routes` has pure functions: a body becomes the sequences to execute and a function that
//!   renders their results ([`PreparedCall`]). A result does not depend on what it was executed with.
//! - `executor_load` creates the executor on a GPU or on the CPU, and `worker` owns it and packs
//!   sequences into batches.
//! - [`EngineServer`] implements the two traits through which the proxy uses a model server:
//!   [`Backend`](groupage_proxy::backend::Backend) for batches, in which each member keeps its own
//!   body and parameters, and [`Forwarder`](groupage_proxy::backend::Forwarder) for all other calls.
//!
//! Status codes and limits are those of Text Embeddings Inference (TEI,
//! <https://github.com/huggingface/text-embeddings-inference>). Bodies of errors have the format of
//! the API that their path belongs to.

mod error;
mod format;
mod route;
mod model;
mod inputs;
mod prepared;
mod response_memory;
mod routes;
mod executor_load;
mod worker;
mod server;

#[cfg(test)]
mod tests;

pub use error::{CallError, ErrorKind};
pub use executor_load::{ExecutorLoadError, ExecutorSettings, LoadedExecutor, load_executor};
pub use format::ErrorFormat;
pub use model::ServedModel;
pub use prepared::{InputSequence, PreparedCall};
pub use route::{ModelRoute, RouteError};
pub use routes::prepare_call;
pub use server::{DeviceNote, EngineParts, EngineServer, LoadedDevice};
pub use worker::ExecutionFailure;
