//! Cache of the limits that the model server publishes, requested when a route needs them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;

use super::Inner;
use crate::body::Body;
use crate::protocol::{PublishedLimits, parse_info, parse_info_model};

/// Maximum time to wait for the response. The limits of a slower server are not used.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(1);

/// Result of the last look-up. The inner `None` means that the server publishes no limits.
#[derive(Debug, Default)]
pub(super) struct LimitsCache {
    known: Mutex<Option<Option<PublishedLimits>>>,
    request_lock: tokio::sync::Mutex<()>,
}

// === impl LimitsCache ===

impl LimitsCache {
    /// Clears the cache, because the server may have been replaced.
    pub(super) fn forget(&self) {
        if let Ok(mut known) = self.known.lock() {
            *known = None;
        }
    }

    fn get(&self) -> Option<Option<PublishedLimits>> {
        self.known.lock().ok().and_then(|known| *known)
    }
}

/// Returns the limits that the server publishes. Concurrent callers share one request.
pub(super) async fn published_limits(inner: &Arc<Inner>) -> Option<PublishedLimits> {
    if let Some(known) = inner.published.get() {
        return known;
    }
    let _one_at_a_time = inner.published.request_lock.lock().await;
    if let Some(known) = inner.published.get() {
        return known;
    }
    let request = Request::get("/info").header(http::header::HOST, inner.config.target.authority()).body(Body::empty());
    let found = match request {
        Ok(request) => match inner.exchange(request, Some(LOOK_UP_LIMIT), None).await {
            Ok(answer) if answer.status.is_success() => {
                if let Some(model) = parse_info_model(&answer.body) {
                    inner.identity.on_published_model(&model);
                }
                parse_info(&answer.body)
            }
            Ok(answer) if answer.status.is_client_error() => None,
            // No usable response yet. The next call repeats the request.
            _ => return None,
        },
        Err(_) => None,
    };
    if let Ok(mut known) = inner.published.known.lock() {
        *known = Some(found);
    }
    found
}
