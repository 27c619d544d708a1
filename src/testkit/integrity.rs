//! The ledger: an integrity test that follows every item from client to upstream and back, while
//! both ends misbehave.
//!
//! Every item carries a tenant and a 128-bit nonce. The [`LedgerMock`] answers with a function of
//! both, fails every call that contains a poison item, and injects faults of every kind into a
//! share of its calls. The clients of [`run`] cancel some of their calls, verify every response,
//! and look up each item in records that they share with the mock. Each item must have exactly one
//! outcome and the correct response for its own client, must not be sent upstream more often than
//! isolation explains, and must never share a call with items of another tenant. Memory use does
//! not grow with the number of items.
//!
//! The request forms are OpenAI embeddings, KServe V1 and, for an adapter that is declared in a
//! policy, the route `/ledger` of [`POLICY`]. The policy must set the timeouts that bound a silent
//! upstream. Each [`LedgerMock`] serves one [`run`].

mod records;
mod client;
mod fault;
mod mock;
mod nonce;
mod report;
#[cfg(test)]
mod tests;

pub use self::client::{LedgerConfig, run};
pub use self::mock::{LedgerMock, MockConfig, UpstreamArrival};
pub use self::report::LedgerReport;

/// The policy for which the clients and the mock of the ledger are designed.
pub const POLICY: &str = "\
routes:
  - path: /v1/embeddings
    timeout: 1s
  - path: /v1/models/ledger:predict
    timeout: 1s
  - path: /ledger
    protocol: Generic
    idempotent: Always
    timeout: 1s
    generic: {items: /items, results: /results}
limits: {batchItemsMax: 32}
scheduling: {policy: WorkConserving, slots: 4}
failure: {quarantine: 10ms}
proxy:
  connection: {bodyIdleTimeout: 200ms, answerBytesMax: 256Ki}
";

/// Header with the name of an injected fault. It is set only if the fault met a call that was
/// forwarded alone, because such a client receives the upstream's own response, however malformed.
/// The response to a shared call never carries it, so that no byte of a shared response can be
/// excused.
const FAULT_HEADER: &str = "x-stand-in-fault";
/// Header with the name of the tenant.
const TENANT_HEADER: &str = "x-tenant-id";
/// Prefix of the error message for a call with a poison item.
const POISON: &str = "poison ";
