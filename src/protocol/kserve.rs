//! KServe V1 and the row format of TF Serving: `instances` in the request, `predictions` in the
//! response.
//!
//! Calls in the columnar format (`inputs`) are sent unbatched, since only the operator can know
//! whether its first dimension is the batch; a Generic route can declare it. `{"b64": ..}` is a
//! single scalar.

use crate::json::Base64Form;
use crate::shape::{Class, Measure, ProtocolShape, UnbatchedIf};

/// Operation requested by a path of the V1 protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum V1Verb {
    Predict,
    Explain,
    Regress,
    Classify,
}

/// Variant of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum V1Variant {
    KServe,
    TfServing,
}

const KNOWN: [&str; 7] = ["instances", "inputs", "examples", "context", "signature_name", "parameters", "outputs"];
const UNBATCHED: [(&str, UnbatchedIf); 1] = [("inputs", UnbatchedIf::Present)];

/// Returns the verb at the end of a path.
pub(crate) fn verb(path: &str) -> Option<V1Verb> {
    match path.rsplit_once(':')?.1 {
        "predict" => Some(V1Verb::Predict),
        "explain" => Some(V1Verb::Explain),
        "regress" => Some(V1Verb::Regress),
        "classify" => Some(V1Verb::Classify),
        _ => None,
    }
}

/// Returns `true` for the path of a model in the protocol:
/// `/v1/models/{m}[/versions/{v}|/labels/{l}]:verb`.
pub(crate) fn is_model_path(path: &str) -> bool {
    let Some((model, _)) = path.strip_prefix("/v1/models/").and_then(|rest| rest.rsplit_once(':')) else {
        return false;
    };
    let steps: Vec<_> = model.split('/').collect();
    match steps.as_slice() {
        [model] => !model.is_empty(),
        [model, "versions" | "labels", version] => !model.is_empty() && !version.is_empty(),
        _ => false,
    }
}

/// Returns the shape of a verb.
pub(crate) fn shape(verb: V1Verb, flavour: V1Variant) -> ProtocolShape {
    let plain = match verb {
        V1Verb::Predict => ProtocolShape::plain("/instances", "/predictions"),
        V1Verb::Explain => ProtocolShape::plain("/instances", "/explanations"),
        V1Verb::Regress | V1Verb::Classify => ProtocolShape::plain("/examples", "/results"),
    };
    let scalars = match flavour {
        V1Variant::KServe => Base64Form::Bytes,
        V1Variant::TfServing => Base64Form::Strings,
    };
    ProtocolShape {
        class: Class::Strict(scalars),
        weight: Measure::Items,
        known: &KNOWN,
        unbatched_fields: &UNBATCHED,
        lenient: flavour == V1Variant::TfServing,
        ..plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_paths_are_matched_raw() {
        for path in [
            "/v1/models/m:predict",
            "/v1/models/a%2Fb:predict",
            "/v1/models/m/versions/3:predict",
            "/v1/models/a:b:predict",
        ] {
            assert!(is_model_path(path), "{path}");
        }
        for path in [
            "/v1/models/:predict",
            "/v1/models/m/x/3:predict",
            "/v1/models/m",
            "//v1/models/m:predict",
            "/v1/models/m/labels/:predict",
        ] {
            assert!(!is_model_path(path), "{path}");
        }
        assert_eq!(verb("/v1/models/m:explain"), Some(V1Verb::Explain));
        assert_eq!(verb("/v1/models/m:generate"), None);
    }
}
