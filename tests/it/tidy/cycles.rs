//! Import cycles between the files of a crate. The compiler accepts them, but such files can only
//! be read and changed together.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::module_tree::{Edges, ModuleTree};
use super::{metadata, root, sources};

/// The state of Tarjan's algorithm for strongly connected components.
struct TarjanSearch<'a> {
    edges: &'a Edges<'a>,
    /// Visited files, in order.
    numbers: BTreeMap<&'a str, usize>,
    /// Visited files whose component is not complete.
    stack: Vec<&'a str>,
    components: Vec<Vec<&'a str>>,
}

// === impl TarjanSearch ===

impl<'a> TarjanSearch<'a> {
    /// Visits everything that a file leads to, and returns the lowest number on the stack that it
    /// leads back to.
    fn visit(&mut self, file: &'a str) -> usize {
        let (number, bottom) = (self.numbers.len(), self.stack.len());
        self.numbers.insert(file, number);
        self.stack.push(file);
        let mut low = number;
        let edges = self.edges;
        for next in edges.get(file).into_iter().flat_map(BTreeMap::keys).copied() {
            match self.numbers.get(next).copied() {
                None => low = low.min(self.visit(next)),
                Some(number) if self.stack.contains(&next) => low = low.min(number),
                Some(_) => {}
            }
        }
        if low == number {
            let mut component = self.stack.split_off(bottom);
            component.sort_unstable();
            self.components.push(component);
        }
        low
    }
}

/// Returns the files of each import cycle in a crate, with a path that makes each import.
fn cycles(root: &str, texts: &BTreeMap<String, String>) -> Vec<String> {
    let tree = ModuleTree::new(root, texts);
    let edges = tree.edges();
    let mut search =
        TarjanSearch { edges: &edges, numbers: BTreeMap::new(), stack: Vec::new(), components: Vec::new() };
    for file in edges.keys().copied() {
        if !search.numbers.contains_key(file) {
            search.visit(file);
        }
    }
    let describe = |cycle: &Vec<&str>| {
        let mut text = format!("import cycle of {}\n", cycle.join(", "));
        for from in cycle {
            for (to, path) in edges[from].iter().filter(|(to, _)| cycle.contains(to)) {
                writeln!(text, "  {from} -> {to}: `{path}`").unwrap();
            }
        }
        text
    };
    search.components.iter().filter(|component| component.len() > 1).map(describe).collect()
}

/// Returns the root files of the crates of the workspace: libraries, programs, tests, benchmarks.
fn crates() -> Vec<String> {
    let packages = metadata()["packages"].as_array().unwrap().iter().filter(|package| package["source"].is_null());
    let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
    let file = |target: &Value| {
        let path = Path::new(target["src_path"].as_str().unwrap()).strip_prefix(root()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // The bench of a package that lies in `benches` has a root with `..`.
    let plain = |path: String| match path.split_once("/../../") {
        Some((_, path)) => path.to_owned(),
        None => path,
    };
    targets.map(file).map(plain).collect()
}

#[test]
fn files_import_in_one_direction() {
    let texts: BTreeMap<_, _> = sources("").into_iter().map(|source| (source.path, source.text)).collect();
    let found: Vec<_> = crates().iter().flat_map(|root| cycles(root, &texts)).collect();
    assert!(found.is_empty(), "\n{}", found.concat());
}

/// Returns the import cycles of a crate with these files.
fn cycles_of(root: &str, files: &[(&str, &str)]) -> Vec<String> {
    let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    cycles(root, &texts)
}

#[test]
fn a_cycle_is_reported_with_its_paths() {
    let files = [
        ("src/p/lib.rs", "mod a; mod b { mod c; } mod d;"),
        ("src/p/a.rs", "use std::fmt; use crate::{b::{c::{self, X}}, d as e};"),
        ("src/p/b/c.rs", "fn f() -> super::super::d::Y { }"),
        ("src/p/d.rs", "use super::a; fn f(x: Vec<u8>) { g(a::Z::new::<u8>(x.len())) } mod tests { use super::d; }"),
    ];
    let edges = [
        "import cycle of src/p/a.rs, src/p/b/c.rs, src/p/d.rs\n",
        "  src/p/a.rs -> src/p/b/c.rs: `crate::b::c`\n",
        "  src/p/a.rs -> src/p/d.rs: `crate::d`\n",
        "  src/p/b/c.rs -> src/p/d.rs: `super::super::d::Y`\n",
        "  src/p/d.rs -> src/p/a.rs: `super::a`\n",
    ];
    assert_eq!(cycles_of("src/p/lib.rs", &files), [edges.concat()]);
}

#[test]
fn a_facade_and_the_tests_of_a_module_make_no_cycle() {
    let files = [
        ("src/p/lib.rs", "mod a; pub use a::Item; pub struct Shared;"),
        ("src/p/a.rs", "mod b; mod tests; pub use self::b::Item; fn f() { b::g() } fn h() { tests::i() }"),
        ("src/p/a/b.rs", "use super::f; use crate::Shared; mod tests { use super::super::h; }"),
    ];
    assert_eq!(cycles_of("src/p/lib.rs", &files), Vec::<String>::new());
}

#[test]
fn a_path_through_a_re_export_leads_to_the_definition() {
    let facade =
        ("src/p/a.rs", "mod b; mod c; pub use self::b::{Item as Renamed}; pub use c::Other; use crate::d::Own;");
    let lib = ("src/p/lib.rs", "mod a; mod d; use a::Renamed;");
    let leaf = ("src/p/a/b.rs", "pub struct Item;");
    // `a` imports `d`, which does not import `a` but one of its children.
    let user = ("src/p/d.rs", "use crate::Renamed; fn f() { crate::a::Other::new() }");
    let without = [lib, facade, leaf, user, ("src/p/a/c.rs", "pub struct Other;")];
    assert_eq!(cycles_of("src/p/lib.rs", &without), Vec::<String>::new());
    let with = [lib, facade, leaf, user, ("src/p/a/c.rs", "use super::Own;")];
    let edges = [
        "import cycle of src/p/a/c.rs, src/p/d.rs\n",
        "  src/p/a/c.rs -> src/p/d.rs: `super::Own`\n",
        "  src/p/d.rs -> src/p/a/c.rs: `crate::a::Other::new`\n",
    ];
    assert_eq!(cycles_of("src/p/lib.rs", &with), [edges.concat()]);
}

#[test]
fn a_module_with_a_path_is_read_from_there() {
    let files = [
        (
            "tests/x/main.rs",
            "#[path = \"../y\"] mod y { mod a; #[path = \"z/b.rs\"] mod c; } #[path = \"../w/all.rs\"] mod w;",
        ),
        ("tests/y/a.rs", "use super::c::C;"),
        ("tests/y/z/b.rs", "use super::super::w::d::D; mod e;"),
        ("tests/y/z/e.rs", ""),
        ("tests/w/all.rs", "mod d;"),
        ("tests/w/d.rs", "use crate::y::a;"),
    ];
    assert_eq!(cycles_of("tests/x/main.rs", &files).len(), 1);
}
