//! Servers that quote inputs outside the results, for every adapter with a list of items: no client
//! receives a byte of another client's input. Errors are isolated, which `tests/it/proxy/quoting.rs`
//! tests; tensors have tests of their own.

use super::adapters::{FORMATS, WireFormat, endpoint_of_format, list_of, results_of, with_field};
use super::quoting::Server;
use super::*;

/// Numbers of two items, which are of the first kind of a format. All kinds write a multiple of 24
/// in decimal.
const NUMBERS: [usize; 2] = [739_182_624, 518_207_496];
const OVERLOADS: [u16; 2] = [429, 503];

/// Members of a response that quote a number of an item.
fn quotes(number: usize) -> Vec<String> {
    let texts = [
        format!(r#""detail":"about t{number}""#),
        format!(r#""detail":["{number}"]"#),
        format!(r#""detail":["{number}",2]"#),
        format!(r#""detail":{{"{number}":1}}"#),
        format!(r#""detail":{{"of":[{{"text":"{number}"}}]}}"#),
        format!(r#""detail":{number}"#),
        format!(r#""{number}":1"#),
        format!(r#""usage":{{"text":"{number}"}}"#),
        format!(r#""usage":{{"{number}":0}}"#),
    ];
    // Members that an adapter may copy or divide.
    let known = ["id", "model", "object", "created", "usage", "meta", "outputs", "columns", "model_version"];
    let known = known.iter().flat_map(|name| {
        [format!(r#""{name}":"t{number}""#), format!(r#""{name}":{number}"#), format!(r#""{name}":["t{number}"]"#)]
    });
    texts.into_iter().chain(known).collect()
}

/// Two calls of one item each, with the call that the server receives.
struct SharedPair {
    endpoint: Arc<Endpoint>,
    path: &'static str,
    calls: [Call; 2],
}

// === impl SharedPair ===

impl SharedPair {
    fn new(format: &WireFormat) -> Self {
        let endpoint = endpoint_of_format(format);
        let calls = NUMBERS.map(|number| {
            let item = format.items[0](number);
            assert!(item.contains(&number.to_string()), "{item}");
            read(&endpoint, format.path, &(format.call)(&list_of(&[item], "")))
        });
        assert_eq!(calls[0].merge, calls[1].merge);
        Self { endpoint, path: format.path, calls }
    }

    /// Asserts that no member receives the number of the other one. Returns `true` if the response
    /// is split.
    fn check(&self, status: u16, headers: &[(&str, &str)], body: &str) -> bool {
        let server = Server::of(self.endpoint.clone(), self.path);
        let Ok(replies) = server.split(&self.calls, status, headers, body) else { return false };
        for (reply, foreign) in replies.iter().zip([NUMBERS[1], NUMBERS[0]]) {
            let seen = format!("{:?} {}", reply.headers, String::from_utf8_lossy(&reply.body));
            assert!(!seen.contains(&foreign.to_string()), "{:?}: {status} {body}: {seen}", self.endpoint.label);
        }
        true
    }
}

#[test]
fn no_adapter_gives_a_client_the_input_of_another() {
    for format in &FORMATS {
        let pair = SharedPair::new(format);
        let values = ["0.5", "0.5"].map(str::to_owned);
        let body = (format.response)(&list_of(&results_of(format, &values), ""));
        assert!(pair.check(200, &[], &body), "{:?}: {body}", pair.endpoint.label);
        // A response that is a list of results has no other members.
        let object = body.starts_with('{').then_some(&body);
        for number in NUMBERS {
            // Names and kinds that the server writes beside the results.
            for name in ["object", "model", "model_name", "id"] {
                let own: Value = serde_json::from_str(&body).unwrap();
                if let Some(text) = own.get(name).and_then(Value::as_str) {
                    pair.check(200, &[], &body.replace(text, &format!("t{number}")));
                }
            }
        }
        for quote in NUMBERS.into_iter().flat_map(quotes) {
            if let Some(body) = object {
                pair.check(200, &[], &with_field(body, &quote));
            }
            for status in OVERLOADS {
                assert!(pair.check(status, &[], &format!("{{{quote}}}")));
            }
        }
    }
}

#[test]
fn no_adapter_gives_a_client_a_header_with_the_input_of_another() {
    let names = [
        "server",
        "www-authenticate",
        "allow",
        "openai-organization",
        "access-control-allow-origin",
        "x-ratelimit-reset",
        "retry-after",
        "content-language",
        "x-request-id",
        "etag",
        "set-cookie",
        "warning",
        "x-compute-characters",
    ];
    for format in &FORMATS {
        let pair = SharedPair::new(format);
        let values = ["0.5", "0.5"].map(str::to_owned);
        let body = (format.response)(&list_of(&results_of(format, &values), ""));
        for (name, number) in names.into_iter().flat_map(|name| NUMBERS.map(|number| (name, number))) {
            for value in [number.to_string(), format!("about \"t{number}\"")] {
                for status in [200].into_iter().chain(OVERLOADS) {
                    assert!(pair.check(status, &[(name, &value)], &body), "{name}: {status}");
                }
            }
        }
    }
}
