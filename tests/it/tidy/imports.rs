//! Rules for imports: the modules that each module may name, and the modules that may name each
//! third-party crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::lex::{Token, TokenKind};
use super::{Source, golden_section, metadata, sources};

/// Every module in reading order, with the modules above it that it may name. `lib` and `main` only
/// assemble the others.
const OURS: [(&str, &[&str]); 29] = [
    ("error", &[]),
    ("batching", &[]),
    ("telemetry", &["error", "batching"]),
    ("accesslog", &["telemetry"]),
    ("api", &[]),
    ("clock", &["batching"]),
    ("memory", &["batching", "clock"]),
    ("socket", &[]),
    ("places", &[]),
    ("redirect", &[]),
    ("tls", &[]),
    ("protocol", &["error", "batching"]),
    ("body", &["error", "memory"]),
    ("relay", &["body"]),
    ("gather", &["memory"]),
    ("standin", &[]),
    ("simulate", &["batching"]),
    ("backend", &["error", "batching", "protocol", "body"]),
    (
        "upstream",
        &["error", "batching", "telemetry", "clock", "tls", "protocol", "memory", "body", "relay", "gather", "backend"],
    ),
    ("scheduler", &["error", "batching", "telemetry", "clock", "protocol", "backend"]),
    (
        "proxy",
        &[
            "error",
            "batching",
            "telemetry",
            "accesslog",
            "clock",
            "tls",
            "protocol",
            "memory",
            "body",
            "relay",
            "gather",
            "backend",
            "scheduler",
        ],
    ),
    ("admin", &["batching", "telemetry", "clock", "socket", "places", "memory"]),
    ("config", &["memory", "api", "protocol"]),
    ("injector", &["api", "config"]),
    ("control", &["batching", "telemetry", "api", "clock", "places", "tls"]),
    ("tuner", &["batching", "api", "config", "control"]),
    ("rollout", &["api", "config", "control", "tuner"]),
    (
        "controller",
        &[
            "error",
            "batching",
            "telemetry",
            "api",
            "clock",
            "socket",
            "places",
            "tls",
            "config",
            "injector",
            "control",
            "tuner",
            "rollout",
        ],
    ),
    (
        "cli",
        &[
            "error",
            "batching",
            "telemetry",
            "accesslog",
            "api",
            "clock",
            "socket",
            "redirect",
            "tls",
            "protocol",
            "memory",
            "body",
            "relay",
            "gather",
            "standin",
            "simulate",
            "backend",
            "upstream",
            "scheduler",
            "proxy",
            "admin",
            "config",
            "injector",
            "control",
            "tuner",
            "rollout",
            "controller",
        ],
    ),
];

