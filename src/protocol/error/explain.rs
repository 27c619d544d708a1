//! Causes of the error codes and advice for users, as printed by `groupage explain CODE` and on the
//! page of errors.

use super::FailureKind;

// === impl FailureKind ===

impl FailureKind {
    /// Returns the cause of the failure.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::QueueFull => {
                "the queue holds `limits.queueItemsMax` items: calls arrive faster than the model server completes them. A queued call is dropped in favour of another if it has missed its SLO, or if its priority class is lower and the other one holds less than its share of the queue"
            }
            Self::BytesFull => {
                "the queued calls hold `limits.queueBytesMax` bytes, or all requests and responses together hold `proxy.process.bufferedBytesMax`"
            }
            Self::TenantShare => {
                "the queue is at least half full, other callers also wait, and with this call the caller would hold more than half of `limits.queueItemsMax`"
            }
            Self::LatePredicted => {
                "the call would be late even if it were sent now, or sending it would make more other calls late. Late means past a deadline of the caller, or past the SLO under `slo.late: Refuse`; the header x-groupage-limit names which"
            }
            Self::Draining => {
                "the process received a signal to shut down, and the call had no response when `proxy.drain.limit` expired"
            }
            Self::SlowBody => {
                "no byte of the request body arrived for `proxy.client.bodyIdleTimeout`, or the body was incomplete after `proxy.client.bodyTimeout`"
            }
            Self::ConnectionsFull => {
                "the number of upstream connections has reached the limit that `proxy.process.connectionsMax` sets for this kind of call, and none became free within a second; nothing was sent"
            }
            Self::Deadline => {
                "the deadline of the call passed while it was queued: a header of the caller, the route's `timeout`, or the SLO under `slo.late: Refuse`; the header x-groupage-limit names which. A deadline of the caller also ends a call in flight"
            }
            Self::UpstreamRefused => {
                "the model server refused the connection, or did not accept it within `proxy.connection.connectTimeout`; nothing was sent"
            }
            Self::UpstreamBroken => {
                "the connection broke after the call was sent, so the call may have run. It was not sent again because the route is not idempotent, or because it had been sent alone; the calls of a broken batch are sent alone if the route is idempotent"
            }
            Self::UpstreamTimeout => {
                "the response did not arrive within the route's `timeout` (of a stream: its first byte), or stalled for `proxy.connection.bodyIdleTimeout`; a call that passes through was idle for `proxy.client.passThroughIdleTimeout`. The header x-groupage-limit names which"
            }
            Self::Mismatch => {
                "the number, order or shape of the results does not match the items of the batch, so no call received any part of the response. The calls were not retried because the route is not idempotent or has `generic.onMismatch: Fail`"
            }
            Self::BatchFailed => {
                "the model server rejected a batch. Its calls were not retried because the route is not idempotent"
            }
            Self::AnswerTooLarge => {
                "the response is larger than `proxy.connection.answerBytesMax`, or the response to a batch on a route that is not idempotent is larger than three eighths of `proxy.process.bufferedBytesMax`"
            }
            Self::UpstreamTls => {
                "the TLS handshake with the model server failed: its certificate is not trusted or is for another name, it rejects the client certificate, or it does not support TLS"
            }
            Self::UpstreamOverloaded => {
                "the model server answered a batch with 429 or 503. The call gets that status with a body from Groupage, since the server's body may quote inputs of other callers"
            }
            Self::Internal => "a bug in Groupage",
        }
    }

    /// Returns the advice for users.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::QueueFull => {
                "retry after `Retry-After`; add replicas, or raise the limit if a longer wait is acceptable"
            }
            Self::BytesFull => {
                "retry after `Retry-After`; raise the limit if there is memory for it, or send smaller calls"
            }
            Self::TenantShare => {
                "in this caller, send fewer calls at once and retry after `Retry-After`; add replicas, or raise `limits.queueItemsMax`"
            }
            Self::LatePredicted => {
                "add replicas, set a longer `slo.latencyP99` or deadline, or serve late calls (`slo.late: Serve`); `groupage explain` shows the limiting factor"
            }
            Self::Draining => {
                "retry on another replica if the call may run twice; raise `proxy.drain.limit` if calls take that long"
            }
            Self::ConnectionsFull => {
                "retry after `Retry-After`; raise the limit on open files or on memory, either of which may have lowered `proxy.process.connectionsMax`; enable HTTP/2 on the model server if the callers use it"
            }
            Self::SlowBody => "check the caller's network, or raise the timeout",
            Self::Deadline => {
                "add replicas, set a longer SLO, deadline or `timeout`, or serve late calls (`slo.late: Serve`); `groupage explain` shows the limiting factor"
            }
            Self::UpstreamRefused => {
                "check that the model server runs and listens at `proxy.upstream`, and that it is ready before calls arrive"
            }
            Self::UpstreamBroken => {
                "check the model server's log at that time; if calls may run twice, set `idempotent: Always` so that each call of a failed batch is retried"
            }
            Self::UpstreamTimeout => {
                "check the model server's log at that time; raise or remove the route's `timeout` if responses take that long"
            }
            Self::Mismatch => {
                "check the log for the mismatch; check that the route's `protocol` is the server's, or set `mode: Passthrough` for the route; with `idempotent: Always` and `generic.onMismatch: Isolate`, each call is retried"
            }
            Self::BatchFailed => {
                "check the model server's log for the reason; if calls may run twice, set `idempotent: Always` so that each call of a failed batch is retried"
            }
            Self::AnswerTooLarge => "raise the limit, or lower `limits.batchItemsMax` for the route",
            Self::UpstreamTls => "check the log for the reason and for the key of `proxy.upstreamTls` to change",
            Self::UpstreamOverloaded => {
                "retry after `Retry-After` if the model server sent it; check the model server's log for the reason; add replicas"
            }
            Self::Internal => "report it with the log lines of level error at that time",
        }
    }
}
