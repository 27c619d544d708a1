//! Rules for the packages of the workspace. Cargo enforces that they depend on each other in one
//! direction; these tests hold what it does not.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::lex::{Token, TokenKind};
use super::{Source, golden_section, metadata, root, sources};

/// Packages without I/O, which therefore may use no crate for it.
const PURE: [&str; 5] = ["batching", "injector", "policy", "protocol", "simulator"];
/// Crates for I/O and for the runtime.
const IO: [&str; 6] = ["axum", "hyper", "hyper-util", "tokio", "tokio-rustls", "tower"];
/// Prefix of the names of the packages.
const PREFIX: &str = "groupage-";

/// A package of the workspace.
#[derive(Debug)]
struct Package {
    name: String,
    /// Folder of its sources, from the root of the repository.
    folder: String,
    description: String,
    /// Names of the normal dependencies.
    dependencies: Vec<String>,
    /// Names of the dependencies of tests, examples and benchmarks.
    test_dependencies: Vec<String>,
}

// === impl Package ===

impl Package {
    fn new(package: &Value) -> Self {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let of_kind = |kind: Option<&str>| -> Vec<String> {
            let all = package["dependencies"].as_array().unwrap().iter().filter(|on| on["kind"].as_str() == kind);
            all.map(|on| on["name"].as_str().unwrap().to_owned()).collect()
        };
        let name = text("name").strip_prefix(PREFIX).map_or_else(|| text("name"), str::to_owned);
        let manifest = text("manifest_path");
        let folder = Path::new(&manifest).parent().unwrap().strip_prefix(root()).unwrap().to_str().unwrap();
        // The root package contains the others.
        let folder = if folder.is_empty() { "src/groupage" } else { folder }.to_owned();
        let (dependencies, test_dependencies) = (of_kind(None), of_kind(Some("dev")));
        Self { name, folder, description: text("description"), dependencies, test_dependencies }
    }

    fn sources(&self) -> Vec<Source> {
        sources(&self.folder)
    }

    /// Returns the dependencies that are packages of this workspace, without the prefix.
    fn own(&self) -> Vec<&str> {
        self.dependencies.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect()
    }
}

/// Returns the packages, each after those that it depends on.
fn packages() -> Vec<Package> {
    let all = metadata()["packages"].as_array().unwrap();
    let ours = all.iter().filter(|package| package["source"].is_null()).map(Package::new);
    let mut rest: Vec<Package> = ours.collect();
    rest.sort_by(|a, b| a.name.cmp(&b.name));
    let mut ordered: Vec<Package> = Vec::new();
    while !rest.is_empty() {
        let known = |name: &&str| ordered.iter().any(|package| package.name == **name);
        let next = rest.iter().position(|package| package.own().iter().all(known)).expect("cargo refuses cycles");
        ordered.push(rest.remove(next));
    }
    ordered
}

/// Returns `true` if the crate is named as the start of a path or in an attribute.
fn names_crate(tokens: &[Token<'_>], name: &str) -> bool {
    let name = name.replace('-', "_");
    tokens.iter().enumerate().any(|(at, token)| {
        let before = at.checked_sub(1).and_then(|before| tokens.get(before));
        let after = tokens.get(at + 1);
        let starts = !before.is_some_and(|before| before.is("::") || before.is("."));
        let path = after.is_some_and(|after| after.is("::") || after.is(";") || after.is("as"));
        token.kind == TokenKind::Word && token.text == name && starts && path
    })
}

#[test]
fn the_map_shows_the_packages() {
    let mut table = String::from("| package | depends on | content |\n|---|---|---|\n");
    for package in packages().iter().filter(|package| package.folder.starts_with("src/")) {
        let own = package.own();
        let own = if package.name == "groupage" { "all of the above".to_owned() } else { own.join(", ") };
        writeln!(table, "| `{}` | {own} | {} |", package.name, package.description).unwrap();
    }
    golden_section("docs/architecture.md", "packages", &table);
}

#[test]
fn packages_without_io_depend_on_no_crate_for_it() {
    for package in packages().iter().filter(|package| PURE.contains(&package.name.as_str())) {
        let io = package.dependencies.iter().find(|name| IO.contains(&name.as_str()));
        assert!(io.is_none(), "{} depends on {io:?}", package.name);
        assert!(package.name != "batching" || package.dependencies.is_empty(), "{package:?}");
    }
}

/// The calls of the proxy receive a `Forwarder` and a handle of the scheduler, which has no HTTP.
#[test]
fn the_calls_of_the_proxy_do_not_use_its_upstream_and_its_scheduler_no_http() {
    for source in sources("src/proxy") {
        let inside = source.path.strip_prefix("src/proxy/").unwrap();
        let tokens = source.code();
        if !inside.starts_with("upstream") {
            let uses = tokens.windows(2).any(|pair| pair[0].is("upstream") && pair[1].is("::"));
            assert!(!uses, "{inside} uses `proxy::upstream`: receive a `Forwarder` or a `Backend` instead");
        }
        if inside.starts_with("scheduler") {
            let http = ["http", "http-body", "hyper"].into_iter().find(|name| names_crate(&tokens, name));
            assert!(http.is_none(), "{inside} uses {http:?}: the scheduler has no HTTP");
        }
    }
}

#[test]
fn every_dependency_is_used() {
    let mut wrong = String::new();
    for package in packages() {
        let sources = package.sources();
        let tokens: Vec<_> = sources.iter().map(Source::code).collect();
        for name in &package.dependencies {
            if !tokens.iter().any(|tokens| names_crate(tokens, name)) {
                writeln!(wrong, "`{}` does not use `{name}`: remove it from its Cargo.toml", package.name).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn every_dependency_of_tests_is_used() {
    let mut wrong = String::new();
    for package in packages() {
        // The benchmarks of all packages are in one folder.
        let folders: &[&str] = if package.name == "groupage" { &["benches", "e2e", "tests"] } else { &["benches"] };
        let mut all = package.sources();
        all.extend(folders.iter().flat_map(|folder| sources(folder)));
        let tokens: Vec<_> = all.iter().map(Source::tokens).collect();
        for name in &package.test_dependencies {
            if !tokens.iter().any(|tokens| names_crate(tokens, name)) {
                writeln!(wrong, "`{}` does not use `{name}`: remove it from its Cargo.toml", package.name).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
