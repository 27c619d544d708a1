//! Runs the committed corpora through the fuzz targets, so that inputs found by a fuzzer are tested
//! in every build.

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "public for the targets of cargo-fuzz")]
mod targets;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn no_input_of_a_corpus_fails_its_target() {
    for (name, target) in targets::ALL {
        let corpus = fuzz().join("corpus").join(name);
        let files = names(&corpus);
        assert!(files.len() >= 4, "{name} has almost no corpus");
        for file in files {
            let data = std::fs::read(corpus.join(&file)).unwrap();
            // The panic message does not name the file, so the assertion adds it.
            let ended = std::panic::catch_unwind(|| target(&data));
            assert!(ended.is_ok(), "{name} fails on {file}");
        }
    }
}

#[test]
fn every_target_has_a_corpus_and_can_be_started() {
    let known: BTreeSet<String> = targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz().join("corpus")), known);
    let files: BTreeSet<String> = known.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&fuzz().join("fuzz_targets")), files);
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in &known {
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")),
            "{name} is no binary"
        );
    }
}
