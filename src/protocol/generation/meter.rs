//! Token counts of the responses of text generation, from their usage or from the number of events.

use memchr::memmem;

use crate::items::number_at;
use crate::json::{self, JsonRules};
use crate::pointer::Pointer;

/// Maximum length of a line of a stream that is read, in bytes. Events with text are far smaller;
/// only one that repeats a long response is larger, and its usage is then unknown.
const LINE_MAX: usize = 64 << 10;
/// Members with the number of output tokens: of `OpenAI` and Anthropic, of its responses, of SGLang,
/// TGI, Ollama, and llama.cpp.
const OUTPUT: [&str; 7] = [
    "/usage/completion_tokens",
    "/usage/output_tokens",
    "/response/usage/output_tokens",
    "/meta_info/completion_tokens",
    "/details/generated_tokens",
    "/eval_count",
    "/tokens_predicted",
];
/// Members with the number of input tokens, likewise.
const INPUT: [&str; 7] = [
    "/usage/prompt_tokens",
    "/usage/input_tokens",
    "/response/usage/input_tokens",
    "/message/usage/input_tokens",
    "/meta_info/prompt_tokens",
    "/prompt_eval_count",
    "/tokens_evaluated",
];
/// Parts of the names of these members. An event with neither is not parsed.
const MARKS: [&[u8]; 2] = [b"tokens", b"eval_count"];
/// Members of an event that has no text.
const NO_TEXT: &[u8] = b"\"choices\":[]";

/// Numbers of tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenCounts {
    /// Tokens of the prompt; `None` if the response does not report them.
    pub input: Option<u64>,
    /// Tokens of the response.
    pub output: u64,
    /// `true` if the response reports them, `false` if its events were counted, one for each token.
    pub is_reported: bool,
}

/// A counter of the tokens of a response whose bytes arrive in pieces.
///
/// A stream is read line by line: server-sent events (`data: {…}`) or lines of JSON.
#[derive(Debug, Default)]
pub struct OutputMeter {
    line: Vec<u8>,
    /// `true` if the line is longer than [`LINE_MAX`].
    is_cut: bool,
    events: u64,
    input: Option<u64>,
    output: Option<u64>,
}

// === impl TokenCounts ===

impl TokenCounts {
    /// Returns the counts that a whole JSON response reports.
    #[must_use]
    pub fn of_body(body: &[u8]) -> Option<Self> {
        let [input, output] = reported(body);
        output.map(|output| Self { input, output, is_reported: true })
    }
}

// === impl OutputMeter ===

impl OutputMeter {
    /// Reads more bytes of a stream. Returns the number of events that end in them.
    pub fn push(&mut self, mut data: &[u8]) -> u64 {
        let before = self.events;
        while let Some(end) = memchr::memchr(b'\n', data) {
            let (line, rest) = data.split_at(end);
            data = rest.get(1..).unwrap_or_default();
            // Most lines arrive in one piece.
            if self.line.is_empty() && !self.is_cut {
                self.on_line(line);
                continue;
            }
            self.extend(line);
            let line = std::mem::take(&mut self.line);
            if !std::mem::take(&mut self.is_cut) {
                self.on_line(&line);
            }
        }
        self.extend(data);
        self.events - before
    }

    /// Returns the counts at the end of the stream; `None` if it had no event.
    #[must_use]
    pub fn finish(mut self) -> Option<TokenCounts> {
        let line = std::mem::take(&mut self.line);
        self.on_line(&line);
        let counts = |output, is_reported| TokenCounts { input: self.input, output, is_reported };
        self.output.map(|output| counts(output, true)).or((self.events > 0).then(|| counts(self.events, false)))
    }

    fn extend(&mut self, part: &[u8]) {
        if self.is_cut || self.line.len().saturating_add(part.len()) > LINE_MAX {
            (self.is_cut, self.line) = (true, Vec::new());
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn on_line(&mut self, line: &[u8]) {
        let event = line.strip_prefix(b"data:").unwrap_or(line).trim_ascii();
        if event.first() != Some(&b'{') {
            return;
        }
        self.events += u64::from(!contains(event, NO_TEXT));
        if MARKS.iter().any(|mark| contains(event, mark)) {
            let [input, output] = reported(event);
            // Counts of a running response grow, so that the last ones apply.
            (self.input, self.output) = (input.or(self.input), output.or(self.output));
        }
    }
}

/// Returns the numbers of input and output tokens that a JSON document reports.
fn reported(doc: &[u8]) -> [Option<u64>; 2] {
    if json::validate(doc, JsonRules::ANSWER).is_err() {
        return [None; 2];
    }
    let root = json::root(doc);
    [INPUT, OUTPUT].map(|names| names.into_iter().find_map(|name| number_at(doc, root, &Pointer::from_static(name))))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memmem::find(text, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered(stream: &[u8], piece: usize) -> Option<TokenCounts> {
        let mut meter = OutputMeter::default();
        let events: u64 = stream.chunks(piece).map(|piece| meter.push(piece)).sum();
        assert!(events <= 3);
        meter.finish()
    }

    #[test]
    fn tokens_are_reported_by_usage_or_counted_by_events_under_every_cut() {
        let with =
            b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n: ping\n\ndata: {\"choices\":[{}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";
        let without = &with[..84];
        let lines = b"{\"response\":\"a\"}\n{\"response\":\"\",\"done\":true,\"prompt_eval_count\":3,\"eval_count\":2}";
        for piece in 1..with.len() {
            let counts = |input, output, is_reported| Some(TokenCounts { input, output, is_reported });
            assert_eq!(metered(with, piece), counts(Some(7), 9, true));
            assert_eq!(metered(without, piece), counts(None, 2, false), "{:?}", std::str::from_utf8(without));
            assert_eq!(metered(lines, piece), counts(Some(3), 2, true));
        }
        assert_eq!(metered(b"", 1), None);
        assert_eq!(metered(b"plain text\n", 3), None);
    }

    #[test]
    fn whole_responses_report_their_tokens() {
        for (body, input, output) in [
            (&br#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#[..], Some(1), 2),
            (br#"{"usage":{"input_tokens":3,"output_tokens":4}}"#, Some(3), 4),
            (br#"{"generated_text":"a","details":{"generated_tokens":5}}"#, None, 5),
            (br#"{"text":"a","meta_info":{"prompt_tokens":6,"completion_tokens":7}}"#, Some(6), 7),
        ] {
            assert_eq!(TokenCounts::of_body(body), Some(TokenCounts { input, output, is_reported: true }));
        }
        assert_eq!(TokenCounts::of_body(b"{}"), None);
        assert_eq!(TokenCounts::of_body(b"no json"), None);
    }

    #[test]
    fn a_line_without_an_end_takes_no_memory() {
        let mut meter = OutputMeter::default();
        (0..100).for_each(|_| assert_eq!(meter.push(&[b'x'; 4096]), 0));
        assert!(meter.line.capacity() <= LINE_MAX);
        meter.push(b"\n{\"a\":1}\n");
        assert_eq!(meter.finish(), Some(TokenCounts { input: None, output: 1, is_reported: false }));
    }
}
