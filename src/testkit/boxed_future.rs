//! The future that entry points of the test kit return.

use std::pin::Pin;

/// A boxed future, which the public functions of servers and loads return instead of being `async`.
///
/// The body of an `async fn` is compiled in the crate that polls it. The servers and clients, and
/// hyper under them, would be compiled into each program that uses the test kit, and with its
/// optimisation: release builds do not optimise the root package, and what measures the proxy must
/// not be slower than the proxy.
pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
