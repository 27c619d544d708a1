//! Comparison of tensors in binary form: those after a JSON document, and those of gRPC messages.

use bytes::Bytes;

use super::{AnswerContent, AnswerDifference, DifferenceKind, compare_numbers};
use crate::call::Call;
use crate::route::Endpoint;
use crate::v2::binary::Framing;
use crate::v2::grpc::split::MessageSplit;
use crate::v2::split::TensorSplit;
use crate::v2::tensor::Datatype;

/// Returns `true` if a response of KServe V2 may have tensors in binary form.
pub(super) fn is_binary(answer: AnswerContent<'_>) -> bool {
    !matches!(Framing::read(answer.headers, answer.body.len()), Ok(Framing::Json))
}

/// Compares two responses with tensors in binary form. Returns the largest difference that rounding
/// explains.
pub(super) fn compare_binary(
    endpoint: &Endpoint,
    call: &Call,
    answers: [AnswerContent<'_>; 2],
) -> Result<f64, AnswerDifference> {
    let [merged, unbatched] = answers.map(|answer| TensorSplit::new(&[call], answer.body, answer.headers));
    let (Ok(merged), Ok(unbatched)) = (merged, unbatched) else {
        return Err(AnswerDifference::new(DifferenceKind::Structure));
    };
    let documents = endpoint.compare_documents(call, [&merged.doc, &unbatched.doc])?;
    let tensors: [Vec<(Datatype, &Bytes)>; 2] = [merged.binary_tensors(), unbatched.binary_tensors()];
    compare_tensors(&tensors).map(|rounding| rounding.max(documents))
}

/// Compares two messages. Parameters are left out: the order of a map in a message is not defined.
/// Returns the largest difference that rounding explains.
pub(super) fn compare_messages(call: &Call, answers: [AnswerContent<'_>; 2]) -> Result<f64, AnswerDifference> {
    let [merged, unbatched] = answers.map(|answer| MessageSplit::new(&[call], answer.body));
    let (Ok(merged), Ok(unbatched)) = (merged, unbatched) else {
        return Err(AnswerDifference::new(DifferenceKind::Structure));
    };
    if merged.description() != unbatched.description() {
        return Err(AnswerDifference::new(DifferenceKind::Structure));
    }
    compare_tensors(&[merged.data(), unbatched.data()])
}

/// Compares the elements of tensors that follow each other.
fn compare_tensors<D: AsRef<[u8]>>(tensors: &[Vec<(Datatype, D)>; 2]) -> Result<f64, AnswerDifference> {
    let [own, others] = tensors;
    let mut rounding = 0.0_f64;
    for (place, ((datatype, one), (_, other))) in own.iter().zip(others).enumerate() {
        match compare_elements(*datatype, [one.as_ref(), other.as_ref()]) {
            Ok(difference) => rounding = rounding.max(difference),
            Err(kind) => return Err(AnswerDifference { at: format!("/outputs/{place}/data"), kind }),
        }
    }
    Ok(rounding)
}

/// Compares the elements of two tensors relative to the largest of them.
fn compare_elements(datatype: Datatype, data: [&[u8]; 2]) -> Result<f64, DifferenceKind> {
    let [one, other] = data;
    if one == other {
        return Ok(0.0);
    }
    let [Some(own), Some(others)] = data.map(|bytes| decode_elements(datatype, bytes)) else {
        return Err(DifferenceKind::Value);
    };
    if own.len() != others.len() {
        return Err(DifferenceKind::Structure);
    }
    let magnitudes = own.iter().chain(&others).map(|number| number.abs()).filter(|number| number.is_finite());
    let scale = magnitudes.fold(0.0, f64::max);
    own.into_iter().zip(others).try_fold(0.0_f64, |rounding, pair| {
        compare_numbers(pair.into(), scale).map(|difference| rounding.max(difference))
    })
}

/// Decodes little-endian floating-point numbers. `None` for other datatypes.
fn decode_elements(datatype: Datatype, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match datatype {
        Datatype::Fp64 => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        Datatype::Fp32 => bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect(),
        Datatype::Fp16 => bytes.as_chunks().0.iter().map(|bytes| decode_half(u16::from_le_bytes(*bytes))).collect(),
        Datatype::Bf16 => {
            let decode = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            bytes.as_chunks().0.iter().map(|bytes| f64::from(decode(bytes))).collect()
        }
        _ => return None,
    })
}

/// Decodes a number of 16 bits: a sign, 5 bits of the exponent, 10 of the significand (IEEE 754,
/// binary16).
fn decode_half(bits: u16) -> f64 {
    let significand = f64::from(bits & 0x3ff) / 1024.0;
    let magnitude = match bits >> 10 & 0x1f {
        0 => significand * 2.0_f64.powi(-14),
        0x1f if significand > 0.0 => f64::NAN,
        0x1f => f64::INFINITY,
        exponent => (1.0 + significand) * 2.0_f64.powi(i32::from(exponent) - 15),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_decoded() {
        // Written by Python: struct.pack("<e", …).
        for (bits, number) in [(0x3c00, 1.0), (0xc000, -2.0), (0x3555, 0.333_251_953_125), (0x0001, 2.0_f64.powi(-24))]
        {
            assert!((decode_half(bits) - number).abs() < 1e-15, "{bits:x}");
        }
        assert!(decode_half(0x7c00).is_infinite() && decode_half(0x7e00).is_nan());
    }

    #[test]
    fn floats_may_be_rounded_and_others_have_to_be_equal() {
        let floats = |numbers: [f32; 2]| numbers.map(f32::to_le_bytes).concat();
        let compare = |datatype, one: &[u8], other: &[u8]| compare_elements(datatype, [one, other]);
        let near = compare(Datatype::Fp32, &floats([800.0, 0.5]), &floats([801.0, 0.5]));
        assert!(near.is_ok_and(|difference| (difference - 1.0 / 801.0).abs() < 1e-9), "{near:?}");
        let far = compare(Datatype::Fp32, &floats([800.0, 0.5]), &floats([800.0, 90.0]));
        assert!(matches!(far, Err(DifferenceKind::Number(_))), "{far:?}");
        assert_eq!(compare(Datatype::Int32, &[1, 0, 0, 0], &[2, 0, 0, 0]), Err(DifferenceKind::Value));
        assert_eq!(compare(Datatype::Fp32, &floats([1.0, 2.0]), &[0, 0, 0, 0]), Err(DifferenceKind::Structure));
        assert_eq!(compare(Datatype::Bf16, &[0x80, 0x3f], &[0x80, 0x3f]), Ok(0.0));
    }
}
