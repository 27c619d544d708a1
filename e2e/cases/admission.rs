//! Admission of generated text: a flood of chat calls never reaches the model as more calls than it
//! has slots, and urgent calls pass the others.

use std::time::Duration;

use groupage::testkit::remote::{CallResponse, HttpCall};
use groupage::testkit::server::chat_text;
use kube::ResourceExt;
use serde_json::Value;

use super::manifests::ModelManifest;
use super::policies::wait_for_pod_counts;
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::ensure_installed;
use crate::programs::now;
use crate::test_client::{TestClient, model_stats};
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] =
    &[case!("admission", a_flood_of_chat_calls_is_refused_beyond_the_capacity_and_urgent_calls_pass)];

const POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: model}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: model}]
  slo: {latencyP99: 3s, late: Refuse}
  limits: {slotsMax: 4, queueItemsMax: 100}
  priority:
    header: x-priority
    classes: [{name: bulk, weight: 1}, {name: urgent, weight: 8}]
";

/// A call takes 200 ms, and the model runs four at once.
const ARGS: &str = ", --base, 100ms, --per-item, 5ms, --slots, '4'";
const TOKENS: u32 = 20;
const SLOTS: u64 = 4;
/// Calls from which the sidecar learns their time.
const FIRST: usize = 12;
/// A wave is more than the queue holds, and what it holds takes longer than the SLO allows. Each
/// follows when all calls of the one before it have an answer.
const WAVES: usize = 3;
const WAVE: usize = 240;
const URGENT_ROUNDS: usize = 4;
const URGENT: usize = 8;
/// Time for the urgent calls of a round: less than the SLO, at which a call in the order of arrival
/// would be refused.
const URGENT_MAX: Duration = Duration::from_millis(2500);
/// Timeout for the flood to reach the model.
const FLOODED_MAX: Duration = Duration::from_secs(30);

/// A chat call and the text that answers it.
struct ChatCall {
    call: HttpCall,
    text: String,
}

/// Answers of one class.
#[derive(Debug, Default)]
struct Answers {
    served: usize,
    refused: usize,
}

async fn a_flood_of_chat_calls_is_refused_beyond_the_capacity_and_urgent_calls_pass(
    space: &TestNamespace,
) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(POLICY).await?;
    space.apply(&ModelManifest { args: ARGS, ..ModelManifest::default() }.yaml()).await?;
    let pod = space.deployment_ready("model").await?.pop().ok_or("no pod")?.name_any();
    wait_for_pod_counts(space, "model", |pods| pods.connected == 1).await?;
    let (caller, urgent_client) = (TestClient::start(space).await?, TestClient::start_as(space, "urgent").await?);
    caller.wait_until_reachable("model:80", "/health").await?;
    urgent_client.wait_until_reachable("model:80", "/health").await?;
    let first: Vec<ChatCall> = (0..FIRST).map(|number| ChatCall::new("bulk", "first", number)).collect();
    let mut bulk = Answers::default();
    for call in &first {
        bulk.add(call, &caller.call("model:80", call.call.clone()).await?)?;
    }
    if bulk.served < FIRST {
        return Err(format!("before the flood: {bulk:?}").into());
    }

    let flood = send_flood(&caller);
    let (flooded, (urgent, slowest)) = tokio::try_join!(flood, send_urgent(space, &pod, &urgent_client))?;
    let stats = model_stats(space, &pod).await?;
    let outcome = format!(
        "{} bulk calls served and {} refused; {} urgent calls served and {} refused, a round of {URGENT} in {slowest:?} at most; \
         at most {} calls in the model at once",
        flooded.served, flooded.refused, urgent.served, urgent.refused, stats.in_flight_max
    );
    let served = u64::try_from(bulk.served + flooded.served + urgent.served)?;
    let is_whole = flooded.served + flooded.refused == WAVES * WAVE && stats.calls == served && stats.refused == 0;
    let have_passed = urgent.served == URGENT_ROUNDS * URGENT && slowest <= URGENT_MAX;
    if is_whole && have_passed && stats.in_flight_max <= SLOTS && flooded.refused > 0 && flooded.served > 0 {
        Ok(outcome)
    } else {
        Err(format!("{outcome}; {stats:?}").into())
    }
}

async fn send_flood(client: &TestClient) -> Result<Answers, TestError> {
    let mut answers = Answers::default();
    for wave in 0..WAVES {
        answers.send(client, "bulk", &format!("wave {wave}"), WAVE).await?;
    }
    Ok(answers)
}

/// Sends urgent calls in rounds while the flood lasts, and returns the time of the slowest round.
async fn send_urgent(space: &TestNamespace, pod: &str, client: &TestClient) -> Result<(Answers, Duration), TestError> {
    retry_until("the flood", FLOODED_MAX, async || match model_stats(space, pod).await?.in_flight_max {
        SLOTS.. => Ok(()),
        calls => Err(TestError::from(format!("{calls} calls at once"))),
    })
    .await?;
    let (mut answers, mut slowest) = (Answers::default(), Duration::ZERO);
    for round in 0..URGENT_ROUNDS {
        let begun = now();
        answers.send(client, "urgent", &format!("round {round}"), URGENT).await?;
        slowest = slowest.max(now().duration_since(begun));
    }
    Ok((answers, slowest))
}

// === impl ChatCall ===

impl ChatCall {
    fn new(class: &str, wave: &str, number: usize) -> Self {
        let messages = format!(r#"[{{"role":"user","content":"{class} {wave} {number}"}}]"#);
        let stream = number.is_multiple_of(2);
        let body = format!(r#"{{"model":"m","messages":{messages},"max_tokens":{TOKENS},"stream":{stream}}}"#);
        let mut call = HttpCall::post("/v1/chat/completions", body);
        call.headers.push(("x-priority".to_owned(), class.to_owned()));
        Self { call, text: chat_text(&messages) }
    }
}

// === impl Answers ===

impl Answers {
    /// Sends calls at once and verifies each answer.
    async fn send(&mut self, client: &TestClient, class: &str, wave: &str, count: usize) -> Result<(), TestError> {
        let calls: Vec<ChatCall> = (0..count).map(|number| ChatCall::new(class, wave, number)).collect();
        let sent: Vec<HttpCall> = calls.iter().map(|call| call.call.clone()).collect();
        let answers = client.call_concurrently("model:80", &sent).await?;
        calls.iter().zip(&answers).try_for_each(|(call, answer)| self.add(call, answer))
    }

    /// Counts an answer: the call's own text, or a refusal in the format of OpenAI.
    fn add(&mut self, call: &ChatCall, answer: &CallResponse) -> Result<(), TestError> {
        match answer.status {
            200 if answer.body.contains(&call.text) => self.served += 1,
            // 504 ends a call that waited and can no longer be in time.
            429 | 503 | 504 if is_refusal(answer) => self.refused += 1,
            _ => return Err(format!("{:?} {answer:?}", call.call).into()),
        }
        Ok(())
    }
}

fn is_refusal(answer: &CallResponse) -> bool {
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let error = &body["error"];
    let seconds = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
    error["message"].is_string()
        && error["type"].is_string()
        && error["code"] == answer.status
        && (answer.status == 504 || seconds.is_some_and(|seconds| seconds > 0))
}