/// Every third-party crate, with the modules that may name it. The table keeps the pure modules
/// pure: `batching` is in no row, and `protocol` is neither in that of tokio nor in that of hyper.
const OTHERS: [(&str, &[&str]); 37] = [
    ("axum", &["places", "admin", "controller"]),
    ("blake3", &["tls", "protocol", "proxy", "admin", "control", "standin", "rollout", "injector", "controller"]),
    ("bytes", &["protocol", "body", "gather", "standin", "upstream", "proxy", "control", "controller", "cli"]),
    ("clap", &["cli"]),
    ("futures-util", &["memory", "backend", "upstream", "scheduler", "proxy", "control", "cli", "controller"]),
    ("granit-parser", &["cli"]),
    ("hdrhistogram", &["standin"]),
    (
        "http",
        &[
            "protocol",
            "body",
            "gather",
            "standin",
            "backend",
            "upstream",
            "proxy",
            "admin",
            "config",
            "control",
            "cli",
            "controller",
        ],
    ),
    ("http-body", &["body", "gather", "upstream", "proxy", "control"]),
    ("http-body-util", &["places", "gather", "standin", "controller"]),
    ("hyper", &["places", "body", "standin", "upstream", "proxy", "control", "controller"]),
    ("hyper-util", &["places", "standin", "upstream", "proxy", "control", "controller"]),
    ("json-patch", &["injector", "controller"]),
    ("k8s-openapi", &["api", "control", "rollout", "controller", "cli"]),
    ("kube", &["api", "control", "controller", "cli"]),
    ("memchr", &["protocol", "proxy", "standin"]),
    ("metrics", &["telemetry"]),
    ("metrics-exporter-prometheus", &["telemetry"]),
    ("miette", &["config"]),
    ("tikv-jemallocator", &["main"]),
    ("rand", &["accesslog", "protocol", "standin", "proxy", "control", "cli", "controller"]),
    ("rcgen", &["controller"]),
    ("rustix", &["clock", "socket", "redirect", "standin", "upstream", "config", "cli"]),
    ("rustls", &["tls", "control", "controller"]),
    ("rustls-native-certs", &["tls"]),
    ("schemars", &["api"]),
    ("serde", &["accesslog", "api", "standin", "admin", "config", "control", "cli", "injector", "controller"]),
    ("serde-saphyr", &["config", "cli"]),
    (
        "serde_json",
        &[
            "telemetry",
            "accesslog",
            "protocol",
            "standin",
            "admin",
            "config",
            "control",
            "rollout",
            "cli",
            "injector",
            "controller",
        ],
    ),
    ("sigpipe", &["cli"]),
    ("strsim", &["config", "injector"]),
    (
        "thiserror",
        &[
            "error",
            "redirect",
            "tls",
            "memory",
            "protocol",
            "body",
            "upstream",
            "config",
            "control",
            "controller",
            "cli",
        ],
    ),
    (
        "tokio",
        &[
            "clock",
            "memory",
            "places",
            "tls",
            "body",
            "relay",
            "gather",
            "standin",
            "backend",
            "upstream",
            "scheduler",
            "proxy",
            "admin",
            "control",
            "cli",
            "controller",
        ],
    ),
    ("tokio-rustls", &["tls", "control", "controller"]),
    ("tower", &["places", "controller"]),
    (
        "tracing",
        &[
            "telemetry",
            "clock",
            "memory",
            "places",
            "upstream",
            "scheduler",
            "proxy",
            "admin",
            "control",
            "cli",
            "controller",
        ],
    ),
    ("tracing-subscriber", &["telemetry", "config"]),
];

/// Crates for tests and for the image packer only. Any test may use them.
const FOR_TESTS: [&str; 8] = ["aws-lc-rs", "flate2", "kube-cel", "proptest", "regex", "rustix", "tar", "tempfile"];

fn allowed(module: &str) -> Option<&'static [&'static str]> {
    OURS.iter().find(|(name, _)| *name == module).map(|(_, may)| *may)
}

