use proptest::prelude::*;

use super::*;

mod reference;

const STRICT: JsonRules = JsonRules { lenient: false, strict: true, nesting_max: 64 };
const ANSWER: JsonRules = JsonRules::ANSWER;

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn canon(text: &str, known: &[&str]) -> Result<String, DuplicateKey> {
    let mut out = Vec::new();
    let doc = text.as_bytes();
    write_canonical(doc, root(doc), CanonicalOptions { known, ..CanonicalOptions::default() }, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn class_of(text: &str) -> String {
    let mut out = Vec::new();
    let doc = text.as_bytes();
    write_class(doc, root(doc), Base64Form::Bytes, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn valid_json_is_accepted() {
    let nested = format!("{}{}", "[".repeat(64), "]".repeat(64));
    let long = "9".repeat(308);
    for text in [
        "0",
        "-0",
        "1E5",
        "1e-400",
        "1.10",
        "123456789012345678901234567890",
        " [ ] ",
        "{}",
        "\r\n\t{\"a\" : [1 , 2]}\n",
        r#""\ud800""#,
        r#""\u0000\"\\\/\b\f\n\r\t""#,
        "\"\u{7f}ä\u{1F600}\"",
        &nested,
        &long,
        "true",
        "false",
        "null",
        "12345678",
        "123456789.123456789",
    ] {
        assert_eq!(validate(text.as_bytes(), STRICT), Ok(()), "{text}");
    }
}

#[test]
fn invalid_json_is_rejected() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "[1,]",
        "{,}",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "01",
        "-",
        "1.",
        ".1",
        "1e",
        "1e+",
        "+1",
        "0x1",
        "1 2",
        "[1]]",
        "[1}",
        "tru",
        "nulll",
        "\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\\",
        "NaN",
        "Infinity",
        "-Infinity",
        "\u{feff}1",
        "{\"a\":1}x",
        "{1:2}",
        "[1 2]",
        "\"aaaaaaaa\u{1}\"",
        "\0",
        "[\0]",
        "'a'",
        "1_0",
        "{\"a\":1 \"b\":2}",
    ] {
        assert_eq!(validate(text.as_bytes(), STRICT), Err(JsonError::Syntax), "{text:?}");
    }
    assert_eq!(validate(b"\"\xff\"", STRICT), Err(JsonError::Utf8));
    assert_eq!(validate(b"\"\xff\"", ANSWER), Ok(()));
    for text in ["1e400", "-1e400", "1e1000000000", &"9".repeat(310), "[1,2,1E999]"] {
        assert_eq!(validate(text.as_bytes(), STRICT), Err(JsonError::Range), "{text}");
        assert_eq!(validate(text.as_bytes(), ANSWER), Ok(()), "{text}");
    }
}

#[test]
fn a_number_out_of_range_is_found_in_a_long_list() {
    let numbers = "0.5,".repeat(100);
    for wide in ["9".repeat(310), format!("-{}.5", "9".repeat(310)), "1e999".to_owned()] {
        let list = format!("[{numbers}{wide},{numbers}1]");
        assert_eq!(validate(list.as_bytes(), STRICT), Err(JsonError::Range), "{wide}");
        assert_eq!(validate(list.as_bytes(), ANSWER), Ok(()), "{wide}");
    }
}

#[test]
fn bare_words_are_numbers_only_if_they_are_allowed() {
    for text in ["NaN", "[Infinity,-Infinity]", "{\"a\":NaN}"] {
        assert_eq!(validate(text.as_bytes(), ANSWER), Ok(()), "{text}");
    }
    for text in ["-NaN", "Nan", "+Infinity", "Infinit", "NaNs"] {
        assert_eq!(validate(text.as_bytes(), ANSWER), Err(JsonError::Syntax), "{text}");
    }
}

#[test]
fn nesting_is_bounded_with_a_constant_stack() {
    for deep in [65, 100_000] {
        assert_eq!(validate("[".repeat(deep).as_bytes(), STRICT), Err(JsonError::Nesting));
        assert_eq!(validate("{\"a\":".repeat(deep).as_bytes(), STRICT), Err(JsonError::Nesting));
    }
    let beyond = JsonRules { nesting_max: usize::MAX, ..ANSWER };
    assert_eq!(validate("[".repeat(NESTING_MAX + 1).as_bytes(), beyond), Err(JsonError::Nesting));
}

#[test]
fn code_points_are_counted_as_python_would() {
    for (raw, count) in [
        ("abc", 3),
        ("", 0),
        (r"\n\\", 2),
        (r"\ud83d\ude00", 1),
        (r"\ud800", 1),
        (r"\ud800\u0041", 2),
        ("ä😀", 2),
        (r"\u00e4b", 2),
        (r"\ude00\ud83d", 2),
    ] {
        assert_eq!(code_points(raw.as_bytes()), count, "{raw}");
    }
}

#[test]
fn keys_compare_unescaped_and_case_variants_are_detected() {
    assert_eq!(*unescape(br"\u006dodel"), *b"model");
    assert_eq!(*unescape(br"\ud83d\ude00"), *"😀".as_bytes());
    assert!(is_case_variant(b"Model", b"model"));
    assert!(is_case_variant("u\u{17f}er".as_bytes(), b"user"));
    assert!(is_case_variant("\u{212a}eep_alive".as_bytes(), b"keep_alive"));
    assert!(!is_case_variant(b"model", b"model"));
    assert!(!is_case_variant(b"models", b"model"));
    assert!(!is_case_variant(b"mode", b"model"));
}

#[test]
fn one_spelling_sorts_keys_at_every_level_and_keeps_numbers_as_written() {
    assert_eq!(
        canon(r#"{ "b" : {"y":1.0, "x":[ 1 ,2 ]}, "a":"\u0061" }"#, &[]).unwrap(),
        r#"{"a":"\u0061","b":{"x":[1,2,],"y":1.0,},}"#
    );
    assert_ne!(canon(r#"{"a":1}"#, &[]), canon(r#"{"a":1.0}"#, &[]));
    assert_ne!(canon(r#"{"a":null}"#, &[]), canon("{}", &[]));
}

#[test]
fn objects_with_duplicate_or_case_variant_keys_are_refused() {
    for text in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"x":{"b":1,"b":2}}"#,
        r#"[{"b":1,"b":2}]"#,
        r#"{"Model":1}"#,
        r#"{"\u004dodel":1}"#,
    ] {
        assert_eq!(canon(text, &["model"]), Err(DuplicateKey), "{text}");
    }
    assert!(canon(r#"{"x":{"Model":1}}"#, &["model"]).is_ok());
}

#[test]
fn classes_differ_by_type_and_shape() {
    assert_eq!(class_of("[1,2]"), "[i2,]");
    assert_eq!(class_of("[1.5,2]"), "[f1,i1,]");
    assert_eq!(class_of("[[1,2],[3,4],[5]]"), "[[i2,]2,[i1,]1,]");
    assert_eq!(class_of(r#"{"b":"x","a":null}"#), "{1:bs1:an}");
    assert_ne!(class_of(r#"{"a":1,"b":2}"#), class_of(r#"{"b":1,"a":2}"#));
    assert_eq!(class_of(r#"{"b64":"x"}"#), "B");
    assert_eq!(class_of(r#"{"b64":1}"#), "{3:b64i}");
    assert_eq!(class_of("[]"), "[]");
    assert_eq!(class_of("[true,-1,1e5]"), "[b1,i1,f1,]");
    assert_ne!(class_of("[[1],[2]]"), class_of("[[1,2]]"));
}

#[test]
fn a_pointer_resolves_through_objects_and_arrays() {
    let doc = br#" {"a":[{"b":"x\"]"},{"b":{"c":7}}],"":0} "#;
    let index = ObjectIndex::new(doc, root(doc));
    let at = |text: &str| {
        let value = |found: Option<LocatedValue>| found.map(|found| found.value.of(doc).to_vec());
        let found = value(find(doc, root(doc), &pointer(text)).unwrap());
        assert_eq!(value(index.find(&pointer(text)).unwrap()), found, "{text}");
        found
    };
    assert_eq!(at("/a/1/b/c"), Some(b"7".to_vec()));
    assert_eq!(at("/a/0/b"), Some(br#""x\"]""#.to_vec()));
    assert_eq!(at("/"), Some(b"0".to_vec()));
    assert_eq!(at("/a/2"), None);
    assert_eq!(at("/a/01"), None);
    assert_eq!(at("/a/b"), None);
    let twice = br#"{"a":1,"a":2}"#;
    assert_eq!(find(twice, root(twice), &pointer("/a")).map(|_| ()), Err(DuplicateKey));
    assert_eq!(ObjectIndex::new(twice, root(twice)).find(&pointer("/a")).map(|_| ()), Err(DuplicateKey));
}

#[test]
fn an_object_with_too_many_members_for_an_index_is_still_searched() {
    let members: Vec<String> = (0..=INDEXED_MAX).map(|number| format!("\"k{number}\":{number}")).collect();
    let doc = format!("{{{}}}", members.join(","));
    let index = ObjectIndex::new(doc.as_bytes(), root(doc.as_bytes()));
    let found = index.find(&pointer(&format!("/k{INDEXED_MAX}"))).unwrap().unwrap();
    assert_eq!(found.value.of(doc.as_bytes()), INDEXED_MAX.to_string().as_bytes());
    assert!(index.members.is_none() && index.find(&pointer("/k")).unwrap().is_none());
}

/// Generates JSON values in various spellings.
fn spelled() -> impl Strategy<Value = String> {
    let number = "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?";
    let string = r#""([ -!#-\[\]-~]|ä|😀|\\n|\\"|\\\\|\\u00e4|\\ud83d\\ude00){0,12}""#;
    let leaf = prop_oneof![Just("null".to_owned()), Just("true".to_owned()), Just("false".to_owned()), number, string];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let list = (prop::collection::vec(inner.clone(), 0..6), "[ \n]{0,2}")
            .prop_map(|(items, blank)| format!("[{blank}{}{blank}]", items.join(&format!(",{blank}"))));
        let object = (prop::collection::vec(inner, 0..6), "[ \t]{0,2}").prop_map(|(values, blank)| {
            let members: Vec<_> =
                values.iter().enumerate().map(|(i, value)| format!("\"k{i}\"{blank}:{blank}{value}")).collect();
            format!("{{{blank}{}{blank}}}", members.join(","))
        });
        prop_oneof![list, object]
    })
}

/// Generates lists of numbers that are longer than a block of 64 bytes, in nearly one spelling.
fn list_of_numbers() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        20 => "-?0\\.[0-9]{1,20}",
        10 => "-?(0|[1-9][0-9]{0,20})",
        5 => "-?[1-9][0-9]{0,70}(\\.[0-9]{1,70})?",
        1 => "-?[0-9]\\.[0-9]{1,9}[eE][+-]?[0-9]{1,2}",
        1 => Just("null".to_owned()),
    ];
    let separator = prop_oneof![Just(","), Just(", "), Just(",\n")];
    (prop::collection::vec(number, 1..60), separator).prop_map(|(numbers, separator)| numbers.join(separator))
}

proptest! {
    #[test]
    fn lists_of_numbers_are_judged_as_serde_json_does(
        list in list_of_numbers(),
        at in any::<prop::sample::Index>(),
        byte in prop::sample::select(b"0123456789.-,, eE+]x".to_vec()),
    ) {
        let text = format!("[{list}]");
        prop_assert_eq!(validate(text.as_bytes(), ANSWER), Ok(()), "{}", text);
        let mut bytes = text.into_bytes();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        let text = String::from_utf8(bytes).unwrap();
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        prop_assert_eq!(validate(text.as_bytes(), ANSWER).is_ok(), theirs, "{}", text);
    }

    #[test]
    fn valid_json_in_any_spelling_is_accepted_and_traversed_completely(text in spelled()) {
        let doc = text.as_bytes();
        prop_assert_eq!(validate(doc, STRICT), Ok(()));
        prop_assert_eq!(root(doc).end, doc.len());
        prop_assert!(serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok());
        let mut again = Vec::new();
        prop_assert_eq!(write_canonical(doc, root(doc), CanonicalOptions::default(), &mut again), Ok(()));
        prop_assert_eq!(write_class(doc, root(doc), Base64Form::Plain, &mut again), Ok(()));
    }

    /// Restricted to the inputs on which both parsers must agree: the raw reader of `serde_json`
    /// has no limit of depth or range, and accepts lone surrogates.
    #[test]
    fn validity_agrees_with_serde_json(bytes in prop::collection::vec(prop::sample::select(br#"{}[]",:0123e.-+ tfn\ua"#.to_vec()), 0..24)) {
        let ours = validate(&bytes, STRICT);
        let text = String::from_utf8(bytes).unwrap();
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        if ours != Err(JsonError::Range) {
            prop_assert_eq!(ours.is_ok(), theirs, "{}", text);
        }
    }

    #[test]
    fn a_document_with_one_byte_changed_is_judged_as_serde_json_does(text in spelled(), at in any::<prop::sample::Index>(), byte in 1_u8..0x80) {
        let mut bytes = text.into_bytes();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let ours = validate(text.as_bytes(), STRICT);
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
            if ours != Err(JsonError::Range) {
                prop_assert_eq!(ours.is_ok(), theirs, "{}", text);
            }
        }
    }

    #[test]
    fn random_bytes_cause_no_panic_and_a_bounded_number_of_steps(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _checked = validate(&bytes, ANSWER);
        let span = root(&bytes);
        prop_assert!(Members::new(&bytes, span).count() <= bytes.len());
        prop_assert!(Elements::new(&bytes, span).count() <= bytes.len() + 1);
        let _found = find(&bytes, span, &pointer("/a/0"));
        let _count = code_points(&bytes);
        let text = unescape(&bytes);
        prop_assert!(unescaped_len(&bytes) <= bytes.len() && text.len() <= bytes.len() + 1);
    }

    #[test]
    fn the_unescaped_length_matches_the_unescaped_text(text in r#"([a-zé汉😀]|\\[nrtbf"/\\]|\\u[0-9a-f]{4}|\\ud83d\\ude00){0,20}"#) {
        prop_assert_eq!(unescaped_len(text.as_bytes()), unescape(text.as_bytes()).len(), "{}", text);
    }
}
