//! Version 0 of the protocol of Seldon Core: rows in `data.ndarray`, or along the first dimension
//! of `data.tensor`.
//!
//! An array of one dimension, in either form, may be one example with several features, so it is not
//! merged. A server answers a tensor with a tensor if its results are numbers, else with `data.ndarray`.
//! The id of a call (`meta.puid`) is repeated in its response. Other kinds of payload (`tftensor`,
//! `strData`, `binData`, `jsonData`) are left out, and so is `/feedback`.

use crate::json::Base64Form;
use crate::pointer::Pointer;
use crate::shape::{Class, ItemIs, ProtocolShape, TensorPointers};

/// Suffix of the path.
pub(crate) const SUFFIX: &str = "/predictions";

const KNOWN: [&str; 7] = ["data", "meta", "status", "strData", "binData", "jsonData", "customData"];

/// Returns the shape of `/api/v0.1/predictions` and `/api/v1.0/predictions`.
pub(crate) fn predictions() -> ProtocolShape {
    ProtocolShape {
        item_is: ItemIs::Row,
        class: Class::Strict(Base64Form::Plain),
        ids: vec![Pointer::from_static("/meta/puid")],
        call_id: Some(Pointer::from_static("/meta/puid")),
        tensor: Some(TensorPointers::new("/data/tensor")),
        names: Some(Pointer::from_static("/data/names")),
        known: &KNOWN,
        unbatched_members: &["/data/tftensor", "/strData", "/binData", "/jsonData", "/customData"],
        ..ProtocolShape::plain("/data/ndarray", "/data/ndarray")
    }
}
