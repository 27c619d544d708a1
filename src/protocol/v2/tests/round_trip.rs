//! Generated calls of every datatype and form: a batch that is answered with its own inputs gives
//! each member its own inputs again. Both places of the length of a document are tested: a header,
//! and the content type, as on `SageMaker`.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use proptest::prelude::*;

use super::super::binary::HEADER_LENGTH;
use super::{PATH, read_binary, v2};
use crate::tests::{read, routes_of, secret};
use crate::{BatchResponse, Call, Endpoint, RouteProtocol, UnbatchedEvidence};

const DATATYPES: [&str; 14] = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
];

const SAGEMAKER_PATH: &str = "/invocations";
/// Content type of Triton on `SageMaker`, without the number at its end.
const FRAMING_TYPE: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";

/// A server with the Open Inference Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TensorServer {
    /// The length of the document before tensors in binary form is a header.
    Plain,
    /// The length of any document is in the content type.
    SageMaker,
}

/// Form in which an input has its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputForm {
    Flat,
    Nested,
    Binary,
}

/// Properties that the calls of one batch have in common.
#[derive(Debug, Clone)]
struct Signature {
    inputs: Vec<(usize, InputForm, Vec<usize>)>,
    /// White space between the tokens.
    space: &'static str,
}

fn signature() -> impl Strategy<Value = Signature> {
    let form = prop_oneof![Just(InputForm::Flat), Just(InputForm::Nested), Just(InputForm::Binary)];
    let input = (0..DATATYPES.len(), form, prop::collection::vec(1..4_usize, 0..3));
    let space = prop_oneof![Just(""), Just(" "), Just("\n\t "), Just("  ")];
    (prop::collection::vec(input, 1..4), space).prop_map(|(mut inputs, space)| {
        for (datatype, form, row) in &mut inputs {
            if matches!(DATATYPES[*datatype], "FP16" | "BF16") {
                *form = InputForm::Binary;
            }
            // A tensor with one dimension has no nested form.
            if *form == InputForm::Nested && row.is_empty() {
                *form = InputForm::Flat;
            }
        }
        Signature { inputs, space }
    })
}

fn server() -> impl Strategy<Value = TensorServer> {
    prop_oneof![Just(TensorServer::Plain), Just(TensorServer::SageMaker)]
}

/// Returns a scalar of a datatype with a spelling that a parser would not keep.
fn scalar(datatype: &str, seed: u64) -> String {
    let spellings: &[&str] = match datatype {
        "BOOL" => &["true", "false"],
        "FP32" | "FP64" => &["0.10", "-0", "1E5", "1e400000", "123456789012345678901234567890", "0.20000000298023225"],
        "BYTES" => &["\"\"", "\"a,]b\"", "\"\\ud83d\\ude00\\\"\"", "\"é\"", "\"\\\\\""],
        _ => &["0", "9007199254740993", "-1", "18446744073709551615"],
    };
    // A number outside the range of a 64-bit float is not merged at all.
    let spelling = spellings[usize::try_from(seed).unwrap() % spellings.len()];
    if spelling == "1e400000" { "-1.5e-3".to_owned() } else { spelling.to_owned() }
}

/// Returns an element in binary form.
pub(in crate::v2) fn binary_element(datatype: &str, seed: u64) -> Vec<u8> {
    let bytes = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    let width = match datatype {
        "BOOL" | "UINT8" | "INT8" => 1,
        "UINT16" | "INT16" | "FP16" | "BF16" => 2,
        "UINT32" | "INT32" | "FP32" => 4,
        "BYTES" => {
            let length = bytes[0] % 5;
            return [&[length, 0, 0, 0], &bytes[..usize::from(length)]].concat();
        }
        _ => 8,
    };
    bytes[..width].to_vec()
}

/// Writes scalars as nested lists with these lengths.
fn nested(scalars: &mut impl Iterator<Item = String>, lengths: &[usize], space: &str) -> String {
    let Some((length, inner)) = lengths.split_first() else { return scalars.next().unwrap() };
    let elements: Vec<String> = (0..*length).map(|_| nested(scalars, inner, space)).collect();
    format!("[{space}{}{space}]", elements.join(&format!(",{space}")))
}

