//! The result of an upstream call for a part of a batch, and the rules by which a failed call is
//! judged: what is observed about the server, and whether the part may be retried in smaller parts.

use bytes::Bytes;
use http::StatusCode;

use super::Inner;
use crate::backend::{BatchRequest, BufferedReply};
use crate::batching::{BatchOutcome, BatchRefusal, PartOutcome};
use crate::error::FailureKind;
use crate::protocol::{BatchTooLarge, Endpoint, MismatchKind, ResponseMismatch};

/// Result of one upstream call for a part of the batch.
pub(super) enum PartResult {
    /// The response was split into one reply for each member.
    Split(Vec<BufferedReply>),
    /// Every member of the part has been answered.
    Answered(BatchOutcome),
    /// The part failed as a whole, and no member has been answered.
    Retry {
        /// The outcome, which determines the next parts.
        outcome: PartOutcome,
        /// Failure of the members if a retry is not allowed.
        or: FailureKind,
        /// The observation about the server.
        observed: BatchOutcome,
        /// The refusal of batches that the failure amounts to, if the members succeed alone.
        refusal: Option<BatchRefusal>,
        /// `true` if the members may be retried in smaller parts.
        allowed: bool,
    },
}

/// Returns the outcome of a batch whose members are not retried. A refusal is reported as such,
/// unless the outcome is more specific.
pub(super) fn outcome_without_retry(observed: BatchOutcome, refusal: Option<BatchRefusal>) -> BatchOutcome {
    match refusal {
        Some(refusal) if observed == BatchOutcome::Failed => BatchOutcome::NotRetried(refusal),
        _ => observed,
    }
}

/// Judges a batch without a complete response.
pub(super) fn judge_failure(endpoint: &Endpoint, kind: FailureKind) -> PartResult {
    // A refused connection carried no data, and a single call would be refused as well. A call that
    // timed out is never retried. Responses that are too large together may fit one by one.
    let parts_may_succeed =
        matches!(kind, FailureKind::UpstreamBroken | FailureKind::AnswerTooLarge | FailureKind::BytesFull);
    PartResult::Retry {
        outcome: PartOutcome::Failed,
        or: kind,
        observed: match kind {
            // The responses fit individually, so the next batch has to be smaller.
            FailureKind::AnswerTooLarge => BatchOutcome::TooLarge { limit: None },
            FailureKind::UpstreamTimeout => BatchOutcome::TimedOut,
            _ => BatchOutcome::Failed,
        },
        refusal: (kind == FailureKind::UpstreamBroken).then_some(BatchRefusal::Reset),
        allowed: parts_may_succeed && endpoint.idempotent,
    }
}

/// Judges a batch that was rejected as a whole because of its size, or not sent at all. None of it
/// was executed, so its parts are not replays.
pub(super) const fn judge_too_large(too_large: BatchTooLarge, refusal: Option<BatchRefusal>) -> PartResult {
    let limit = too_large.limit;
    PartResult::Retry {
        outcome: PartOutcome::TooLarge { limit },
        or: FailureKind::BatchFailed,
        observed: BatchOutcome::TooLarge { limit },
        refusal,
        allowed: true,
    }
}

/// Judges a batch whose response has a status of an error, other than overload.
pub(super) fn judge_error_status(
    endpoint: &Endpoint,
    status: StatusCode,
    body: &Bytes,
    out_of_memory: bool,
) -> PartResult {
    if let Some(too_large) = endpoint.detect_too_large(status, body) {
        // A limit that the server names is observed from now on, so it is not a refusal.
        let is_named = too_large.limit.is_some();
        return judge_too_large(too_large, (!is_named).then_some(BatchRefusal::TooLarge(status.as_u16())));
    }
    // All members have the same credential and method, which are part of the merge key, so parts
    // would get the same response.
    let is_keyed = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::METHOD_NOT_ALLOWED);
    PartResult::Retry {
        outcome: if is_keyed { PartOutcome::Inseparable } else { PartOutcome::Failed },
        or: FailureKind::BatchFailed,
        observed: if out_of_memory { BatchOutcome::OutOfMemory } else { BatchOutcome::Failed },
        refusal: (!out_of_memory).then_some(BatchRefusal::Status(status.as_u16())),
        allowed: endpoint.idempotent,
    }
}

