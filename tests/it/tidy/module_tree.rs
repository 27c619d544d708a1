//! Module tree of a crate, and the imports between its files.
//!
//! An import leads from a file to the file that defines an item: by a `use` declaration, or by a
//! path that starts with `crate`, `self`, `super`, a child module or an imported name. A path
//! through a re-export leads to the definition. Imports of a module's own descendants are left out,
//! since such a module is their facade, and so are test modules.

use std::collections::BTreeMap;

use super::lex::{Token, TokenKind, lex};

/// Maximum number of re-exports between a path and the definition.
const REEXPORTS_MAX: usize = 8;

/// A module as its names from the root of the crate, or the words of a path.
type Names<'a> = Vec<&'a str>;
/// A path that makes each import, by the files that it leads from and to.
pub(super) type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, String>>;

/// The modules of a crate, their imports and the paths in their code.
pub(super) struct ModuleTree<'a> {
    /// Texts of the files.
    texts: &'a BTreeMap<String, String>,
    /// The module that a file contains as a whole, by each module in the file.
    owners: BTreeMap<Names<'a>, Names<'a>>,
    /// Files by owner.
    files: BTreeMap<Names<'a>, String>,
    /// Imported paths by the module and the name in it.
    imports: BTreeMap<(Names<'a>, &'a str), Names<'a>>,
    /// Paths, each after the module that it occurs in.
    paths: Vec<(Names<'a>, Names<'a>)>,
}

/// The place of a module in the crate and among the files.
struct Scope<'a> {
    module: Names<'a>,
    owner: Names<'a>,
    /// Folder that the `#[path]` of a child is relative to.
    beside: String,
    /// Folder of the files of the other children.
    below: String,
}

// === impl ModuleTree ===

impl<'a> ModuleTree<'a> {
    pub(super) fn new(root: &str, texts: &'a BTreeMap<String, String>) -> Self {
        let (owners, files, imports) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut tree = Self { texts, owners, files, imports, paths: Vec::new() };
        tree.read_file(Vec::new(), root, folder(root));
        tree
    }

    fn read_file(&mut self, module: Names<'a>, file: &str, below: &str) {
        let texts = self.texts;
        let text = texts.get(file).unwrap_or_else(|| panic!("{file} is declared as a module and does not exist"));
        self.files.insert(module.clone(), file.to_owned());
        let (beside, below) = (folder(file).to_owned(), below.to_owned());
        self.read(&Scope { owner: module.clone(), module, beside, below }, &lex(text));
    }

