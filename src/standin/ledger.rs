//! The ledger: items that are followed from client to upstream and back, while both ends misbehave.
//!
//! Every item carries a tenant and a 128-bit nonce; the [`LedgerMock`] answers a function of both, fails whole calls that hold a poison item, and
//! meets a share of its calls with a fault of every kind of F04 to F14. The clients of [`run`] leave some of their calls, check every answer, and
//! look up in the books that they share with the mock what became of each item: exactly one outcome, the right answer to the right caller, sent
//! upstream no more often than isolation explains, tenants never mixed. Memory does not grow with the number of items.
//!
//! The forms are OpenAI embeddings, KServe V1 and, for an adapter that a policy declares, [`POLICY`]. Times of the upstream's silence are the
//! policy's to bound. Each [`LedgerMock`] serves one [`run`].

mod book;
mod client;
mod fault;
mod mock;
mod nonce;
mod report;
#[cfg(test)]
mod tests;

pub use self::client::{LedgerConfig, run};
pub use self::mock::{Arrival, LedgerMock, MockConfig};
pub use self::report::Report;

/// The policy that the ledger's clients and mock are made for; `limits.batchItemsMax` and `failure.quarantine` as the issue of the ledger has them.
pub const POLICY: &str = "\
routes:
  - path: /v1/embeddings
    timeout: 200ms
  - path: /v1/models/ledger:predict
    timeout: 200ms
  - path: /ledger
    protocol: Generic
    idempotent: Always
    timeout: 200ms
    generic: {items: /items, results: /results}
limits: {batchItemsMax: 32}
scheduling: {policy: WorkConserving, slots: 4}
failure: {quarantine: 10ms}
proxy:
  connection: {bodyIdleTimeout: 200ms, answerBytesMax: 256Ki}
";

/// The header in which a fault that met a call alone names itself: what a lone caller gets is the upstream's own answer, however odd. A shared
/// call's answer never has it, so that no byte of one can be excused.
const FAULT_HEADER: &str = "x-stand-in-fault";
/// The header that says the tenant.
const TENANT_HEADER: &str = "x-tenant-id";
/// What the error for a call with a poison item begins with.
const POISON: &str = "poison ";
