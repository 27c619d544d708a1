//! Remote control of a case's test kit: a client pod that sends calls on command, and the control
//! port of a model server.

use std::time::Duration;

use groupage::testkit::Route;
use groupage::testkit::remote::{
    CallResponse, CallResult, CallsCommand, HttpCall, LedgerCommand, LedgerReport, LoadCommand, LoadReport, ModelUpdate,
};
use groupage::testkit::server::ServerStats;
use http::{Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TestError;
use super::cluster::retry_until;
use super::test_namespace::TestNamespace;

/// Control port of the test kit.
const CONTROL: u16 = 8099;
/// Time until a Service can be reached: the node learns of new endpoints with a short delay.
const REACHED_MAX: Duration = Duration::from_secs(30);
/// Larger than the number of concurrent calls of any load. A call that waits for a connection would
/// be late through no fault of the sidecar.
const CONNECTIONS: usize = 256;
/// Timeout for a load to make progress.
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

/// Client pod in the namespace of the case, which sends calls on command.
#[derive(Debug, Clone)]
pub(crate) struct TestClient {
    space: TestNamespace,
    pod: String,
}

/// A running load. [`RunningLoad::stop`] stops it and returns its report.
#[derive(Debug)]
#[must_use]
pub(crate) struct RunningLoad<'a>(&'a TestClient);

// === impl TestClient ===

impl TestClient {
    /// Starts the client pod.
    pub(crate) async fn start(space: &TestNamespace) -> Result<Self, TestError> {
        Self::start_as(space, "caller").await
    }

    /// Starts the client pod, and waits until a server at this address is reachable.
    pub(crate) async fn start_for(space: &TestNamespace, to: &str) -> Result<Self, TestError> {
        let client = Self::start(space).await?;
        client.wait_until_reachable(to, "/health").await?;
        Ok(client)
    }

    /// Starts an additional client pod with this name.
    pub(crate) async fn start_as(space: &TestNamespace, name: &str) -> Result<Self, TestError> {
        space.apply(&POD.replace("{name: caller,", &format!("{{name: {name},"))).await?;
        space.pod_ready(name).await?;
        Ok(Self::in_pod(space, name))
    }

    /// Controls a client in an existing pod.
    pub(crate) fn in_pod(space: &TestNamespace, pod: &str) -> Self {
        Self { space: space.clone(), pod: pod.to_owned() }
    }

    /// Sends calls one after the other on one connection. `to` is `HOST:PORT`, with names as
    /// resolved in pods.
    pub(crate) async fn call_sequentially(&self, to: &str, calls: &[HttpCall]) -> Result<Vec<CallResponse>, TestError> {
        self.calls(to, calls, false).await
    }

    /// Sends all calls concurrently, each on a connection of its own.
    pub(crate) async fn call_concurrently(&self, to: &str, calls: &[HttpCall]) -> Result<Vec<CallResponse>, TestError> {
        self.calls(to, calls, true).await
    }

    /// Sends one call.
    pub(crate) async fn call(&self, to: &str, call: HttpCall) -> Result<CallResponse, TestError> {
        self.call_sequentially(to, &[call]).await?.pop().ok_or_else(|| "no answer".into())
    }

    async fn calls(&self, to: &str, calls: &[HttpCall], at_once: bool) -> Result<Vec<CallResponse>, TestError> {
        let command = CallsCommand { to: to.to_owned(), calls: calls.to_vec(), at_once };
        let results: Vec<CallResult> = send_command(&self.space, &self.pod, Method::POST, "/calls", &command).await?;
        let known =
            |(place, result): (usize, CallResult)| result.map_err(|why| format!("call {place} to {to}: {why}").into());
        results.into_iter().enumerate().map(known).collect()
    }

    /// Waits until a server at this address answers. A client error such as 404 counts as an
    /// answer.
    pub(crate) async fn wait_until_reachable(&self, to: &str, path: &str) -> Result<(), TestError> {
        retry_until(to, REACHED_MAX, async || match self.call(to, HttpCall::get(path)).await? {
            answer if answer.status < 500 => Ok(()),
            answer => Err(format!("{} {}", answer.status, answer.body).into()),
        })
        .await
    }

    /// Starts a load with this rate of calls and one item each. Returns once some calls have been
    /// served.
    pub(crate) async fn start_load(&self, to: &str, route: Route, rate: f64) -> Result<RunningLoad<'_>, TestError> {
        let command = LoadCommand { to: to.to_owned(), route, items: 1, rate, connections: CONNECTIONS };
        send_command::<()>(&self.space, &self.pod, Method::POST, "/load", &command).await?;
        let running = RunningLoad(self);
        running.wait_until_served(10).await?;
        Ok(running)
    }

    /// Sends items through the proxy at `to` and verifies that each result returns to its caller.
    pub(crate) async fn run_ledger(&self, to: &str, items: u64) -> Result<LedgerReport, TestError> {
        let command = LedgerCommand { to: to.to_owned(), items, clients: 64 };
        send_command(&self.space, &self.pod, Method::POST, "/ledger", &command).await
    }
}

// === impl RunningLoad ===

impl RunningLoad<'_> {
    /// Returns the current report of the load.
    pub(crate) async fn now(&self) -> Result<LoadReport, TestError> {
        send_command(&self.0.space, &self.0.pod, Method::GET, "/load", &()).await
    }

    /// Waits until this number of further calls has been served.
    pub(crate) async fn wait_until_served(&self, more: u64) -> Result<(), TestError> {
        let before = self.now().await?.served;
        retry_until("the load", SHOWS_MAX, async || match self.now().await? {
            now if now.served >= before + more => Ok(()),
            now => Err(format!("{now:?}").into()),
        })
        .await
    }

    /// Stops the load, waits for outstanding answers, and returns the report.
    pub(crate) async fn stop(self) -> Result<LoadReport, TestError> {
        send_command(&self.0.space, &self.0.pod, Method::DELETE, "/load", &()).await
    }
}

/// Returns the request statistics of a model server.
pub(crate) async fn model_stats(space: &TestNamespace, pod: &str) -> Result<ServerStats, TestError> {
    send_command(space, pod, Method::GET, "/stats", &()).await
}

/// Changes the behaviour of a running model server.
pub(crate) async fn change_model(space: &TestNamespace, pod: &str, change: &ModelUpdate) -> Result<(), TestError> {
    send_command(space, pod, Method::POST, "/model", change).await
}

/// Makes a model server listen that was started without listening, as if its model had just been
/// loaded.
pub(crate) async fn start_listening(space: &TestNamespace, pod: &str) -> Result<(), TestError> {
    send_command(space, pod, Method::POST, "/listen", &()).await
}

async fn send_command<T: DeserializeOwned>(
    space: &TestNamespace,
    pod: &str,
    method: Method,
    path: &str,
    command: &impl Serialize,
) -> Result<T, TestError> {
    let body = if method == Method::GET { Vec::new() } else { serde_json::to_vec(command)? };
    let request = Request::builder().method(method).uri(path).body(body)?;
    let response = space.send_to_pod(pod, CONTROL, request).await.map_err(|fault| format!("{pod}, {path}: {fault}"))?;
    Ok(serde_json::from_str(&response)?)
}
