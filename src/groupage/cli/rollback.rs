//! `groupage rollback`: puts another profile in force manually and at once.
//!
//! It sets one annotation on the policy (`rollout::pin`) and does not change its spec, so that the
//! spec still matches git. The next edit of limits or scheduling is a new intent and ends the
//! rollback; `--end` ends it immediately.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use futures_util::TryStreamExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};

use super::cluster::{self, ClusterTarget, describe_api_error};
use crate::api::v1alpha1::{BatchPolicySpec, BatchPolicyStatus};
use crate::config::parse_duration;
use crate::rollout::pin::{ANNOTATION, ManualRollback};
use crate::rollout::profile;

/// Arguments of `groupage rollback`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Policy, such as bpol/embedder
    #[arg(value_name = "bpol/NAME", value_parser = policy_name)]
    policy: String,
    #[command(flatten)]
    target: ClusterTarget,
    /// `BatchProfile` to put in force [default: during a rollout the current one, else the previous
    /// one]
    #[arg(long, value_name = "PROFILE")]
    to: Option<String>,
    /// End a rollback: the policy's own settings apply again
    #[arg(long, conflicts_with = "to")]
    end: bool,
    /// Wait up to this long until it is in force; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    timeout: String,
}

fn policy_name(text: &str) -> Result<String, String> {
    let (kind, name) = text.split_once('/').ok_or("expected bpol/NAME")?;
    let known = ["bpol", "batchpolicy", "batchpolicies", "batchpolicies.groupage.dev"];
    if !known.contains(&kind.to_ascii_lowercase().as_str()) || name.is_empty() || name.contains('/') {
        return Err(format!("{text} is not a policy: expected bpol/NAME"));
    }
    Ok(name.to_owned())
}

pub(super) fn run(args: &Args) -> ExitCode {
    cluster::run_cluster_command(async {
        let timeout =
            parse_duration(&args.timeout).ok_or_else(|| format!("--timeout {:?} is not a duration", args.timeout))?;
        let found = args.target.connect().await?;
        let api = |kind: &str, plural: &str| -> Api<DynamicObject> {
            Api::namespaced_with(found.client.clone(), &found.namespace, &cluster::groupage_resource(kind, plural))
        };
        let policies = api("BatchPolicy", "batchpolicies");
        let policy = policies.get(&args.policy).await.map_err(|error| describe_api_error(&error))?;
        let read = PolicyState::new(&args.policy, &policy.data)?;
        let to = if args.end { None } else { Some(read.rollback_target(args.to.as_deref())?) };
        if let Some(to) = &to
            && api("BatchProfile", "batchprofiles")
                .get_opt(to)
                .await
                .map_err(|error| describe_api_error(&error))?
                .is_none()
        {
            return Err(format!("BatchProfile {to} does not exist in namespace {}", found.namespace));
        }
        let pin = to.as_ref().map(|to| ManualRollback { to: to.clone(), instead_of: read.desired.clone() }.write());
        let change = json!({"metadata": {"annotations": {ANNOTATION: pin}}});
        policies
            .patch(&args.policy, &PatchParams::default(), &Patch::Merge(change))
            .await
            .map_err(|e| describe_api_error(&e))?;
        let desired = to.clone().unwrap_or_else(|| read.desired.clone());
        let object = format!("batchpolicy/{}", args.policy);
        match &to {
            Some(to) => println!(
                "✓ {object}: {to} instead of {}, until the policy's limits or scheduling are edited or you run groupage rollback bpol/{} --end",
                read.desired, args.policy
            ),
            None => println!("✓ {object}: its own settings apply again ({desired})"),
        }
        if timeout.is_zero() {
            return Ok(ExitCode::SUCCESS);
        }
        // After `--end` a canary may take long, so wait only until it has begun.
        if !wait_until_in_force(&policies, &args.policy, &desired, args.end, timeout).await? {
            return Err(format!(
                "{object}: not in force after {}: is the controller running? groupage check; kubectl describe {object}",
                args.timeout
            ));
        }
        println!("✓ {object}: {desired} is in force");
        Ok(ExitCode::SUCCESS)
    })
}