/// Judges a batch with a response that cannot be split.
pub(super) fn judge_mismatch(endpoint: &Endpoint, mismatch: &ResponseMismatch) -> PartResult {
    if mismatch.what == MismatchKind::Undeclared {
        return PartResult::Retry {
            // Parts would get the same response, while unbatched responses show which parts are
            // constant.
            outcome: PartOutcome::Inseparable,
            or: FailureKind::Mismatch,
            observed: BatchOutcome::Withheld,
            refusal: None,
            allowed: endpoint.idempotent,
        };
    }
    let is_quarantining = mismatch.is_quarantining();
    PartResult::Retry {
        outcome: PartOutcome::Failed,
        or: FailureKind::Mismatch,
        observed: if is_quarantining { BatchOutcome::Mismatched } else { BatchOutcome::Failed },
        refusal: mismatch_refusal(mismatch),
        allowed: endpoint.idempotent && endpoint.on_mismatch_isolates,
    }
}

/// Logs, counts and keeps a response that cannot be split.
pub(super) fn report_mismatch(inner: &Inner, request: &BatchRequest, mismatch: &ResponseMismatch, members: usize) {
    log_mismatch(request, mismatch, members);
    if let Ok(mut last) = inner.last_mismatch.lock() {
        *last = Some((inner.clock.now(), mismatch.clone()));
    }
    inner.metrics.record_mismatch(mismatch.what.as_str());
}

fn log_mismatch(request: &BatchRequest, mismatch: &ResponseMismatch, members: usize) {
    if mismatch.what != MismatchKind::Undeclared {
        // The route as written: the path of a call may contain data of its caller.
        tracing::warn!(
            batch = request.id.0,
            members,
            %mismatch,
            route = request.endpoint.route_path(),
            protocol = request.endpoint.label.as_str(),
            follows = describe_consequence(mismatch),
            "the response to a batch cannot be split"
        );
    } else if let Some(member) = &mismatch.member {
        tracing::warn!(
            member,
            path = request.members.first().map(|call| call.head.uri.path()),
            "responses differ in a member outside the results: such calls are sent alone for a while; if every caller \
             may see the member, add it to respondWith.fields"
        );
    }
}

/// Returns what follows from a mismatch for later calls.
const fn describe_consequence(mismatch: &ResponseMismatch) -> &'static str {
    if mismatch.is_quarantining() {
        "calls of this merge key are sent alone for `failure.quarantine`, longer each time"
    } else {
        "if the next batch fails too, calls like these are sent alone (`merge_refused`)"
    }
}

