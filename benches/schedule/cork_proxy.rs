//! A thin proxy around a rule of the simulator, for the one contestant that no policy implements:
//! BentoML's cork.
//!
//! It reads calls of the predict route, sends batches over persistent connections and splits the
//! answers. It is minimal, so that it does not slow its rule down: no validation, no limits, and no
//! bounds except those of the load.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use groupage::batching::{Call, CallId};
use groupage::clock::{Alarm, Clock};
use groupage::simulator::baseline::Baseline;
use groupage::simulator::live_policy::{LiveAction, LivePolicy};
use groupage::simulator::{ResponseStatus, SimBatchId};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// Capacity for events of the rule, above the number of concurrent calls of any load here.
const EVENTS: usize = 8192;
const PATH: &str = "/v1/models/stand-in:predict";

/// A running cork proxy. Dropping it stops it.
pub(crate) struct CorkProxy {
    pub(crate) addr: SocketAddr,
    accept: JoinHandle<()>,
    /// Stops the thread of the rule when dropped.
    _stop: oneshot::Sender<()>,
}

enum Event {
    Call(String, oneshot::Sender<String>),
    Back(SimBatchId, Vec<CallId>, ResponseStatus, Vec<String>),
}

struct CorkDriver {
    live: LivePolicy,
    clock: Clock,
    upstream: Arc<Upstream>,
    waiting: HashMap<CallId, (String, oneshot::Sender<String>)>,
    events: mpsc::Sender<Event>,
}

struct Upstream {
    addr: SocketAddr,
    kept: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, alias = "predictions")]
    instances: Vec<&'a RawValue>,
}

// === impl CorkProxy ===

impl CorkProxy {
    pub(crate) async fn start(upstream: SocketAddr, rule: &Baseline, slo: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (events, inbox) = mpsc::channel(EVENTS);
        let upstream = Arc::new(Upstream { addr: upstream, kept: Mutex::default() });
        let (rule, its_events, (stop, stopped)) = (rule.clone(), events.clone(), oneshot::channel());
        // A policy of the simulator must stay on the thread that created it.
        std::thread::spawn(move || {
            let clock = Clock::start();
            let live = LivePolicy::new(rule.build(), slo, 1);
            let driver = CorkDriver { live, clock, upstream, waiting: HashMap::new(), events: its_events };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(driver.run(inbox, stopped));
        });
        Self { addr, accept: tokio::spawn(accept(listener, events)), _stop: stop }
    }
}

impl Drop for CorkProxy {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn accept(listener: TcpListener, events: mpsc::Sender<Event>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).ok();
        let events = events.clone();
        let service = service_fn(move |request| answer(request, events.clone()));
        // The load detects a broken connection.
        connections.spawn(async move {
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, events: mpsc::Sender<Event>) -> Result<Response<Full<Bytes>>, Infallible> {
    let part = async {
        let body = request.into_body().collect().await.ok()?.to_bytes();
        let item = items(&body).pop()?;
        let (reply, wait) = oneshot::channel();
        events.send(Event::Call(item, reply)).await.ok()?;
        wait.await.ok()
    };
    let mut response = Response::new(Full::default());
    match part.await {
        Some(part) => *response.body_mut() = Full::new(format!(r#"{{"predictions":[{part}]}}"#).into()),
        None => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
    }
    Ok(response)
}

/// Returns the raw items of a call, or the results of an answer.
fn items(body: &[u8]) -> Vec<String> {
    let body: Option<Body<'_>> = serde_json::from_slice(body).ok();
    body.map(|body| body.instances.into_iter().map(|raw| raw.get().to_owned()).collect()).unwrap_or_default()
}

// === impl CorkDriver ===

impl CorkDriver {
    async fn run(mut self, mut inbox: mpsc::Receiver<Event>, mut stopped: oneshot::Receiver<()>) {
        let mut alarm = Alarm::new(self.clock).expect("a timer");
        loop {
            alarm.set(self.live.wakeup());
            let actions = tokio::select! {
                biased;
                event = inbox.recv() => match event {
                    None => return,
                    Some(Event::Call(item, reply)) => {
                        let (id, actions) = self.live.on_arrival(self.clock.now(), Call::new(CallId(0)));
                        self.waiting.insert(id, (item, reply));
                        actions
                    }
                    Some(Event::Back(id, calls, status, results)) => {
                        let actions = self.live.on_response(self.clock.now(), id, status);
                        for (call, result) in calls.iter().zip(results) {
                            if let Some((_, reply)) = self.waiting.remove(call) {
                                // Fails only if the client has disconnected.
                                reply.send(result).ok();
                            }
                        }
                        actions
                    }
                },
                _ = &mut stopped => return,
                () = alarm.wait() => self.live.on_wakeup(self.clock.now()),
            };
            for action in actions {
                match action {
                    LiveAction::Send(id, calls) => self.send(id, calls),
                    // Dropping the sender answers the call with 503.
                    LiveAction::Fail(id, _) => drop(self.waiting.remove(&id)),
                }
            }
        }
    }

    fn send(&self, id: SimBatchId, calls: Vec<CallId>) {
        let items: Vec<&str> =
            calls.iter().filter_map(|call| self.waiting.get(call)).map(|(item, _)| item.as_str()).collect();
        let body = format!(r#"{{"instances":[{}]}}"#, items.join(","));
        let (upstream, events) = (Arc::clone(&self.upstream), self.events.clone());
        tokio::spawn(async move {
            let (status, results) = upstream.call(body).await.unwrap_or((ResponseStatus::Overloaded, Vec::new()));
            events.send(Event::Back(id, calls, status, results)).await.ok();
        });
    }
}

// === impl Upstream ===

impl Upstream {
    async fn call(&self, body: String) -> Option<(ResponseStatus, Vec<String>)> {
        let kept = self.kept.lock().ok()?.pop();
        let mut sender = match kept.filter(SendRequest::is_ready) {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.addr).await.ok()?;
                stream.set_nodelay(true).ok();
                let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
                tokio::spawn(connection);
                sender
            }
        };
        let request = Request::post(PATH).header("host", "stand-in").body(Full::new(body.into())).ok()?;
        let answer = sender.send_request(request).await.ok()?;
        let status = match answer.status().as_u16() {
            200 => ResponseStatus::Ok,
            413 | 422 => ResponseStatus::TooLarge { limit: None },
            _ => ResponseStatus::Overloaded,
        };
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        self.kept.lock().ok()?.push(sender);
        Some((status, if status == ResponseStatus::Ok { items(&body) } else { Vec::new() }))
    }
}
