//! The messages of the Open Inference Protocol over gRPC, as tables: encoding of JSON with the names
//! of the .proto files, and decoding for comparisons. It shares no code with the proxy.

use std::fmt::Write as _;

use serde_json::Value;

use crate::coding::base64;
use crate::support::json::Json;

/// A message that a case writes as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// `ModelInferRequest`.
    Request,
    /// `ModelInferResponse`.
    Response,
    /// `ModelConfigResponse`, as far as the proxy reads it.
    Config,
}

/// A field: its name, its number, and its type.
type Field = (&'static str, u64, FieldType);

#[derive(Debug, Clone, Copy)]
enum FieldType {
    Text,
    Blob,
    Int,
    Bool,
    /// Repeated numbers, which are packed.
    Ints,
    Bools,
    Floats,
    Doubles,
    Blobs,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// Texts to messages.
    Map(&'static [Field]),
}

use FieldType::{Blob, Blobs, Bool, Bools, Doubles, Floats, Int, Ints, Map, Message, Messages, Text};

const PARAMETER: &[Field] = &[("bool_param", 1, Bool), ("int64_param", 2, Int), ("string_param", 3, Text)];
const CONTENTS: &[Field] = &[
    ("bool_contents", 1, Bools),
    ("int_contents", 2, Ints),
    ("int64_contents", 3, Ints),
    ("uint_contents", 4, Ints),
    ("uint64_contents", 5, Ints),
    ("fp32_contents", 6, Floats),
    ("fp64_contents", 7, Doubles),
    ("bytes_contents", 8, Blobs),
];
const TENSOR: &[Field] = &[
    ("name", 1, Text),
    ("datatype", 2, Text),
    ("shape", 3, Ints),
    ("parameters", 4, Map(PARAMETER)),
    ("contents", 5, Message(CONTENTS)),
];
const OUTPUT: &[Field] = &[("name", 1, Text), ("parameters", 2, Map(PARAMETER))];
const REQUEST: &[Field] = &[
    ("model_name", 1, Text),
    ("model_version", 2, Text),
    ("id", 3, Text),
    ("parameters", 4, Map(PARAMETER)),
    ("inputs", 5, Messages(TENSOR)),
    ("outputs", 6, Messages(OUTPUT)),
    ("raw_input_contents", 7, Blobs),
];
const RESPONSE: &[Field] = &[
    ("model_name", 1, Text),
    ("model_version", 2, Text),
    ("id", 3, Text),
    ("parameters", 4, Map(PARAMETER)),
    ("outputs", 5, Messages(TENSOR)),
    ("raw_output_contents", 6, Blobs),
];
const CONFIG: &[Field] = &[
    ("name", 1, Text),
    ("max_batch_size", 4, Int),
    ("dynamic_batching", 11, Message(&[])),
    ("sequence_batching", 13, Message(&[])),
];
/// Bytes before the message: the compressed flag and its length.
const PREFIX: usize = 5;
/// Field of the id, in requests and responses.
const ID: u64 = 3;

// === impl MessageKind ===

impl MessageKind {
    const fn fields(self) -> &'static [Field] {
        match self {
            Self::Request => REQUEST,
            Self::Response => RESPONSE,
            Self::Config => &[("config", 1, Message(CONFIG))],
        }
    }

    /// Encodes a message with its prefix.
    pub(crate) fn encode(self, message: &Value) -> Result<Vec<u8>, String> {
        Ok(framed(&encode(self.fields(), message)?))
    }

    /// Decodes a body with one message. Texts and names have no quotes, bytes are in hexadecimal, and
    /// floats are their bits.
    pub(crate) fn decode(self, body: &[u8]) -> Result<Json, String> {
        decode(self.fields(), unframed(body)?)
    }
}

/// Returns a body with another id.
pub(crate) fn with_id(body: &[u8], replace: impl Fn(&[u8]) -> Vec<u8>) -> Result<Vec<u8>, String> {
    let mut message = Vec::new();
    for (number, value) in fields(unframed(body)?)? {
        match value {
            FieldValue::Bytes(text) if number == ID => bytes(&mut message, ID, &replace(text)),
            FieldValue::Bytes(value) => bytes(&mut message, number, value),
            FieldValue::Varint(_) => return Err("a number at the top of a message".to_owned()),
        }
    }
    Ok(framed(&message))
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn unframed(body: &[u8]) -> Result<&[u8], String> {
    let message = body.get(PREFIX..).ok_or("body: no gRPC message")?;
    if framed(message) == body { Ok(message) } else { Err("body: not one uncompressed gRPC message".to_owned()) }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push(u8::try_from(value % 128).unwrap_or_default() | 128);
        value /= 128;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

fn bytes(out: &mut Vec<u8>, number: u64, value: &[u8]) {
    varint(out, number * 8 + 2);
    varint(out, u64::try_from(value.len()).unwrap_or(u64::MAX));
    out.extend_from_slice(value);
}

fn encode(fields: &[Field], message: &Value) -> Result<Vec<u8>, String> {
    let members = message.as_object().ok_or("a message is no object")?;
    if let Some(name) = members.keys().find(|name| !fields.iter().any(|(known, ..)| known == name)) {
        return Err(format!("no field `{name}` in the message"));
    }
    let mut out = Vec::new();
    for (name, number, of) in fields {
        if let Some(value) = members.get(*name) {
            encode_field(&mut out, *number, *of, value).ok_or_else(|| format!("`{name}` has a bad value: {value}"))?;
        }
    }
    Ok(out)
}

fn encode_field(out: &mut Vec<u8>, number: u64, of: FieldType, value: &Value) -> Option<()> {
    let list = || value.as_array();
    match of {
        Text => bytes(out, number, value.as_str()?.as_bytes()),
        Blob => bytes(out, number, &base64(value.as_str()?)?),
        Int | Bool => {
            varint(out, number * 8);
            varint(out, integer(value)?);
        }
        Ints | Bools => {
            let mut packed = Vec::new();
            for value in list()? {
                varint(&mut packed, integer(value)?);
            }
            bytes(out, number, &packed);
        }
        Floats | Doubles => {
            let mut packed = Vec::new();
            for value in list()? {
                let value = value.as_f64()?;
                #[expect(clippy::cast_possible_truncation, reason = "a case writes the decimal form of a float")]
                let single = (value as f32).to_le_bytes();
                packed.extend_from_slice(if matches!(of, Floats) { &single } else { &[] });
                packed.extend_from_slice(&if matches!(of, Doubles) {
                    value.to_le_bytes().to_vec()
                } else {
                    Vec::new()
                });
            }
            bytes(out, number, &packed);
        }
        Blobs => list()?.iter().try_for_each(|value| encode_field(out, number, Blob, value))?,
        Message(fields) => bytes(out, number, &encode(fields, value).ok()?),
        Messages(fields) => list()?.iter().try_for_each(|value| encode_field(out, number, Message(fields), value))?,
        Map(fields) => {
            for (name, value) in value.as_object()? {
                let mut entry = Vec::new();
                bytes(&mut entry, 1, name.as_bytes());
                bytes(&mut entry, 2, &encode(fields, value).ok()?);
                bytes(out, number, &entry);
            }
        }
    }
    Some(())
}

/// Returns a number as a varint; a negative one as its two's complement.
fn integer(value: &Value) -> Option<u64> {
    let signed = || value.as_i64().map(|signed| u64::from_le_bytes(signed.to_le_bytes()));
    value.as_bool().map(u64::from).or_else(|| value.as_u64()).or_else(signed)
}

/// A value in the wire format. Messages of the protocol have no numbers of fixed width outside of
/// packed lists.
enum FieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

fn read_varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for place in 0..10 {
        let (first, after) = rest.split_first().ok_or("a message ends early")?;
        *rest = after;
        value |= u64::from(first & 127) << (7 * place);
        if first & 128 == 0 {
            return Ok(value);
        }
    }
    Err("a varint is too long".to_owned())
}

fn fields(mut rest: &[u8]) -> Result<Vec<(u64, FieldValue<'_>)>, String> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let tag = read_varint(&mut rest)?;
        let value = match tag % 8 {
            0 => FieldValue::Varint(read_varint(&mut rest)?),
            2 => {
                let length = usize::try_from(read_varint(&mut rest)?).map_err(|e| e.to_string())?;
                let (value, after) = rest.split_at_checked(length).ok_or("a message ends early")?;
                rest = after;
                FieldValue::Bytes(value)
            }
            other => return Err(format!("wire type {other}")),
        };
        found.push((tag / 8, value));
    }
    Ok(found)
}

fn decode(known: &[Field], message: &[u8]) -> Result<Json, String> {
    let found = fields(message)?;
    if let Some((number, _)) = found.iter().find(|(number, _)| !known.iter().any(|(_, own, _)| own == number)) {
        return Err(format!("unknown field {number}"));
    }
    let mut members = Vec::new();
    for (name, number, of) in known {
        let values: Vec<&FieldValue<'_>> =
            found.iter().filter(|(own, _)| own == number).map(|(_, value)| value).collect();
        if !values.is_empty() {
            members.push((name.as_bytes().to_vec(), decode_field(*of, &values).map_err(|e| format!("{name}: {e}"))?));
        }
    }
    Ok(Json::Object(members))
}

fn decode_field(of: FieldType, values: &[&FieldValue<'_>]) -> Result<Json, String> {
    let mut list = Vec::new();
    for value in values {
        match (of, value) {
            (Text, FieldValue::Bytes(text)) => list.push(Json::Scalar(text.to_vec())),
            (Blob | Blobs, FieldValue::Bytes(blob)) => list.push(Json::Scalar(hex(blob))),
            (Int | Bool | Ints | Bools, FieldValue::Varint(value)) => {
                list.push(Json::Scalar(value.to_string().into_bytes()));
            }
            (Ints | Bools, FieldValue::Bytes(packed)) => {
                let mut packed = *packed;
                while !packed.is_empty() {
                    list.push(Json::Scalar(read_varint(&mut packed)?.to_string().into_bytes()));
                }
            }
            (Floats, FieldValue::Bytes(packed)) if packed.len() % 4 == 0 => {
                list.extend(packed.chunks(4).map(|bits| Json::Scalar(hex(bits))));
            }
            (Doubles, FieldValue::Bytes(packed)) if packed.len() % 8 == 0 => {
                list.extend(packed.chunks(8).map(|bits| Json::Scalar(hex(bits))));
            }
            (Message(fields) | Messages(fields), FieldValue::Bytes(message)) => list.push(decode(fields, message)?),
            (Map(of), FieldValue::Bytes(entry)) => {
                let found = fields(entry)?;
                let part = |number: u64| {
                    found.iter().find_map(|(own, value)| match value {
                        FieldValue::Bytes(value) if *own == number => Some(*value),
                        _ => None,
                    })
                };
                let value = decode(of, part(2).unwrap_or_default())?;
                list.push(Json::Object(vec![(part(1).unwrap_or_default().to_vec(), value)]));
            }
            _ => return Err("another wire type".to_owned()),
        }
    }
    match of {
        Text | Blob | Int | Bool | Message(_) if list.len() == 1 => Ok(list.remove(0)),
        Text | Blob | Int | Bool | Message(_) => Err("twice".to_owned()),
        // The order of a map has no meaning.
        Map(_) => Ok(Json::Object(
            list.into_iter()
                .flat_map(|entry| match entry {
                    Json::Object(members) => members,
                    Json::Array(_) | Json::Scalar(_) => Vec::new(),
                })
                .collect(),
        )),
        Ints | Bools | Floats | Doubles | Blobs | Messages(_) => Ok(Json::Array(list)),
    }
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for byte in bytes {
        // Writing to a string never fails.
        write!(text, "{byte:02x}").ok();
    }
    text.into_bytes()
}
