//! Figures of the language of comments, names and documents.
//!
//! Limits lie at or a little above the worst of linkerd2-proxy, quinn-proto, tower, axum, ripgrep,
//! rustls and pingora, measured by the same expressions. They catch a habit, not a word: one `who`
//! in the right place is fine. The rules behind the figures are in `docs/style.md`.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::lex::TokenKind;
use super::{files, read, sources};

/// An expression and the lines per 1000 that may match it.
struct WordRule {
    name: &'static str,
    expression: &'static str,
    per_thousand: usize,
}

const PERSONS: WordRule = WordRule {
    name: "persons",
    expression: r"\b(who|whom|whose|whoever|nobody|somebody|everybody|anybody)\b",
    per_thousand: 4,
};
const SPEECH: WordRule =
    WordRule { name: "speech", expression: r"\b(told|tells?|says|said|asked|asks)\b", per_thousand: 5 };
/// Rules for comments.
const COMMENTS: [WordRule; 8] = [
    PERSONS,
    SPEECH,
    WordRule {
        name: "noun clauses as openings",
        expression: r"^\s*//[/!] (What|Who|Whom|Whether|How|When|Where|Why|Which|By how|Of) ",
        per_thousand: 25,
    },
    WordRule { name: "stands", expression: r"\bst(ands|ood)\b|\bstand([^-\w]|$)", per_thousand: 1 },
    WordRule { name: "he", expression: r"\b(he|him|his)\b", per_thousand: 1 },
    WordRule { name: "so many", expression: r"\bso (many|long|much|large|far)\b", per_thousand: 4 },
    WordRule { name: "archaic words", expression: r"\b[Ww]hither|\bhither|\btill\b|\bshall\b", per_thousand: 1 },
    WordRule { name: "more than 100 columns", expression: r"^.{101}", per_thousand: 25 },
];
/// Rules for documents. Reference pages quote words more often than code does.
const DOCUMENTS: [WordRule; 2] = [WordRule { per_thousand: 12, ..PERSONS }, WordRule { per_thousand: 12, ..SPEECH }];
/// A section, rule or decision of a document that is not in the tree.
const CITATION: &str = r"§\s?\d|\bR\d{1,2}\b|\b[GFBT]\d{2,3}\b|\.md §";
/// Number formats and GPUs that look like one.
const NO_CITATION: &[&str] = &["RFC", "F16", "F32", "F64", "B200", "BF16"];
/// Type names that are the term of art in every code base, and need no second word.
const TERMS: &str =
    "Error Output Future Service Response Item Data Target Err Ok Config Args Value Connection IntoIter Body";
/// Percentage of type names that may have one word.
const ONE_WORD_PERCENT: usize = 45;
/// Number of type names that may be defined in [`REPEATED_FILES`] files or more.
const REPEATED_MAX: usize = 12;
const REPEATED_FILES: usize = 4;
/// Maximum number of characters of a cell in a Markdown table.
const CELL_MAX: usize = 300;
/// Words that occur in no identifier: software does not speak, and a value is named by its content.
const IDENTIFIER_WORDS: [&str; 11] =
    ["said", "says", "told", "tells", "tell", "asks", "asked", "heard", "came", "stands", "goes"];
/// Folders of code that tests or measures the product.
const TEST_FOLDERS: [&str; 4] = ["tests", "benches", "e2e", "fuzz"];

/// A file of code, or the part of it that is of one kind: product or tests.
struct CodeText {
    path: String,
    /// Number of the line before the text.
    line: usize,
    text: String,
}

fn compiled(expression: &str) -> Regex {
    Regex::new(expression).expect("the expression is a constant")
}

/// Fails if more lines match a rule than its limit allows, and lists them.
fn assert_rare(lines: &[(String, String)], rules: &[WordRule]) {
    for rule in rules {
        let expression = compiled(rule.expression);
        let found: Vec<&(String, String)> = lines.iter().filter(|(_, line)| expression.is_match(line)).collect();
        let listed: Vec<String> = found.iter().map(|(place, line)| format!("{place}: {}", line.trim())).collect();
        assert!(
            found.len() * 1000 <= rule.per_thousand * lines.len(),
            "{}: {} of {} lines, at most {} in 1000\n{}",
            rule.name,
            found.len(),
            lines.len(),
            rule.per_thousand,
            listed.join("\n"),
        );
    }
}

/// Returns the code of the product.
fn product() -> Vec<CodeText> {
    let sources = sources("src").into_iter();
    sources.map(|source| CodeText { text: source.without_tests().to_owned(), line: 0, path: source.path }).collect()
}

