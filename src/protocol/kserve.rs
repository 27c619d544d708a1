//! KServe V1 and the row format of TF Serving: `instances` in the request, `predictions` in the
//! response.
//!
//! Calls in the columnar format (`inputs`) are sent unbatched, since only the operator can know
//! whether its first dimension is the batch; a Generic route can declare it. `{"b64": ..}` is a
//! single scalar.

use crate::protocol::json::Scalars;
use crate::protocol::shape::{AloneIf, Class, Measure, Shape};

/// Operation requested by a path of the V1 protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Predict,
    Explain,
    Regress,
    Classify,
}

/// Variant of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    KServe,
    TfServing,
}

const KNOWN: [&str; 7] = ["instances", "inputs", "examples", "context", "signature_name", "parameters", "outputs"];
const ALONE: [(&str, AloneIf); 1] = [("inputs", AloneIf::Present)];

/// Returns the verb at the end of a path.
pub(crate) fn verb(path: &str) -> Option<Verb> {
    match path.rsplit_once(':')?.1 {
        "predict" => Some(Verb::Predict),
        "explain" => Some(Verb::Explain),
        "regress" => Some(Verb::Regress),
        "classify" => Some(Verb::Classify),
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
pub(crate) fn shape(verb: Verb, flavour: Flavour) -> Shape {
    let plain = match verb {
        Verb::Predict => Shape::plain("/instances", "/predictions"),
        Verb::Explain => Shape::plain("/instances", "/explanations"),
        Verb::Regress | Verb::Classify => Shape::plain("/examples", "/results"),
    };
    let scalars = match flavour {
        Flavour::KServe => Scalars::Bytes,
        Flavour::TfServing => Scalars::Strings,
    };
    Shape {
        class: Class::Strict(scalars),
        weight: Measure::Items,
        known: &KNOWN,
        alone: &ALONE,
        lenient: flavour == Flavour::TfServing,
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
        assert_eq!(verb("/v1/models/m:explain"), Some(Verb::Explain));
        assert_eq!(verb("/v1/models/m:generate"), None);
    }
}
