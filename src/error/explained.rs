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
                "as many items wait as `limits.queueItemsMax` allows: more come than the model server answers. A call that is late by its SLO makes room for one that can be in time"
            }
            Self::BytesFull => {
                "the calls that wait have `limits.queueBytesMax`, or all calls and answers together `proxy.process.bufferedBytesMax`"
            }
            Self::TenantShare => "this caller has half of a queue that is half full, and others wait too",
            Self::LatePredicted => {
                "it would be late even if it were sent now, or sending it would make more others late: by a deadline that the caller set, or by the SLO under `slo.late: Refuse`; the message names which"
            }
            Self::Draining => "the process was told to end, and this call had no answer when the drain limit was over",
            Self::SlowBody => {
                "no byte of the request's body came for `proxy.client.bodyIdleTimeout`, or it was not whole after `proxy.client.bodyTimeout`"
            }
            Self::ConnectionsFull => {
                "as many upstream connections are open as `proxy.process.connectionsMax` allows for calls of its kind, and none became free for a second; nothing was sent"
            }
            Self::Deadline => {
                "its deadline passed while it waited: a header of the caller, the route's `timeout`, or the SLO under `slo.late: Refuse`; the message names which. One that the caller set ends the wait in flight too"
            }
            Self::UpstreamRefused => {
                "the model server refused the connection, or did not take it within `proxy.connection.connectTimeout`; nothing was sent"
            }
            Self::UpstreamBroken => {
                "the connection broke after the call was sent, so it may have run; it was not sent again since the route is not idempotent, went alone, or the replay budget was used up"
            }
            Self::UpstreamTimeout => {
                "the answer was not there within the route's `timeout` (of a stream: its first byte), or stopped for `proxy.connection.bodyIdleTimeout` once it had begun; of a call that passes, nothing moved for `proxy.client.passThroughIdleTimeout`. The message names which"
            }
            Self::Mismatch => {
                "the answer to a batch has another number, order or shape than its items, so nobody got anything of it; its calls were not sent again since the route forbids it or the replay budget was used up"
            }
            Self::BatchFailed => {
                "the model server refused a batch; its calls were not sent again since the route is not idempotent or the replay budget was used up"
            }
            Self::AnswerTooLarge => {
                "an answer is larger than `proxy.connection.answerBytesMax`, or than half of `proxy.process.bufferedBytesMax`: that of a batch on a route that is not idempotent"
            }
            Self::UpstreamTls => {
                "the handshake with the model server failed: its certificate is not trusted here or is for another name, it does not accept ours, or it speaks no TLS; no answer was given to the call"
            }
            Self::UpstreamOverloaded => {
                "the model server answered a batch with 429 or 503, and the call has that status with a body of Groupage's, since the server's may quote inputs of other callers"
            }
            Self::Internal => "a defect of ours",
        }
    }

    /// Returns the advice for users.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::QueueFull => {
                "try again after `Retry-After`; add replicas, or raise the limit if a longer wait is wanted"
            }
            Self::BytesFull => {
                "try again after `Retry-After`; raise the bound if there is memory for it, or send smaller calls"
            }
            Self::TenantShare => {
                "that caller: send less at once, and try again after `Retry-After`; add replicas, or raise `limits.queueItemsMax`"
            }
            Self::LatePredicted => {
                "add replicas, allow a longer `slo.latencyP99` or deadline, or have late calls served (`slo.late: Serve`); `groupage explain` says what binds"
            }
            Self::Draining => {
                "send it again, to another replica, if it may run twice; raise `proxy.drain.limit` if calls take that long"
            }
            Self::ConnectionsFull => {
                "try again after `Retry-After`; raise the limit on open files or on memory, which lower `proxy.process.connectionsMax`; serve HTTP/2 upstream if the callers speak it"
            }
            Self::SlowBody => "look at the caller's network, or raise the timeout",
            Self::Deadline => {
                "add replicas, allow a longer SLO, deadline or `timeout`, or have late calls served (`slo.late: Serve`); `groupage explain` says what binds"
            }
            Self::UpstreamRefused => {
                "see whether the model server runs and listens at `proxy.upstream`, and whether it is ready before calls come"
            }
            Self::UpstreamBroken => {
                "see the model server's log at that time; where calls may run twice, `idempotent: Always` lets those of a failed batch be sent again"
            }
            Self::UpstreamTimeout => {
                "see what the model server does at that time; raise the route's `timeout`, or leave it out, if answers take that long"
            }
            Self::Mismatch => {
                "see in the log what did not fit; check that the route's protocol is the server's, or pass the route through; `idempotent: Always` and `generic.onMismatch: Isolate` let its calls be answered one by one"
            }
            Self::BatchFailed => {
                "see the model server's log for why batches fail; `idempotent: Always` and a larger `failure.replayBudget` let its calls be answered one by one"
            }
            Self::AnswerTooLarge => "raise the cap, or lower `limits.batchItemsMax` for the route",
            Self::UpstreamTls => {
                "see the log, which says what was wrong and which key of `proxy.upstreamTls` says otherwise"
            }
            Self::UpstreamOverloaded => {
                "try again after `Retry-After`; see the model server's log for why it refuses; add replicas"
            }
            Self::Internal => "report it, with the lines of level error in the log at that time",
        }
    }
}
