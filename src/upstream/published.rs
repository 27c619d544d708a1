//! What the model server publishes of its own limits (G17), asked when a route needs it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;

use super::Inner;
use crate::body::Body;
use crate::protocol::{Published, model_named, published};

/// Longest wait for the answer: a server that is slower to say its limits is not waited for.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(1);

/// The last look-up. `None` inside: the server publishes nothing.
#[derive(Debug, Default)]
pub(super) struct Cache {
    known: Mutex<Option<Option<Published>>>,
    asking: tokio::sync::Mutex<()>,
}

// === impl Cache ===

impl Cache {
    /// The server may be another one.
    pub(super) fn forget(&self) {
        if let Ok(mut known) = self.known.lock() {
            *known = None;
        }
    }

    fn get(&self) -> Option<Option<Published>> {
        self.known.lock().ok().and_then(|known| *known)
    }
}

/// What the server publishes; asked once, by whoever comes first.
pub(super) async fn look_up(inner: &Arc<Inner>) -> Option<Published> {
    if let Some(known) = inner.published.get() {
        return known;
    }
    let _one_at_a_time = inner.published.asking.lock().await;
    if let Some(known) = inner.published.get() {
        return known;
    }
    let request = Request::get("/info").header(http::header::HOST, inner.config.target.authority()).body(Body::empty());
    let found = match request {
        Ok(request) => match inner.exchange(request, Some(LOOK_UP_LIMIT), None).await {
            Ok(answer) if answer.status.is_success() => {
                if let Some(model) = model_named(&answer.body) {
                    inner.heard.published(&model);
                }
                published(&answer.body)
            }
            Ok(answer) if answer.status.is_client_error() => None,
            // No answer, or not yet: asked again by the next call.
            _ => return None,
        },
        Err(_) => None,
    };
    if let Ok(mut known) = inner.published.known.lock() {
        *known = Some(found);
    }
    found
}