/// Writes tensors with this number of rows as a document and the binary data after it.
fn write(name: &str, signature: &Signature, rows: usize, seed: u64) -> (String, Vec<u8>) {
    let (mut tensors, mut tail) = (Vec::new(), Vec::new());
    let space = signature.space;
    for (index, (datatype, form, row)) in signature.inputs.iter().enumerate() {
        let datatype = DATATYPES[*datatype];
        let lengths: Vec<usize> = std::iter::once(rows).chain(row.iter().copied()).collect();
        let count: usize = lengths.iter().product();
        let seeds = (0..u64::try_from(count).unwrap()).map(|element| seed * 1000 + element);
        let shape: Vec<String> = lengths.iter().map(ToString::to_string).collect();
        let shape = format!("[{space}{}]", shape.join(&format!("{space},")));
        let mut scalars = seeds.clone().map(|seed| scalar(datatype, seed));
        let data = match form {
            InputForm::Flat => format!("\"data\":{space}{}", nested(&mut scalars, &[count], space)),
            InputForm::Nested => format!("\"data\":{space}{}", nested(&mut scalars, &lengths, space)),
            InputForm::Binary => {
                let bytes: Vec<u8> = seeds.flat_map(|seed| binary_element(datatype, seed)).collect();
                tail.extend_from_slice(&bytes);
                format!("\"parameters\":{{{space}\"binary_data_size\":{space}{}}}", bytes.len())
            }
        };
        tensors.push(format!(
            "{{\"name\":\"t{index}\",{space}\"datatype\":\"{datatype}\",\"shape\":{shape},{data}{space}}}"
        ));
    }
    (format!("{{\"{name}\":{space}[{}]{space}}}{space}", tensors.join(&format!(",{space}"))), tail)
}

fn sagemaker() -> Arc<Endpoint> {
    // Calls of two endpoints never share a batch.
    static ENDPOINT: LazyLock<Arc<Endpoint>> = LazyLock::new(|| {
        let routes = routes_of(&[(SAGEMAKER_PATH, RouteProtocol::SageMaker)]);
        let texts = routes.recognise(&Method::POST, SAGEMAKER_PATH).unwrap();
        routes.tensor_form(&texts, &TensorServer::SageMaker.head(1)).unwrap()
    });
    Arc::clone(&ENDPOINT)
}

// === impl TensorServer ===

impl TensorServer {
    fn endpoint(self) -> Arc<Endpoint> {
        match self {
            Self::Plain => v2(),
            Self::SageMaker => sagemaker(),
        }
    }

    /// Returns the headers of a message with a document of this length.
    fn head(self, length: usize) -> HeaderMap {
        let (name, value) = match self {
            Self::Plain => (HEADER_LENGTH, length.to_string()),
            Self::SageMaker => (CONTENT_TYPE, format!("{FRAMING_TYPE}{length}")),
        };
        HeaderMap::from_iter([(name, HeaderValue::from_str(&value).unwrap())])
    }

    /// Returns the length of the document of a message; `None` if the message is nothing else.
    fn document_len(self, headers: &HeaderMap) -> Option<usize> {
        let text = match self {
            Self::Plain => headers.get(HEADER_LENGTH)?.to_str().unwrap(),
            Self::SageMaker => headers[CONTENT_TYPE].to_str().unwrap().strip_prefix(FRAMING_TYPE).unwrap(),
        };
        Some(text.parse().unwrap())
    }

    /// Reads a call with a document of this length.
    fn read(self, length: Option<usize>, body: Vec<u8>) -> Call {
        match (self, length) {
            (Self::Plain, Some(length)) => read_binary(&v2(), length, body),
            (Self::Plain, None) => read(&v2(), PATH, &String::from_utf8(body).unwrap()),
            (Self::SageMaker, length) => {
                let mut head = http::Request::post(SAGEMAKER_PATH).header("host", "h").body(()).unwrap().into_parts().0;
                head.headers.extend(self.head(length.unwrap_or(body.len())));
                self.endpoint().parse_call(&head, Bytes::from(body), &secret())
            }
        }
    }

