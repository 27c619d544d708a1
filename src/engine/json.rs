//! Fields of JSON files, read with their types and ranges checked.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::error::LoadError;

/// Maximum number of characters of a value that an error quotes.
const QUOTE_CHARS_MAX: usize = 80;

const PUBLISHED: &str = "use the file that was published with the model";

/// A parsed JSON file, or an object in one.
#[derive(Debug, Clone)]
pub(crate) struct JsonFile {
    file: String,
    /// Path of the object in the file, with a trailing dot, for messages.
    prefix: String,
    value: Value,
}

// === impl JsonFile ===

impl JsonFile {
    pub(crate) fn parse(file: String, bytes: &[u8]) -> Result<Self, LoadError> {
        let value = serde_json::from_slice(bytes).map_err(|error| LoadError {
            file: file.clone(),
            place: "the file".to_owned(),
            found: error.to_string(),
            expected: "JSON".to_owned(),
            advice: PUBLISHED,
        })?;
        Ok(Self { file, prefix: String::new(), value })
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Returns the error of a field with a value that cannot be used.
    pub(crate) fn error(&self, field: &str, expected: &str, advice: &'static str) -> LoadError {
        LoadError {
            file: self.file.clone(),
            place: format!("field `{}{field}`", self.prefix),
            found: self.get(field).map_or_else(|| "nothing".to_owned(), quote),
            expected: expected.to_owned(),
            advice,
        }
    }

    /// Returns a field; `None` for an absent or null one.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.value.get(field).filter(|value| !value.is_null())
    }

    /// Names of all fields, with those of null ones.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.value.as_object().into_iter().flat_map(|object| object.keys()).map(String::as_str)
    }

    /// Returns `true` for a field that is not absent. It may be null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.value.get(field).is_some()
    }

    /// Returns a field that is an object.
    pub(crate) fn object(&self, field: &str) -> Result<Option<Self>, LoadError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) if value.is_object() => Ok(Some(Self {
                file: self.file.clone(),
                prefix: format!("{}{field}.", self.prefix),
                value: value.clone(),
            })),
            Some(_) => Err(self.error(field, "an object", PUBLISHED)),
        }
    }

    /// Returns the elements of a file that is an array of at most `count_max` elements.
    pub(crate) fn elements(&self, count_max: usize) -> Result<Vec<Self>, LoadError> {
        let elements = self.value.as_array().filter(|elements| elements.len() <= count_max);
        let Some(elements) = elements else {
            return Err(LoadError {
                file: self.file.clone(),
                place: "the file".to_owned(),
                found: quote(&self.value),
                expected: format!("an array of at most {count_max} elements"),
                advice: PUBLISHED,
            });
        };
        let element = |(at, value): (usize, &Value)| Self {
            file: self.file.clone(),
            prefix: format!("[{at}]."),
            value: value.clone(),
        };
        Ok(elements.iter().enumerate().map(element).collect())
    }

    /// Returns an integer within a range; `None` for an absent field.
    pub(crate) fn size(&self, field: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| range.contains(size));
        let expected = || format!("an integer from {} to {}", range.start(), range.end());
        size.map(Some).ok_or_else(|| self.error(field, &expected(), PUBLISHED))
    }

    pub(crate) fn size_required(&self, field: &str, range: RangeInclusive<usize>) -> Result<usize, LoadError> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.size(field, range)?.ok_or_else(|| self.error(field, &expected, PUBLISHED))
    }

    /// Returns a finite number within a range; `None` for an absent field.
    pub(crate) fn number(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        let number = value.as_f64().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| self.error(field, &expected(), PUBLISHED))
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, LoadError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.error(field, "true or false", PUBLISHED))
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, LoadError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.error(field, "a string", PUBLISHED))
    }
}

/// Returns the beginning of a value as JSON.
fn quote(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> JsonFile {
        JsonFile::parse("config.json".to_owned(), text.as_bytes()).unwrap()
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_file_field_and_range() {
        let file = file(r#"{"hidden_size": 1e30, "a": {"b": -1}, "text": 3}"#);
        let error = file.size("hidden_size", 1..=64).unwrap_err().to_string();
        assert!(
            error.starts_with("config.json: field `hidden_size`: found 1e+30, expected an integer from 1 to 64: "),
            "{error}"
        );
        let inner = file.object("a").unwrap().unwrap().size("b", 0..=1).unwrap_err().to_string();
        assert!(inner.contains("`a.b`: found -1"), "{inner}");
        assert!(file.text("text").is_err() && file.flag("text").is_err() && file.object("text").is_err());
        assert!(file.size_required("absent", 1..=2).unwrap_err().found == "nothing");
        assert_eq!(file.number("hidden_size", 0.0..=1e31).unwrap(), Some(1e30));
    }

    #[test]
    fn an_array_has_a_limit() {
        let file = file("[{\"a\": 1}, {}]");
        assert_eq!(file.elements(2).unwrap().len(), 2);
        assert!(file.elements(1).unwrap_err().to_string().contains("an array of at most 1 elements"));
    }

    #[test]
    fn an_absent_field_is_not_a_null_one() {
        let file = file(r#"{"a": null, "b": 1}"#);
        assert_eq!(
            ["a", "b", "c"].map(|field| (file.has(field), file.get(field).is_some())),
            [(true, false), (true, true), (false, false)]
        );
        assert_eq!(file.fields().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_long_value_is_quoted_in_part() {
        let file = file(&format!(r#"{{"x": "{}"}}"#, "é".repeat(1000)));
        assert!(file.size("x", 0..=1).unwrap_err().found.len() < 200);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let text = "[".repeat(100_000);
        assert!(JsonFile::parse("x".to_owned(), text.as_bytes()).unwrap_err().found.contains("recursion limit"));
    }
}
