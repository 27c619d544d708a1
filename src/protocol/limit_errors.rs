//! Detection of "batch too large" and "out of memory" errors of the upstream, and of the limit that
//! they name.
//!
//! Some servers echo the client's input in their errors, so a phrase is accepted only in a message:
//! in a member with a name that denotes one, or in a short body that is not JSON. A limit still has
//! to be compared with the batch that was sent: one that is not below the number of its items does
//! not explain the error.

use http::StatusCode;

use crate::call::BatchTooLarge;
use crate::json::{self, Elements, JsonRules, JsonType, Members, Span, kind, unescape};
use crate::route::Endpoint;

/// An error phrase of a server in lower case: `text`, then the limit within a few words, then `end`
/// directly after it.
struct ErrorPhrase {
    text: &'static str,
    end: &'static str,
    named: bool,
}

const fn phrase(text: &'static str, end: &'static str) -> ErrorPhrase {
    ErrorPhrase { text, end, named: true }
}

const PHRASES: [ErrorPhrase; 9] = [
    // TEI and TGI.
    phrase("maximum allowed batch size", ""),
    // pydantic: infinity and FastAPI.
    phrase("list should have at most ", " item"),
    // Triton.
    phrase("batch-size must be <= ", ""),
    // OpenAI.
    phrase("expected an array with maximum length ", ""),
    // Cohere.
    phrase("number of texts must be at most ", ""),
    // Older versions of Cohere.
    phrase("total number of texts must be less than ", ""),
    // Voyage.
    phrase("batch size limit is ", ""),
    // vLLM. The first number is the length that was sent.
    ErrorPhrase { text: "prompt list length ", end: "", named: false },
    // OpenAI. The limit is a number of tokens rather than of items.
    ErrorPhrase { text: "tokens per request", end: "", named: false },
];

/// Phrases, in lower case, of servers with too little device memory for a batch.
const OUT_OF_MEMORY: [&[u8]; 4] = [
    // PyTorch, XLA, TensorRT, and TEI with candle.
    b"out of memory",
    // The name of the error in the CUDA driver.
    b"out_of_memory",
    // Exceptions identified by their class.
    b"outofmemory",
    // TensorFlow and JAX.
    b"resource_exhausted",
];

/// Names of members that contain a message.
const MESSAGES: [&[u8]; 6] = [b"message", b"msg", b"error", b"detail", b"error_message", b"title"];
/// Maximum length of a body that is not JSON but is still read as a message.
const TEXT_MAX: usize = 4096;
/// Maximum distance in bytes between a phrase and its number.
const DISTANCE_MAX: usize = 24;
/// Largest number accepted as a limit. No server advertises a larger one.
const LIMIT_MAX: u32 = 1_000_000;

// === impl Endpoint ===

impl Endpoint {
    /// Returns `Some` if the upstream's response to a shared call means that the batch was too
    /// large.
    #[must_use]
    pub fn detect_too_large(&self, status: StatusCode, body: &[u8]) -> Option<BatchTooLarge> {
        let declared = self.too_large.iter().any(|sign| {
            let holds = |text: &String| memchr::memmem::find(body, text.as_bytes()).is_some();
            sign.status == status.as_u16() && sign.body_contains.as_ref().is_none_or(holds)
        });
        // Messages are read only for the statuses with which servers reject a request, or those
        // that the route declares.
        let reads_message = matches!(status.as_u16(), 400 | 413 | 422) || declared;
        let parsed = if reads_message { messages(body).iter().find_map(|message| parse_limit(message)) } else { None };
        match parsed {
            Some(limit) => Some(BatchTooLarge { limit: limit.map(|limit| self.item_limit(limit)) }),
            None if declared || status == StatusCode::PAYLOAD_TOO_LARGE => Some(BatchTooLarge { limit: None }),
            None => None,
        }
    }

    /// Returns the number of items within a limit of the server, which counts a text beside them
    /// too.
    pub(crate) fn item_limit(&self, limit: u32) -> u32 {
        let is_counted = self.shape.shared_text.as_ref().is_some_and(|text| !text.with_each);
        if is_counted { limit.saturating_sub(1).max(1) } else { limit }
    }

    /// Returns `true` if the upstream's response to a shared call means that its memory was too
    /// small for the batch.
    #[must_use]
    pub fn is_out_of_memory(&self, status: StatusCode, body: &[u8]) -> bool {
        // TEI uses 424 for an error of its backend.
        let failed = matches!(status.as_u16(), 424 | 500 | 503 | 507);
        let mentions_out_of_memory =
            |message: &Vec<u8>| OUT_OF_MEMORY.iter().any(|text| memchr::memmem::find(message, text).is_some());
        failed && messages(body).iter().any(mentions_out_of_memory)
    }
}

/// Returns the messages of an error body in lower case.
fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    if json::validate(body, JsonRules { lenient: true, strict: false, nesting_max: 16 }).is_ok() {
        collect(body, json::root(body), true, &mut out);
    } else if body.len() <= TEXT_MAX {
        out.push(body.to_ascii_lowercase());
    }
    out
}

fn collect(doc: &[u8], value: Span, is_message: bool, out: &mut Vec<Vec<u8>>) {
    match kind(doc, value.start) {
        JsonType::Object => {
            for member in Members::new(doc, value) {
                let named = MESSAGES.contains(&unescape(member.key.inner_bytes(doc)).as_ref());
                // `error` and `detail` may contain the message one level below.
                if named {
                    collect(doc, member.value, true, out);
                }
            }
        }
        JsonType::Array if is_message => {
            for element in Elements::new(doc, value) {
                collect(doc, element, true, out);
            }
        }
        JsonType::String if is_message => out.push(unescape(value.inner_bytes(doc)).to_ascii_lowercase()),
        JsonType::Array | JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => {}
    }
}

/// Returns `Some` if a message means that a batch was too large, with the limit if the message
/// names one.
fn parse_limit(message: &[u8]) -> Option<Option<u32>> {
    for phrase in &PHRASES {
        let Some(hit) = memchr::memmem::find(message, phrase.text.as_bytes()) else { continue };
        let behind = message.get(hit + phrase.text.len()..).unwrap_or_default();
        if !phrase.named {
            return Some(limit_after_exceeds(behind));
        }
        let start = behind.iter().take(DISTANCE_MAX).position(u8::is_ascii_digit);
        let Some(number) = start.and_then(|start| behind.get(start..)) else { continue };
        let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if number.get(digits..).is_some_and(|rest| rest.starts_with(phrase.end.as_bytes())) {
            return Some(limit(number.get(..digits).unwrap_or_default()));
        }
    }
    None
}

/// Returns the number after "exceeds", for phrases that name the size of the request first.
fn limit_after_exceeds(behind: &[u8]) -> Option<u32> {
    let hit = memchr::memmem::find(behind, b"exceeds")?;
    let rest = behind.get(hit..)?;
    let start = rest.iter().position(u8::is_ascii_digit)?;
    let digits: Vec<u8> = rest.get(start..)?.iter().copied().take_while(u8::is_ascii_digit).collect();
    limit(&digits)
}

fn limit(digits: &[u8]) -> Option<u32> {
    let number: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (1..=LIMIT_MAX).contains(&number).then_some(number)
}
