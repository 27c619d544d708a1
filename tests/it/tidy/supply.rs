//! Rules for dependencies: licences, bans, sources and duplicate versions, read from `Cargo.lock`,
//! `cargo metadata` and `cargo tree`.
//!
//! `cargo deny` (`just audit`) checks advisories too. These tests check the rest in every run,
//! without a network and without extra tools.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::{metadata, read, root};
use crate::report_skipped;

/// Licences that require no more than attribution.
const LICENCES: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that must not be in the tree, not even as transitive dependencies.
const BANNED: [(&str, &str); 8] = [
    ("ring", "aws-lc-rs is the one provider of cryptography"),
    ("openssl", "as ring"),
    ("openssl-sys", "as ring"),
    ("native-tls", "as ring"),
    ("serde_yaml", "unmaintained; serde-saphyr parses YAML"),
    ("serde_yml", "RUSTSEC-2025-0068"),
    ("reqwest", "redirects, proxies and cookies that this proxy must not do"),
    ("opentelemetry-prometheus", "discontinued"),
];

/// Providers of cryptography. At most one of them may be in the tree.
const CRYPTO: [&str; 6] = ["aws-lc-rs", "ring", "openssl", "boring", "mbedtls", "rustls-rustcrypto"];

/// Minimum versions without a known vulnerability that affects this crate.
const FLOORS: [(&str, (u64, u64, u64), &str); 2] = [
    ("h2", (0, 4, 16), "RUSTSEC-2026-0258: empty DATA frames without end"),
    ("tracing-subscriber", (0, 3, 20), "RUSTSEC-2025-0055: terminal escapes in logs"),
];

/// Crates with two versions in the tree, and the reason why this cannot be resolved here. A row
/// that is no longer needed fails the test too.
const DOUBLES: [(&str, &str); 18] = [
    ("base64", "k8s-openapi is a version behind kube; spm_precompiled of tokenizers requires 0.13"),
    ("darling", "derive_builder of tokenizers requires 0.20; build time only"),
    ("darling_core", "as darling"),
    ("darling_macro", "as darling"),
    ("getrandom", "rand 0.9 requires 0.3; tempfile and rand 0.10, both of tests only, require 0.4"),
    ("hashbrown", "metrics-util is a version behind indexmap"),
    ("r-efi", "both versions of getrandom; not built on Linux"),
    ("rand", "0.9 is used directly; proptest, of tests only, requires 0.10"),
    ("rand_core", "both versions of rand"),
    ("syn", "derive macros move to 3 one by one (tracing-attributes has not yet); build time only"),
    ("thiserror", "kube-cel's parser, of tests only, requires 1"),
    ("thiserror-impl", "both versions of thiserror; build time only"),
    ("windows-core", "chrono, of tests only, and loom of evmap; not built on Linux"),
    ("windows-implement", "as windows-core"),
    ("windows-interface", "as windows-core"),
    ("windows-link", "as windows-core"),
    ("windows-result", "as windows-core"),
    ("windows-strings", "as windows-core"),
];

/// One package of `Cargo.lock`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LockedPackage {
    name: String,
    version: String,
    source: Option<String>,
    checksum: bool,
}

fn locked(text: &str) -> Vec<LockedPackage> {
    let package = |block: &str| {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        Some(LockedPackage {
            name: value("name")?,
            version: value("version")?,
            source: value("source"),
            checksum: value("checksum").is_some(),
        })
    };
    text.split("[[package]]").skip(1).filter_map(package).collect()
}

fn lock() -> Vec<LockedPackage> {
    let lock = locked(&read("Cargo.lock"));
    assert!(lock.len() > 100, "Cargo.lock could not be read");
    lock
}

