//! JSON schemas that cannot be derived: values of more than one form, enumerations that keep
//! unknown values, and Kubernetes types.
//!
//! These schemas only describe the accepted types. Ranges, known values and text rules come from
//! the table in `config`, which extends these schemas before they are published.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::lengths::CONDITIONS_MAX;
use super::{OneOrMany, OpenEnum, PortRef, SizeText, TooLargeSpec};

/// A whole number or a string, as defined by the API server.
fn int_or_string_schema() -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// A value of two forms, which a structural schema cannot express as alternatives.
fn any_value_schema() -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// An RFC 3339 timestamp.
pub(super) fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// The schema of `metav1.Condition`, as declared by the Kubernetes API. The crate that defines the
/// type provides its schema only behind a feature that doubles the build time.
pub(super) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": CONDITIONS_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "Time at which the status last changed.", "type": "string", "format": "date-time"
                },
                "message": { "description": "Human-readable message.", "type": "string", "maxLength": 32_768 },
                "observedGeneration": {
                    "description": "Generation of the object that the condition refers to.",
                    "type": "integer", "format": "int64", "minimum": 0
                },
                "reason": {
                    "description": "Reason for the last change, a word in CamelCase for programs.",
                    "type": "string", "minLength": 1, "maxLength": 1_024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "status": {
                    "description": "Status of the condition.", "type": "string", "enum": ["True", "False", "Unknown"]
                },
                "type": {
                    "description": "Type of the condition, in CamelCase.", "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                }
            }
        }
    })
}

/// Implements `JsonSchema` for a type with a schema that is inlined at each use.
macro_rules! inline {
    ($type:ty, $name:literal, $schema:expr $(, $generic:ident)?) => {
        impl$(<$generic>)? JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

inline!(OpenEnum<T>, "Word", json_schema!({ "type": "string" }), T);
inline!(SizeText, "SizeText", int_or_string_schema());
inline!(PortRef, "Port", int_or_string_schema());
inline!(OneOrMany, "OneOrMany", any_value_schema());
inline!(TooLargeSpec, "TooLargeSpec", any_value_schema());
