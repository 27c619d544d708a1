//! `groupage check`: whether a cluster can take Groupage, and whether what is installed works.
//!
//! Facts are gathered first, then judged, so the judgement has no network in it. Symbols and exit codes are those of `linkerd check`: √ holds, ‼ should be
//! looked at, × does not hold and ends with an error.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Namespace, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

use super::cluster::{self, Target, explain};
use super::trouble::{UNPLACED, trouble};
use super::ways::{self, Ways};
use crate::config::parse_duration;
use crate::controller::world;
use crate::injector::{COMPONENT, CONTAINER, INJECT, INJECTED};

/// The oldest version that the chart takes.
const VERSION_MIN: u32 = 30;
/// From here on native sidecars' named ports reach Services (kubernetes/kubernetes#127958).
const VERSION_NATIVE: u32 = 33;
/// Names that the installation has.
const WEBHOOK: &str = "groupage-injector";
const CONTROLLER: &str = "groupage-controller";
/// Pods that are named in one finding; the rest is counted.
const NAMED_MAX: usize = 5;

/// Between two looks, while it is waited for.
const AGAIN: Duration = Duration::from_secs(1);

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Every check.
    Table,
    /// Only what does not hold.
    Short,
    /// For programs.
    Json,
}

/// `groupage check`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    target: Target,
    /// Only what is needed before an installation
    #[arg(long)]
    pre: bool,
    /// The controller's namespace
    #[arg(long, value_name = "NAMESPACE", default_value = "groupage-system")]
    controller_namespace: String,
    /// Have the API server say what it would make of a pod that asks for a sidecar in this namespace: a dry run, no pod is made
    #[arg(long, value_name = "NAMESPACE")]
    try_in: Option<String>,
    /// How long to wait until everything holds
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: String,
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

/// Whether something holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
struct Finding {
    category: &'static str,
    level: Level,
    what: String,
    /// What to do, where it does not hold.
    hint: Option<String>,
}

