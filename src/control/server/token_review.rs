//! Authentication by `TokenReview`: the API server verifies the token, and its pod must be an
//! injected one.
//!
//! A review is cached under the token's digest until the token expires, at most five minutes. A
//! reconnecting sidecar therefore costs nothing, and an unavailable API server does not lock out
//! sidecars that were connected recently. Reviews are limited to 50 per second: after a controller
//! restart ten thousand pods reconnect within minutes, and meanwhile keep serving with their last
//! configuration. Forged tokens must not exhaust the limit for others: a token is reviewed only if
//! its unverified claims name an injected pod, and once per second and pod. An attacker that knows
//! the UID of a pod can delay that pod's sidecar only, which keeps serving with what it has.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, ObjectMeta, PostParams};

use super::claims::{Claims, parse_claims};
use super::{AuthError, Authenticate, PodIdentity};
use crate::batching::Tick;
use crate::clock::Clock;
use crate::token_bucket::TokenBucket;

/// Audience of the tokens. They are not valid at the API server, and tokens for other audiences are
/// not valid here.
pub const AUDIENCE: &str = "groupage.dev";

/// Reviews per second, and burst.
const REVIEWS: (u64, u64) = (50, 50);
/// Reviews per second, and burst, of one namespace: a fifth of the total remains for the others.
const NAMESPACE_REVIEWS: (u64, u64) = (40, 40);
/// Maximum number of namespaces with a token bucket, which is more than the reviews of several
/// seconds.
const NAMESPACES_MAX: usize = 4_096;
/// Minimum interval between two reviews for one pod. A sidecar does not reconnect faster, and then
/// with a cached token.
const POD_REVIEW_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a review. The stream waits for it.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a review is cached. It is short because a pod's token becomes invalid
/// with the pod.
const CACHE_TTL_MAX: Duration = Duration::from_secs(300);
/// Maximum number of cached reviews, twice the maximum number of streams, at about 300 bytes each.
const REVIEWS_MAX: usize = 24_000;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const ACCOUNT: &str = "system:serviceaccount:";

const UNKNOWN_POD: AuthError =
    AuthError::Forbidden("the pod of the token was not injected, or the controller has not observed it yet");

/// Lookup of injected pods.
pub trait InjectedPods: Send + Sync + 'static {
    /// Returns namespace and name of the pod with this UID, if it was injected and still exists.
    fn find(&self, uid: &str) -> Option<(String, String)>;
}

/// Authenticates tokens with the `TokenReview` API.
pub struct TokenReviewer {
    api: Api<TokenReview>,
    pods: Arc<dyn InjectedPods>,
    clock: Clock,
    known: Mutex<ReviewCache>,
}

struct ReviewCache {
    /// Identities by token digest, with the time at which each entry expires.
    identities: HashMap<[u8; 32], (PodIdentity, Tick)>,
    /// Earliest time of the next review, by UID of the pod. Only injected pods have an entry, which
    /// bounds its size; expired entries are dropped at `REVIEWS_MAX`.
    next: HashMap<String, Tick>,
    namespaces: HashMap<String, TokenBucket>,
    meter: TokenBucket,
}

// === impl TokenReviewer ===

impl TokenReviewer {
    /// Creates an authenticator that sends reviews with `client`. The client's account needs
    /// permission to create a `TokenReview`.
    #[must_use]
    pub fn new(client: kube::Client, pods: Arc<dyn InjectedPods>, clock: Clock) -> Self {
        let known = Mutex::new(ReviewCache::new(clock.now()));
        Self { api: Api::all(client), pods, clock, known }
    }

    async fn verify(&self, token: &str) -> Result<PodIdentity, AuthError> {
        // Tokens that are certainly not acceptable are rejected by their claims, without a review.
        let Some(claims) = parse_claims(token) else {
            return Err(AuthError::Invalid("the token is not a service account token"));
        };
        if !claims.aud.iter().any(|aud| aud == AUDIENCE) {
            return Err(AuthError::Invalid("the token is issued for another audience"));
        }
        let Some(pod) = claims.pod() else { return Err(AuthError::Forbidden("the token is not bound to a pod")) };
        let (namespace, _) = self.pods.find(pod).ok_or(UNKNOWN_POD)?;
        let digest = *blake3::hash(token.as_bytes()).as_bytes();
        let known = self.known().lookup_or_charge(self.clock.now(), &digest, (&namespace, pod))?;
        let identity = match known {
            Some(identity) => identity,
            None => {
                let identity = self.create_review(token).await?;
                let ttl = cache_ttl(&claims, Clock::wall_micros() / 1_000_000);
                self.known().insert(self.clock.now(), digest, &identity, ttl);
                identity
            }
        };
        // Look up the pod again each time: a token outlives its pod by seconds, and a cached review
        // by minutes.
        match self.pods.find(&identity.uid) {
            Some((namespace, name)) if (&namespace, &name) == (&identity.namespace, &identity.name) => Ok(identity),
            Some(_) => Err(AuthError::Forbidden("the name of the token's pod does not match its UID")),
            None => Err(UNKNOWN_POD),
        }
    }