/// Parts of a policy that a rollback depends on.
struct PolicyState {
    desired: String,
    status: BatchPolicyStatus,
}

// === impl PolicyState ===

impl PolicyState {
    fn new(name: &str, data: &Value) -> Result<Self, String> {
        let spec: BatchPolicySpec = serde_json::from_value(data.get("spec").cloned().unwrap_or_else(|| json!({})))
            .map_err(|error| format!("batchpolicy/{name} cannot be read: {error}"))?;
        let status = data.get("status").cloned().and_then(|status| serde_json::from_value(status).ok());
        let named = spec.profile_ref.as_ref().and_then(|reference| reference.name.clone());
        let desired =
            named.unwrap_or_else(|| profile::profile_name(name, spec.limits.as_ref(), spec.scheduling.as_ref()));
        Ok(Self { desired, status: status.unwrap_or_default() })
    }

    /// Returns the profile to roll back to.
    fn rollback_target(&self, requested: Option<&str>) -> Result<String, String> {
        let current = self.status.current_profile.as_deref().filter(|current| *current != self.desired);
        let previous = self.status.rollout.as_ref().and_then(|rollout| rollout.previous_profile.as_deref());
        let to = requested.or(current).or(previous).ok_or("no profile was in force before: set one with --to")?;
        if to == self.desired {
            return Err(format!("the policy already sets {to}: there is nothing to roll back"));
        }
        Ok(to.to_owned())
    }
}

/// Waits until the status of the policy confirms the profile.
async fn wait_until_in_force(
    policies: &Api<DynamicObject>,
    name: &str,
    desired: &str,
    begun: bool,
    timeout: Duration,
) -> Result<bool, String> {
    let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = std::pin::pin!(watcher(policies.clone(), one).applied_objects());
    let wait = async {
        while let Some(policy) = changes.try_next().await? {
            let status = &policy.data["status"];
            if status["currentProfile"] == desired || begun && status["candidateProfile"] == desired {
                return Ok(true);
            }
        }
        Ok(false)
    };
    match tokio::time::timeout(timeout, wait).await {
        Ok(found) => found.map_err(|error: watcher::Error| error.to_string()),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rollback_target_is_the_named_the_current_or_the_previous_profile() {
        let read = |status: Value| {
            PolicyState::new("emb", &json!({"spec": {"profileRef": {"name": "new"}}, "status": status})).unwrap()
        };
        let tried = read(json!({"currentProfile": "old", "candidateProfile": "new"}));
        assert_eq!(tried.rollback_target(None).as_deref(), Ok("old"));
        assert_eq!(tried.rollback_target(Some("older")).as_deref(), Ok("older"));
        assert!(tried.rollback_target(Some("new")).unwrap_err().contains("already sets"));
        let promoted = read(json!({"currentProfile": "new", "rollout": {"previousProfile": "old"}}));
        assert_eq!(promoted.rollback_target(None).as_deref(), Ok("old"));
        assert!(read(json!({"currentProfile": "new"})).rollback_target(None).unwrap_err().contains("--to"));
        let own = PolicyState::new("emb", &json!({"spec": {"limits": {"slotsMax": 4}}})).unwrap();
        assert!(own.desired.starts_with("emb-"));
    }

    #[test]
    fn policies_are_named_as_for_kubectl() {
        assert_eq!(policy_name("bpol/emb").as_deref(), Ok("emb"));
        assert_eq!(policy_name("BatchPolicy/emb").as_deref(), Ok("emb"));
        for text in ["emb", "pod/x", "bpol/", "bpol/a/b"] {
            assert!(policy_name(text).is_err(), "{text}");
        }
    }
}
