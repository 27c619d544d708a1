//! Result of the test of one route with calls of one form, as text and as JSON.

use http::StatusCode;
use serde_json::{Value, json};

use crate::protocol::{AnswerComparison, AnswerDifference, CallForm, DifferenceKind};

/// Test result of one route with calls of one form.
#[derive(Debug)]
pub(in super::super) struct RouteResult {
    /// The route as the policy writes it.
    pub(super) route: String,
    /// Path of the calls.
    pub(super) path: String,
    /// Form of the calls, if the route accepts several.
    pub(super) form: Option<CallForm>,
    /// Number of bytes of the call that was sent alone; 0 if nothing was sent.
    pub(super) bytes: usize,
    /// Status of the answer to the call alone; `None` if it got no answer.
    pub(super) unbatched_status: Option<StatusCode>,
    /// Status of the answer to the call with its items twice, if it was sent.
    pub(super) batch_status: Option<StatusCode>,
    /// The finding and its severity.
    pub(super) verdict: RouteVerdict,
    /// The comparison of each member's part of the batch response with the answer to it alone.
    pub(super) comparisons: Vec<MemberComparison>,
    /// Findings about limits of the server, if they were looked for.
    pub(super) limits: Vec<String>,
}

/// Comparison of a member's part of a batch response with the answer to the member alone.
#[derive(Debug)]
pub(super) enum MemberComparison {
    /// All bytes are equal.
    Identical,
    /// The result of the comparison of their values.
    Compared(AnswerComparison),
    /// Two answers to the member alone differ here, so that its values are not compared.
    Varying(AnswerDifference),
}

/// Finding on a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RouteVerdict {
    Fits,
    /// The route was not tested, or the test was inconclusive.
    Inconclusive(String),
    Wrong(String),
}

/// Returns the description of a form in a sentence.
pub(super) const fn form_name(form: CallForm) -> &'static str {
    match form {
        CallForm::List => "a list of items",
        CallForm::Bare => "a bare item",
        CallForm::Single => "an item in a field of its own",
    }
}

/// Returns the description of the place of a difference, a JSON Pointer.
fn place_name(at: &str) -> String {
    if at.is_empty() { "as a whole".to_owned() } else { format!("at `{at}`") }
}

// === impl MemberComparison ===

impl MemberComparison {
    fn text(&self, number: usize) -> String {
        match self {
            Self::Identical => {
                format!("√ call {number}: the answer in the batch equals the answer alone, byte for byte\n")
            }
            Self::Varying(found) => format!(
                "‼ call {number}: two answers to the call alone differ {}, so that texts are not compared: give a \
                 sample with `temperature: 0`\n",
                place_name(&found.at)
            ),
            Self::Compared(AnswerComparison::Equal) => {
                format!(
                    "√ call {number}: the answer in the batch equals the answer alone, except for ids, counters and \
                     spelling\n"
                )
            }
            Self::Compared(AnswerComparison::Rounded(difference)) => format!(
                "√ call {number}: numbers of the answer in the batch differ from those of the answer alone by at most \
                 {difference:.1e} of the largest number of the result, as rounding explains\n"
            ),
            Self::Compared(AnswerComparison::Different(found)) => {
                let by = match found.kind {
                    DifferenceKind::Number(difference) => {
                        format!("by {difference:.1e} of the largest number of the result, more than rounding explains")
                    }
                    DifferenceKind::Structure => "in structure".to_owned(),
                    DifferenceKind::Value => "in a value".to_owned(),
                };
                let at = place_name(&found.at);
                format!(
                    "× call {number}: the answer in the batch differs from the answer alone {at} {by}: the server may \
                     mix callers up, or compute an item depending on the others; set `mode: Passthrough`\n"
                )
            }
        }
    }