    /// Reads a call with this number of rows.
    fn call(self, signature: &Signature, rows: usize, seed: u64) -> Call {
        let (doc, tail) = write("inputs", signature, rows, seed);
        let has_tail = signature.inputs.iter().any(|(_, form, _)| *form == InputForm::Binary);
        self.read(has_tail.then_some(doc.len()), [doc.as_bytes(), &tail].concat())
    }
}

proptest! {
    #[test]
    fn a_batch_that_is_answered_with_its_inputs_returns_them_to_their_members(
        server in server(),
        signature in signature(),
        members in prop::collection::vec((1..4_usize, 0..9_u64), 2..5),
    ) {
        let calls: Vec<Call> = members.iter().map(|(rows, seed)| server.call(&signature, *rows, *seed)).collect();
        let endpoint = server.endpoint();
        for (call, (rows, _)) in calls.iter().zip(&members) {
            prop_assert_eq!(call.unbatched_reason(), None, "{:?}", call.body);
            prop_assert!(call.merge == calls[0].merge, "{:?} {:?}", call.body, calls[0].body);
            prop_assert_eq!(usize::try_from(call.items).unwrap(), *rows);
        }
        let batch: Vec<&Call> = calls.iter().collect();
        let sent = endpoint.write_batch(&batch, None);
        let length = server.document_len(&sent.headers);
        let document = length.unwrap_or(sent.body.len());

        // The joined call is a call with the rows of all members.
        let again = server.read(length, sent.body.to_vec());
        let rows: usize = members.iter().map(|(rows, _)| rows).sum();
        prop_assert_eq!(again.unbatched_reason(), None);
        prop_assert_eq!(usize::try_from(again.items).unwrap(), rows);

        let answered = |doc: &[u8]| String::from_utf8(doc.to_vec()).unwrap().replace("inputs", "outputs");
        let doc = answered(&sent.body[..document]);
        let headers = length.map(|_| server.head(doc.len())).unwrap_or_default();
        let body = Bytes::from([doc.as_bytes(), &sent.body[document..]].concat());
        let answer = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
        let replies = endpoint.split_batch(&batch, &sent, answer, Some((crate::batching::Tick(0), &UnbatchedEvidence::default()))).unwrap();
        for (reply, (rows, seed)) in replies.iter().zip(&members) {
            let (doc, tail) = write("outputs", &signature, *rows, *seed);
            let expected = [doc.as_bytes(), &tail].concat();
            prop_assert!(reply.body == expected, "{:?} instead of {:?}", reply.body, Bytes::from(expected));
            if length.is_some() {
                prop_assert_eq!(server.document_len(&reply.headers), Some(doc.len()));
            }
        }
    }

    #[test]
    fn bytes_that_are_no_valid_response_are_never_shared(
        server in server(),
        signature in signature(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let calls = [server.call(&signature, 1, 1), server.call(&signature, 2, 2)];
        let batch: Vec<&Call> = calls.iter().collect();
        let endpoint = server.endpoint();
        let sent = endpoint.write_batch(&batch, None);
        let (doc, tail) = write("outputs", &signature, 3, 4);
        let mut body = [doc.as_bytes(), &tail].concat();
        let place = at.index(body.len());
        body[place] = byte;
        let headers = server.head(doc.len());
        let body = Bytes::from(body);
        let answer = BatchResponse { status: StatusCode::OK, headers: &headers, body: &body };
        // Either the changed response still has three rows, or no member receives a part of it.
        if let Ok(replies) = endpoint.split_batch(&batch, &sent, answer, None) {
            prop_assert_eq!(replies.len(), 2);
            let tail_len = |reply: &crate::Reply| reply.body.len() - server.document_len(&reply.headers).unwrap();
            let tails: usize = replies.iter().map(tail_len).sum();
            prop_assert_eq!(tails, tail.len());
        }
    }
}
