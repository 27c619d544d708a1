//! Batchable APIs of BentoML: an object whose only member, named after the parameter of the API, is
//! the list of items, and a list of results at the root of the response.
//!
//! An API is declared as batchable in the code of the service, and nothing on the wire shows it.
//! The path is therefore merged only on a route that names this protocol. A call with further
//! members is sent unbatched, because they may belong to single items.

use crate::shape::ProtocolShape;

/// Returns the shape of a call to a batchable API.
pub(crate) fn batchable_api() -> ProtocolShape {
    ProtocolShape { is_sole_member: true, ..ProtocolShape::plain("", "") }
}
