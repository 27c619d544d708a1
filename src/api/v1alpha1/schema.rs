//! What the derive cannot say of a type: values of more than one form, words that are kept although unknown, and types of Kubernetes itself.
//!
//! Only what a type *takes* stands here. Ranges, words and text rules are `config`'s table, which is laid over these schemas before anybody sees them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{OneOrMany, Port, SizeText, TooLargeSpec, Word};

/// A whole number or a text, as the API server knows it.
fn int_or_string() -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// Of two forms that a structural schema cannot name side by side.
fn of_two_forms() -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// A moment.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// `metav1.Condition`, as its own API declares it: the crate that has the type has its schema behind a feature that doubles its build.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": super::status::CONDITIONS_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "When the status last changed.", "type": "string", "format": "date-time"
                },
                "message": { "description": "For people.", "type": "string", "maxLength": 32_768 },
                "observedGeneration": {
                    "description": "The generation of the object that this speaks of.",
                    "type": "integer", "format": "int64", "minimum": 0
                },
                "reason": {
                    "description": "For programs: a word in CamelCase.",
                    "type": "string", "minLength": 1, "maxLength": 1_024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "status": {
                    "description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"]
                },
                "type": {
                    "description": "What holds, or does not.", "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                }
            }
        }
    })
}

/// Gives a type a schema that stands where it is used.
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

inline!(Word<T>, "Word", json_schema!({ "type": "string" }), T);
inline!(SizeText, "SizeText", int_or_string());
inline!(Port, "Port", int_or_string());
inline!(OneOrMany, "OneOrMany", of_two_forms());
inline!(TooLargeSpec, "TooLargeSpec", of_two_forms());
