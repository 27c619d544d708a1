//! Tokenizers of models, read from `tokenizer.json` files, for exact numbers of tokens.
//!
//! The proxy weighs the items of a route by their tokens if the policy names a file
//! (`routes[].tokenizer`), so that a batch holds as much work as the model server accepts.
//! [`TokenizerFiles::load`] returns a [`TokenCounter`](groupage_protocol::TokenCounter), and reads
//! a file once for all routes and reloads that name it. A [`TokenizerError`] names the route, the
//! file, the reason and a remedy.
//!
//! A package of its own, because the crate `tokenizers` is large: without the feature of that name,
//! every file is refused with a message. A file is limited in size, and padding and truncation in
//! it are ignored, since servers use other lengths.
//!
//! Only tokens are counted. Tokenising for the engine (`engine::tokenize`), estimates without a
//! file and the search for the texts of a call (`protocol`) are left out.

mod file;
#[cfg(feature = "tokenizers")]
mod hugging_face;

pub use file::{TokenizerError, TokenizerFiles};