/// What was seen in the cluster, as raw JSON; null where there is nothing or it may not be read.
#[derive(Debug, Clone, Default)]
struct Facts {
    minor: Option<u32>,
    /// The kubelets' versions.
    kubelets: Vec<String>,
    crds: Vec<Value>,
    webhook: Value,
    controller: Value,
    /// Where the controller is looked for.
    home: String,
    namespaces: Vec<Value>,
    pods: Vec<Value>,
    policies: Vec<Value>,
    /// The pod that was tried, as it would have been made, or why not.
    tried: Option<Result<Value, String>>,
    /// What could not be asked, and why.
    refused: Vec<(&'static str, String)>,
    /// What leads to pods and could not be asked: the records of injections are shown instead.
    recorded: Vec<String>,
}

// === impl Facts ===

impl Facts {
    /// Whether something could be asked: what could not is not judged.
    fn asked(&self, what: &str) -> bool {
        self.refused.iter().all(|(refused, _)| *refused != what)
    }
}

pub(super) fn run(args: &Args) -> ExitCode {
    cluster::run(async {
        let wait = parse_duration(&args.wait).ok_or_else(|| format!("--wait {:?} is no duration", args.wait))?;
        let cluster = args.target.connect().await?;
        let look = async || {
            let mut facts = gather(&cluster.client, &args.controller_namespace, args.pre).await?;
            if let Some(namespace) = &args.try_in {
                facts.tried = Some(tried(&cluster.client, namespace, &facts.controller).await);
            }
            Ok::<_, String>(judge(&facts, args.pre))
        };
        let soon = async {
            loop {
                let findings = look().await?;
                if worst(&findings) < Level::Error {
                    return Ok::<_, String>(findings);
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        // When the time is over it is looked at once more, and told as it is.
        let findings = match tokio::time::timeout(wait, soon).await {
            Ok(findings) => findings?,
            Err(_) => look().await?,
        };
        print!("{}", shown(&findings, args.output));
        Ok(if worst(&findings) == Level::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

async fn gather(client: &Client, namespace: &str, pre: bool) -> Result<Facts, String> {
    let version = client.apiserver_version().await.map_err(|error| explain(&error))?;
    let mut facts = Facts {
        minor: version.minor.trim_end_matches('+').parse().ok(),
        home: namespace.to_owned(),
        ..Facts::default()
    };
    let all = ListParams::default();
    let mut refused = Vec::new();
    let mut take = |what: &'static str, found: Result<Vec<Value>, kube::Error>| match found {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => {
            refused.push((what, explain(&error)));
            Vec::new()
        }
    };
    let nodes = Api::<Node>::all(client.clone()).list(&all).await;
    let nodes = take("nodes", nodes.map(values));
    facts.kubelets = nodes
        .iter()
        .filter_map(|node| node.pointer("/status/nodeInfo/kubeletVersion").and_then(Value::as_str).map(str::to_owned))
        .collect();
    if pre {
        facts.refused = refused;
        return Ok(facts);
    }
    let (ways, recorded) = Ways::read(client, None).await;
    facts.recorded = recorded;
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    for name in ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"] {
        facts.crds.extend(take("CRDs", crds.get_opt(name).await.map(one)));
    }
    let webhooks = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(WEBHOOK).await;
    facts.webhook = take("webhook", webhooks.map(one)).pop().unwrap_or_default();
    let controller = Api::<Deployment>::namespaced(client.clone(), namespace).get_opt(CONTROLLER).await;
    facts.controller = take("controller", controller.map(one)).pop().unwrap_or_default();
    facts.namespaces = take("namespaces", Api::<Namespace>::all(client.clone()).list(&all).await.map(values));
    facts.pods = take("pods", ways::pages(&Api::<Pod>::all(client.clone()), &all, |pod| in_short(&pod, &ways)).await);
    let policies = cluster::ours("BatchPolicy", "batchpolicies");
    let policies = Api::<DynamicObject>::all_with(client.clone(), &policies).list(&all).await;
    facts.policies = take("policies", policies.map(values));
    facts.refused = refused;
    Ok(facts)
}

/// What is looked at of a pod.
fn in_short(pod: &Pod, ways: &Ways) -> Value {
    let spec = pod.spec.as_ref();
    let names = |containers: Vec<&Container>| -> Vec<Value> {
        containers.iter().map(|container| json!({"name": container.name})).collect()
    };
    let asks = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INJECT));
    let annotations: BTreeMap<_, _> = asks.map(|word| (INJECT, word)).into_iter().collect();
    json!({
        "metadata": {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "labels": pod.metadata.labels,
            "annotations": annotations,
        },
        "spec": {
            "containers": names(spec.iter().flat_map(|spec| &spec.containers).collect()),
            "initContainers": names(spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).collect()),
        },
        "status": {"phase": pod.status.as_ref().and_then(|status| status.phase.as_ref())},
        // Our own words, no fields of a pod.
        "around": ways.around(&world::from_pod(pod).1),
        "remedy": ways.remedy(&world::from_pod(pod).1),
        "trouble": trouble(pod),
    })
}

/// What the API server would make of a pod that asks for a sidecar. The webhook is asked as for any other.
async fn tried(client: &Client, namespace: &str, controller: &Value) -> Result<Value, String> {
    // Nothing runs, but whoever looks at images before a pod is made finds one that is there.
    let image = controller.pointer("/spec/template/spec/containers/0/image").and_then(Value::as_str);
    let pod = json!({
        "metadata": {"generateName": "groupage-check-", "annotations": {INJECT: "enabled"}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "model",
                "image": image.unwrap_or(concat!("groupage.dev/groupage:", env!("CARGO_PKG_VERSION"))),
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).map_err(|error| error.to_string())?;
    let only = PostParams { dry_run: true, ..PostParams::default() };
    let made = Api::<Pod>::namespaced(client.clone(), namespace).create(&only, &pod).await;
    made.map(|pod| json!(pod)).map_err(|error| explain(&error))
}

fn values<T: serde::Serialize + Clone>(list: kube::core::ObjectList<T>) -> Vec<Value> {
    list.items.into_iter().map(|item| json!(item)).collect()
}

fn one<T: serde::Serialize>(found: Option<T>) -> Vec<Value> {
    found.into_iter().map(|item| json!(item)).collect()
}

/// Judges what was seen.
fn judge(facts: &Facts, pre: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut say = |category, level, what: String, hint: Option<&str>| {
        found.push(Finding { category, level, what, hint: hint.map(str::to_owned) });
    };
    match facts.minor {
        Some(minor) if minor < VERSION_MIN => {
            let hint = Some("upgrade the cluster: the injector needs matchConditions (1.30)");
            say(
                "kubernetes-api",
                Level::Error,
                format!("the API server is 1.{minor}, older than 1.{VERSION_MIN}"),
                hint,
            );
        }
        Some(minor) => say("kubernetes-api", Level::Ok, format!("the API server answers, version 1.{minor}"), None),
        None => say("kubernetes-api", Level::Warning, "the API server does not say its version".to_owned(), None),
    }
    let old: Vec<&String> =
        facts.kubelets.iter().filter(|version| minor(version).is_some_and(|minor| minor < VERSION_NATIVE)).collect();
    if !facts.kubelets.is_empty() {
        if old.is_empty() {
            say("kubernetes-api", Level::Ok, "every kubelet runs native sidecars".to_owned(), None);
        } else {
            let hint = Some("sidecars are plain containers until all are 1.33: Jobs are left alone");
            say(
                "kubernetes-api",
                Level::Warning,
                format!("{} kubelets are older than 1.{VERSION_NATIVE}", old.len()),
                hint,
            );
        }
    }
    for (what, why) in &facts.refused {
        let hint = Some("what is behind it was not checked");
        say("kubernetes-api", Level::Warning, format!("cannot read {what}: {why}"), hint);
    }
    for why in &facts.recorded {
        let hint = Some("what goes around sidecars is told as it was when their pods were made");
        say("kubernetes-api", Level::Warning, format!("cannot read {why}"), hint);
    }
    if pre {
        return found;
    }
    let names: Vec<&str> = facts.crds.iter().filter_map(|crd| crd["metadata"]["name"].as_str()).collect();
    for name in ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"].into_iter().filter(|_| facts.asked("CRDs"))
    {
        if names.contains(&name) {
            say("crds", Level::Ok, format!("{name} is there"), None);
        } else {
            let hint = Some("groupage install | kubectl apply --server-side -f -");
            say("crds", Level::Error, format!("{name} is not there"), hint);
        }
    }
    if facts.asked("webhook") {
        webhook(&facts.webhook, &mut say);
    }
    let ready = facts.controller.pointer("/status/readyReplicas").and_then(Value::as_u64).unwrap_or(0);
    match (facts.controller.is_null(), ready) {
        _ if !facts.asked("controller") => {}
        (true, _) => {
            let hint = Some(
                "groupage install | kubectl apply --server-side -f -, or name its namespace with --controller-namespace",
            );
            say("controller", Level::Error, format!("deployment/{CONTROLLER} is not there"), hint);
        }
        (false, 0) => {
            let what = "no replica of the controller is ready";
            let own = |pod: &&Value| {
                pod["metadata"]["namespace"] == facts.home.as_str() && pod["metadata"]["labels"][COMPONENT].is_string()
            };
            match facts.pods.iter().filter(own).find_map(|pod| pod["trouble"].as_str()) {
                Some(trouble) => say("controller", Level::Error, format!("{what}: {trouble}"), None),
                // There are logs only where its container has started.
                None => {
                    let hint = format!("kubectl logs -n {} deployment/{CONTROLLER}", facts.home);
                    say("controller", Level::Error, what.to_owned(), Some(&hint));
                }
            }
        }
        (false, ready) => say("controller", Level::Ok, format!("{ready} replicas of the controller are ready"), None),
    }
    injection(facts, &mut say);
    policies(&facts.policies, &mut say);
    found
}

fn webhook(webhook: &Value, say: &mut impl FnMut(&'static str, Level, String, Option<&str>)) {
    let entries = webhook["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
    if entries.is_empty() {
        let hint = Some("groupage install | kubectl apply --server-side -f -");
        return say("webhook", Level::Error, format!("{WEBHOOK} is not there: no pod is injected"), hint);
    }
    if entries
        .iter()
        .any(|entry| entry.pointer("/clientConfig/caBundle").and_then(Value::as_str).is_none_or(str::is_empty))
    {
        let hint = Some("the controller's leader puts it in; look at its log");
        say("webhook", Level::Error, "the API server has no CA to trust it by".to_owned(), hint);
    } else {
        say("webhook", Level::Ok, "the API server has a CA to trust it by".to_owned(), None);
    }
    if entries.iter().any(|entry| entry["failurePolicy"] == "Fail") {
        let hint = Some("give the controller a priority class, and see that its replicas are on different nodes");
        say(
            "webhook",
            Level::Warning,
            "failurePolicy is Fail: pods that ask for it cannot start while the controller is away".to_owned(),
            hint,
        );
    }
}

/// Pods that ask for a sidecar and have none, and pods that traffic goes around.
fn injection(facts: &Facts, say: &mut impl FnMut(&'static str, Level, String, Option<&str>)) {
    let asked = |pod: &&Value| {
        let labels = facts.namespaces.iter().find(|space| space["metadata"]["name"] == pod["metadata"]["namespace"]);
        let words = [
            pod["metadata"]["annotations"][INJECT].as_str(),
            pod["metadata"]["labels"][INJECT].as_str(),
            labels.and_then(|space| space["metadata"]["labels"][INJECT].as_str()),
        ];
        words
            .into_iter()
            .flatten()
            .next()
            .is_some_and(|word| matches!(word.to_ascii_lowercase().as_str(), "enabled" | "true"))
    };
    match &facts.tried {
        None => {}
        Some(Ok(pod)) if has_sidecar(pod) => {
            say("injection", Level::Ok, "a pod that asks for a sidecar gets one".to_owned(), None);
        }
        Some(Ok(_)) => {
            let hint =
                Some("the API server does not reach the webhook, or it said no; look at the log of the controller");
            say("injection", Level::Error, "a pod that asks for a sidecar gets none".to_owned(), hint);
        }
        Some(Err(why)) => {
            let hint = Some("name a namespace where you may make pods");
            say("injection", Level::Error, format!("a pod that asks for a sidecar cannot be tried: {why}"), hint);
        }
    }
    let ended = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let missing: Vec<String> =
        facts.pods.iter().filter(asked).filter(|pod| !has_sidecar(pod) && !ended(pod)).map(pod_name).collect();
    if !facts.asked("pods") {
        return;
    }
    if missing.is_empty() {
        let injected = facts.pods.iter().filter(|pod| pod["metadata"]["labels"][INJECTED] == "true").count();
        say("injection", Level::Ok, format!("every pod that asks for a sidecar has one ({injected})"), None);
    } else {
        let hint =
            Some("kubectl get events -A says why one was skipped; one that was missed gets it when it is made again");
        say("injection", Level::Warning, format!("{} ask for a sidecar and have none", several(&missing)), hint);
    }
    // Pods of one workload have one remedy.
    let mut around: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| !ended(pod)) {
        if let (Some(way), Some(remedy)) = (pod["around"][0].as_str(), pod["remedy"].as_str()) {
            around.entry((remedy, way)).or_default().push(pod_name(pod));
        }
    }
    for ((remedy, way), pods) in around {
        let what = format!("calls go around the sidecar of {}: {way}", several(&pods));
        say("injection", Level::Warning, what, Some(remedy));
    }
    // Of pods of one workload the sentences differ in the pod's name alone.
    let mut broken: BTreeMap<String, (&str, Vec<String>)> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| has_sidecar(pod)) {
        if let Some(trouble) = pod["trouble"].as_str() {
            let kind = trouble.replace(pod["metadata"]["name"].as_str().unwrap_or_default(), "");
            broken.entry(kind).or_insert_with(|| (trouble, Vec::new())).1.push(pod_name(pod));
        }
    }
    for (trouble, pods) in broken.into_values() {
        let level = if trouble.starts_with(UNPLACED) { Level::Warning } else { Level::Error };
        say("injection", level, format!("{} does not run: {trouble}", several(&pods)), None);
    }
}

fn has_sidecar(pod: &Value) -> bool {
    ["containers", "initContainers"].iter().any(|key| {
        let containers = pod["spec"][key].as_array().map_or(&[][..], Vec::as_slice);
        containers.iter().any(|container| container["name"] == CONTAINER)
    })
}

fn policies(policies: &[Value], say: &mut impl FnMut(&'static str, Level, String, Option<&str>)) {
    for policy in policies {
        let word = |key: &str| policy["metadata"][key].as_str().unwrap_or("?");
        let (own, space) = (word("name"), word("namespace"));
        let name = format!("batchpolicy/{own} in {space}");
        let conditions = policy["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        // That batches do not pay is how the server is, and nothing to mend.
        let is_bad = |condition: &&Value| condition["status"] == "False" && condition["reason"] != "NoGain";
        let bad: Vec<&Value> = conditions.iter().filter(is_bad).collect();
        if conditions.is_empty() {
            say("policy", Level::Warning, format!("{name} has no status"), Some("the controller has not seen it yet"));
        } else if let Some(worst) = bad.first() {
            let word = |key: &str| worst[key].as_str().unwrap_or_default().to_owned();
            say(
                "policy",
                Level::Warning,
                format!("{name}: {}=False ({}): {}", word("type"), word("reason"), word("message")),
                Some(&format!("kubectl describe bpol -n {space} {own}")),
            );
        } else {
            say("policy", Level::Ok, format!("{name} is in force"), None);
        }
    }
}

fn pod_name(pod: &Value) -> String {
    format!(
        "{}/{}",
        pod["metadata"]["namespace"].as_str().unwrap_or("?"),
        pod["metadata"]["name"].as_str().unwrap_or("?")
    )
}

fn several(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The minor version in `v1.33.2`.
fn minor(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').nth(1)?.parse().ok()
}

fn shown(findings: &[Finding], output: Output) -> String {
    if output == Output::Json {
        return format!("{:#}\n", json!({"checks": findings}));
    }
    let mut out = String::new();
    let mut category = "";
    for finding in findings.iter().filter(|finding| output == Output::Table || finding.level != Level::Ok) {
        if finding.category != category {
            category = finding.category;
            out.push_str(&format!("{}{category}\n", if out.is_empty() { "" } else { "\n" }));
        }
        let mark = match finding.level {
            Level::Ok => '√',
            Level::Warning => '‼',
            Level::Error => '×',
        };
        out.push_str(&format!("{mark} {}\n", finding.what));
        if let Some(hint) = &finding.hint {
            out.push_str(&format!("    {hint}\n"));
        }
    }
    let verdict = match worst(findings) {
        Level::Ok => "√",
        Level::Warning => "√ with warnings",
        Level::Error => "×",
    };
    out.push_str(&format!("\nstatus: {verdict}\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::injector::STATUS;

    fn sound() -> Facts {
        Facts {
            minor: Some(36),
            kubelets: vec!["v1.36.3".to_owned()],
            crds: vec![
                json!({"metadata": {"name": "batchpolicies.groupage.dev"}}),
                json!({"metadata": {"name": "batchprofiles.groupage.dev"}}),
            ],
            webhook: json!({"webhooks": [{"clientConfig": {"caBundle": "eA=="}, "failurePolicy": "Ignore"}]}),
            controller: json!({"status": {"readyReplicas": 2}}),
            ..Facts::default()
        }
    }

    fn first(facts: &Facts) -> (Level, String) {
        let findings = judge(facts, false);
        let worst = findings.iter().max_by_key(|finding| finding.level).unwrap();
        (worst.level, worst.what.clone())
    }

    fn breaks(change: impl Fn(&mut Facts), level: Level, says: &str) {
        let mut facts = sound();
        change(&mut facts);
        let (found, what) = first(&facts);
        assert!(found == level && what.contains(says), "{what}");
    }

    #[test]
    fn a_sound_installation_has_nothing_to_say() {
        assert_eq!(first(&sound()).0, Level::Ok);
    }

    #[test]
    fn every_part_that_is_missing_is_named() {
        breaks(|facts| facts.minor = Some(29), Level::Error, "older than 1.30");
        breaks(|facts| facts.kubelets.push("v1.32.1".to_owned()), Level::Warning, "1 kubelets");
        breaks(|facts| facts.crds.truncate(1), Level::Error, "batchprofiles.groupage.dev is not there");
        breaks(|facts| facts.webhook = Value::Null, Level::Error, "no pod is injected");
        breaks(|facts| facts.webhook["webhooks"][0]["clientConfig"] = json!({}), Level::Error, "no CA");
        breaks(|facts| facts.webhook["webhooks"][0]["failurePolicy"] = json!("Fail"), Level::Warning, "Fail");
        breaks(|facts| facts.controller = Value::Null, Level::Error, "is not there");
        breaks(|facts| facts.controller = json!({"status": {}}), Level::Error, "no replica");
        breaks(
            |facts| {
                facts.controller = json!({"status": {}});
                facts.home = "g".to_owned();
                let pod = json!({"metadata": {"name": "c", "namespace": "g", "labels": {COMPONENT: "controller"}}, "trouble": "ImagePullBackOff"});
                facts.pods = vec![pod];
            },
            Level::Error,
            "is ready: ImagePullBackOff",
        );
        breaks(|facts| facts.refused.push(("pods", "not allowed".to_owned())), Level::Warning, "cannot read pods: not");
        breaks(|facts| facts.recorded.push("services: not allowed".to_owned()), Level::Warning, "cannot read services");
        breaks(
            |facts| {
                facts.policies.push(json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"conditions": [{"type": "SLOMet", "status": "False", "reason": "Slow", "message": "m"}]}}));
            },
            Level::Warning,
            "SLOMet=False (Slow): m",
        );
    }

    #[test]
    fn what_may_not_be_read_is_neither_missing_nor_fine() {
        let what = ["CRDs", "webhook", "controller", "pods"];
        let refused = what.map(|what| (what, "not allowed".to_owned())).into();
        let findings = judge(&Facts { refused, ..Facts { minor: Some(33), ..Facts::default() } }, false);
        assert_eq!(worst(&findings), Level::Warning, "{findings:?}");
        assert!(findings.iter().all(|finding| finding.category == "kubernetes-api"), "{findings:?}");
    }

    #[test]
    fn a_pod_that_asks_and_has_no_sidecar_is_named() {
        let pod = |name: &str, annotations: Value, containers: Value| json!({"metadata": {"name": name, "namespace": "ml", "annotations": annotations}, "spec": {"initContainers": containers}});
        let mut facts = sound();
        facts.namespaces = vec![json!({"metadata": {"name": "ml", "labels": {INJECT: "enabled"}}})];
        facts.pods = vec![
            pod("has", json!({}), json!([{"name": CONTAINER}])),
            pod("lacks", json!({}), json!([])),
            pod("says-no", json!({INJECT: "disabled"}), json!([])),
        ];
        assert_eq!(first(&facts), (Level::Warning, "ml/lacks ask for a sidecar and have none".to_owned()));
    }

    #[test]
    fn a_pod_in_short_has_all_that_is_looked_at() {
        let record =
            json!({"capture": [{"port": 80, "bypass": ["hostPort 80 leads to the application itself"]}]}).to_string();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ml", "labels": {INJECTED: "true"}, "annotations": {INJECT: "enabled", STATUS: record, "other": "x"}},
            "spec": {"containers": [{"name": "model", "image": "i"}], "initContainers": [{"name": CONTAINER}]},
            "status": {"phase": "Running"},
        });
        let short = in_short(&serde_json::from_value(pod).unwrap(), &Ways::default());
        assert!(has_sidecar(&short) && pod_name(&short) == "ml/p");
        assert_eq!(short["metadata"]["annotations"], json!({INJECT: "enabled"}));
        let facts = Facts { pods: vec![short.clone()], ..sound() };
        let what = "calls go around the sidecar of ml/p: hostPort 80 leads to the application itself";
        assert_eq!(first(&facts), (Level::Warning, what.to_owned()));
        let waiting = json!({"reason": "ImagePullBackOff", "message": "no such image"});
        let mut broken = short.clone();
        broken["trouble"] = json!(format!("container {CONTAINER}: {}", waiting["reason"].as_str().unwrap()));
        let facts = Facts { pods: vec![broken], ..sound() };
        assert_eq!(first(&facts), (Level::Error, "ml/p does not run: container groupage: ImagePullBackOff".to_owned()));
        assert_eq!(
            (&short["metadata"]["labels"][INJECTED], &short["status"]["phase"]),
            (&json!("true"), &json!("Running"))
        );
    }

    #[test]
    fn a_pod_that_is_tried_shows_whether_injection_works() {
        let pod = |containers: Value| Some(Ok(json!({"spec": {"initContainers": containers}})));
        let mut facts = sound();
        facts.tried = pod(json!([{"name": CONTAINER}]));
        assert_eq!(first(&facts).0, Level::Ok);
        breaks(|facts| facts.tried = pod(json!([])), Level::Error, "gets none");
        breaks(|facts| facts.tried = Some(Err("not allowed".to_owned())), Level::Error, "not allowed");
    }

    #[test]
    fn before_an_installation_only_the_cluster_is_looked_at() {
        let facts = Facts { minor: Some(33), ..Facts::default() };
        assert!(
            judge(&facts, true)
                .iter()
                .all(|finding| finding.category == "kubernetes-api" && finding.level == Level::Ok)
        );
    }

    #[test]
    fn short_output_leaves_out_what_holds() {
        let text = shown(&judge(&sound(), false), Output::Short);
        assert_eq!(text, "\nstatus: √\n");
        assert!(
            shown(&judge(&Facts::default(), false), Output::Short)
                .contains("× batchpolicies.groupage.dev is not there")
        );
    }
}
