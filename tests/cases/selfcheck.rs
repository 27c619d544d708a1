//! Self-check of the matching rules on examples, before any case runs. A runner that accepts
//! everything would pass every case.

use crate::adapter_table::AdapterTable;
use crate::case::Case;
use crate::matching::{Bindings, Mode, body, original, subset};
use crate::open_inference_grpc::MessageKind;
use crate::settings::{CaseSupport, Settings, support_of};
use crate::support::json;
use crate::support::report::Totals;
use crate::support::wire::Headers;

/// Returns the rules that do not hold.
pub(crate) fn run() -> Vec<&'static str> {
    let mut broken = Vec::new();
    let mut hold = |holds: bool, sentence: &'static str| {
        if !holds {
            broken.push(sentence);
        }
    };
    bodies(&mut hold);
    messages(&mut hold);
    placeholders(&mut hold);
    headers(&mut hold);
    format(&mut hold);
    summary(&mut hold);
    broken
}

fn agrees(mode: Mode, want: &str, got: &str) -> bool {
    body(mode, want.as_bytes(), got.as_bytes(), &Headers::new(), &mut Bindings::default()).is_ok()
}

fn bodies(hold: &mut impl FnMut(bool, &'static str)) {
    hold(agrees(Mode::Bytes, "{ }", "{ }") && !agrees(Mode::Bytes, "{ }", "{}"), "bytes are equal or not");
    hold(agrees(Mode::Tokens, r#"{"a":[1,"x"]}"#, "{ \"a\" :\n[1, \"x\"] }"), "white space between tokens is ignored");
    hold(!agrees(Mode::Tokens, r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), "tokens have an order");
    hold(agrees(Mode::Json, r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), "members may come in any order");
    hold(!agrees(Mode::Json, "[1,2]", "[2,1]"), "elements may not");
    hold(!agrees(Mode::Json, "[1]", "[1.0]") && !agrees(Mode::Json, "[1e5]", "[1E5]"), "numbers compare by spelling");
    hold(!agrees(Mode::Json, r#"["A"]"#, "[\"\\u0041\"]"), "strings compare by spelling");
    hold(!agrees(Mode::Json, r#"{"a":1}"#, r#"{"a":1,"a":1}"#), "a member too many is seen");
    hold(
        !agrees(Mode::Json, "[1]", "[1] x") && !agrees(Mode::Tokens, "[1]", "[1][1]"),
        "text after the document is seen",
    );
    hold(agrees(Mode::Tokens, "[NaN,-Infinity]", "[NaN, -Infinity]"), "number words are tokens");
    hold(!agrees(Mode::Bytes, "", "{}") && agrees(Mode::Json, "", ""), "no body is an empty one");
    let lengths = |n: &str| vec![("Inference-Header-Content-Length".to_owned(), n.as_bytes().to_vec())];
    let binary = |got: &str, n: &str| {
        body(Mode::OipBinary, b"{\"a\":1}\x01", got.as_bytes(), &lengths(n), &mut Bindings::default()).is_ok()
    };
    hold(binary("{\"a\": 1}\u{1}", "8"), "a V2 body is JSON of the length that is named, then bytes");
    hold(!binary("{\"a\": 1}\u{2}", "8") && !binary("{\"a\": 1}\u{1}", "7"), "both parts are compared");
}

fn messages(hold: &mut impl FnMut(bool, &'static str)) {
    let message = |text: &str| MessageKind::Request.encode(&serde_json::from_str(text).unwrap_or_default());
    let agrees = |want: &str, got: &[u8]| {
        let mode = Mode::Protobuf(MessageKind::Request);
        let want = message(want).unwrap_or_default();
        body(mode, &want, got, &Headers::new(), &mut Bindings::default()).is_ok()
    };
    let same = |want: &str, got: &str| message(got).is_ok_and(|got| agrees(want, &got));
    hold(same(r#"{"id":"{{uid:}}"}"#, r#"{"id":"0123abcd"}"#), "ids occur in messages too");
    hold(!same(r#"{"id":"a"}"#, r#"{"id":"b"}"#) && !same("{}", r#"{"id":"b"}"#), "fields are equal or not");
    let shape = |text: &str| format!(r#"{{"inputs":[{{"shape":{text}}}]}}"#);
    hold(same(&shape("[2,-1]"), &shape("[2,-1]")), "a list of numbers is read as it is written");
    hold(
        !same(&shape("[2,1]"), &shape("[1,2]")) && !same(&shape("[2]"), &shape("[2,1]")),
        "it has an order and a length",
    );
    let floats = |text: &str| format!(r#"{{"inputs":[{{"contents":{{"fp32_contents":{text}}}}}]}}"#);
    hold(!same(&floats("[0.0]"), &floats("[-0.0]")), "floats compare by their bits");
    hold(!agrees("{}", b"\0\0\0\0\x02\x7a\x00"), "an unknown field is seen");
    hold(!agrees("{}", b"\x01\0\0\0\0") && !agrees("{}", b"\0\0\0\0\x01"), "a message is whole and uncompressed");
    hold(message(r#"{"ID":"a"}"#).is_err(), "a field that the protocol does not have fails the case");
}

fn placeholders(hold: &mut impl FnMut(bool, &'static str)) {
    hold(
        agrees(Mode::Bytes, "id {{uid:cmpl-}}.", "id cmpl-01234567."),
        "an id has its prefix and at least 8 characters",
    );
    hold(!agrees(Mode::Bytes, "id {{uid:cmpl-}}.", "id cmpl-0123456."), "7 are too few");
    hold(!agrees(Mode::Bytes, "{{uid:cmpl-}}", "embd-0123456789"), "another prefix is another id");
    hold(!agrees(Mode::Bytes, "{{uid:}}", "0123_5678"), "only letters, digits and dashes");
    hold(agrees(Mode::Bytes, "{{uid:}}-0", "0123456789-0"), "what follows may look like a part of the id");
    let twice = "{{uid:a-}},{{uid:a-}}";
    hold(agrees(Mode::Bytes, twice, "a-01234567,a-01234567"), "one value within a message");
    hold(!agrees(Mode::Bytes, twice, "a-01234567,a-01234568"), "not two");
    hold(agrees(Mode::Json, r#"{"b":1,"id":"{{uid:}}"}"#, r#"{"id":"0123abcd","b":1}"#), "ids occur in JSON too");
    let mut taken = Bindings::default();
    let value = taken.agrees(b"{{uid:x}}", b"x12345678") && taken.values().eq([b"x12345678".as_slice()]);
    hold(value, "the value that an id took is kept");
}

fn lines(text: &str) -> Headers {
    text.lines().filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_owned(), v.as_bytes().to_vec())).collect()
}

fn headers(hold: &mut impl FnMut(bool, &'static str)) {
    let own = lines("host: h\naccept: a\nAccept: b\ncontent-length: 3");
    let as_original = |got: &str| original(&own, &lines(got)).is_ok();
    hold(
        as_original("Accept: a\naccept: b\nHost: h\ncontent-length: 3"),
        "names have no case, and an order only within a name",
    );
    hold(!as_original("accept: b\naccept: a\nhost: h\ncontent-length: 3"), "order within a name is kept");
    hold(!as_original("accept: a\naccept: b\nhost: h\nvia: x\ncontent-length: 3"), "nothing is added");
    hold(!as_original("accept: a\nhost: h\ncontent-length: 3"), "nothing is lost");
    hold(!as_original("accept: a, b\nhost: h\ncontent-length: 3"), "lines are not joined");
    hold(!as_original("accept: a\naccept: b\nhost: i\ncontent-length: 3"), "the host is the client's");
    hold(!as_original("accept: a\naccept: b\nhost: h\ntransfer-encoding: chunked"), "a length stays a length");
    let chunked = lines("host: h\nexpect: 100-continue\nconnection: x-hop\nx-hop: 1\ntransfer-encoding: chunked");
    hold(
        original(&chunked, &lines("host: h\ncontent-length: 3")).is_ok(),
        "hop headers, chunks and Expect end at the proxy",
    );
    hold(
        original(&chunked, &lines("host: h\nx-hop: 1\ncontent-length: 3")).is_err(),
        "a nominated header does not go on",
    );
    let got = lines("a: 1\nb: 2\nb: 3");
    let within = |want: &str| subset(&lines(want), &got, &mut Bindings::default()).is_ok();
    hold(within("A: 1") && within("b: 2\nb: 3") && !within("b: 2") && !within("c: 1"), "a subset names whole values");
}

fn format(hold: &mut impl FnMut(bool, &'static str)) {
    const CASE: &str = r#"{"id":"X","adapter":"core","requests":[{"c":"A","method":"GET","path":"/x"}],
        "expected_upstream":[{"for":["A"],"method":"GET","path":"/x"}],"upstream_response":[{"status":200}],
        "expected_responses":[{"c":"A","status":200}]}"#;
    let read = |from: &str, to: &str| {
        let line = json::parse(CASE.replace(from, to).as_bytes())?;
        Case::read(&line)
    };
    hold(read("", "").is_ok(), "a plain case is read");
    hold(read(r#""c":"A","method""#, r#""c":"A","mehtod""#).is_err(), "a key that is not named fails the case");
    hold(read(r#"[{"status":200}]"#, r#"[{"status":200,"hang":false}]"#).is_err(), "so does a value");
    hold(read(r#""id":"X""#, r#""id":"X","id":"Y""#).is_err(), "a key twice fails the case");
    hold(read(r#"[{"c":"A","status":200}]"#, "[]").is_err(), "every client has an answer");
    hold(read(r#""for":["A"]"#, r#""for":["B"]"#).is_err(), "no other client has one");
    let name = |basis: &str| {
        let case = CASE.replace(r#""id":"X""#, &format!(r#""id":"X","basis":"{basis}""#));
        json::parse(case.as_bytes()).and_then(|line| Case::names(&line)).map(|(name, _)| name).unwrap_or_default()
    };
    hold(name("observed:tei") == "X (recorded:tei)", "the name of a case says that its answers were recorded");
    hold(name("docs:jina") == "X (documented:jina)" && name("rule") == "X", "or that they are documented, or neither");
    let paths = |path: &str| vec![path.to_owned()];
    hold(matches!(support_of("openai.completions", None), Ok(CaseSupport::Run)), "an adapter that is built is run");
    hold(support_of("nobody", None).is_err(), "an adapter that is not named fails the case");
    let config =
        br#"{"adapter":{"items":"/t","single_items":"/s","drop":["/d"],"cost":{"total":"/n","weights":"list_len"}}}"#;
    let policy = json::parse(config).and_then(|config| Settings::read(Some(&config))).map(|settings| {
        let policy = settings.policy("generic", &paths("/e"), 2.0);
        policy.pointer("/routes/0").cloned().unwrap_or_default()
    });
    let want = serde_json::json!({"path": "/e", "method": "POST", "protocol": "Generic",
        "mergeOver": {"fields": ["/d"]},
        "generic": {"items": "/t", "single": {"items": "/s"}, "cost": {"totals": ["/n"], "weights": "ListLen"}}});
    hold(policy.as_ref() == Ok(&want), "a generic declaration becomes a route");
}

fn summary(hold: &mut impl FnMut(bool, &'static str)) {
    let mut table = AdapterTable::default();
    hold(table.lines().is_empty(), "without a case there is no table");
    table.row("tei").passed += 12;
    table.row("core").failed += 1;
    table.row("core").skipped += 2;
    let lines =
        ["adapter  passed  failed  skipped", "core          0       1        2", "tei          12       0        0"];
    hold(table.lines() == lines, "the table is sorted by adapter, with aligned columns");
    hold(table.totals() == Totals { passed: 12, failed: 1, skipped: 2 }, "the totals are the sums of the table");
}
