//! Stand-ins of a case, seen from its outside: a pod that calls what it is told to, and the control port of a model.

use std::time::Duration;

use groupage::standin::Route;
use groupage::standin::remote::{Answer, Call, Calls, Heard, Ledger, LedgerReport, Load, LoadReport, ModelChange};
use groupage::standin::server::Stats;
use http::{Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Fault;
use super::cluster::until;
use super::space::Space;

/// Where stand-ins take orders.
const CONTROL: u16 = 8099;
/// A Service that has just got its endpoints is known to the node a moment later.
const REACHED_MAX: Duration = Duration::from_secs(30);
/// More than any load here has calls under way: one that waits for a connection is late for no fault of a sidecar.
const CONNECTIONS: usize = 256;
/// Times in which a load shows what it is doing.
const SHOWS_MAX: Duration = Duration::from_secs(30);

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: caller, labels: {app: caller}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: caller
      image: $stand-in
      args: [caller]
      ports: [{containerPort: 8099}]
      readinessProbe: {tcpSocket: {port: 8099}, periodSeconds: 1}
      securityContext: $restricted
";

/// A pod in the case's namespace that calls whom it is told to.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    space: Space,
    pod: String,
}

/// A load that is running; [`Running::end`] says what became of it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Running<'a>(&'a Caller);

// === impl Caller ===

impl Caller {
    /// Starts the pod.
    pub(crate) async fn start(space: &Space) -> Result<Self, Fault> {
        Self::start_as(space, "caller").await
    }

    /// The same in a pod of this name: one more beside others.
    pub(crate) async fn start_as(space: &Space, name: &str) -> Result<Self, Fault> {
        space.apply(&POD.replace("{name: caller,", &format!("{{name: {name},"))).await?;
        space.pod_ready(name).await?;
        Ok(Self::of(space, name))
    }

    /// One that is in another pod.
    pub(crate) fn of(space: &Space, pod: &str) -> Self {
        Self { space: space.clone(), pod: pod.to_owned() }
    }

    /// One call after the other on one connection; `to` is `HOST:PORT`, names as pods know them.
    pub(crate) async fn in_turn(&self, to: &str, calls: &[Call]) -> Result<Vec<Answer>, Fault> {
        self.calls(to, calls, false).await
    }

    /// All calls side by side, each on a connection of its own.
    pub(crate) async fn at_once(&self, to: &str, calls: &[Call]) -> Result<Vec<Answer>, Fault> {
        self.calls(to, calls, true).await
    }

    /// One call.
    pub(crate) async fn call(&self, to: &str, call: Call) -> Result<Answer, Fault> {
        self.in_turn(to, &[call]).await?.pop().ok_or_else(|| "no answer".into())
    }

    async fn calls(&self, to: &str, calls: &[Call], at_once: bool) -> Result<Vec<Answer>, Fault> {
        let order = Calls { to: to.to_owned(), calls: calls.to_vec(), at_once };
        let heard: Vec<Heard> = order_to(&self.space, &self.pod, Method::POST, "/calls", &order).await?;
        let known = |(place, heard): (usize, Heard)| heard.map_err(|why| format!("call {place} to {to}: {why}").into());
        heard.into_iter().enumerate().map(known).collect()
    }

    /// Waits until somebody is there who has an answer to this, be it that there is no such page.
    pub(crate) async fn reaches(&self, to: &str, path: &str) -> Result<(), Fault> {
        until(to, REACHED_MAX, async || match self.call(to, Call::get(path)).await? {
            answer if answer.status < 500 => Ok(()),
            answer => Err(format!("{} {}", answer.status, answer.body).into()),
        })
        .await
    }

    /// Begins calls at this rate, with one item each; returns once some have been served.
    pub(crate) async fn load(&self, to: &str, route: Route, rate: f64) -> Result<Running<'_>, Fault> {
        let order = Load { to: to.to_owned(), route, items: 1, rate, connections: CONNECTIONS };
        order_to::<()>(&self.space, &self.pod, Method::POST, "/load", &order).await?;
        let running = Running(self);
        running.until_served(10).await?;
        Ok(running)
    }

    /// Follows items through the proxy at `to` and back, to the end.
    pub(crate) async fn ledger(&self, to: &str, items: u64) -> Result<LedgerReport, Fault> {
        let order = Ledger { to: to.to_owned(), items, clients: 64 };
        order_to(&self.space, &self.pod, Method::POST, "/ledger", &order).await
    }
}

// === impl Running ===

impl Running<'_> {
    /// How it is doing.
    pub(crate) async fn now(&self) -> Result<LoadReport, Fault> {
        order_to(&self.0.space, &self.0.pod, Method::GET, "/load", &()).await
    }

    /// Waits until so many more calls have been served.
    pub(crate) async fn until_served(&self, more: u64) -> Result<(), Fault> {
        let before = self.now().await?.served;
        until("the load", SHOWS_MAX, async || match self.now().await? {
            now if now.served >= before + more => Ok(()),
            now => Err(format!("{now:?}").into()),
        })
        .await
    }

    /// Ends it: no further call, and every answer waited for.
    pub(crate) async fn end(self) -> Result<LoadReport, Fault> {
        order_to(&self.0.space, &self.0.pod, Method::DELETE, "/load", &()).await
    }
}

/// What a model has seen.
pub(crate) async fn model_stats(space: &Space, pod: &str) -> Result<Stats, Fault> {
    order_to(space, pod, Method::GET, "/stats", &()).await
}

/// Changes a running model.
pub(crate) async fn change_model(space: &Space, pod: &str, change: &ModelChange) -> Result<(), Fault> {
    order_to(space, pod, Method::POST, "/model", change).await
}

/// Lets a model that was begun closed listen: it has loaded.
pub(crate) async fn open_model(space: &Space, pod: &str) -> Result<(), Fault> {
    order_to(space, pod, Method::POST, "/listen", &()).await
}

async fn order_to<T: DeserializeOwned>(
    space: &Space,
    pod: &str,
    method: Method,
    path: &str,
    order: &impl Serialize,
) -> Result<T, Fault> {
    let body = if method == Method::GET { Vec::new() } else { serde_json::to_vec(order)? };
    let request = Request::builder().method(method).uri(path).body(body)?;
    let said = space.ask(pod, CONTROL, request).await.map_err(|fault| format!("{pod}, {path}: {fault}"))?;
    Ok(serde_json::from_str(&said)?)
}
