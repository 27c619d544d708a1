//! Line number of a value in a YAML document. The document is parsed again when a line has to be
//! reported, because the positions of all values would take more memory than the values.

use granit_parser::{Event, Parser};

/// A collection that encloses the current event.
struct OpenCollection {
    kind: CollectionState,
    /// `true` if it is on the path that is searched for.
    on_path: bool,
}

enum CollectionState {
    /// Index of the next item.
    List(usize),
    /// Key of the next value.
    Map(Option<String>),
}

struct PathSearch<'a> {
    path: &'a [String],
    open: Vec<OpenCollection>,
    found: usize,
}

/// Returns the line, from 1, of the key or item at `path` in one document, or else of its nearest
/// ancestor that exists.
pub(in crate::cli) fn line_of(text: &str, path: &[String]) -> usize {
    let mut search = PathSearch { path, open: Vec::new(), found: 1 };
    for next in Parser::new_from_str(text) {
        // The text was parsed successfully before, so an error can only come after the value that
        // is searched for.
        let Ok((event, span)) = next else { break };
        search.on_event(&event, span.start.line());
    }
    search.found
}

// === impl PathSearch ===

impl PathSearch<'_> {
    fn on_event(&mut self, event: &Event<'_>, line: usize) {
        match event {
            Event::Scalar(text, ..) => {
                let depth = self.open.len();
                if let Some(OpenCollection { kind: CollectionState::Map(key @ None), on_path }) = self.open.last_mut() {
                    if *on_path && self.path.get(depth - 1).is_some_and(|segment| segment == text) {
                        self.found = line;
                    }
                    *key = Some(text.to_string());
                } else {
                    let _on_path = self.on_value(line);
                }
            }
            Event::Alias(_) => {
                let _on_path = self.on_value(line);
            }
            Event::SequenceStart(..) => {
                let on_path = self.on_value(line);
                self.open.push(OpenCollection { kind: CollectionState::List(0), on_path });
            }
            Event::MappingStart(..) => {
                let on_path = self.on_value(line);
                self.open.push(OpenCollection { kind: CollectionState::Map(None), on_path });
            }
            Event::SequenceEnd | Event::MappingEnd => drop(self.open.pop()),
            _ => {}
        }
    }

    /// Enters a value. Returns `true` if it is on the path.
    fn on_value(&mut self, line: usize) -> bool {
        let depth = self.open.len();
        let Some(OpenCollection { kind, on_path }) = self.open.last_mut() else { return true };
        let segment = self.path.get(depth - 1).filter(|_| *on_path);
        match kind {
            CollectionState::Map(key) => {
                let key = key.take();
                segment.is_some() && key.as_ref() == segment
            }
            CollectionState::List(next) => {
                let is_it = segment.is_some_and(|segment| *segment == next.to_string());
                *next += 1;
                if is_it {
                    self.found = line;
                }
                is_it
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, path: &[&str]) -> usize {
        line_of(text, &path.iter().map(|&key| key.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_key_is_found_by_its_path_and_not_by_its_name() {
        let text = "---\n# b: here not\nx: {b: 1}\na:\n  - b: 1\n  - c: [b]\n    b: 2\n";
        assert_eq!(at(text, &["a", "1", "b"]), 7);
        assert_eq!(at(text, &["a", "0", "b"]), 5);
        assert_eq!(at(text, &["x", "b"]), 3);
        assert_eq!(at(text, &["a", "1"]), 6);
    }

    #[test]
    fn the_position_of_an_absent_key_is_that_of_the_closest_existing_one() {
        assert_eq!(at("a:\n  b: &x {c: 1}\nd: *x\n", &["a", "b", "z"]), 2);
        assert_eq!(at("a:\n  b: &x {c: 1}\nd: *x\n", &["d", "c"]), 3);
        assert_eq!(at("", &["d"]), 1);
        assert_eq!(at("{\"a\":\n {\"b\": 1}}", &["a", "b"]), 2);
    }
}