/// Returns the tests of the product, benchmarks and fuzz targets.
fn tests() -> Vec<CodeText> {
    let mut all = Vec::new();
    for source in sources("src") {
        let product = source.without_tests();
        let text = source.text.strip_prefix(product).unwrap_or_default().to_owned();
        all.push(CodeText { line: product.lines().count(), text, path: source.path });
    }
    let others = TEST_FOLDERS.into_iter().flat_map(sources);
    all.extend(others.map(|source| CodeText { path: source.path, line: 0, text: source.text }));
    all
}

/// Returns the lines of comments with their places.
fn comments(code: &[CodeText]) -> Vec<(String, String)> {
    let of = |code: &CodeText| -> Vec<(String, String)> {
        let comments = code.text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        comments.map(|(index, line)| (format!("{}:{}", code.path, code.line + index + 1), line.to_owned())).collect()
    };
    code.iter().flat_map(of).collect()
}

#[test]
fn discouraged_words_are_rare_in_comments() {
    for code in [product(), tests()] {
        assert_rare(&comments(&code), &COMMENTS);
    }
}

#[test]
fn comments_cite_no_document_outside_the_tree() {
    let citation = compiled(CITATION);
    let is_cited = |line: &str| citation.is_match(line) && !NO_CITATION.iter().any(|word| line.contains(word));
    for code in [product(), tests()] {
        let found: Vec<_> = comments(&code).into_iter().filter(|(_, line)| is_cited(line)).collect();
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// Returns the names of types, each with the files that define it.
fn type_names(code: &[CodeText]) -> BTreeMap<String, BTreeSet<String>> {
    let definition = compiled(r"(?m)^\s*(?:pub(?:\([a-z:_ ]+\))? )?(?:struct|enum|trait|type|union) ([A-Z]\w*)");
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for code in code {
        for found in definition.captures_iter(&code.text) {
            names.entry(found[1].to_owned()).or_default().insert(code.path.clone());
        }
    }
    names.retain(|name, _| !TERMS.split(' ').any(|term| term == name));
    names
}

#[test]
fn type_names_have_two_words_and_one_meaning() {
    let two_words = compiled(r"[a-z0-9][A-Z]");
    for code in [product(), tests()] {
        let names = type_names(&code);
        let short: Vec<&String> = names.keys().filter(|name| !two_words.is_match(name)).collect();
        assert!(short.len() * 100 <= ONE_WORD_PERCENT * names.len(), "{} of {}: {short:?}", short.len(), names.len());
        let repeated: Vec<_> = names.iter().filter(|(_, files)| files.len() >= REPEATED_FILES).collect();
        assert!(repeated.len() <= REPEATED_MAX, "{repeated:#?}");
    }
}

/// Returns `true` if one of the words of an identifier in snake case is discouraged. Constants are
/// in upper case.
fn has_discouraged_word(identifier: &str) -> bool {
    identifier.split('_').any(|part| IDENTIFIER_WORDS.iter().any(|word| part.eq_ignore_ascii_case(word)))
}

#[test]
fn identifiers_are_named_by_content_and_not_after_speech() {
    assert!(["said", "SAID_MAX", "a_call_that_goes_alone"].into_iter().all(has_discouraged_word));
    assert!(!["mask", "became", "cargo_target", "understands"].into_iter().any(has_discouraged_word));
    let mut found = Vec::new();
    for source in ["src"].into_iter().chain(TEST_FOLDERS).flat_map(sources) {
        let words = source.tokens().into_iter().filter(|token| token.kind == TokenKind::Word);
        let discouraged = words.filter(|token| has_discouraged_word(token.text));
        found.extend(discouraged.map(|token| format!("{}:{}: {}", source.path, token.line, token.text)));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn discouraged_words_are_rare_in_documents_and_table_cells_are_short() {
    let mut prose = Vec::new();
    for path in files().into_iter().filter(|path| path.ends_with(".md") && !path.contains("/tests/")) {
        let mut is_fenced = false;
        for (index, line) in read(&path).lines().enumerate() {
            is_fenced ^= line.trim_start().starts_with("```");
            if is_fenced || line.trim().is_empty() {
                continue;
            }
            let place = format!("{path}:{}", index + 1);
            let is_long = line.starts_with('|') && line.split('|').any(|cell| cell.chars().count() > CELL_MAX);
            assert!(!is_long, "{place}: a table cell of more than {CELL_MAX} characters");
            prose.push((place, line.to_owned()));
        }
    }
    assert_rare(&prose, &DOCUMENTS);
}
