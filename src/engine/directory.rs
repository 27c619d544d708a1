//! Files of a model directory, read with a bound on their size.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::LoadError;
use crate::json::JsonFile;

/// Maximum size of a JSON file other than the two below. The largest field of a published
/// `config.json` is `id2label`, with about 30 bytes for each of at most 100 000 labels.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Maximum size of `tokenizer.json`: the largest published ones, of 256 000 tokens with their
/// merges, have 33 MiB (Gemma 3).
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// Beginning of the file that a clone without Git LFS has in the place of a large one
/// (<https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>).
pub(crate) const LFS_POINTER: &[u8; 23] = b"version https://git-lfs";
/// Such a file, as errors name it.
pub(crate) const LFS_FOUND: &str = "a pointer of Git LFS in the place of the file";
/// The remedy for it.
pub(crate) const LFS_ADVICE: &str =
    "run `git lfs pull` in the clone, or download the directory with `hf download` of Hugging Face";

const READABLE: &str = "name the directory of a model in the format of Hugging Face that this process can read";
/// The remedy for a directory that does not exist, which may be an id of Hugging Face.
const DOWNLOAD: &str =
    "models are not downloaded: run `hf download OWNER/NAME --local-dir DIR`, and name that directory";

/// A directory with the files of a model.
#[derive(Debug, Clone)]
pub(crate) struct ModelDirectory {
    root: PathBuf,
}

// === impl ModelDirectory ===