    fn read(&mut self, scope: &Scope<'a>, tokens: &[Token<'a>]) {
        self.owners.insert(scope.module.clone(), scope.owner.clone());
        let (mut at, mut depth, mut file) = (0_usize, 0, None);
        while let Some(token) = tokens.get(at) {
            depth += i32::from(token.is("{")) - i32::from(token.is("}"));
            let rest = &tokens[at..];
            at += match rest {
                [open, word, equals, text, ..] if open.is("[") && word.is("path") && equals.is("=") => {
                    file = Some(text.text);
                    4
                }
                [word, name, end, ..] if word.is("mod") && (end.is(";") || end.is("{")) => {
                    let body = end.is("{").then(|| block(&rest[3..]));
                    self.declare(scope, name.text, file.take(), body);
                    3 + body.map_or(0, |body| body.len() + 1)
                }
                // Not the `use<'a>` of a bound.
                [word, next, ..] if word.is("use") && !next.is("<") => 1 + self.import(scope, &rest[1..], depth == 0),
                [word, colons, ..] if word.kind == TokenKind::Word && colons.is("::") => {
                    let path = words(rest);
                    let len = 2 * path.len() - 1;
                    let before = at.checked_sub(1).map(|before| tokens[before]);
                    if !before.is_some_and(|before| before.is("::") || before.is(".")) {
                        self.paths.push((scope.module.clone(), path));
                    }
                    len
                }
                _ => 1,
            };
        }
    }

    /// Reads a child module: from these tokens, or from its file.
    fn declare(&mut self, scope: &Scope<'a>, name: &'a str, file: Option<&str>, body: Option<&[Token<'a>]>) {
        if name == "tests" {
            return;
        }
        let module = [&scope.module[..], &[name]].concat();
        let place = file.map_or_else(|| join(&scope.below, name), |file| join(&scope.beside, file));
        match (body, file) {
            (Some(body), _) => {
                let owner = scope.owner.clone();
                self.read(&Scope { module, owner, beside: place.clone(), below: place }, body);
            }
            (None, Some(_)) => self.read_file(module, &place, folder(&place)),
            (None, None) => self.read_file(module, &format!("{place}.rs"), &place),
        }
    }

    /// Reads a `use` declaration and returns the number of its tokens. A declaration inside a
    /// function imports no name into the module.
    fn import(&mut self, scope: &Scope<'a>, tokens: &[Token<'a>], is_item: bool) -> usize {
        let mut found = Vec::new();
        let len = use_tree(tokens, &[], &mut found);
        for (name, path) in found {
            if is_item && name != "*" {
                self.imports.insert((scope.module.clone(), name), path.clone());
            }
            self.paths.push((scope.module.clone(), path));
        }
        len
    }

    /// Returns the path from the root of the crate, or `None` if its first word is none of a
    /// module.
    fn rooted(&self, module: &[&'a str], path: &[&'a str]) -> Option<Names<'a>> {
        let ups = path.iter().take_while(|word| **word == "super").count();
        match *path.first()? {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(ups)?], &path[ups..]].concat()),
            child => {
                let child = [module, &[child]].concat();
                self.owners.contains_key(&child).then(|| [module, path].concat())
            }
        }
    }

    /// Returns the path from the root of the crate, or `None` if it leads to another crate.
    fn absolute(&self, module: &[&'a str], path: &[&'a str]) -> Option<Names<'a>> {
        self.rooted(module, path).or_else(|| {
            let import = self.imports.get(&(module.to_vec(), *path.first()?))?;
            Some([&self.rooted(module, import)?[..], &path[1..]].concat())
        })
    }

    /// Returns the module that defines the item at a path in its file.
    fn definition(&self, module: &[&'a str], path: &[&'a str]) -> Option<&Names<'a>> {
        let mut path = self.absolute(module, path)?;
        for _ in 0..REEXPORTS_MAX {
            let len = (0..=path.len()).rev().find(|len| self.owners.contains_key(&path[..*len]))?;
            let (module, rest) = path.split_at(len);
            let import = rest.first().and_then(|name| self.imports.get(&(module.to_vec(), *name)));
            let Some(next) = import.and_then(|import| self.absolute(module, import)) else {
                return self.owners.get(module);
            };
            path = [&next[..], &rest[1..]].concat();
        }
        None
    }

    /// Returns the imports of the crate.
    pub(super) fn edges(&self) -> Edges<'_> {
        let mut edges: Edges<'_> = BTreeMap::new();
        for (module, path) in &self.paths {
            let from = &self.owners[module];
            let Some(to) = self.definition(module, path).filter(|to| !to.starts_with(from)) else { continue };
            let (from, to) = (self.files[from].as_str(), self.files[to].as_str());
            edges.entry(from).or_default().entry(to).or_insert_with(|| path.join("::"));
        }
        edges
    }
}

/// Returns the words of the path that the tokens start with.
fn words<'a>(tokens: &[Token<'a>]) -> Names<'a> {
    let pairs = tokens[1..].chunks_exact(2).take_while(|pair| pair[0].is("::") && pair[1].kind == TokenKind::Word);
    std::iter::once(tokens[0].text).chain(pairs.map(|pair| pair[1].text)).collect()
}

/// Returns the tokens before the brace that closes the block.
fn block<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut depth = 1;
    let end = tokens.iter().position(|token| {
        depth += i32::from(token.is("{")) - i32::from(token.is("}"));
        depth == 0
    });
    &tokens[..end.unwrap_or(tokens.len())]
}

/// Collects the paths of a `use` declaration, each after the name that it imports, and returns the
/// number of tokens.
fn use_tree<'a>(tokens: &[Token<'a>], prefix: &[&'a str], found: &mut Vec<(&'a str, Names<'a>)>) -> usize {
    let (mut path, mut alias, mut at) = (prefix.to_vec(), None, 0);
    while !tokens[at].is(",") && !tokens[at].is("}") && !tokens[at].is(";") {
        if tokens[at].is("{") {
            at += 1;
            while !tokens[at].is("}") {
                at += use_tree(&tokens[at..], &path, found);
                at += usize::from(tokens[at].is(","));
            }
            return at + 1;
        }
        if tokens[at].is("as") {
            at += 1;
            alias = Some(tokens[at].text);
        } else if !tokens[at].is("::") {
            path.push(tokens[at].text);
        }
        at += 1;
    }
    if path.len() > 1 && path.ends_with(&["self"]) {
        path.pop();
    }
    found.extend(alias.or(path.last().copied()).map(|name| (name, path)));
    at
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns a path that is relative to a folder, from the root of the tree.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}