    fn json(&self) -> Value {
        let (answers, difference, at) = match self {
            Self::Identical => ("identical", None, None),
            Self::Varying(found) => ("varying", None, Some(&found.at)),
            Self::Compared(AnswerComparison::Equal) => ("equal", None, None),
            Self::Compared(AnswerComparison::Rounded(difference)) => ("rounded", Some(*difference), None),
            Self::Compared(AnswerComparison::Different(found)) => match found.kind {
                DifferenceKind::Number(difference) => ("different", Some(difference), Some(&found.at)),
                DifferenceKind::Structure | DifferenceKind::Value => ("different", None, Some(&found.at)),
            },
        };
        json!({ "answers": answers, "difference": difference, "at": at })
    }
}

// === impl RouteResult ===

impl RouteResult {
    /// Creates the result of a route to which nothing was sent, for this reason.
    pub(super) fn untested(route: String, path: String, reason: String) -> Self {
        let verdict = RouteVerdict::Inconclusive(reason);
        Self {
            route,
            path,
            form: None,
            bytes: 0,
            unbatched_status: None,
            batch_status: None,
            verdict,
            comparisons: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// Returns `true` if a value of a member's part differs by more than rounding explains.
    pub(in super::super) fn is_different(&self) -> bool {
        self.comparisons.iter().any(|own| matches!(own, MemberComparison::Compared(AnswerComparison::Different(_))))
    }

    /// Formats the comparison of the values and the limits, a line each.
    pub(in super::super) fn details(&self) -> String {
        let comparisons = self.comparisons.iter().enumerate().map(|(place, own)| own.text(place + 1));
        comparisons.chain(self.limits.iter().map(|limit| format!("√ {limit}\n"))).collect()
    }

    pub(in super::super) const fn is_wrong(&self) -> bool {
        matches!(self.verdict, RouteVerdict::Wrong(_))
    }

    /// Returns `true` for the result of this route.
    pub(in super::super) fn is_of(&self, route: &str) -> bool {
        self.route == route || self.path == route
    }

    /// Returns `true` if the test came to a conclusion.
    pub(in super::super) const fn is_tested(&self) -> bool {
        !matches!(self.verdict, RouteVerdict::Inconclusive(_))
    }

    /// Formats the result as one line of text.
    pub(in super::super) fn text(&self) -> String {
        let Self { route, path, form, bytes, unbatched_status, batch_status, verdict, .. } = self;
        let (mark, text) = match verdict {
            RouteVerdict::Fits => ("√", "one item and two items get answers of the same shape"),
            RouteVerdict::Inconclusive(reason) => ("‼", reason.as_str()),
            RouteVerdict::Wrong(reason) => ("×", reason.as_str()),
        };
        let form = form.map(|form| format!(", {}", form_name(form))).unwrap_or_default();
        let status =
            |status: &Option<StatusCode>| status.map_or("no answer".to_owned(), |status| status.as_u16().to_string());
        let sent = match (bytes, unbatched_status) {
            (0, _) | (_, None) => String::new(),
            (bytes, Some(_)) if batch_status.is_none() => {
                format!("; sent {bytes} bytes: status {} alone", status(unbatched_status))
            }
            (bytes, Some(_)) => {
                format!(
                    "; sent {bytes} bytes: status {} alone, {} with its items twice",
                    status(unbatched_status),
                    status(batch_status)
                )
            }
        };
        format!("{mark} {route} ({path}{form}): {text}{sent}\n")
    }

    pub(in super::super) fn json(&self) -> Value {
        let (verdict, reason) = match &self.verdict {
            RouteVerdict::Fits => ("fits", None),
            RouteVerdict::Inconclusive(reason) => ("untried", Some(reason)),
            RouteVerdict::Wrong(reason) => ("wrong", Some(reason)),
        };
        json!({
            "route": self.route,
            "path": self.path,
            "form": self.form.map(CallForm::as_str),
            "sent_bytes": self.bytes,
            "alone_status": self.unbatched_status.map(|status| status.as_u16()),
            "merged_status": self.batch_status.map(|status| status.as_u16()),
            "verdict": verdict,
            "why": reason,
            "comparisons": self.comparisons.iter().map(MemberComparison::json).collect::<Vec<_>>(),
            "limits": self.limits,
        })
    }
}
