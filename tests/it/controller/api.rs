//! An API server in this process, over real sockets, with the parts of Kubernetes that a controller
//! uses.
//!
//! It stores objects and their history, and serves lists in pages, watches with bookmarks,
//! selectors and metadata only, patches of all three kinds with server-side apply for one manager,
//! and subresources. It rejects requests that the installed roles do not allow ([`rules`]), records
//! every request, and injects faults ([`fault`]). Left out: discovery, admission, validation and
//! garbage collection.

mod fault;
mod patch;
mod rules;
mod select;
mod serve;
mod store;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

pub(super) use fault::{Fault, FaultKind};
use store::Store;

/// Longer than any operation takes here, even on a busy machine.
pub(super) const HANG: Duration = Duration::from_secs(30);

/// A recorded request: the verb of the rules, the resource with its subresource, namespace and
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedRequest {
    pub(super) verb: &'static str,
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) query: String,
    /// `true` if the request was rejected because no rule allows it.
    pub(super) forbidden: bool,
}

/// A handle to the server. The server ends with the last handle.
#[derive(Clone)]
pub(super) struct FakeApiServer(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    store: Mutex<Store>,
    faults: Mutex<Vec<Fault>>,
    requests: Mutex<Vec<RecordedRequest>>,
    /// `true` if clients other than the controller send requests, which may do everything.
    users: AtomicBool,
    /// Status that a review of each token returns.
    tokens: Mutex<BTreeMap<String, Value>>,
    /// Incremented after every change and every request.
    changed: watch::Sender<u64>,
    /// Incremented to end watches of this resource, or every watch if it is empty.
    end: watch::Sender<(u64, String)>,
    stop: watch::Sender<bool>,
}

// === impl FakeApiServer ===

