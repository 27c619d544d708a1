//! Generated calls of every datatype and form: a batch that is answered with its own inputs gives
//! each member its own inputs again. Calls that differ in one thing beside their rows share no
//! batch.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use proptest::prelude::*;

use super::{field, framed, grpc, read};
use crate::v2::tests::round_trip::binary_element;
use crate::{BatchResponse, Call};

/// Datatypes, and the field of their typed elements.
const DATATYPES: [(&str, Option<u8>); 14] = [
    ("BOOL", Some(1)),
    ("UINT8", Some(4)),
    ("UINT16", Some(4)),
    ("UINT32", Some(4)),
    ("UINT64", Some(5)),
    ("INT8", Some(2)),
    ("INT16", Some(2)),
    ("INT32", Some(2)),
    ("INT64", Some(3)),
    ("FP16", None),
    ("FP32", Some(6)),
    ("FP64", Some(7)),
    ("BF16", None),
    ("BYTES", Some(8)),
];

/// Properties that the calls of one batch have in common.
#[derive(Debug, Clone)]
struct Signature {
    inputs: Vec<(usize, Vec<u8>, Option<Vec<u8>>)>,
    is_raw: bool,
    has_id: bool,
    /// Fields that the protocol does not define.
    unknown: Vec<Vec<u8>>,
}

/// A change of one thing that calls of one batch have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SignatureChange {
    Datatype,
    Dimension,
    TensorField,
    InputCount,
    DataForm,
    IdPresence,
    MessageField,
}

const CHANGES: [SignatureChange; 7] = [
    SignatureChange::Datatype,
    SignatureChange::Dimension,
    SignatureChange::TensorField,
    SignatureChange::InputCount,
    SignatureChange::DataForm,
    SignatureChange::IdPresence,
    SignatureChange::MessageField,
];

fn signature() -> impl Strategy<Value = Signature> {
    let unknown = || prop::collection::vec(any::<u8>(), 0..5);
    let input = (0..DATATYPES.len(), prop::collection::vec(1..4_u8, 0..3), prop::option::of(unknown()));
    let inputs = prop::collection::vec(input, 1..4);
    (inputs, any::<bool>(), any::<bool>(), prop::collection::vec(unknown(), 0..3)).prop_map(
        |(inputs, is_raw, has_id, unknown)| {
            let is_raw = is_raw || inputs.iter().any(|(datatype, ..)| DATATYPES[*datatype].1.is_none());
            Signature { inputs, is_raw, has_id, unknown }
        },
    )
}

/// Returns a signature that differs in one thing, or `None` if it has no other form of its data.
fn changed(signature: &Signature, change: SignatureChange) -> Option<Signature> {
    let mut other = signature.clone();
    let is_typable = |signature: &Signature| signature.inputs.iter().all(|(index, ..)| DATATYPES[*index].1.is_some());
    let (datatype, row, unknown) = other.inputs.first_mut()?;
    match change {
        SignatureChange::Datatype => {
            *datatype = (*datatype + 1) % DATATYPES.len();
            other.is_raw |= !is_typable(&other);
        }
        SignatureChange::Dimension => row.push(1),
        SignatureChange::TensorField => *unknown = if unknown.is_some() { None } else { Some(vec![7]) },
        SignatureChange::InputCount => other.inputs.push(signature.inputs[0].clone()),
        SignatureChange::DataForm if !is_typable(signature) => return None,
        SignatureChange::DataForm => other.is_raw = !other.is_raw,
        SignatureChange::IdPresence => other.has_id = !other.has_id,
        SignatureChange::MessageField => other.unknown.push(vec![7]),
    }
    Some(other)
}

/// Returns an element of a typed list: a varint of one to ten bytes, a number of fixed width, or the
/// field of a byte string.
fn typed_element(datatype: &str, number: u8, seed: u64) -> Vec<u8> {
    let bytes = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    match datatype {
        "FP32" => bytes[..4].to_vec(),
        "FP64" => bytes.to_vec(),
        "BYTES" => field(number, &bytes[..usize::from(bytes[0] % 5)]),
        _ => {
            let mut varint: Vec<u8> = bytes.iter().take(usize::from(bytes[0] % 9)).map(|byte| byte | 128).collect();
            varint.push(bytes[1] & 127);
            varint
        }
    }
}

/// Writes the message of a call (`raw_field` 7) or of a response (6).
fn write(signature: &Signature, rows: u8, seed: u64, id: &[u8], raw_field: u8) -> Vec<u8> {
    let (mut tensors, mut blobs) = (Vec::new(), Vec::new());
    for (index, (datatype, row, unknown)) in signature.inputs.iter().enumerate() {
        let (name, number) = DATATYPES[*datatype];
        let shape: Vec<u8> = std::iter::once(rows).chain(row.iter().copied()).collect();
        let count: u64 = shape.iter().map(|length| u64::from(*length)).product();
        let seeds = (0..count).map(|element| seed * 1000 + element);
        let mut tensor = [field(1, format!("t{index}").as_bytes()), field(2, name.as_bytes())].concat();
        tensor.extend(unknown.as_ref().map(|value| field(14, value)).unwrap_or_default());
        tensor.extend(field(3, &shape));
        match number.filter(|_| !signature.is_raw) {
            None => {
                let blob: Vec<u8> = seeds.flat_map(|seed| binary_element(name, seed)).collect();
                blobs.extend(field(raw_field, &blob));
            }
            Some(number) => {
                let elements: Vec<u8> = seeds.flat_map(|seed| typed_element(name, number, seed)).collect();
                tensor.extend(field(5, &if number == 8 { elements } else { field(number, &elements) }));
            }
        }
        tensors.extend(field(5, &tensor));
    }
    let id = if signature.has_id { field(3, id) } else { Vec::new() };
    let unknown: Vec<u8> = signature.unknown.iter().flat_map(|value| field(13, value)).collect();
    [field(1, b"m"), id, tensors, unknown, blobs].concat()
}

