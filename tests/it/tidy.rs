//! Rules for the source tree that the compiler does not check: reads of the clock, documentation,
//! dependencies, import cycles, patches of planted faults.
//!
//! A rule is a test here if its violation would not show otherwise.
//! `UPDATE=1 cargo test --test it tidy` rewrites the generated parts of the pages. The tests need
//! the tree and cargo, but no network.

mod case_names;
mod cycles;
mod docs;
mod faults;
mod language;
mod lex;
mod manifests;
mod module_tree;
mod packages;
mod supply;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lex::Token;

/// Maximum number of lines of code in a file, tests excluded.
const LINES_MAX: usize = 700;
/// Number of lines above which a file is listed for review.
const LINES_LOOK: usize = 400;

/// A Rust source file.
#[derive(Debug, Clone)]
struct Source {
    /// Path from the root of the tree, with slashes.
    path: String,
    text: String,
}

// === impl Source ===

impl Source {
    fn tokens(&self) -> Vec<Token<'_>> {
        lex::lex(&self.text)
    }

    /// Returns the tokens before the tests.
    fn code(&self) -> Vec<Token<'_>> {
        lex::lex(self.without_tests())
    }

    /// Returns the names of the package, of the module's parents, and its own: `["proxy",
    /// "merge"]`.
    fn names(&self) -> Vec<&str> {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inside.strip_suffix(".rs").unwrap_or(inside).split('/').collect()
    }

    fn package(&self) -> &str {
        self.names()[0]
    }

    fn module_path(&self) -> String {
        self.names().join("::")
    }

    fn is_test(&self) -> bool {
        self.names().iter().skip(1).any(|name| *name == "tests")
    }

    /// Returns the text before the tests at the end of the file.
    fn without_tests(&self) -> &str {
        if self.is_test() { "" } else { self.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default() }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns every file of the tree except those that git ignores, from the root, sorted.
fn files() -> Vec<String> {
    let ignored = read(".gitignore");
    let ignored: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('/')).collect();
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if path == ".git" || ignored.contains(&path.as_str()) || path.ends_with("__pycache__") {
                continue;
            }
            if root().join(&path).is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Returns the Rust files below a folder.
fn sources(folder: &str) -> Vec<Source> {
    let wanted = |path: &String| Path::new(path).starts_with(folder) && path.ends_with(".rs");
    let sources: Vec<_> = files().into_iter().filter(wanted).map(|path| Source { text: read(&path), path }).collect();
    assert!(!sources.is_empty(), "no sources in {folder}");
    sources
}

/// Returns `cargo metadata` for this platform. A build has already downloaded its packages.
fn metadata() -> &'static serde_json::Value {
    static METADATA: OnceLock<serde_json::Value> = OnceLock::new();
    METADATA.get_or_init(|| {
        let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
        let platform = format!("{}-unknown-linux-{libc}", std::env::consts::ARCH);
        let out = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", &platform])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    })
}

/// Compares the text between `<!-- NAME -->` and `<!-- end -->` with the expected text; `UPDATE=1`
/// writes it.
fn golden_section(path: &str, name: &str, found: &str) {
    // Tests that run in parallel write sections of the same page.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let page = read(path);
    let open = format!("<!-- {name} -->\n");
    let (before, rest) = page.split_once(&open).unwrap_or_else(|| panic!("{path} has no {open:?}"));
    let (was, after) = rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{path}: {name} does not end"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(root().join(path), format!("{before}{open}{found}<!-- end -->{after}")).unwrap();
        return;
    }
    assert_eq!(was, found, "{path}, {name} is out of date: run with UPDATE=1");
}

/// Compares a whole file with the expected text; `UPDATE=1` writes it.
fn golden_file(path: &str, found: &str) {
    if std::env::var_os("UPDATE").is_some() {
        let file = root().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, found).unwrap();
        return;
    }
    assert!(read(path) == found, "{path} is out of date: run with UPDATE=1");
}