impl FakeApiServer {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            address: listener.local_addr().unwrap(),
            store: Mutex::new(Store::new()),
            faults: Mutex::default(),
            requests: Mutex::default(),
            users: AtomicBool::new(false),
            tokens: Mutex::default(),
            changed: watch::channel(0).0,
            end: watch::channel((0, String::new())).0,
            stop: watch::channel(false).0,
        };
        let api = Self(Arc::new(inner));
        tokio::spawn(serve::accept(listener, Arc::downgrade(&api.0), api.0.stop.subscribe()));
        api
    }

    /// Returns the client configuration, without the client's own retries, which would delay the
    /// tests.
    pub(super) fn config(&self) -> kube::Config {
        let mut config = kube::Config::new(format!("http://{}", self.0.address).parse().unwrap());
        config.default_retry = false;
        config
    }

    pub(super) fn client(&self) -> kube::Client {
        kube::Client::try_from(self.config()).unwrap()
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates or replaces an object, as a user would.
    pub(super) fn put(&self, object: Value) -> Value {
        let put = self.store().put(object).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.notify_change();
        put
    }

    /// Changes an object by a merge patch, as a user would, atomically.
    pub(super) fn merge(&self, resource: &str, namespace: &str, name: &str, change: &Value) -> Value {
        let mut store = self.store();
        let found = store.get(resource, namespace, name).cloned();
        let mut object = found.unwrap_or_else(|| panic!("no {resource} {namespace}/{name}"));
        json_patch::merge(&mut object, change);
        let put = store.put(object).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        drop(store);
        self.notify_change();
        put
    }

    pub(super) fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.store().remove(resource, namespace, name).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.notify_change();
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store().get(resource, namespace, name).cloned()
    }

    pub(super) fn all(&self, resource: &str) -> Vec<Value> {
        self.store().all(resource).cloned().collect()
    }

    /// Starts or stops serving a resource, as if its definition were created or deleted.
    pub(super) fn serves(&self, resource: &'static str, there: bool) {
        self.store().serves(resource, there);
        self.end_watches(resource);
        self.notify_change();
    }

    /// Drops the history: a request for an older version is answered with 410.
    pub(super) fn compact(&self) {
        self.store().compact();
    }

    /// Ends open watches of a resource in good order, as a server does after a while.
    pub(super) fn end_watches(&self, resource: &str) {
        self.0.end.send_modify(|(count, which)| {
            *count += 1;
            resource.clone_into(which);
        });
    }

    pub(super) fn fault(&self, fault: Fault) {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Stops the enforcement of the installed roles, which are the controller's alone.
    pub(super) fn disable_authorization(&self) {
        self.0.users.store(true, Ordering::Relaxed);
    }

    /// Returns a token for this audience that is bound to a pod of the store, like those that the
    /// kubelet mounts.
    pub(super) fn token(&self, namespace: &str, pod: &str) -> String {
        let object = self.get("pods", namespace, pod).unwrap_or_else(|| panic!("no pod {namespace}/{pod}"));
        let bound = json!({"namespace": namespace, "pod": {"name": pod, "uid": object["metadata"]["uid"]}});
        let claims = json!({"aud": ["groupage.dev"], "exp": 4_000_000_000_u64, "kubernetes.io": bound});
        let token = format!("e30.{}.x", base64url(claims.to_string().as_bytes()));
        let extra = json!({
            "authentication.kubernetes.io/pod-name": [pod],
            "authentication.kubernetes.io/pod-uid": [object["metadata"]["uid"]],
        });
        let user = json!({"username": format!("system:serviceaccount:{namespace}:default"), "extra": extra});
        let status = json!({"authenticated": true, "audiences": ["groupage.dev"], "user": user});
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), status);
        token
    }

    /// Returns the review status of a token.
    fn review_status(&self, token: &str) -> Value {
        let tokens = self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(token).cloned().unwrap_or_else(|| json!({"authenticated": false}))
    }

    /// Clears all faults, and ends the requests that hang in one.
    pub(super) fn clear_faults(&self) {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.end_watches("");
        self.notify_change();
    }

    pub(super) fn recorded_requests(&self) -> Vec<RecordedRequest> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of requests with this verb and resource.
    pub(super) fn count(&self, verb: &str, resource: &str) -> usize {
        self.recorded_requests().iter().filter(|request| request.verb == verb && request.resource == resource).count()
    }

    /// Waits until a condition on the store or the recorded requests holds.
    #[track_caller]
    pub(super) fn until<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> impl Future<Output = T> {
        let place = std::panic::Location::caller();
        let api = self.clone();
        async move {
            let mut changes = api.0.changed.subscribe();
            let wait = async {
                loop {
                    changes.borrow_and_update();
                    if let Some(found) = done(&api) {
                        return found;
                    }
                    changes.changed().await.unwrap();
                }
            };
            match tokio::time::timeout(HANG, wait).await {
                Ok(found) => found,
                Err(_) => panic!("nothing happened for {HANG:?} at {place}; requests: {:#?}", api.tail()),
            }
        }
    }

    /// Waits until an object satisfies a condition.
    #[track_caller]
    pub(super) fn until_object(
        &self,
        (resource, namespace, name): (&'static str, &'static str, &'static str),
        mut done: impl FnMut(&Value) -> bool,
    ) -> impl Future<Output = Value> {
        self.until(move |api| api.get(resource, namespace, name).filter(|object| done(object)))
    }

    /// Waits until a request was received this many times.
    #[track_caller]
    pub(super) fn until_requested(
        &self,
        verb: &'static str,
        resource: &'static str,
        times: usize,
    ) -> impl Future<Output = ()> {
        self.until(move |api| (api.count(verb, resource) >= times).then_some(()))
    }

    /// Fails if a request was made that no rule of the installation allows.
    #[track_caller]
    pub(super) fn assert_nothing_forbidden(&self) {
        let forbidden: Vec<_> = self.recorded_requests().into_iter().filter(|request| request.forbidden).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
    }

    fn tail(&self) -> Vec<RecordedRequest> {
        let requests = self.recorded_requests();
        requests.iter().skip(requests.len().saturating_sub(12)).cloned().collect()
    }

    fn notify_change(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }
}

/// Encodes as base64url without padding (RFC 4648 section 5), as in JWTs.
fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letters = bytes.chunks(3).flat_map(|chunk| {
        let all = chunk.iter().fold(0_u32, |all, byte| all << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        (0..=chunk.len()).map(move |at| char::from(LETTERS[usize::try_from(all >> (18 - 6 * at) & 63).unwrap()]))
    });
    letters.collect()
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.send(true).ok();
    }
}