impl ModelDirectory {
    /// Opens a directory.
    ///
    /// # Errors
    /// The path is no directory, or cannot be read.
    pub(crate) fn open(root: &Path) -> Result<Self, LoadError> {
        let (found, advice) = match std::fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => return Ok(Self { root: root.to_owned() }),
            Ok(_) => ("a file".to_owned(), READABLE),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (error.to_string(), DOWNLOAD),
            Err(error) => (error.to_string(), READABLE),
        };
        Err(LoadError {
            file: root.display().to_string(),
            place: "the directory of the model".to_owned(),
            found,
            expected: "a directory with `config.json`".to_owned(),
            advice,
        })
    }

    /// Returns the directory of a module of sentence-transformers, by its `path` in `modules.json`.
    /// `None` if the path leads out of this directory.
    pub(crate) fn child(&self, path: &str) -> Option<Self> {
        let is_plain =
            |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\\', '\0']);
        match path {
            "" | "." => Some(self.clone()),
            _ if is_plain(path) => Some(Self { root: self.root.join(path) }),
            _ => None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    /// Returns a name of the model: its id for a directory in the cache of Hugging Face, and the
    /// last component of the path for others. A path such as `.` has no such component, and its
    /// absolute path is used.
    pub(crate) fn name(&self) -> String {
        let absolute = || self.root.canonicalize().ok().as_deref().and_then(path_name);
        path_name(&self.root).or_else(absolute).unwrap_or_default()
    }

    /// Reads a file of at most `bytes_max` bytes. `None` if it does not exist.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, LoadError> {
        let error = |found: String, expected: String, advice| LoadError {
            file: self.path(name).display().to_string(),
            place: "the file".to_owned(),
            found,
            expected,
            advice,
        };
        let file = match open_file(&self.path(name)) {
            Ok(file) => file,
            Err(broken) if broken.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(broken) => return Err(error(broken.to_string(), "a readable file".to_owned(), READABLE)),
        };
        let mut bytes = Vec::new();
        file.take(bytes_max + 1)
            .read_to_end(&mut bytes)
            .map_err(|broken| error(broken.to_string(), "a readable file".to_owned(), READABLE))?;
        if bytes.len() as u64 > bytes_max {
            let advice = "use the file that was published with the model";
            return Err(error(format!("more than {bytes_max} bytes"), format!("at most {bytes_max} bytes"), advice));
        }
        if bytes.starts_with(LFS_POINTER) {
            return Err(error(LFS_FOUND.to_owned(), "the file itself".to_owned(), LFS_ADVICE));
        }
        Ok(Some(bytes))
    }

    /// Reads a file as [`Self::read`] does; its absence is an error.
    pub(crate) fn read_required(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, LoadError> {
        self.read(name, bytes_max)?.ok_or_else(|| LoadError {
            file: self.path(name).display().to_string(),
            place: "the file".to_owned(),
            found: "no such file".to_owned(),
            expected: "the file of a model in the format of Hugging Face".to_owned(),
            advice: "download the whole directory of the model",
        })
    }

    /// Reads a JSON object or array. `None` if the file does not exist.
    pub(crate) fn json(&self, name: &str) -> Result<Option<JsonFile>, LoadError> {
        let bytes = self.read(name, JSON_BYTES_MAX)?;
        bytes.map(|bytes| JsonFile::parse(self.path(name).display().to_string(), &bytes)).transpose()
    }

    /// Reads a JSON file as [`Self::json`] does; its absence is an error.
    pub(crate) fn json_required(&self, name: &str) -> Result<JsonFile, LoadError> {
        let bytes = self.read_required(name, JSON_BYTES_MAX)?;
        JsonFile::parse(self.path(name).display().to_string(), &bytes)
    }
}

fn path_name(path: &Path) -> Option<String> {
    let last = || path.file_name().map(|name| name.to_string_lossy().into_owned());
    hub_id(path).or_else(last)
}

/// Returns the id of a model by its path in the cache of Hugging Face, which is
/// `models--{owner}--{name}/snapshots/{revision}`. Ids have no `--` of their own.
fn hub_id(path: &Path) -> Option<String> {
    // A path that ends with `..` names no revision.
    path.file_name()?;
    let snapshots = path.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let folder = snapshots.parent()?.file_name()?.to_str()?;
    folder.strip_prefix("models--").map(|id| id.replace("--", "/"))
}

/// Opens a regular file for reading. The opening of a FIFO would wait for its writer otherwise.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opening_of_a_fifo_does_not_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let directory = ModelDirectory::open(folder.path()).unwrap();
        let error = directory.json_required("config.json").unwrap_err();
        assert_eq!(error.found, "not a regular file");
    }

    #[test]
    fn a_relative_directory_has_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("model/1_Pooling");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(ModelDirectory::open(&inner.join("..")).unwrap().name(), "model");
        assert_eq!(ModelDirectory::open(&folder.path().join("model")).unwrap().name(), "model");
        assert_ne!(ModelDirectory::open(Path::new(".")).unwrap().name(), "");
    }

    #[test]
    fn a_directory_in_the_cache_of_hugging_face_has_the_id_of_its_model() {
        let folder = tempfile::tempdir().unwrap();
        for (path, name) in [
            ("models--BAAI--bge-small-en/snapshots/5c38ec7", "BAAI/bge-small-en"),
            ("models--gpt2/snapshots/5c38ec7/", "gpt2"),
            ("models--BAAI--bge-small-en/other/5c38ec7", "5c38ec7"),
            ("snapshots/5c38ec7", "5c38ec7"),
        ] {
            let root = folder.path().join(path);
            std::fs::create_dir_all(&root).unwrap();
            assert_eq!(ModelDirectory::open(&root).unwrap().name(), name, "{path}");
        }
    }

    #[test]
    fn a_path_out_of_the_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = ModelDirectory::open(folder.path()).unwrap();
        for path in ["..", "../other", "/etc", "a/b", "a\\b"] {
            assert!(directory.child(path).is_none(), "{path}");
        }
        assert_eq!(
            directory.child("1_Pooling").unwrap().path("config.json"),
            folder.path().join("1_Pooling/config.json")
        );
        assert_eq!(directory.child("").unwrap().path("x"), folder.path().join("x"));
    }

    #[test]
    fn a_file_above_its_bound_is_refused_before_it_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let directory = ModelDirectory::open(folder.path()).unwrap();
        File::create(folder.path().join("config.json")).unwrap().set_len(JSON_BYTES_MAX + 1).unwrap();
        let error = directory.json_required("config.json").unwrap_err();
        assert!(error.found.contains("more than 4194304 bytes"), "{error}");
        assert!(directory.read("absent", 1).unwrap().is_none());
        assert!(directory.read_required("absent", 1).unwrap_err().to_string().contains("no such file"));
    }

    #[test]
    fn an_id_in_place_of_the_directory_is_an_error_with_the_download() {
        let error = ModelDirectory::open(Path::new("owner/name")).unwrap_err().to_string();
        assert!(error.starts_with("owner/name: ") && error.contains("`hf download OWNER/NAME"), "{error}");
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_an_error_with_the_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = ModelDirectory::open(file.path()).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()) && error.contains("a file"), "{error}");
    }
}