/// Returns the lines of the code on which a path such as `Instant::now` occurs.
fn find_path(source: &Source, path: &[&str]) -> Vec<usize> {
    let pattern: Vec<&str> = path.iter().flat_map(|word| ["::", word]).skip(1).collect();
    let tokens = source.tokens();
    let matches = |window: &&[Token<'_>]| window.iter().zip(&pattern).all(|(token, word)| token.is(word));
    tokens.windows(pattern.len()).filter(matches).map(|window| window[0].line).collect()
}

/// Fails for every occurrence of one of `paths` outside the files in `may`.
fn assert_only_in(paths: &[&[&str]], may: &[&str], rule: &str) {
    for source in sources("src") {
        for path in paths.iter().filter(|_| !may.contains(&source.path.as_str())) {
            let lines = find_path(&source, path);
            assert!(lines.is_empty(), "{}:{lines:?}: {}: {rule}", source.path, path.join("::"));
        }
    }
}

#[test]
fn only_the_clock_module_reads_the_time() {
    let reads: [&[&str]; 4] =
        [&["Instant", "now"], &["SystemTime", "now"], &["UNIX_EPOCH", "elapsed"], &["Timespec", "now"]];
    let may = [
        "src/runtime/clock.rs",
        "src/testkit/time.rs",
        // They measure a GPU.
        "src/engine/examples/gpu_check/main.rs",
        "src/engine/examples/gpu_check/throughput.rs",
    ];
    assert_only_in(&reads, &may, "time is an argument");
    assert_only_in(&[&["clock_gettime"]], &["src/runtime/clock.rs", "src/testkit/time.rs"], "time is an argument");
}

#[test]
fn only_the_configuration_reads_the_environment() {
    let reads: [&[&str]; 9] = [
        &["env", "var"],
        &["env", "vars"],
        &["env", "var_os"],
        &["env", "vars_os"],
        &["env", "set_var"],
        &["env", "remove_var"],
        &["EnvFilter", "from_default_env"],
        &["EnvFilter", "try_from_default_env"],
        &["EnvFilter", "from_env"],
    ];
    let may = [
        "src/policy/config/env.rs",
        "src/policy/config/controller.rs",
        // Golden files are rewritten on request.
        "src/policy/config/tests.rs",
        // The number of cases.
        "src/protocol/tests/key_pairs.rs",
        // The folder of downloaded models.
        "src/engine/tests/minilm.rs",
        // Whether a skipped test fails, as it does in CI.
        "src/ptx/tests/kernels/reproducible.rs",
    ];
    assert_only_in(&reads, &may, "only `config` reads the environment");
}

/// Modules of the core that compute estimates with floating-point numbers. Only integers leave
/// these files. They only add, multiply, divide and take square roots, which IEEE 754 rounds
/// identically on every machine; `math` builds the logarithm and the exponential from these
/// operations.
const ESTIMATES: [&str; 10] =
    ["adaptive/", "arrivals", "cost", "limiter", "math", "plan", "rng", "shadow/closed", "shadow/light", "slots"];

#[test]
fn the_core_has_no_random_order_no_clock_and_floats_only_in_estimators() {
    let banned = ["HashMap", "HashSet", "Instant", "SystemTime", "f32", "async", "await", "std_rand", "tracing", "log"];
    // Functions of the platform's mathematics library.
    let libm = [
        "ln", "log2", "log10", "ln_1p", "exp", "exp2", "exp_m1", "powf", "powi", "cbrt", "hypot", "sin", "cos", "tan",
        "tanh", "mul_add",
    ];
    for source in sources("src").iter().filter(|source| source.package() == "batching") {
        let estimates = ESTIMATES.iter().any(|name| source.path.starts_with(&format!("src/batching/{name}")));
        let tokens = source.tokens();
        for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind == lex::TokenKind::Word) {
            let method = at > 0 && tokens[at - 1].is(".");
            let found = banned.contains(&token.text)
                || token.text == "f64" && !estimates
                || method && libm.contains(&token.text) && !source.is_test() && source.path != "src/batching/math.rs";
            assert!(!found, "{}:{}: `{}` in the core: a replay would differ", source.path, token.line, token.text);
        }
    }
}

#[test]
fn every_module_is_a_file_and_opens_with_a_doc_comment() {
    for path in files() {
        assert!(!path.ends_with("/mod.rs"), "{path}: a module `foo` is `foo.rs` with `foo/` beside it");
    }
    let tests = [sources("tests"), sources("e2e")].concat();
    for source in sources("src").iter().chain(&tests).filter(|source| !source.is_test()) {
        let first: String = source
            .text
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .take_while(|line| !line.trim().is_empty())
            .collect();
        assert!(first.trim().len() >= 15, "{} has no doc comment", source.path);
        let ends = ['.', ':', ';'];
        assert!(
            first.trim_end().ends_with(ends),
            "{}: the first line of its doc comment is not a sentence",
            source.path
        );
    }
}

#[test]
fn no_file_is_too_long() {
    let mut long: Vec<(usize, String)> = sources("src")
        .iter()
        .chain(&sources("tests"))
        .chain(&sources("e2e"))
        .map(|source| (source.without_tests().lines().count(), source.path.clone()))
        .filter(|(lines, _)| *lines > LINES_LOOK)
        .collect();
    long.sort_unstable_by(|a, b| b.cmp(a));
    for (lines, path) in &long {
        println!("{lines:>5} {path}: more than {LINES_LOOK} lines: consider a split");
    }
    assert!(long.iter().all(|(lines, _)| *lines <= LINES_MAX), "more than {LINES_MAX} lines: {long:?}");
}

#[test]
fn no_file_contains_a_path_of_the_build_machine() {
    // Split in two, so that this file does not contain the names either.
    let names = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"], ["shared/", "design"]]
        .map(|parts| parts.concat());
    for path in files() {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            let found = names.iter().find(|name| line.contains(name.as_str()));
            assert!(found.is_none(), "{path}:{}: {found:?}", index + 1);
        }
    }
}

#[test]
fn exceptions_to_lints_are_expected_with_a_reason() {
    for source in [sources("src"), sources("tests"), sources("e2e")].iter().flatten() {
        let tokens = source.tokens();
        for window in tokens.windows(3) {
            let is_allow = window[0].is("[") && window[1].is("allow") && window[2].is("(");
            assert!(
                !is_allow,
                "{}:{}: use #[expect(lint, reason = \"…\")], which warns when it is no longer needed",
                source.path, window[0].line
            );
        }
    }
    assert!(
        files().contains(&"Cargo.lock".to_owned()) && !read(".gitignore").contains("Cargo.lock"),
        "Cargo.lock is committed"
    );
}