/// Returns the modules of this crate that a source names from the crate root, with a line each:
/// `crate::x`, `crate::{x, y}`, and `super::` up to the root.
fn crate_modules_used(source: &Source, tokens: &[Token<'_>]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut inline = Vec::new();
    let (mut braces, mut at) = (0_usize, 0);
    while let Some(token) = tokens.get(at) {
        let is = |ahead: usize, text: &str| tokens.get(at + ahead).is_some_and(|token| token.is(text));
        match token.text {
            "{" if token.kind == TokenKind::Mark => braces += 1,
            "}" if token.kind == TokenKind::Mark => {
                braces = braces.saturating_sub(1);
                inline.pop_if(|depth: &mut usize| *depth == braces);
            }
            "mod" if token.kind == TokenKind::Word && is(2, "{") => inline.push(braces),
            "crate" | "super" if token.kind == TokenKind::Word => {
                let mut end = at;
                while tokens.get(end).is_some_and(|token| token.is("super") || token.is("::") || token.is("crate")) {
                    end += 1;
                }
                let ups = tokens.get(at..end).unwrap_or_default().iter().filter(|token| token.is("super")).count();
                if (token.text == "crate" || ups >= source.depth() + inline.len()) && is(1, "::") {
                    found.extend(first_names(tokens, end));
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Returns the first names of a path or of a group of paths.
fn first_names(tokens: &[Token<'_>], at: usize) -> Vec<(String, usize)> {
    let Some(first) = tokens.get(at) else { return Vec::new() };
    if !first.is("{") {
        return vec![(first.text.to_owned(), first.line)];
    }
    let mut found = Vec::new();
    let (mut depth, mut head) = (0_usize, true);
    for token in tokens.get(at..).unwrap_or_default() {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            "," if depth == 1 => head = true,
            name if depth == 1 && head => {
                found.push((name.to_owned(), token.line));
                head = false;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn each_module_names_only_those_above_it_that_it_may() {
    let mut wrong = String::new();
    for source in sources("src") {
        let module = source.module();
        if matches!(module, "lib" | "main") {
            continue;
        }
        let Some(may) = allowed(module) else {
            writeln!(wrong, "{}: module `{module}` has no row in the table", source.path).unwrap();
            continue;
        };
        // Unit tests beside the code may use any module.
        for (name, line) in crate_modules_used(&source, &source.code()) {
            if name != module && allowed(&name).is_some() && !may.contains(&name.as_str()) {
                writeln!(wrong, "{}:{line}: `{module}` may not name `{name}`", source.path).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn the_reader_of_imports_sees_groups_and_ways_up_to_the_root() {
    let text = "use crate::{a::{self, b}, c};\nuse super::super::d::E;\nuse super::own;\nfn f() { crate::g::h() }\nmod tests { use super::super::super::i; use super::super::own; }";
    let source = Source { path: "src/x/y.rs".to_owned(), text: text.to_owned() };
    let names: Vec<_> = crate_modules_used(&source, &source.tokens()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "c", "d", "g", "i"]);
}

#[test]
fn the_table_is_in_the_reading_order_of_lib_and_has_no_cycle() {
    let lib = sources("src").into_iter().find(|source| source.path == "src/lib.rs").unwrap();
    let tokens = lib.tokens();
    let modules: Vec<&str> = tokens.windows(2).filter(|pair| pair[0].is("mod")).map(|pair| pair[1].text).collect();
    let rows: Vec<&str> = OURS.iter().map(|(module, _)| *module).collect();
    assert_eq!(modules, rows, "src/lib.rs lists its modules in the order of the table");
    for (index, (module, may)) in OURS.iter().enumerate() {
        for name in *may {
            assert!(rows[..index].contains(name), "`{module}` may name `{name}`, which is not above it");
        }
    }
}

#[test]
fn the_map_shows_the_table_as_it_is() {
    let mut table = String::from("| module | may name |\n|---|---|\n");
    for (module, may) in OURS {
        let may = if may.is_empty() { "no own module".to_owned() } else { may.join(", ") };
        let may = if module == "cli" { "all of the above".to_owned() } else { may };
        writeln!(table, "| `{module}` | {may} |").unwrap();
    }
    golden_section("docs/architecture.md", "import table", &table);
}

#[test]
fn a_crate_of_others_is_named_only_where_it_may_be_and_somewhere() {
    let rows: BTreeMap<String, &[&str]> = OTHERS.iter().map(|(name, who)| (name.replace('-', "_"), *who)).collect();
    let mut used = BTreeSet::new();
    let mut wrong = String::new();
    for source in sources("src") {
        let module = source.module();
        let tokens = source.code();
        for (at, token) in tokens.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| tokens.get(before));
            let after = tokens.get(at + 1);
            let path = after.is_some_and(|after| after.is("::"))
                || before.is_some_and(|before| before.is("use")) && after.is_some_and(|after| after.is(";"));
            if token.kind != TokenKind::Word || !path || before.is_some_and(|before| before.is("::") || before.is("."))
            {
                continue;
            }
            let Some(who) = rows.get(token.text) else { continue };
            used.insert(token.text.to_owned());
            if !who.contains(&module) {
                writeln!(wrong, "{}:{}: `{module}` may not name `{}`", source.path, token.line, token.text).unwrap();
            }
        }
    }
    for name in rows.keys().filter(|name| !used.contains(*name)) {
        writeln!(wrong, "`{name}` is unused: remove it from Cargo.toml and from the table").unwrap();
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn every_dependency_has_a_row() {
    let package =
        metadata()["packages"].as_array().unwrap().iter().find(|package| package["name"] == "groupage").unwrap();
    for dependency in package["dependencies"].as_array().unwrap() {
        let name = dependency["name"].as_str().unwrap();
        let known = match dependency["kind"].as_str() {
            Some("dev") => FOR_TESTS.contains(&name),
            _ => OTHERS.iter().any(|(row, _)| *row == name),
        };
        assert!(known, "`{name}` is in Cargo.toml but in no row of the table: add the modules that may name it");
    }
}
