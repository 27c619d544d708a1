//! Loading of `tokenizer.json` files. All routes that name a file share its tokenizer, and the file
//! is read again only if it changed, or if no route used its tokenizer in the meantime.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use groupage_protocol::TokenCounter;

/// Maximum size of a file. The largest published ones have 33 MiB (Gemma 3, with a vocabulary of
/// 256 000 tokens and their merge rules).
const BYTES_MAX: u64 = 64 << 20;

/// Error of a file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`routes[].tokenizer` of route {route}: {path} cannot be used: {reason}: {advice}")]
pub struct TokenizerError {
    /// Path of the route.
    pub route: String,
    /// Path of the file.
    pub path: String,
    /// Reason why the file cannot be used.
    pub reason: String,
    /// Advice for the user.
    pub advice: &'static str,
}

/// A cache of the tokenizers in use, by file. A file that did not change is not read again, because
/// a large one takes long to read, and several times its size in memory.
#[derive(Debug, Default)]
pub struct TokenizerFiles {
    /// One entry for each file. Those that are out of use are removed at the next load.
    loaded: Mutex<Vec<LoadedFile>>,
}

/// A file that was read. The cache does not keep its tokenizer alive.
#[derive(Debug)]
struct LoadedFile {
    path: PathBuf,
    stamp: FileStamp,
    tokenizer: Weak<dyn TokenCounter>,
}

/// Length and modification time of a file, which are compared to detect a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

// === impl TokenizerFiles ===

impl TokenizerFiles {
    /// Returns the tokenizer of a file. `route` is the path of the route that names it.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is not a tokenizer in the format of Hugging Face.
    pub fn load(&self, route: &str, path: &Path) -> Result<Arc<dyn TokenCounter>, TokenizerError> {
        let error = |reason: &dyn ToString, advice| TokenizerError {
            route: route.to_owned(),
            path: path.display().to_string(),
            reason: reason.to_string(),
            advice,
        };
        let readable_advice = "name a `tokenizer.json` that the proxy can read, or leave the key out";
        let file = File::open(path).map_err(|broken| error(&broken, readable_advice))?;
        let stamp = file
            .metadata()
            .map(|metadata| FileStamp::of(&metadata))
            .map_err(|broken| error(&broken, readable_advice))?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|entry| entry.tokenizer.strong_count() > 0);
        let current = loaded.iter().find(|entry| entry.path == path && entry.stamp == stamp);
        if let Some(tokenizer) = current.and_then(|entry| entry.tokenizer.upgrade()) {
            return Ok(tokenizer);
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|broken| error(&broken, readable_advice))?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(error(&"it is larger than 64 MiB", "use the `tokenizer.json` of the model"));
        }
        let tokenizer = parse(&bytes).map_err(|(reason, advice)| error(&reason, advice))?;
        loaded.push(LoadedFile { path: path.to_owned(), stamp, tokenizer: Arc::downgrade(&tokenizer) });
        Ok(tokenizer)
    }
}

#[cfg(feature = "tokenizers")]
fn parse(bytes: &[u8]) -> Result<Arc<dyn TokenCounter>, (String, &'static str)> {
    let tokenizer = super::hugging_face::FileTokenizer::parse(bytes)
        .map_err(|reason| (reason, "use the `tokenizer.json` of the model, in the format of Hugging Face"))?;
    Ok(Arc::new(tokenizer))
}

#[cfg(not(feature = "tokenizers"))]
fn parse(_bytes: &[u8]) -> Result<Arc<dyn TokenCounter>, (String, &'static str)> {
    Err((
        "this binary is built without tokenizers".to_owned(),
        "build it with `--features tokenizer`, or leave the key out: tokens are then estimated from `usage`",
    ))
}

// === impl FileStamp ===

impl FileStamp {
    fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_its_key_and_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (files, absent) = (TokenizerFiles::default(), folder.path().join("absent.json"));
        let error = files.load("/v1/embeddings", &absent).unwrap_err().to_string();
        for part in ["`routes[].tokenizer`", "/v1/embeddings", "absent.json", "No such file", "leave the key out"] {
            assert!(error.contains(part), "{error}");
        }
        let wrong = folder.path().join("wrong.json");
        std::fs::write(&wrong, "{}").unwrap();
        assert!(files.load("/a", &wrong).is_err());
        let large = folder.path().join("large.json");
        File::create(&large).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert!(files.load("/a", &large).unwrap_err().reason.contains("64 MiB"));
    }

    #[cfg(not(feature = "tokenizers"))]
    #[test]
    fn without_the_feature_the_message_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = TokenizerFiles::default().load("/a", file.path()).unwrap_err();
        assert!(error.advice.contains("--features tokenizer"), "{error}");
    }

    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_file_is_read_once_until_it_changes() {
        const FILE: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}"#;
        let (files, file) = (TokenizerFiles::default(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(file.path(), FILE).unwrap();
        let first = files.load("/a", file.path()).unwrap();
        assert!(Arc::ptr_eq(&first, &files.load("/b", file.path()).unwrap()));
        std::fs::write(file.path(), format!("{FILE} ")).unwrap();
        let second = files.load("/a", file.path()).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(second.count("two words"), Some(2));
        drop((first, second));
        files.load("/a", file.path()).unwrap();
        assert_eq!(files.loaded.lock().unwrap().len(), 1, "entries of files out of use are removed");
    }
}
