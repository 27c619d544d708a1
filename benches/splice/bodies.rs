//! Generated bodies of OpenAI embeddings, the same in every run.

use std::fmt::Write as _;

use groupage_batching::rng::SplitMix64;

/// Number of calls in a batch.
pub(crate) const MEMBERS: usize = 32;
/// Numbers of one embedding: those of common models.
const DIMENSIONS: usize = 1024;
/// Tokens of each text in the counters.
const TOKENS: usize = 12;
const SEED: u64 = 19;

/// Returns the response to a batch, in the form of vLLM.
pub(crate) fn response() -> String {
    let mut random = SplitMix64::new(SEED);
    let mut body = r#"{"id":"embd-0123456789abcdef0123456789abcdef","object":"list","created":1764200000,"model":"bge-m3","data":["#.to_owned();
    for index in 0..MEMBERS {
        let separator = if index > 0 { "," } else { "" };
        write!(body, r#"{separator}{{"index":{index},"object":"embedding","embedding":["#).expect("a string");
        for place in 0..DIMENSIONS {
            let separator = if place > 0 { "," } else { "" };
            write!(body, "{separator}{}", coordinate(&mut random)).expect("a string");
        }
        body.push_str("]}");
    }
    let tokens = MEMBERS * TOKENS;
    write!(body, r#"],"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens},"completion_tokens":0}}}}"#)
        .expect("a string");
    body
}

/// Returns the request of a member, with a text of `text_len` bytes.
pub(crate) fn request(member: usize, text_len: usize) -> String {
    let mut random = SplitMix64::new(SEED + u64::try_from(member).expect("few members"));
    let mut text = String::with_capacity(text_len);
    while text.len() < text_len {
        // Words of English length. Some lines end, and some words are quoted.
        match random.next_u64() % 64 {
            0 => text.push_str("\\n"),
            1 => text.push_str("\\\"so\\\" "),
            number => text.extend((0..=number % 9).map(|_| char::from(letter(&mut random))).chain([' '])),
        }
    }
    format!(r#"{{"model": "bge-m3", "input": "{text}", "encoding_format": "float", "user": "u-1"}}"#)
}

fn letter(random: &mut SplitMix64) -> u8 {
    b'a' + u8::try_from(random.next_u64() % 26).expect("at most 25")
}

/// Returns a coordinate of a vector of length one, printed as servers in Python print a 64-bit
/// float.
fn coordinate(random: &mut SplitMix64) -> f64 {
    let part = u32::try_from(random.next_u64() >> 32).expect("32 bits");
    (f64::from(part) / f64::from(u32::MAX) - 0.5) / 16.0
}
