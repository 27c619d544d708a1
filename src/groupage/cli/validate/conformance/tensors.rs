//! A sample call of the Open Inference Protocol, generated from the metadata of a model.

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use serde_json::{Value, json};

use super::ConformanceClient;
use super::sample::TEXT;
use crate::protocol::{Endpoint, ProtocolLabel};

/// Last step of the path of a call. Without it, the path is that of the metadata.
const SUFFIX: &str = "/infer";
/// Maximum number of elements of a generated tensor. At four bytes each, the call is still merged
/// by default.
const ELEMENTS_MAX: u64 = 200_000;

// === impl ConformanceClient ===

impl ConformanceClient {
    /// Generates a call with one row in each tensor that the model takes. `None` if the protocol is
    /// another one, or if the server publishes no metadata.
    pub(super) async fn generate_tensors(&self, endpoint: &Endpoint, path: &str) -> Option<Bytes> {
        let path = path.strip_suffix(SUFFIX).filter(|_| endpoint.label == ProtocolLabel::OpenInferenceV2)?;
        let mut headers = self.headers.clone();
        headers.insert(header::HOST, HeaderValue::from_str(&self.authority).ok()?);
        let answer = self.send(&Method::GET, path, headers, Bytes::new()).await.ok()?;
        let metadata: Value = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status.is_success())?;
        generate_body(&metadata)
    }
}

fn generate_body(metadata: &Value) -> Option<Bytes> {
    let inputs = metadata.get("inputs")?.as_array().filter(|inputs| !inputs.is_empty())?;
    let tensors: Vec<Value> = inputs.iter().map(generate_tensor).collect::<Option<_>>()?;
    Some(Bytes::from(json!({ "inputs": tensors }).to_string()))
}

fn generate_tensor(input: &Value) -> Option<Value> {
    // A size that the call chooses is -1, such as the number of rows.
    let sizes = input.get("shape")?.as_array()?;
    let shape: Vec<u64> = sizes.iter().map(|size| size.as_u64().unwrap_or(1)).collect();
    let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    let count = usize::try_from(count.filter(|count| *count <= ELEMENTS_MAX)?).ok()?;
    let datatype = input.get("datatype")?.as_str()?;
    let element = match datatype {
        "BOOL" => json!(true),
        "BYTES" => json!(TEXT),
        _ if datatype.starts_with("FP") || datatype.starts_with("BF") => json!(1.0),
        _ => json!(1),
    };
    Some(json!({"name": input.get("name")?, "shape": shape, "datatype": datatype, "data": vec![element; count]}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tensor_has_one_row_of_elements_of_its_type() {
        let body = |inputs: Value| generate_body(&json!({"name": "m", "inputs": inputs}));
        let inputs = json!([
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "text", "datatype": "BYTES", "shape": [-1]},
        ]);
        let expected = json!({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 1.0]},
            {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [1]},
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]},
        ]});
        assert_eq!(serde_json::from_slice::<Value>(&body(inputs).unwrap()).unwrap(), expected);
        assert_eq!(body(json!([])), None);
        assert_eq!(body(json!([{"name": "x", "datatype": "FP32", "shape": [-1, 1_000_000]}])), None);
        assert_eq!(body(json!([{"name": "x", "shape": [1]}])), None);
    }
}
