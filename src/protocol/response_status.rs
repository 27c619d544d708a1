//! Outcome of a response, for protocols that do not express it by the HTTP status.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::call::Reply;
use crate::route::Endpoint;
use crate::shape::Payload;
use crate::v2::grpc::status;

// === impl Endpoint ===

impl Endpoint {
    /// Returns `true` for a successful response.
    #[must_use]
    pub fn is_success(&self, reply: &Reply) -> bool {
        let heads = (&reply.headers, reply.trailers.as_ref());
        self.response_status(reply.status, heads, &reply.body).0.is_success()
    }

    /// Returns the status by which a response is judged, and the body of an error: those of HTTP, or
    /// their equivalents where the protocol writes its status into headers or trailers.
    #[must_use]
    pub fn response_status(
        &self,
        status: StatusCode,
        (headers, trailers): (&HeaderMap, Option<&HeaderMap>),
        body: &Bytes,
    ) -> (StatusCode, Bytes) {
        match self.shape.payload {
            Payload::Items | Payload::Tensors | Payload::Generation(_) => (status, body.clone()),
            Payload::GrpcTensors => {
                let (status, error) = status::as_http(status, headers, trailers);
                (status, if status.is_success() { body.clone() } else { error })
            }
        }
    }
}