    async fn create_review(&self, token: &str) -> Result<PodIdentity, AuthError> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token: Some(token.to_owned()) },
            status: None,
        };
        let result = tokio::time::timeout(REVIEW_TIMEOUT, self.api.create(&PostParams::default(), &review)).await;
        match result {
            Ok(Ok(review)) => identity_from_status(review.status.unwrap_or_default()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot review a token");
                Err(AuthError::Unavailable("the TokenReview failed"))
            }
            Err(_) => Err(AuthError::Unavailable("the TokenReview timed out")),
        }
    }

    fn known(&self) -> MutexGuard<'_, ReviewCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authenticate for TokenReviewer {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        self.verify(token).boxed()
    }
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviewer").field("known", &self.known().identities.len()).finish_non_exhaustive()
    }
}

// === impl ReviewCache ===

impl ReviewCache {
    fn new(now: Tick) -> Self {
        let meter = TokenBucket::new(now, REVIEWS.0, REVIEWS.1);
        Self { identities: HashMap::new(), next: HashMap::new(), namespaces: HashMap::new(), meter }
    }

    /// Returns the cached identity of a token that claims to belong to `pod`. Returns `None` if a
    /// review is needed and allowed, in which case the rate limits are charged.
    fn lookup_or_charge(
        &mut self,
        now: Tick,
        digest: &[u8; 32],
        (namespace, pod): (&str, &str),
    ) -> Result<Option<PodIdentity>, AuthError> {
        if let Some((identity, until)) = self.identities.get(digest) {
            if now < *until {
                return Ok(Some(identity.clone()));
            }
            self.identities.remove(digest);
        }
        if let Some(next) = self.next.get(pod).filter(|next| now < **next) {
            return Err(AuthError::Busy(next.since(now)));
        }
        // The namespace is charged only after the total limit, so that a rejection by the latter
        // costs it nothing.
        let own = self.namespace_bucket(now, namespace).time_until(now, 1);
        if !own.is_zero() {
            return Err(AuthError::Busy(own));
        }
        if !self.meter.try_take(now, 1) {
            return Err(AuthError::Busy(self.meter.time_until(now, 1)));
        }
        self.namespace_bucket(now, namespace).try_take(now, 1);
        if self.next.len() >= REVIEWS_MAX {
            self.next.retain(|_, next| now < *next);
        }
        self.next.insert(pod.to_owned(), now.after(POD_REVIEW_INTERVAL));
        Ok(None)
    }

    fn namespace_bucket(&mut self, now: Tick, namespace: &str) -> &mut TokenBucket {
        if self.namespaces.len() >= NAMESPACES_MAX && !self.namespaces.contains_key(namespace) {
            // Dropping buckets early is safe, because the total limit applies anyway.
            self.namespaces.clear();
        }
        let (rate, burst) = NAMESPACE_REVIEWS;
        self.namespaces.entry(namespace.to_owned()).or_insert_with(|| TokenBucket::new(now, rate, burst))
    }

    fn insert(&mut self, now: Tick, digest: [u8; 32], identity: &PodIdentity, ttl: Duration) {
        if self.identities.len() >= REVIEWS_MAX {
            self.identities.retain(|_, (_, until)| now < *until);
        }
        if self.identities.len() < REVIEWS_MAX {
            self.identities.insert(digest, (identity.clone(), now.after(ttl)));
        }
    }
}

/// Returns the time for which a review is cached, given the current wall-clock time.
fn cache_ttl(claims: &Claims, now_seconds: u64) -> Duration {
    claims.exp.map_or(CACHE_TTL_MAX, |exp| Duration::from_secs(exp.saturating_sub(now_seconds)).min(CACHE_TTL_MAX))
}

/// Converts a review into the identity of the token's pod.
fn identity_from_status(status: TokenReviewStatus) -> Result<PodIdentity, AuthError> {
    if status.authenticated != Some(true) {
        return Err(AuthError::Invalid("the API server did not authenticate the token"));
    }
    // An API server without audience support validates tokens for its own audience and returns no
    // audiences.
    if !status.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(AuthError::Invalid("the token is issued for another audience"));
    }
    let user = status.user.unwrap_or_default();
    let account = user.username.as_deref().and_then(|name| name.strip_prefix(ACCOUNT));
    let namespace = account.and_then(|account| account.split_once(':')).map(|(namespace, _)| namespace.to_owned());
    let mut extra = user.extra.unwrap_or_default();
    let mut one = |key: &str| match extra.remove(key) {
        Some(values) if values.len() == 1 => values.into_iter().next(),
        _ => None,
    };
    match (one(POD_UID), one(POD_NAME), namespace) {
        (Some(uid), Some(name), Some(namespace)) => Ok(PodIdentity { uid, name, namespace }),
        _ => Err(AuthError::Forbidden("the token is not bound to a pod")),
    }
}

#[cfg(test)]
mod tests;
