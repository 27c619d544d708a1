//! What "batch too large" and "out of memory" look like, and which number they name.
//!
//! Some servers echo the caller's input in their errors, so a phrase counts only where a message stands: in a member that is named as one, or in a
//! short body that is not JSON. Who uses a limit must still hold it against the batch that was sent: one that is not below its items explains
//! nothing.

use http::StatusCode;

use crate::protocol::call::TooLarge;
use crate::protocol::json::{self, Elements, Kind, Members, Rules, Span, kind, unescape};
use crate::protocol::route::Endpoint;

/// A phrase of some server, in lower case: `text`, then within a few words the limit, then `end` right behind it.
struct Phrase {
    text: &'static str,
    end: &'static str,
    named: bool,
}

const fn phrase(text: &'static str, end: &'static str) -> Phrase {
    Phrase { text, end, named: true }
}

const PHRASES: [Phrase; 9] = [
    phrase("maximum allowed batch size", ""),                      // TEI, TGI
    phrase("list should have at most ", " item"),                  // pydantic: infinity, FastAPI
    phrase("batch-size must be <= ", ""),                          // Triton
    phrase("expected an array with maximum length ", ""),          // OpenAI
    phrase("number of texts must be at most ", ""),                // Cohere
    phrase("total number of texts must be less than ", ""),        // Cohere, older
    phrase("batch size limit is ", ""),                            // Voyage
    Phrase { text: "prompt list length ", end: "", named: false }, // vLLM: the first number is what was sent
    Phrase { text: "tokens per request", end: "", named: false },  // OpenAI: a limit of tokens, not of items
];

/// What servers say when a device's memory did not hold a batch, in lower case.
const OUT_OF_MEMORY: [&[u8]; 4] = [
    b"out of memory",      // PyTorch, XLA, TensorRT, TEI over candle
    b"out_of_memory",      // the CUDA driver's own name for it
    b"outofmemory",        // exceptions named by their class
    b"resource_exhausted", // TensorFlow, JAX
];

/// Names of members that hold a message.
const MESSAGES: [&[u8]; 6] = [b"message", b"msg", b"error", b"detail", b"error_message", b"title"];
/// A body that is not JSON and longer than this is not a message.
const TEXT_MAX: usize = 4096;
/// How far behind its phrase a number may stand.
const NEAR: usize = 24;
/// No server that means it names more.
const LIMIT_MAX: u32 = 1_000_000;

// === impl Endpoint ===

impl Endpoint {
    /// Whether upstream's answer to a shared call means that the batch was too large.
    #[must_use]
    pub fn too_large(&self, status: StatusCode, body: &[u8]) -> Option<TooLarge> {
        let declared = self.too_large.iter().any(|sign| {
            let holds = |text: &String| memchr::memmem::find(body, text.as_bytes()).is_some();
            sign.status == status.as_u16() && sign.body_contains.as_ref().is_none_or(holds)
        });
        let spoken = matches!(status.as_u16(), 400 | 413 | 422) || declared;
        let said = if spoken { messages(body).iter().find_map(|message| read(message)) } else { None };
        match said {
            Some(limit) => Some(TooLarge { limit }),
            None if declared || status == StatusCode::PAYLOAD_TOO_LARGE => Some(TooLarge { limit: None }),
            None => None,
        }
    }

    /// Whether upstream's answer to a shared call means that its memory did not hold the batch.
    #[must_use]
    pub fn out_of_memory(&self, status: StatusCode, body: &[u8]) -> bool {
        // 424 is what TEI says for an error of its backend.
        let failed = matches!(status.as_u16(), 424 | 500 | 503 | 507);
        let says = |message: &Vec<u8>| OUT_OF_MEMORY.iter().any(|text| memchr::memmem::find(message, text).is_some());
        failed && messages(body).iter().any(says)
    }
}

/// The messages of an error body, in lower case.
fn messages(body: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    if json::check(body, Rules { lenient: true, strict: false, nesting_max: 16 }).is_ok() {
        collect(body, json::root(body), true, &mut out);
    } else if body.len() <= TEXT_MAX {
        out.push(body.to_ascii_lowercase());
    }
    out
}

fn collect(doc: &[u8], value: Span, is_message: bool, out: &mut Vec<Vec<u8>>) {
    match kind(doc, value.start) {
        Kind::Object => {
            for member in Members::new(doc, value) {
                let named = MESSAGES.contains(&unescape(member.key.inside(doc)).as_ref());
                // `error` and `detail` may hold the message one level down.
                if named {
                    collect(doc, member.value, true, out);
                }
            }
        }
        Kind::Array if is_message => {
            for element in Elements::new(doc, value) {
                collect(doc, element, true, out);
            }
        }
        Kind::String if is_message => out.push(unescape(value.inside(doc)).to_ascii_lowercase()),
        Kind::Array | Kind::String | Kind::Number | Kind::Bool | Kind::Null => {}
    }
}

/// The limit that a message names, if it says that a batch was too large at all.
fn read(message: &[u8]) -> Option<Option<u32>> {
    for phrase in &PHRASES {
        let Some(hit) = memchr::memmem::find(message, phrase.text.as_bytes()) else { continue };
        let behind = message.get(hit + phrase.text.len()..).unwrap_or_default();
        if !phrase.named {
            return Some(exceeded(behind));
        }
        let start = behind.iter().take(NEAR).position(u8::is_ascii_digit);
        let Some(number) = start.and_then(|start| behind.get(start..)) else { continue };
        let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if number.get(digits..).is_some_and(|rest| rest.starts_with(phrase.end.as_bytes())) {
            return Some(limit(number.get(..digits).unwrap_or_default()));
        }
    }
    None
}

/// The number after "exceeds", for phrases that name what was sent first.
fn exceeded(behind: &[u8]) -> Option<u32> {
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
