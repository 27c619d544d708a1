//! Splits the text of a module into statements.

use super::ParseError;

/// Directives that end with their line and do not concern the interpreter.
const LINE_DIRECTIVES: [&str; 3] = [".version", ".target", ".address_size"];
/// Starts of the header of a kernel.
const HEADERS: [&str; 2] = [".visible .entry", ".entry"];

/// A statement and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PtxStatement<'a> {
    /// Line on which it starts, from 1.
    pub(super) line: usize,
    pub(super) text: StatementText<'a>,
}

/// The text of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StatementText<'a> {
    /// A kernel up to its opening brace, which follows as [`StatementText::Open`].
    Header(&'a str),
    /// `{`
    Open,
    /// `}`
    Close,
    /// `name:`
    Label(&'a str),
    /// Any other statement, without the semicolon.
    Plain(&'a str),
}

// === impl PtxStatement ===

impl PtxStatement<'_> {
    pub(super) fn error(&self, reason: impl Into<String>) -> ParseError {
        let text = match self.text {
            StatementText::Header(text) | StatementText::Label(text) | StatementText::Plain(text) => text,
            StatementText::Open => "{",
            StatementText::Close => "}",
        };
        ParseError { line: self.line, text: text.to_owned(), reason: reason.into() }
    }
}

/// Splits a module. Comments and directives without an effect are dropped.
pub(super) fn split(ptx: &str) -> Result<Vec<PtxStatement<'_>>, ParseError> {
    let mut statements = Vec::new();
    let (mut rest, mut line) = (ptx, 1);
    loop {
        let trimmed = rest.trim_start();
        line += newlines(rest.strip_suffix(trimmed).unwrap_or_default());
        if trimmed.is_empty() {
            return Ok(statements);
        }
        let (text, length) = next(trimmed).map_err(|reason| ParseError {
            line,
            text: trimmed.lines().next().unwrap_or_default().to_owned(),
            reason: reason.to_owned(),
        })?;
        if let Some(text) = text {
            statements.push(PtxStatement { line, text });
        }
        let (taken, after) = trimmed.split_at_checked(length).unwrap_or((trimmed, ""));
        line += newlines(taken);
        rest = after;
    }
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// Returns the first statement of a text that does not start with white space, none for a comment,
/// and its length.
fn next(text: &str) -> Result<(Option<StatementText<'_>>, usize), &'static str> {
    if text.starts_with("//") || LINE_DIRECTIVES.iter().any(|directive| text.starts_with(directive)) {
        return Ok((None, text.find('\n').unwrap_or(text.len())));
    }
    if text.starts_with('{') {
        return Ok((Some(StatementText::Open), 1));
    }
    if text.starts_with('}') {
        return Ok((Some(StatementText::Close), 1));
    }
    if HEADERS.iter().any(|header| text.starts_with(header)) {
        let end = text.find('{').ok_or("a kernel without a body")?;
        return Ok((text.get(..end).map(|header| StatementText::Header(header.trim_end())), end));
    }
    let end = text.find([';', ':']).ok_or("a statement without a semicolon")?;
    // Modifiers such as `.L1::no_allocate` contain colons too, but no label contains a dot.
    let name = text.get(..end).unwrap_or_default();
    if text.get(end..).is_some_and(|rest| rest.starts_with(':')) && !name.contains(['.', ' ', '\t']) {
        return Ok((Some(StatementText::Label(name)), end + 1));
    }
    let end = text.find(';').ok_or("a statement without a semicolon")?;
    Ok((text.get(..end).map(|plain| StatementText::Plain(plain.trim_end())), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_the_line_on_which_they_start() {
        let text = ".version 8.4\n// note; {\n.visible .entry f(\n.param .u64 f_param_0\n)\n{\n$L__1:\n\tret;\n mov.b32 \t{%rs1, %rs2},\n %r1;}\n";
        let split = split(text).unwrap();
        let lines: Vec<_> = split.iter().map(|statement| statement.line).collect();
        assert_eq!(lines, [3, 6, 7, 8, 9, 10]);
        assert_eq!(split[2].text, StatementText::Label("$L__1"));
        assert_eq!(split[4].text, StatementText::Plain("mov.b32 \t{%rs1, %rs2},\n %r1"));
        assert_eq!(split[5].text, StatementText::Close);
    }

    #[test]
    fn a_statement_without_an_end_is_an_error() {
        let error = split("ret;\n\nadd.u32 %r1").unwrap_err();
        assert_eq!(error.to_string(), "PTX line 3: a statement without a semicolon: `add.u32 %r1`");
    }
}
