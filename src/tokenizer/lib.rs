//! Tokenizers of models, read from `tokenizer.json` files, for exact numbers of tokens.
//!
//! [`TokenizerFiles::load`] reads a file once for all routes and reloads that name it. Without the
//! feature `tokenizers`, it refuses every file with a message.

mod file;
#[cfg(feature = "tokenizers")]
mod hugging_face;

pub use file::{TokenizerError, TokenizerFiles};