/// Returns the refusal that a mismatch amounts to if the members succeed alone; `None` for a
/// mismatch that quarantines the merge key, which needs no additional evidence.
fn mismatch_refusal(mismatch: &ResponseMismatch) -> Option<BatchRefusal> {
    (!mismatch.is_quarantining()).then_some(match mismatch.what {
        // The server accepts batches, and the results could be split.
        MismatchKind::Usage => BatchRefusal::Usage,
        _ => BatchRefusal::Mismatch,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;

    use super::*;
    use crate::protocol::{PathPattern, RouteProtocol, RouteRules, Routes, SharedHeaderRules};

    fn endpoint(idempotent: bool) -> Arc<Endpoint> {
        let rules = RouteRules {
            idempotent: Some(idempotent),
            ..RouteRules::new(PathPattern::parse("/*").unwrap(), RouteProtocol::Auto)
        };
        let routes = Routes::new(Vec::new(), rules, SharedHeaderRules::default());
        routes.recognise(&Method::POST, "/v1/embeddings").unwrap()
    }

    #[test]
    fn a_batch_that_timed_out_is_not_isolated_and_one_that_broke_off_is() {
        for (kind, is_isolated) in [
            (FailureKind::UpstreamTimeout, false),
            (FailureKind::UpstreamRefused, false),
            (FailureKind::UpstreamBroken, true),
            (FailureKind::AnswerTooLarge, true),
            (FailureKind::BytesFull, true),
        ] {
            for idempotent in [false, true] {
                let PartResult::Retry { or, allowed, .. } = judge_failure(&endpoint(idempotent), kind) else {
                    panic!("{kind:?} has no other result")
                };
                assert_eq!((or, allowed), (kind, is_isolated && idempotent));
            }
        }
    }

    #[test]
    fn wrong_counters_are_a_refusal_of_their_own() {
        let refusal = |kind: MismatchKind| mismatch_refusal(&kind.into());
        assert_eq!(refusal(MismatchKind::Usage), Some(BatchRefusal::Usage));
        assert_eq!(refusal(MismatchKind::NotJson), Some(BatchRefusal::Mismatch));
        assert_eq!(refusal(MismatchKind::Count), None, "the merge key is quarantined");
    }

    /// Returns the outcome of a batch with this result if its members are not retried, and `None`
    /// if they are.
    fn unretried(result: &PartResult) -> Option<BatchOutcome> {
        match result {
            PartResult::Retry { observed, refusal, allowed: false, .. } => {
                Some(outcome_without_retry(*observed, *refusal))
            }
            PartResult::Retry { .. } => None,
            PartResult::Split(..) | PartResult::Answered(_) => panic!("the batch failed"),
        }
    }

    fn error(idempotent: bool, status: u16, out_of_memory: bool) -> PartResult {
        let status = StatusCode::from_u16(status).unwrap();
        judge_error_status(&endpoint(idempotent), status, &Bytes::from_static(b"{}"), out_of_memory)
    }

    #[test]
    fn a_refusal_whose_members_are_not_retried_is_reported_by_its_kind() {
        let not_retried = |refusal| Some(BatchOutcome::NotRetried(refusal));
        assert_eq!(unretried(&error(false, 422, false)), not_retried(BatchRefusal::Status(422)));
        assert_eq!(unretried(&error(false, 500, true)), Some(BatchOutcome::OutOfMemory));
        assert_eq!(unretried(&error(true, 422, false)), None);
        let broken = |kind| unretried(&judge_failure(&endpoint(false), kind));
        assert_eq!(broken(FailureKind::UpstreamBroken), not_retried(BatchRefusal::Reset));
        assert_eq!(broken(FailureKind::UpstreamRefused), Some(BatchOutcome::Failed), "the batch was not sent");
        assert_eq!(broken(FailureKind::UpstreamTimeout), Some(BatchOutcome::TimedOut));
    }

    #[test]
    fn a_response_with_a_part_that_may_quote_an_input_is_withheld_and_no_refusal() {
        for idempotent in [false, true] {
            let result = judge_mismatch(&endpoint(idempotent), &MismatchKind::Undeclared.into());
            let PartResult::Retry { observed, refusal, allowed, .. } = result else { panic!("it is not delivered") };
            assert_eq!((observed, refusal, allowed), (BatchOutcome::Withheld, None, idempotent));
            assert_eq!(outcome_without_retry(observed, refusal), BatchOutcome::Withheld);
        }
        let not_json = unretried(&judge_mismatch(&endpoint(false), &MismatchKind::NotJson.into()));
        assert_eq!(not_json, Some(BatchOutcome::NotRetried(BatchRefusal::Mismatch)));
        let count = unretried(&judge_mismatch(&endpoint(false), &MismatchKind::Count.into()));
        assert_eq!(count, Some(BatchOutcome::Mismatched));
    }
}
