//! MLflow models, at `/invocations`: rows in one of four members, and `predictions` in the
//! response.
//!
//! A data frame is built from all rows of a call, so only rows with equal columns and types share a
//! batch. A call with an index is sent unbatched, because the values of an index may reach the
//! model and have to be unique. Columns as an object of lists are left out: a Generic route can
//! declare them.

use crate::json::Base64Form;
use crate::pointer::Pointer;
use crate::shape::{Class, ProtocolShape};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/invocations";

const KNOWN: [&str; 5] = ["dataframe_split", "dataframe_records", "instances", "inputs", "params"];

/// Returns the shape of `/invocations`.
pub(crate) fn invocations() -> ProtocolShape {
    let rows = |pointer| vec![Pointer::from_static(pointer)];
    ProtocolShape {
        alternatives: vec![rows("/dataframe_records"), rows("/instances"), rows("/inputs")],
        class: Class::Strict(Base64Form::Plain),
        known: &KNOWN,
        unbatched_members: &["/dataframe_split/index"],
        lenient: true,
        ..ProtocolShape::plain("/dataframe_split/data", "/predictions")
    }
}