fn call(signature: &Signature, rows: u8, seed: u64) -> Call {
    read(&write(signature, rows, seed, seed.to_string().as_bytes(), 7))
}

proptest! {
    #[test]
    fn a_batch_that_is_answered_with_its_inputs_returns_them_to_their_members(
        signature in signature(),
        members in prop::collection::vec((1..4_u8, 0..9_u64), 2..5),
    ) {
        let calls: Vec<Call> = members.iter().map(|(rows, seed)| call(&signature, *rows, *seed)).collect();
        let endpoint = grpc();
        for (call, (rows, _)) in calls.iter().zip(&members) {
            prop_assert_eq!(call.unbatched_reason(), None, "{:?}", call.body);
            prop_assert!(call.merge == calls[0].merge, "{:?} {:?}", call.body, calls[0].body);
            prop_assert_eq!(call.items, u32::from(*rows));
        }
        let batch: Vec<&Call> = calls.iter().collect();
        let sent = endpoint.write_batch(&batch, None);

        // The joined call is a call with the rows of all members.
        let again = read(&sent.body[5..]);
        prop_assert_eq!(again.unbatched_reason(), None);
        prop_assert_eq!(again.items, members.iter().map(|(rows, _)| u32::from(*rows)).sum::<u32>());

        // A response has its blobs in another field, of which the tag has one byte as well.
        let message = super::super::wire::WireFields::new(&sent.body, crate::json::Span { start: 5, end: sent.body.len() });
        let mut body = sent.body.to_vec();
        for blob in message.flatten().filter(|field| field.number == 7) {
            body[blob.whole.start] = 6 << 3 | 2;
        }
        let body = Bytes::from(body);
        let answer = BatchResponse { status: StatusCode::OK, headers: &HeaderMap::new(), body: &body };
        let replies = endpoint.split_batch(&batch, &sent, answer, None).unwrap();
        for (reply, (rows, seed)) in replies.iter().zip(&members) {
            let expected = framed(&write(&signature, *rows, *seed, seed.to_string().as_bytes(), 6));
            prop_assert!(reply.body == expected, "{:?} instead of {:?}", reply.body, expected);
        }
    }

    #[test]
    fn calls_that_differ_in_one_thing_beside_their_rows_never_share_a_batch(
        signature in signature(),
        change in prop::sample::select(CHANGES.to_vec()),
        (rows, other_rows) in (1..4_u8, 1..4_u8),
    ) {
        let other = changed(&signature, change);
        prop_assume!(other.is_some());
        let (one, again) = (call(&signature, rows, 1), call(&signature, other_rows, 2));
        prop_assert!(one.merge == again.merge, "{:?} {:?}", one.body, again.body);
        let other = call(&other.unwrap(), rows, 1);
        prop_assert_eq!((one.unbatched_reason(), other.unbatched_reason()), (None, None), "{:?}", other.body);
        prop_assert!(one.merge != other.merge, "{:?} {:?}", one.body, other.body);
    }

    #[test]
    fn a_call_with_any_byte_changed_is_joined_with_itself_or_sent_unbatched(
        signature in signature(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut message = write(&signature, 2, 5, b"id", 7);
        let place = at.index(message.len());
        message[place] = byte;
        let call = read(&message);
        if call.unbatched_reason().is_none() {
            let sent = grpc().write_batch(&[&call, &call], None);
            let again = read(&sent.body[5..]);
            prop_assert_eq!(again.unbatched_reason(), None);
            prop_assert_eq!(again.items, 2 * call.items);
        }
    }

    #[test]
    fn bytes_that_are_no_valid_response_are_never_shared(
        signature in signature(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let calls = [call(&signature, 1, 1), call(&signature, 2, 2)];
        let batch: Vec<&Call> = calls.iter().collect();
        let sent = grpc().write_batch(&batch, None);
        let mut body = framed(&write(&signature, 3, 4, b"id", 6)).to_vec();
        let place = at.index(body.len());
        body[place] = byte;
        let body = Bytes::from(body);
        let answer = BatchResponse { status: StatusCode::OK, headers: &HeaderMap::new(), body: &body };
        // Either the changed response still has three rows, or no member receives a part of it.
        if let Ok(replies) = grpc().split_batch(&batch, &sent, answer, None) {
            prop_assert_eq!(replies.len(), 2);
        }
    }
}
