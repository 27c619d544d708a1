//! Verdicts on the answers of a server: to a call sent alone, and to one with the items of two
//! callers. Pure.

use bytes::Bytes;
use http::StatusCode;

use super::result::{RouteVerdict, form_name};
use super::{ServerAnswer, shape};
use crate::protocol::{BatchResponse, Call, CallForm, Endpoint, MismatchKind, ProtocolLabel, SharedRequest};

/// Maximum number of undeclared members that are named, more than a reader declares at once.
const NAMED_MAX: usize = 8;
/// Maximum number of characters of an answer or of a name that are quoted: enough to recognise a
/// page of HTML, and the path of a member.
const QUOTED_CHARS_MAX: usize = 60;

/// Judges a failure of the server to answer a call sent alone. `sample_flag` is the flag with which
/// the user gives another call, and `accepts_other` is `true` if the server answers the same item in
/// another form.
pub(super) fn judge_refusal(
    endpoint: &Endpoint,
    sample_flag: &str,
    form: CallForm,
    status: StatusCode,
    accepts_other: bool,
) -> RouteVerdict {
    let code = status.as_u16();
    if accepts_other && is_refusal_of_form(status) && endpoint.label == ProtocolLabel::Generic {
        return RouteVerdict::Wrong(format!(
            "the server answers {} with {code}, although the route declares this form: such calls would fail alone \
             and succeed in a batch; correct `generic`",
            form_name(form)
        ));
    }
    let advice = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "give a credential, --header 'Authorization: Bearer KEY'".to_owned()
        }
        _ if accepts_other => "callers cannot use this form".to_owned(),
        _ => format!("give a call that it accepts, {sample_flag}"),
    };
    RouteVerdict::Inconclusive(format!("the server answers the sample alone with {code}: {advice}"))
}

/// Returns `true` for a status with which a server may refuse one form and accept another. Some
/// frameworks answer with 500 if a field has an unexpected type.
pub(super) fn is_refusal_of_form(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::NOT_IMPLEMENTED
    )
}

/// Judges the answer to `sent`, which has the items of both members, by the answer to the first
/// member sent alone. Returns the parts of the members too, if the answer can be split.
pub(super) fn judge_batch(
    endpoint: &Endpoint,
    members: [&Call; 2],
    sent: &SharedRequest,
    (answer, unbatched): (&ServerAnswer, &ServerAnswer),
) -> (RouteVerdict, Vec<Bytes>) {
    if let Some(verdict) = judge_status(answer.status, unbatched.status) {
        return (verdict, Vec::new());
    }
    // Split as the proxy does it. Until that succeeds, the parts of the answer are unknown.
    let shared = BatchResponse { status: answer.status, headers: &answer.headers, body: &answer.body };
    let parts: Vec<Bytes> = match endpoint.split_batch(&members, sent, shared, None) {
        Ok(replies) => replies.into_iter().map(|reply| reply.body).collect(),
        Err(mismatch) => {
            return (RouteVerdict::Wrong(describe_mismatch(mismatch.what, &answer.body)), Vec::new());
        }
    };
    let part = parts.first().cloned().unwrap_or_default();
    let verdict = judge_members(endpoint, &members, answer, unbatched).unwrap_or_else(|| judge_part(&part, unbatched));
    (verdict, parts)
}

fn judge_status(status: StatusCode, unbatched: StatusCode) -> Option<RouteVerdict> {
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
            unbatched.as_u16()
        ))
    })
}

fn describe_mismatch(what: MismatchKind, body: &Bytes) -> String {
    if what != MismatchKind::NotJson {
        return format!("the answer to two items cannot be split (`{}`): correct the route", what.as_str());
    }
    format!(
        "the answer to two items is not JSON, so it cannot be split; it begins with `{}`: set `mode: Passthrough`, or \
         correct the route",
        quote(String::from_utf8_lossy(body).trim_start())
    )
}

/// Returns the beginning of a text of the server, without control characters.
fn quote(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect()
}

/// Checks the members of the answer that the protocol does not declare. Each must equal that of the
/// unbatched answer, because it could contain data about other callers.
fn judge_members(
    endpoint: &Endpoint,
    members: &[&Call],
    answer: &ServerAnswer,
    unbatched: &ServerAnswer,
) -> Option<RouteVerdict> {
    let undeclared = endpoint.undeclared_members(members, &answer.body, &unbatched.body);
    let differing: Vec<String> =
        undeclared.iter().filter(|(_, is_same)| !is_same).map(|(name, _)| format!("`{}`", quote(name))).collect();
    if differing.is_empty() {
        return None;
    }
    let named = differing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = match differing.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(RouteVerdict::Wrong(format!(
        "the answer to two items has parts that the protocol does not declare and that differ from those of the \
         answer to one, {named}{more}: every batch would be retried alone until merging is suspended; add to \
         respondWith.fields those that every caller may see for other callers"
    )))
}

/// Compares the first caller's part of the answer with the unbatched answer.
fn judge_part(part: &Bytes, unbatched: &ServerAnswer) -> RouteVerdict {
    match shape::shape_difference(&unbatched.body, part) {
        None => RouteVerdict::Fits,
        Some(difference) => {
            RouteVerdict::Wrong(format!("a merged call would get an answer of a different shape: {difference}"))
        }
    }
}

#[cfg(test)]
mod tests;
