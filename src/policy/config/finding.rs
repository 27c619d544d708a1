//! Findings about a configuration: the problem, its position, the allowed values and what was
//! probably meant.
//!
//! All problems of a file are collected before any is reported. `annotate-snippets` renders them as
//! the Rust compiler does, and is used in this module only.

use std::fmt;
use std::sync::Arc;

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use serde::Serialize;

use super::code::ConfigCode;
use super::tree::Span;

/// Maximum number of findings shown, more than a reader corrects at once. The others appear when
/// these are corrected.
const SHOWN_MAX: usize = 50;
/// Maximum length of a line that is shown. A snippet of a minified file is of no use.
const SNIPPET_CHARS_MAX: usize = 200;
/// Maximum length of a value that is repeated in a message; longer ones are cut.
const VALUE_CHARS_MAX: usize = 80;
/// Maximum length of a message or path. A longer one contains a key that no schema has.
const MESSAGE_CHARS_MAX: usize = 300;

/// A problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the problem.
    pub code: ConfigCode,
    /// Path of the key, such as `routes[0].limits.batchItemsMax`; empty if the problem concerns the
    /// whole file.
    pub path: String,
    /// Description of the problem.
    pub message: String,
    /// Invalid value or key, as written.
    pub value: Option<String>,
    /// Allowed values.
    pub allowed: Option<String>,
    /// Nearest known key or word.
    pub nearest: Option<String>,
    /// Remedy, if `allowed` does not suffice.
    pub help: Option<String>,
    pub(super) at: Option<Span>,
}

/// A remark about a setting that is not a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// Path of the key.
    pub path: String,
    /// Line of the key; 0 if it does not come from a file.
    pub line: usize,
    /// Text of the remark.
    pub message: String,
}

/// All problems of one source, in the order of its lines.
#[derive(Debug, Clone)]
pub struct ConfigErrors {
    /// Problems; never empty.
    pub findings: Vec<Finding>,
    /// Text of the source; flags and the environment have none.
    source: Option<Arc<str>>,
    name: String,
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(code: ConfigCode, path: &str, at: Span, message: &str) -> Self {
        let at = (at.line > 0).then_some(at);
        let (path, message) = (truncate(path, MESSAGE_CHARS_MAX), truncate(message, MESSAGE_CHARS_MAX));
        Self { code, path, message, value: None, allowed: None, nearest: None, help: None, at }
    }

    pub(super) fn value(mut self, value: &str) -> Self {
        self.value = Some(truncate(value, VALUE_CHARS_MAX));
        self
    }

    pub(super) fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    pub(super) fn nearest(mut self, nearest: Option<String>) -> Self {
        self.nearest = nearest;
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the line, from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.at.map(|at| at.line)
    }

    /// Returns the column, from 1, in characters.
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.at.map(|at| at.column)
    }

    /// Returns the short text under the snippet.
    fn label(&self) -> Option<String> {
        let near = self.nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"));
        near.or_else(|| self.help.clone())
    }

    /// Returns the sentence after the snippet. It omits what the label contains if the finding is
    /// labelled.
    fn advice(&self, labelled: bool) -> String {
        let near = self.nearest.as_ref().filter(|_| !labelled).map(|nearest| format!("did you mean `{nearest}`?"));
        let help = self.help.clone().filter(|_| !labelled || self.nearest.is_some());
        let allowed = self.allowed.as_ref().map(|allowed| format!("allowed: {allowed}"));
        [near, help, allowed].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn json(&self, file: &str) -> serde_json::Value {
        serde_json::json!({
            "code": self.code.as_str(), "file": file, "line": self.line(), "column": self.column(), "path": self.path,
            "message": self.message, "value": self.value, "allowed": self.allowed, "nearest": self.nearest,
            "help": self.help,
        })
    }
}

// === impl ConfigErrors ===

impl ConfigErrors {
    /// Creates the errors of a text from its findings, of which there is at least one.
    pub(super) fn for_text(name: &str, text: &str, mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| (finding.at.unwrap_or_default(), finding.code));
        Self { findings, source: Some(Arc::from(text)), name: name.to_owned() }
    }

    /// Creates the errors of flags and the environment, which have no text.
    pub(super) const fn for_overrides(findings: Vec<Finding>) -> Self {
        Self { findings, source: None, name: String::new() }
    }

    /// Formats the findings for people, with snippets.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        // Wide enough that lines are never cut: a terminal wraps by itself, and a file is searched
        // by line.
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() }.term_width(4 * SNIPPET_CHARS_MAX);
        let shown = self.findings.iter().take(SHOWN_MAX);
        let mut out: String = shown.map(|finding| renderer.render(&[self.report(finding)]) + "\n\n").collect();
        let more = self.findings.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            out.push_str(&format!("and {more} more\n"));
        } else {
            out.pop();
        }
        out
    }

    /// Returns a finding with its position: the line, or only its number if it is long.
    fn report<'a>(&'a self, finding: &'a Finding) -> Group<'a> {
        let title = Level::ERROR.primary_title(finding.message.as_str()).id(finding.code.as_str());
        let report = Group::with_title(title);
        let snippet = self.snippet(finding);
        let advice = finding.advice(snippet.is_some());
        let report = match (snippet, finding.at) {
            (Some(snippet), _) => report.element(snippet),
            (None, Some(at)) => report.element(Origin::path(self.name.as_str()).line(at.line).char_column(at.column)),
            (None, None) => report,
        };
        if advice.is_empty() { report } else { report.element(Level::HELP.message(advice)) }
    }

    /// Returns the line of a finding with its position underlined. Returns `None` if the line is
    /// too long to be shown.
    fn snippet<'a>(&'a self, finding: &'a Finding) -> Option<Snippet<'a, Annotation<'a>>> {
        let (text, at) = (self.source.as_deref()?, finding.at?);
        let (start, line) = line_around(text, at.offset)?;
        if line.chars().count() > SNIPPET_CHARS_MAX {
            return None;
        }
        let from = at.offset - start;
        let mark = AnnotationKind::Primary.span(from..from + underline_len(line.get(from..)?, at.len));
        let mark = mark.label(finding.label());
        Some(Snippet::source(line).line_start(at.line).path(self.name.as_str()).annotation(mark))
    }

    /// Formats the findings for programs, as a JSON array.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        self.findings.iter().map(|finding| finding.json(&self.name)).collect()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.findings.len(), if self.findings.len() == 1 { "" } else { "s" });
        match self.name.as_str() {
            "" => write!(f, "{count} problem{s}"),
            name => write!(f, "{name}: {count} problem{s}"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Finding {}

/// Returns the line around a byte, and the offset at which it begins.
fn line_around(text: &str, offset: usize) -> Option<(usize, &str)> {
    let (before, after) = text.split_at_checked(offset)?;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let end = offset + after.find('\n').unwrap_or(after.len());
    text.get(start..end).map(|line| (start, line.trim_end_matches('\r')))
}

/// Returns the length of the underlined part of the rest of a line: up to `len` bytes, or the first
/// word for a position without a length.
fn underline_len(rest: &str, len: usize) -> usize {
    if len > 0 {
        return len.min(rest.trim_end().len());
    }
    rest.find(char::is_whitespace).unwrap_or(rest.len())
}

/// Shortens a text for repetition in a message, and replaces control characters.
pub(super) fn truncate(text: &str, chars_max: usize) -> String {
    let mut truncated: String = text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        truncated.push('…');
    }
    truncated
}
