//! What is not merged and holds no slot: forwarded on the connection's own lane.

use std::sync::Arc;

use http::{Request, Response};
use tower::Service;

use super::Proxy;
use super::connection::Uploading;
use super::record::Ending;
use crate::backend::Lane;
use crate::body::Body;
use crate::error::FailureKind;
use crate::protocol::{Dialect, Reason};
use crate::telemetry::names::Outcome;

// === impl Proxy ===

impl Proxy {
    /// Forwards a call untouched.
    pub(super) async fn pass(
        self: &Arc<Self>,
        mut lane: Lane,
        request: Request<Body>,
        reason: Reason,
        mut ending: Ending,
        dialect: Dialect,
    ) -> Response<Body> {
        ending.passed(reason);
        let mut request = request;
        if let Some(uploading) = request.extensions_mut().remove::<Uploading>() {
            request = request.map(|body| body.keeping(uploading));
        }
        // A lane is always ready: it connects when it is called.
        match self.cut.end(lane.call(request)).await.unwrap_or_else(|| Err(FailureKind::Draining.into())) {
            Ok(mut response) => {
                ending.end(Outcome::Passed, &mut response);
                response
            }
            Err(failure) => {
                // Nothing but silence ends a call that passes.
                let limit =
                    (failure.kind == FailureKind::UpstreamTimeout).then_some("proxy.client.passThroughIdleTimeout");
                let mut response = self.rescue(dialect, &failure, limit);
                ending.fail(&failure, &mut response);
                response
            }
        }
    }
}
