//! Verdict on a server's answer to a call with the items of two callers. Pure.

use http::StatusCode;

use super::{RouteVerdict, ServerAnswer, shape};
use crate::protocol::{BatchResponse, Call, Endpoint, SharedRequest};

/// Judges the answer to `sent`, which has the items of `call` twice, by the answer to the call sent
/// alone.
pub(super) fn judge_batch(
    endpoint: &Endpoint,
    call: &Call,
    sent: &SharedRequest,
    (answer, lone): (&ServerAnswer, &ServerAnswer),
) -> RouteVerdict {
    let members = [call, call];
    judge_status(answer.status, lone.status)
        .or_else(|| judge_members(endpoint, &members, answer, lone))
        .unwrap_or_else(|| judge_part(endpoint, &members, sent, (answer, lone)))
}

fn judge_status(status: StatusCode, lone: StatusCode) -> Option<RouteVerdict> {
    // An overloaded server proves nothing about batches.
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        let status = status.as_u16();
        return Some(RouteVerdict::Inconclusive(format!(
            "the server answers a call with two items with {status}, as an overloaded server does: try again"
        )));
    }
    (!status.is_success()).then(|| {
        RouteVerdict::Wrong(format!(
            "the server answers a call with two items with {} and one with one item with {}: every batch would fail \
             and be retried alone until merging is suspended; set `mode: Passthrough`, or correct the route",
            status.as_u16(),
            lone.as_u16()
        ))
    })
}

/// Checks the members of the answer that the protocol does not declare. Each must equal that of the
/// lone answer, because it could contain data about other callers.
fn judge_members(
    endpoint: &Endpoint,
    members: &[&Call],
    answer: &ServerAnswer,
    lone: &ServerAnswer,
) -> Option<RouteVerdict> {
    let undeclared = endpoint.undeclared_members(members, &answer.body, &lone.body);
    let (name, _) = undeclared.iter().find(|(_, is_same)| !is_same)?;
    Some(RouteVerdict::Wrong(format!(
        "the answer to two items has `{name}`, which the protocol does not declare and which differs from the answer \
         to one: every batch would be retried alone until merging is suspended; add it to respondWith.fields if every \
         caller may see its value for other callers"
    )))
}

/// Splits the answer as the proxy does it, and compares the first caller's part with the lone
/// answer.
fn judge_part(
    endpoint: &Endpoint,
    members: &[&Call],
    sent: &SharedRequest,
    (answer, lone): (&ServerAnswer, &ServerAnswer),
) -> RouteVerdict {
    let shared = BatchResponse { status: answer.status, headers: &answer.headers, body: &answer.body };
    match endpoint.split_batch(members, sent, shared, None) {
        Err(mismatch) => RouteVerdict::Wrong(format!(
            "the answer to two items cannot be split (`{}`): correct the route",
            mismatch.what.as_str()
        )),
        Ok(replies) => {
            let part = replies.first().map(|reply| reply.body.clone()).unwrap_or_default();
            match shape::shape_difference(&lone.body, &part) {
                None => RouteVerdict::Fits,
                Some(difference) => {
                    RouteVerdict::Wrong(format!("a merged call would get an answer of a different shape: {difference}"))
                }
            }
        }
    }
}
