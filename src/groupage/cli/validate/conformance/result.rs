//! Result of the test of one route with calls of one form, as text and as JSON.

use http::StatusCode;
use serde_json::{Value, json};

use crate::protocol::CallForm;

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
    pub(super) lone: Option<StatusCode>,
    pub(super) merged: Option<StatusCode>,
    /// The finding and its severity.
    pub(super) verdict: RouteVerdict,
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

// === impl RouteResult ===

impl RouteResult {
    /// Creates the result of a route to which nothing was sent, for this reason.
    pub(super) fn untested(route: String, path: String, reason: String) -> Self {
        let verdict = RouteVerdict::Inconclusive(reason);
        Self { route, path, form: None, bytes: 0, lone: None, merged: None, verdict }
    }

    pub(in super::super) const fn is_wrong(&self) -> bool {
        matches!(self.verdict, RouteVerdict::Wrong(_))
    }

    /// Returns `true` if the test came to a conclusion.
    pub(in super::super) const fn is_tested(&self) -> bool {
        !matches!(self.verdict, RouteVerdict::Inconclusive(_))
    }

    /// Formats the result as one line of text.
    pub(in super::super) fn text(&self) -> String {
        let Self { route, path, form, bytes, lone, merged, verdict } = self;
        let (mark, text) = match verdict {
            RouteVerdict::Fits => ("√", "one item and two items get answers of the same shape"),
            RouteVerdict::Inconclusive(reason) => ("‼", reason.as_str()),
            RouteVerdict::Wrong(reason) => ("×", reason.as_str()),
        };
        let form = form.map(|form| format!(", {}", form_name(form))).unwrap_or_default();
        let status =
            |status: &Option<StatusCode>| status.map_or("no answer".to_owned(), |status| status.as_u16().to_string());
        let sent = match (bytes, lone) {
            (0, _) | (_, None) => String::new(),
            (bytes, Some(_)) if merged.is_none() => format!("; sent {bytes} bytes alone: {}", status(lone)),
            (bytes, Some(_)) => {
                format!("; sent {bytes} bytes alone: {}, its items twice: {}", status(lone), status(merged))
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
            "alone_status": self.lone.map(|status| status.as_u16()),
            "merged_status": self.merged.map(|status| status.as_u16()),
            "verdict": verdict,
            "why": reason,
        })
    }
}
