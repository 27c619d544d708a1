//! The tokenizers that routes name, shared by all ports and reloads of the process.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use groupage_tokenizer::TokenizerFiles;

use crate::protocol::TokenCounter;

/// The files in use. A reload builds the routes of each port anew, and reads no file again.
static FILES: LazyLock<TokenizerFiles> = LazyLock::new(TokenizerFiles::default);

/// Returns the tokenizer of a route.
pub(super) fn load(route: &str, path: &Path) -> Result<Arc<dyn TokenCounter>, String> {
    FILES.load(route, path).map_err(|error| error.to_string())
}
