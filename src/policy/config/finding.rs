//! Findings about a configuration: the problem, its position, the allowed values and what was
//! probably meant.
//!
//! All problems of a file are collected before any is reported. `miette` renders the snippets and
//! is used in this module only.

use std::fmt;
use std::sync::Arc;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError, MietteSpanContents, SourceCode,
    SourceSpan, SpanContents,
};
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
    source: Option<Arc<SourceText>>,
    name: String,
}

/// Source text that shows only the line of a finding. By default `miette` shows neighbouring lines,
/// or less than the line.
#[derive(Debug)]
struct SourceText {
    name: String,
    text: String,
}

/// A finding with its source text, in the form that `miette` expects.
struct FindingReport<'a> {
    finding: &'a Finding,
    source: Option<&'a SourceText>,
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
        let source = Some(Arc::new(SourceText { name: name.to_owned(), text: text.to_owned() }));
        Self { findings, source, name: name.to_owned() }
    }

    /// Creates the errors of flags and the environment, which have no text.
    pub(super) const fn for_overrides(findings: Vec<Finding>) -> Self {
        Self { findings, source: None, name: String::new() }
    }

    /// Formats the findings for people, with snippets.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let mut out = String::new();
        for finding in self.findings.iter().take(SHOWN_MAX) {
            let mut theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
            theme.characters.error = format!("error[{}]:", finding.code);
            // Wide enough that lines are never wrapped: a terminal wraps by itself, and a file is
            // searched by line.
            let handler = GraphicalReportHandler::new_themed(theme)
                .with_links(false)
                .without_syntax_highlighting()
                .with_width(4 * SNIPPET_CHARS_MAX);
            let mut text = String::new();
            let source = self.source.as_deref().filter(|_| self.has_short_line(finding));
            if handler.render_report(&mut text, &FindingReport { finding, source }).is_err() {
                text = format!("error[{}]: {finding}\n", finding.code);
            }
            if source.is_none()
                && let (Some(line), Some(column)) = (finding.line(), finding.column())
            {
                text = format!("{}:{line}:{column}: {}", self.name, text.trim_start());
            }
            if !out.is_empty() {
                out.push('\n');
            }
            out.push_str(text.trim_start());
        }
        let more = self.findings.len().saturating_sub(SHOWN_MAX);
        if more > 0 {
            out.push_str(&format!("\nand {more} more\n"));
        }
        out
    }

    /// Formats the findings for programs, as a JSON array.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        self.findings.iter().map(|finding| finding.json(&self.name)).collect()
    }

    /// Returns `true` if the line of a finding is short enough to be shown.
    fn has_short_line(&self, finding: &Finding) -> bool {
        let (Some(source), Some(at)) = (&self.source, finding.at) else { return false };
        source.line(at.offset).map(|(_, line)| line).is_none_or(|line| line.chars().count() <= SNIPPET_CHARS_MAX)
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

impl Diagnostic for ConfigErrors {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_deref().map(|source| source as &dyn SourceCode)
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.findings.iter().map(|finding| finding as &dyn Diagnostic)))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Finding {}

impl Diagnostic for Finding {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let advice = self.advice(self.at.is_some());
        (!advice.is_empty()).then(|| Box::new(advice) as Box<dyn fmt::Display + 'a>)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let at = self.at?;
        Some(Box::new(std::iter::once(LabeledSpan::new(self.label(), at.offset, at.len))))
    }
}

// === impl SourceText ===

impl SourceText {
    /// Returns the line around a byte, and the offset at which it begins.
    fn line(&self, offset: usize) -> Option<(usize, &str)> {
        let (before, after) = self.text.split_at_checked(offset)?;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = offset + after.find('\n').unwrap_or(after.len());
        self.text.get(start..end).map(|line| (start, line))
    }

    /// Returns the length of the underlined part: the part on the first line, or the first word for
    /// a position without a length.
    fn underline_len(&self, at: Span) -> usize {
        let rest = self.text.get(at.offset..).unwrap_or_default();
        let rest = rest.lines().next().unwrap_or_default();
        if at.len > 0 {
            return at.len.min(rest.trim_end().len());
        }
        rest.find(char::is_whitespace).unwrap_or(rest.len())
    }
}

impl SourceCode for SourceText {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        _before: usize,
        _after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let (start, line) = self.line(span.offset()).ok_or(MietteError::OutOfBounds)?;
        let number = self.text.bytes().take(start).filter(|byte| *byte == b'\n').count();
        let column = self.text.get(start..span.offset()).map_or(0, |before| before.chars().count());
        let span = SourceSpan::from((start, line.len()));
        Ok(Box::new(MietteSpanContents::new_named(self.name.clone(), line.as_bytes(), span, number, column, 1)))
    }
}

// === impl FindingReport ===

impl fmt::Debug for FindingReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.finding.fmt(f)
    }
}

impl fmt::Display for FindingReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.finding.message.fmt(f)
    }
}

impl std::error::Error for FindingReport<'_> {}

impl Diagnostic for FindingReport<'_> {
    // The code is already in front of the message (`error[GRP1101]:`), so it does not get a line of
    // its own.

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let advice = self.finding.advice(self.source.is_some());
        (!advice.is_empty()).then(|| Box::new(advice) as Box<dyn fmt::Display + 'a>)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (source, at) = self.source.zip(self.finding.at)?;
        let label = LabeledSpan::new(self.finding.label(), at.offset, source.underline_len(at));
        Some(Box::new(std::iter::once(label)))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.map(|source| source as &dyn SourceCode)
    }
}

/// Shortens a text for repetition in a message, and replaces control characters.
pub(super) fn truncate(text: &str, chars_max: usize) -> String {
    let mut truncated: String = text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        truncated.push('…');
    }
    truncated
}
