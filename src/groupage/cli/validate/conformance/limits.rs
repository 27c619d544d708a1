//! Properties of the server under test: whether it batches text by itself, the limits that it
//! publishes, and its answer to a call with many items.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::sample::SampleCall;
use super::{ANSWER_LIMIT, ConformanceClient};
use crate::backend::LimitsLookUp;
use crate::protocol::{Call, Endpoint};

/// Number of items in the call that is meant to reach a limit: the default of
/// `limits.batchItemsMax`.
const MANY_ITEMS: usize = 128;
/// Interval at which the state of a look-up is read.
const LOOK_UP_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for the look-ups that show whether a server batches text by itself: that of three
/// attempts at each.
const TEXT_LOOK_UP_LIMIT: Duration = Duration::from_secs(5);

// === impl ConformanceClient ===

impl ConformanceClient {
    /// Returns the endpoint that merges calls like the sample. As in the proxy, calls for text are
    /// merged without a named protocol if the server is known not to batch them by itself. The error
    /// is the reason that they are not.
    pub(super) async fn choose_endpoint(
        &self,
        recognised: Arc<Endpoint>,
        sample: &SampleCall,
        body: &Bytes,
    ) -> Result<Arc<Endpoint>, String> {
        let SampleCall { method, path, .. } = sample;
        let Some(merging) = self.table.routes.merging_form(&recognised, path) else { return Ok(recognised) };
        // A server may name itself in the head of its answers. Without an answer, the test of the
        // sample alone names the reason.
        let Some(call) = self.read(&merging, method, path, body.clone()) else { return Ok(merging) };
        if self.send_member(&call, path).await.is_none() {
            return Ok(merging);
        }
        let reason = match self.batches_text().await {
            Some(false) => return Ok(merging),
            Some(true) => "the server shows that it batches text by itself",
            None => {
                "it is not known whether the server batches text by itself, because /v1/models, /version or /info is \
                 neither readable nor missing"
            }
        };
        Err(format!(
            "{reason}, so calls for text are queued and not merged: to merge them, name the protocol of the route, \
             such as `OpenAI`"
        ))
    }

    /// Returns whether the server batches text by itself; `None` if that cannot be found out.
    async fn batches_text(&self) -> Option<bool> {
        let backend = self.upstream.backend();
        let look_up = async {
            loop {
                match backend.batches_text() {
                    Some(known) => return known,
                    None => tokio::time::sleep(LOOK_UP_INTERVAL).await,
                }
            }
        };
        tokio::time::timeout(TEXT_LOOK_UP_LIMIT, look_up).await.ok()
    }

    /// Returns the limits that the server publishes, and those that its answer to many items shows.
    pub(super) async fn find_limits(&self, endpoint: &Endpoint, members: &[&Call; 2]) -> Vec<String> {
        let mut found = self.find_published(endpoint, members[0]).await;
        found.extend(self.send_many(endpoint, members).await);
        found
    }

    async fn find_published(&self, endpoint: &Endpoint, call: &Call) -> Vec<String> {
        let Some(source) = endpoint.limits_source(call, true) else { return Vec::new() };
        let backend = self.upstream.backend();
        let look_up = async {
            loop {
                match backend.published_limits(&source) {
                    LimitsLookUp::Known(limits) => return limits,
                    LimitsLookUp::Pending => tokio::time::sleep(LOOK_UP_INTERVAL).await,
                }
            }
        };
        let Some(limits) = tokio::time::timeout(ANSWER_LIMIT, look_up).await.ok().flatten() else {
            return vec!["the server publishes no limits".to_owned()];
        };
        if limits.has_no_batch {
            return vec!["the server publishes that the first dimension of the tensors is not the batch".to_owned()];
        }
        let items = limits.items_max.map(|max| format!("the server publishes a limit of {max} items in a call"));
        let weight = limits.weight_max.map(|max| format!("the server publishes a limit of {max} tokens in a batch"));
        let batches = limits.batches_itself.then(|| "the server publishes that it batches by itself".to_owned());
        items.into_iter().chain(weight).chain(batches).collect()
    }

    /// Sends the items of the members many times over in one call.
    async fn send_many(&self, endpoint: &Endpoint, members: &[&Call; 2]) -> Option<String> {
        // If the results are in a map, no item may occur twice.
        if !members[0].exclusive.is_empty() {
            return None;
        }
        let mut items = 0;
        let of_call = |call: &&Call| usize::try_from(call.items).unwrap_or(usize::MAX);
        let fits = |call: &&Call| {
            items += of_call(call);
            items <= MANY_ITEMS
        };
        let many: Vec<&Call> = members.iter().copied().cycle().take(MANY_ITEMS).take_while(fits).collect();
        let count: usize = many.iter().map(of_call).sum();
        if many.len() < 3 {
            return None;
        }
        let sent = endpoint.write_batch(&many, None);
        let answer = self.send(&sent.method, &sent.target, sent.headers, sent.body).await;
        let Ok(answer) = answer else { return Some(format!("a call with {count} items gets no answer")) };
        if answer.status.is_success() {
            return Some(format!("the server accepts a call with {count} items"));
        }
        let status = answer.status.as_u16();
        Some(match endpoint.detect_too_large(answer.status, &answer.body).map(|found| found.limit) {
            Some(Some(limit)) => format!(
                "the server refuses a call with {count} items ({status}) and names a limit of {limit}: batches stay \
                 within it"
            ),
            Some(None) => format!(
                "the server refuses a call with {count} items as too large ({status}): the limit is found by trying"
            ),
            None => format!("the server answers a call with {count} items with {status}, for no known reason"),
        })
    }
}