/// Returns the name and version of every crate that is built, for any platform. `Cargo.lock` lists
/// more: it includes dependencies of optional features that are off.
///
/// Crates that only other platforms need may have to be fetched first. If this is not possible,
/// only those of this platform are checked.
fn built() -> BTreeSet<(String, String)> {
    let tree = |more: &[&str]| {
        let args =
            ["tree", "--locked", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"];
        Command::new(env!("CARGO")).args(args).args(more).current_dir(root()).output().unwrap()
    };
    let mut out = tree(&["--target", "all"]);
    if !out.status.success() {
        report_skipped(&format!("crates of other platforms: cargo tree: {}", String::from_utf8_lossy(&out.stderr)));
        out = tree(&["--offline"]);
    }
    assert!(out.status.success(), "cargo tree: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let crates: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap_or_default().to_owned()))
        .collect();
    assert!(crates.len() > 100, "cargo tree could not be read");
    crates
}

/// Returns `true` if the accepted licences satisfy an SPDX expression.
fn acceptable(expression: &str) -> bool {
    // `A/B` is a deprecated notation of `A OR B`.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&words, &mut at);
    met && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize) -> bool {
    let mut met = all_of(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize) -> bool {
    let mut met = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at);
    }
    met
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any_of(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        // An exception only grants further permissions.
        *at += 2;
    }
    LICENCES.contains(word)
}

#[test]
fn licence_expressions_are_read_as_in_spdx() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR X",
    ] {
        assert!(acceptable(good), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND MPL-2.0", "(MIT", "MIT Apache-2.0"] {
        assert!(!acceptable(bad), "{bad}");
    }
}

#[test]
fn every_licence_in_the_build_is_one_that_we_accept() {
    let mut wrong = Vec::new();
    for package in metadata()["packages"].as_array().unwrap() {
        let licence = package["license"].as_str().unwrap_or_default();
        if !acceptable(licence) {
            wrong.push(format!("{} {}: {licence:?}", package["name"], package["version"]));
        }
    }
    assert!(wrong.is_empty(), "licences that are not on the list: {wrong:#?}");
}

#[test]
fn every_dependency_is_from_crates_io_with_a_checksum() {
    for package in lock().iter().filter(|package| !package.name.starts_with("groupage")) {
        let source = package.source.as_deref();
        assert_eq!(source, Some("registry+https://github.com/rust-lang/crates.io-index"), "{}", package.name);
        assert!(package.checksum, "{} has no checksum", package.name);
    }
}

#[test]
fn banned_crates_are_absent_and_there_is_one_provider_of_cryptography_at_most() {
    let built = built();
    for (banned, why) in BANNED {
        assert!(built.iter().all(|(name, _)| name != banned), "{banned} is in the tree: {why}");
    }
    let providers: Vec<_> = built.iter().filter(|(name, _)| CRYPTO.contains(&name.as_str())).collect();
    assert!(providers.len() <= 1, "{providers:?}");
}

#[test]
fn no_crate_is_older_than_the_fix_of_its_vulnerability() {
    for package in lock() {
        let Some((_, floor, why)) = FLOORS.iter().find(|(name, ..)| *name == package.name) else { continue };
        let mut parts = package.version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        let version = (part(), part(), part());
        assert!(version >= *floor, "{} {}: {why}", package.name, package.version);
    }
}

#[test]
fn two_versions_of_a_crate_need_a_reason_and_a_reason_needs_two_versions() {
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version) in built() {
        versions.entry(name).or_default().push(version);
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let reason = DOUBLES.iter().find(|(double, _)| double == name);
        assert!(
            reason.is_some(),
            "{name} is in the tree in {versions:?}: unify the versions, or list it with the reason"
        );
    }
    for (name, _) in DOUBLES {
        let count = versions.get(name).map_or(0, Vec::len);
        assert!(count > 1, "{name} has only one version: remove it from the list");
    }
}

#[test]
fn deny_toml_lists_the_same_rules() {
    let rules = read("deny.toml");
    for name in LICENCES.iter().chain(BANNED.iter().map(|(name, _)| name)) {
        assert!(rules.contains(&format!("\"{name}\"")), "deny.toml does not have {name}");
    }
}
