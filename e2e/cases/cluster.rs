//! The cluster itself: properties that all other cases rely on.

use std::net::IpAddr;
use std::time::Duration;

use groupage::testkit::remote::HttpCall;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};

use super::manifests::MODEL;
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[
    case!("cluster", nodes_are_ready_and_report_their_versions),
    case!("cluster", pods_and_services_answer_over_both_families_and_by_name),
    case!("cluster", pod_security_refuses_pods_that_are_not_restricted),
    case!("cluster", a_token_has_only_the_rights_and_the_audience_of_its_account),
    case!("cluster", a_pods_token_names_the_pod_and_ends_with_it),
    case!("cluster", the_real_helm_reaches_the_cluster, Helm),
];

async fn nodes_are_ready_and_report_their_versions(space: &TestNamespace) -> CaseResult {
    let nodes = Api::<Node>::all(space.cluster.client.clone()).list(&ListParams::default()).await?;
    let mut versions = Vec::new();
    for node in &nodes {
        let status = node.status.as_ref().ok_or("a node without a status")?;
        let ready = status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
        if !ready {
            return Err(format!("{} is not ready", node.name_any()).into());
        }
        let info = status.node_info.as_ref().ok_or("a node without its versions")?;
        versions.push(format!("{} on {}", info.kubelet_version, info.container_runtime_version));
    }
    if versions.is_empty() {
        return Err("no node".into());
    }
    Ok(versions.join(", "))
}

async fn pods_and_services_answer_over_both_families_and_by_name(space: &TestNamespace) -> CaseResult {
    space.apply(MODEL).await?;
    let pods = space.deployment_ready("model").await?;
    let caller = TestClient::start(space).await?;
    let mut places = Vec::new();
    for pod in &pods {
        let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten());
        places.extend(ips.map(|ip| ip.ip.parse::<IpAddr>().map(|ip| (ip, 8080))));
    }
    let service: Service = space.api().get("model").await?;
    let ips = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    places.extend(ips.iter().map(|ip| ip.parse().map(|ip| (ip, 80))));
    let (mut v4, mut v6) = (0, 0);
    for place in places {
        let (ip, port) = place?;
        *if ip.is_ipv4() { &mut v4 } else { &mut v6 } += 1;
        caller.wait_until_reachable(&std::net::SocketAddr::from((ip, port)).to_string(), "/health").await?;
    }
    if space.cluster.node.is_some() && (v4, v6) != (2, 2) {
        return Err(format!("{v4} addresses of version 4 and {v6} of version 6 for a pod and a Service").into());
    }
    // Tests the resolver of a static binary, in an image that contains no other file.
    let names = [
        "model:80".to_owned(),
        format!("model.{}:80", space.name),
        format!("model.{}.svc.cluster.local:80", space.name),
    ];
    for name in &names {
        caller.wait_until_reachable(name, "/health").await?;
    }
    let unknown = caller.call("no-such-service:80", HttpCall::get("/health")).await;
    let Err(why) = unknown else { return Err("a Service that does not exist answered".into()) };
    Ok(format!("{v4} addresses of version 4, {v6} of version 6, {} names; an unknown name: {why}", names.len()))
}

async fn pod_security_refuses_pods_that_are_not_restricted(space: &TestNamespace) -> CaseResult {
    space.enforce_restricted().await?;
    let bare = "
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  containers: [{name: model, image: $stand-in, args: [model]}]
";
    let why = space.apply_rejected(bare).await?;
    if !why.contains("violates PodSecurity \"restricted") {
        return Err(format!("refused for another reason: {why}").into());
    }
    Ok("refused without a security context".to_owned())
}

async fn a_token_has_only_the_rights_and_the_audience_of_its_account(space: &TestNamespace) -> CaseResult {
    let rights = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
";
    space.apply(rights).await?;
    let token = space.token("reader", None).await?;
    let client = space.cluster.client_with_token(&token).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), &space.name);
    pods.list(&ListParams::default()).await?;
    let secrets = Api::<Secret>::namespaced(client, &space.name).list(&ListParams::default()).await;
    match secrets {
        Err(kube::Error::Api(refused)) if refused.is_forbidden() => {}
        other => return Err(format!("secrets: {other:?}").into()),
    }
    // A token with another audience is rejected by the API server.
    let foreign = space.token("reader", Some("groupage.dev")).await?;
    let client = space.cluster.client_with_token(&foreign).await?;
    match Api::<Pod>::namespaced(client, &space.name).list(&ListParams::default()).await {
        Err(kube::Error::Api(refused)) if refused.code == 401 => {}
        other => return Err(format!("with another audience: {other:?}").into()),
    }
    Ok("pods listed, secrets refused; a token for another audience refused".to_owned())
}

async fn a_pods_token_names_the_pod_and_ends_with_it(space: &TestNamespace) -> CaseResult {
    let pod = "
apiVersion: v1
kind: Pod
metadata: {name: model}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: model, image: $stand-in, args: [model]}]
";
    space.apply(pod).await?;
    let pod = space.pod_ready("model").await?;
    let token = space.pod_token(&pod, "groupage.dev").await?;
    let user = review(space, &token).await?.user.ok_or("the token belongs to no account")?;
    let extra = user.extra.unwrap_or_default();
    let named = |key: &str| extra.get(&format!("authentication.kubernetes.io/{key}")).and_then(|all| all.first());
    if named("pod-name") != pod.metadata.name.as_ref() || named("pod-uid") != pod.metadata.uid.as_ref() {
        return Err(format!("the token names {extra:?}").into());
    }
    let none = |pod: Option<&Pod>| pod.is_none();
    space.api::<Pod>().delete("model", &DeleteParams::default()).await?;
    let gone = await_condition(space.api::<Pod>(), "model", none);
    tokio::time::timeout(Duration::from_secs(30), gone).await??;
    // The API server caches the validity of a token for a few seconds.
    retry_until("the end of the token", Duration::from_secs(30), async || {
        match review(space, &token).await?.authenticated {
            Some(true) => Err("it is valid still".into()),
            _ => Ok(()),
        }
    })
    .await?;
    Ok(format!("{} of {}", named("pod-name").map_or("", String::as_str), user.username.unwrap_or_default()))
}

async fn review(space: &TestNamespace, token: &str) -> Result<TokenReviewStatus, TestError> {
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec!["groupage.dev".to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviews: Api<TokenReview> = Api::all(space.cluster.client.clone());
    reviews.create(&PostParams::default(), &review).await?.status.ok_or_else(|| "no verdict".into())
}

async fn the_real_helm_reaches_the_cluster(space: &TestNamespace) -> CaseResult {
    let version = space.cluster.helm(&["version", "--short"]).await?;
    let releases = space.cluster.helm(&["list", "--namespace", &space.name, "--output", "json"]).await?;
    if releases.trim() == "[]" { Ok(version.trim().to_owned()) } else { Err(format!("releases: {releases}").into()) }
}
