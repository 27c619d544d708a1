//! An API server in this process: what a controller uses of Kubernetes, over real sockets.
//!
//! It stores objects and their history, serves lists in pages, watches with bookmarks, selectors and metadata only, patches of all three kinds with
//! server-side apply as far as one manager needs it, and subresources. It refuses what the rules of the installation do not allow ([`rules`]), notes all
//! that is asked of it, and fails as it is told to ([`fault`]). It leaves out discovery, admission, validation and garbage collection.

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

pub(super) use fault::{Fault, What};
use store::Store;

/// Longer than anything here takes, also on a machine that is busy with other things.
pub(super) const HANG: Duration = Duration::from_secs(30);

/// What was asked: the verb of the rules, the resource with its subresource, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) verb: &'static str,
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) query: String,
    /// What was refused because no rule allows it.
    pub(super) forbidden: bool,
}

/// The server. It ends with the last handle.
#[derive(Clone)]
pub(super) struct Api(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    store: Mutex<Store>,
    faults: Mutex<Vec<Fault>>,
    asked: Mutex<Vec<Asked>>,
    /// Others than the controller ask too, who may do everything.
    users: AtomicBool,
    /// What a review of each token says.
    tokens: Mutex<BTreeMap<String, Value>>,
    /// Moves on whenever something changed or was asked.
    changed: watch::Sender<u64>,
    /// Moves on to end every watch; what is sent is the resource, empty for all.
    end: watch::Sender<(u64, String)>,
    stop: watch::Sender<bool>,
}

// === impl Api ===

impl Api {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            address: listener.local_addr().unwrap(),
            store: Mutex::new(Store::new()),
            faults: Mutex::default(),
            asked: Mutex::default(),
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

    /// How to reach it; without the client's own tries, which would make tests wait.
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

    /// Makes or replaces an object, as a user would.
    pub(super) fn put(&self, object: Value) -> Value {
        let put = self.store().put(object).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.touch();
        put
    }

    /// Changes an object as a user would, by a merge patch: nobody writes in between.
    pub(super) fn merge(&self, resource: &str, namespace: &str, name: &str, change: &Value) -> Value {
        let mut store = self.store();
        let found = store.get(resource, namespace, name).cloned();
        let mut object = found.unwrap_or_else(|| panic!("no {resource} {namespace}/{name}"));
        json_patch::merge(&mut object, change);
        let put = store.put(object).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        drop(store);
        self.touch();
        put
    }

    pub(super) fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.store().remove(resource, namespace, name).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.touch();
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store().get(resource, namespace, name).cloned()
    }

    pub(super) fn all(&self, resource: &str) -> Vec<Value> {
        self.store().all(resource).cloned().collect()
    }

    /// Whether a resource is there at all: a definition comes and goes.
    pub(super) fn serves(&self, resource: &'static str, there: bool) {
        self.store().serves(resource, there);
        self.end_watches(resource);
        self.touch();
    }

    /// Forgets the history: who asks for older versions is told that they are gone.
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

    /// From now on nothing is refused for the rules of the installation, which are the controller's alone.
    pub(super) fn lets_users_in(&self) {
        self.0.users.store(true, Ordering::Relaxed);
    }

    /// A token that is meant for us and bound to a pod of the store, as the kubelet gets one.
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

    /// What a review of a token says.
    fn reviewed(&self, token: &str) -> Value {
        let tokens = self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(token).cloned().unwrap_or_else(|| json!({"authenticated": false}))
    }

    /// Takes all faults back, and ends what hangs in one.
    pub(super) fn heal(&self) {
        self.0.faults.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.end_watches("");
        self.touch();
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often something was asked.
    pub(super) fn count(&self, verb: &str, resource: &str) -> usize {
        self.asked().iter().filter(|asked| asked.verb == verb && asked.resource == resource).count()
    }

    /// Waits until the store or what was asked is as it should be.
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
                Err(_) => panic!("nothing happened for {HANG:?} at {place}; asked: {:#?}", api.tail()),
            }
        }
    }

    /// Waits for an object to be as it should be.
    #[track_caller]
    pub(super) fn until_object(
        &self,
        (resource, namespace, name): (&'static str, &'static str, &'static str),
        mut done: impl FnMut(&Value) -> bool,
    ) -> impl Future<Output = Value> {
        self.until(move |api| api.get(resource, namespace, name).filter(|object| done(object)))
    }

    /// Waits for something to be asked so often.
    #[track_caller]
    pub(super) fn until_asked(
        &self,
        verb: &'static str,
        resource: &'static str,
        times: usize,
    ) -> impl Future<Output = ()> {
        self.until(move |api| (api.count(verb, resource) >= times).then_some(()))
    }

    /// Fails if anything was asked that no rule of the installation allows.
    #[track_caller]
    pub(super) fn nothing_was_forbidden(&self) {
        let forbidden: Vec<_> = self.asked().into_iter().filter(|asked| asked.forbidden).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
    }

    fn tail(&self) -> Vec<Asked> {
        let asked = self.asked();
        asked.iter().skip(asked.len().saturating_sub(12)).cloned().collect()
    }

    fn touch(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }
}

/// Base64 for URLs without padding (RFC 4648 §5), as JWTs have it.
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
