//! `groupage explain CODE`: the meaning of an error code, its cause and its remedy. The texts are
//! defined together with the codes.

use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::config::ConfigCode;
use crate::error::FailureKind;
use crate::injector;

/// Explanation of an error code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodeExplanation {
    code: &'static str,
    /// Reason label and HTTP status, for a code that answers a call.
    answer: Option<(&'static str, u16)>,
    message: &'static str,
    whose: &'static str,
    rationale: &'static str,
    advice: &'static str,
}

/// Looks up an error by its code or by its reason label, ignoring case.
///
/// # Errors
/// The code does not exist; the message lists all codes.
pub(super) fn find_code(word: &str) -> Result<CodeExplanation, String> {
    let all = || {
        let calls = FailureKind::VARIANTS.iter().copied().map(CodeExplanation::from);
        let config = ConfigCode::VARIANTS.iter().copied().map(CodeExplanation::from);
        let injection = injector::InjectionErrorCode::VARIANTS.iter().copied().map(CodeExplanation::from);
        calls.chain(config).chain(injection)
    };
    let is = |explanation: &CodeExplanation| {
        explanation.code.eq_ignore_ascii_case(word)
            || explanation.answer.is_some_and(|(reason, _)| reason.eq_ignore_ascii_case(word))
    };
    all().find(is).ok_or_else(|| {
        let known: Vec<String> =
            all().map(|explanation| format!("  {}  {}", explanation.code, explanation.message)).collect();
        format!("{word:?} is neither a code nor KIND/NAME; the codes are\n{}", known.join("\n"))
    })
}

// === impl CodeExplanation ===

impl CodeExplanation {
    /// Formats the explanation as text.
    pub(super) fn text(&self) -> String {
        let answer = self.answer.map_or(String::new(), |(reason, status)| format!(" (`{reason}`, {status})"));
        let Self { code, message, whose, rationale, advice, .. } = self;
        format!("{code}{answer}: {message}\n  responsible: {whose}\n  why: {rationale}\n  what to do: {advice}\n")
    }

    /// Formats the explanation as JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "code": self.code,
            "reason": self.answer.map(|(reason, _)| reason),
            "status": self.answer.map(|(_, status)| status),
            "message": self.message,
            "whose": self.whose,
            "why": self.rationale,
            "advice": self.advice,
        })
    }
}

impl From<FailureKind> for CodeExplanation {
    fn from(kind: FailureKind) -> Self {
        Self {
            code: kind.code(),
            answer: Some((kind.reason(), kind.status())),
            message: kind.message(),
            whose: kind.fault().as_str(),
            rationale: kind.why(),
            advice: kind.advice(),
        }
    }
}

impl From<ConfigCode> for CodeExplanation {
    fn from(code: ConfigCode) -> Self {
        Self {
            code: code.as_str(),
            answer: None,
            message: code.message(),
            whose: "author of the configuration",
            rationale: code.why(),
            advice: code.advice(),
        }
    }
}

impl From<injector::InjectionErrorCode> for CodeExplanation {
    fn from(code: injector::InjectionErrorCode) -> Self {
        Self {
            code: code.as_str(),
            answer: None,
            message: code.message(),
            whose: "author of the pod",
            rationale: code.rationale(),
            advice: code.advice(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_in_any_case_and_by_its_reason_word() {
        let explanation = find_code("GRP3304").unwrap();
        assert_eq!((find_code("grp3304"), find_code("mismatch")), (Ok(explanation.clone()), Ok(explanation.clone())));
        assert!(
            explanation.text().starts_with("GRP3304 (`mismatch`, 502): upstream response cannot be split\n"),
            "{}",
            explanation.text()
        );
        assert_eq!((&explanation.json()["status"], &explanation.json()["reason"]), (&json!(502), &json!("mismatch")));
        assert!(find_code("GRP1101").unwrap().text().starts_with("GRP1101: a key that the schema does not have\n"));
        let explanation = find_code("grp2102").unwrap().text();
        assert!(
            explanation.starts_with("GRP2102: an unknown annotation\n  responsible: author of the pod\n"),
            "{explanation}"
        );
    }

    #[test]
    fn the_error_for_an_unknown_code_lists_all_codes() {
        let message = find_code("GRP9\u{1b}").unwrap_err();
        assert!(message.starts_with("\"GRP9\\u{1b}\" is neither a code nor KIND/NAME; the codes are\n"), "{message}");
        assert!(FailureKind::VARIANTS.iter().all(|kind| message.contains(kind.code())));
        assert!(ConfigCode::VARIANTS.iter().all(|code| message.contains(code.as_str())));
        assert!(injector::InjectionErrorCode::VARIANTS.iter().all(|code| message.contains(code.as_str())));
    }

    #[test]
    fn every_key_in_an_advice_is_documented() {
        let mut texts: Vec<&str> = FailureKind::VARIANTS.iter().flat_map(|kind| [kind.why(), kind.advice()]).collect();
        texts.extend(ConfigCode::VARIANTS.iter().flat_map(|code| [code.why(), code.advice()]));
        let page = include_str!("../../../../docs/configuration.md");
        for name in texts.iter().flat_map(|text| text.split('`').skip(1).step_by(2)) {
            let key = name.split(':').next().unwrap_or_default();
            let known = page.contains(&format!("`{key}`")) || page.contains(&format!(".{key}`"));
            assert!(known || name.starts_with("groupage ") || name == "Retry-After", "{name} is not a key");
        }
    }
}
