//! Execution of the plan: adds the sidecar to a pod and writes an undo record of every change in
//! the user's part.

mod draft;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::draft::PodDraft;
use super::access::{as_integer, at, list, map_mut, text};
use super::allocator::PortAllocator;
use super::capture::{self, CapturePlan};
use super::effective::InjectionSettings;
use super::engine::EnginePlan;
use super::planned::{PlannedPort, PortCapture};
use super::recipe::{self, RecipeMatch};
use super::resources::SidecarResources;
use super::sidecar::ManifestInputs;
use super::status::{CapturedPort, InjectionStatus, UndoRecord};
use super::{
    InjectedPod, InjectionContext, InjectionReport, STATUS, SkipReason, SkippedPod, candidates, policy, report,
    resources, shape,
};

/// Termination grace period that Kubernetes uses if the pod sets none, in seconds.
const GRACE_DEFAULT: u64 = 30;

/// Hashes of the fields of each added container.
type FieldHashes = BTreeMap<String, BTreeMap<String, String>>;

/// Inputs of an injection: those of [`apply`].
#[derive(Clone, Copy)]
struct InjectionInputs<'a> {
    original: &'a Value,
    incoming: &'a Value,
    known: Option<&'a InjectionStatus>,
    context: &'a InjectionContext,
    overrides: &'a InjectionSettings,
}

/// All decisions about an injection, made before the pod is changed.
struct InjectionPlan {
    native: bool,
    numbers: PortAllocator,
    planned: Vec<PlannedPort>,
    /// The model that the sidecar executes. It then captures no port.
    engine: Option<EnginePlan>,
    recipes: Vec<RecipeMatch>,
    notes: Vec<String>,
    resources: SidecarResources,
    token: String,
    /// Initial policy configuration of the sidecar.
    snapshot: String,
    /// Termination grace period of the pod, in seconds.
    grace: u64,
}

/// Adds the sidecar to `original`. `incoming` is the same pod as received, possibly with the
/// sidecar of an earlier pass; `known` is the status of that pass.
///
/// # Errors
/// Returns the reason for leaving the pod unchanged.
pub(super) fn apply(
    original: &Value,
    incoming: &Value,
    known: Option<&InjectionStatus>,
    context: &InjectionContext,
    overrides: &InjectionSettings,
) -> Result<InjectedPod, SkippedPod> {
    let inputs = InjectionInputs { original, incoming, known, context, overrides };
    let mut draft = PodDraft { pod: original.clone(), undo: UndoRecord::default(), report: InjectionReport::default() };
    let plan = InjectionPlan::new(inputs, &mut draft.report.warnings)?;
    let form = if plan.native { "as a native sidecar" } else { "as a plain container" };
    draft.report.facts.push(form.to_owned());
    draft.change_applications(inputs, &plan);
    let hashes = draft.add_sidecar(inputs, &plan);
    let profile = draft.describe(inputs, &plan);
    draft.add_marks();
    draft.record_created(original);
    // The status comes last, because it contains the undo record.
    let status = plan.into_status(overrides, profile, hashes, draft.undo);
    let written = serde_json::to_string(&status).expect("its maps have strings as keys");
    map_mut(&mut draft.pod, &["metadata", "annotations"]).insert(STATUS.to_owned(), json!(written));
    match shape::check_annotations_size(&draft.pod) {
        Some(skipped) => Err(skipped),
        None => Ok(InjectedPod { pod: draft.pod, report: draft.report }),
    }
}

fn captured(planned: PlannedPort) -> CapturedPort {
    let PlannedPort { port, mode, listen, mut bypass, uncaptured, .. } = planned;
    bypass.extend(uncaptured);
    CapturedPort { container: port.container, name: port.name, port: port.number, mode, listen, bypass }
}

/// Returns `true` if the pod completes when its containers exit.
fn is_job(pod: &Value, context: &InjectionContext) -> bool {
    let owned = list(pod, &["metadata", "ownerReferences"]).iter().any(|owner| text(owner, &["kind"]) == Some("Job"));
    owned
        || matches!(context.workload.kind.as_str(), "Job" | "CronJob")
        || matches!(text(pod, &["spec", "restartPolicy"]), Some("Never" | "OnFailure"))
}

/// Derives the drain token from the template. A random token would make every `inject | apply` a
/// new rollout.
fn derive_token(pod: &Value, context: &InjectionContext) -> String {
    let mut hash = blake3::Hasher::new_derive_key("groupage 2026 drain token of a template");
    for part in [&context.namespace.name, &context.workload.kind, &context.workload.name] {
        hash.update(part.as_bytes());
        hash.update(b"\0");
    }
    hash.update(pod.to_string().as_bytes());
    hash.finalize().to_hex().chars().take(32).collect()
}

/// Returns the drain token. The running pod uses that of the earlier pass; a new one would only
/// cause another rollout.
fn choose_token(inputs: InjectionInputs<'_>) -> String {
    let InjectionInputs { original, incoming, known, context, .. } = inputs;
    let token = known.and_then(|known| known.drain_token(incoming)).or_else(|| context.token.clone());
    token.unwrap_or_else(|| derive_token(original, context))
}

// === impl InjectionPlan ===

impl InjectionPlan {
    /// Makes all decisions, and collects warnings.
    ///
    /// # Errors
    /// Returns the reason for leaving the pod unchanged.
    fn new(inputs: InjectionInputs<'_>, warnings: &mut Vec<String>) -> Result<Self, SkippedPod> {
        let InjectionInputs { original, context, overrides, .. } = inputs;
        let listen_container = overrides.app_listen.as_ref().and_then(|app_listen| app_listen.container.as_deref());
        let native = overrides.is_native(context);
        let engine = overrides.engine.as_ref();
        let engine = engine
            .map(|settings| EnginePlan::new(original, context, settings, &overrides.ports, native))
            .transpose()?;
        let candidates = match &engine {
            Some(engine) => engine.candidates(),
            None => candidates::choose(original, &context.referrers, &overrides.ports, listen_container, warnings)?,
        };
        if !native && is_job(original, context) {
            return Err(SkipReason::JobNeedsNativeSidecar.with_detail(
                "a plain container would keep the pod from completing: the sidecar is native from Kubernetes 1.33 on; from 1.29 on groupage.dev/native-sidecar: Always makes it native, with capture only by app-listen or Redirect",
            ));
        }
        let mut numbers = PortAllocator::new(original, &candidates)?;
        let CapturePlan { ports: planned, recipes, warnings: about_capture, notes } = match &engine {
            Some(_) => CapturePlan::default(),
            None => capture::plan(original, context, overrides, candidates, &mut numbers)?,
        };
        warnings.extend(about_capture);
        let mut resources = resources::plan(original, overrides, context)?;
        if let Some(engine) = &engine {
            engine.add_gpu(&mut resources.value);
        }
        let token = choose_token(inputs);
        let snapshot = policy::initial_config_json(overrides, context, warnings);
        let grace = as_integer(at(original, &["spec", "terminationGracePeriodSeconds"])).unwrap_or(GRACE_DEFAULT);
        Ok(Self { native, numbers, planned, engine, recipes, notes, resources, token, snapshot, grace })
    }

    fn is_captured(&self, container: &str) -> bool {
        self.planned.iter().any(|planned| planned.mode != PortCapture::None && planned.port.container == container)
    }

    /// Returns the record of the injection. `hash` is that of the sidecar container.
    fn into_status(
        self,
        overrides: &InjectionSettings,
        profile: Option<String>,
        (hash, fields): (String, FieldHashes),
        undo: UndoRecord,
    ) -> InjectionStatus {
        InjectionStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            form: if self.native { "native" } else { "classic" }.to_owned(),
            capture: self.planned.into_iter().map(captured).collect(),
            recipes: self.recipes.iter().map(|recipe| recipe.name().to_owned()).collect(),
            engine: self.engine.map(|engine| engine.status),
            metrics: self.numbers.metrics,
            admin: self.numbers.admin,
            policy: overrides.policy.as_ref().map(|policy| policy.name.clone()),
            profile,
            hash,
            token: None,
            fields,
            undo,
        }
    }
}

// === impl PodDraft ===

impl PodDraft {
    /// Changes the application's containers, each change with an undo record.
    fn change_applications(&mut self, inputs: InjectionInputs<'_>, plan: &InjectionPlan) {
        let InjectionInputs { original, incoming, overrides, .. } = inputs;
        let metrics = plan.numbers.metrics;
        self.move_names(&plan.planned);
        self.apply_app_listen(original, overrides, &plan.planned);
        if let Some(lowest) = plan.engine.as_ref().and_then(EnginePlan::lowest_port) {
            self.allow_low_port(original, lowest);
        }
        self.apply_recipes(&plan.recipes, &plan.planned);
        self.report.facts.extend(recipe::merged_calls(original, |container| plan.is_captured(container)));
        self.report.facts.extend_from_slice(&plan.notes);
        self.redirect_probes(incoming, &plan.planned, metrics);
        // A native sidecar is terminated after the application. One that executes a model captures no
        // port, and would serve until then without a hook.
        let needs_hook = |container: &str| plan.engine.is_some() || plan.is_captured(container);
        self.add_drain_hooks(incoming, needs_hook, metrics, &plan.token);
    }

    /// Adds the sidecar, and the fields of the pod that it needs. Returns the hash of the sidecar
    /// container, and the field hashes of each container.
    fn add_sidecar(&mut self, inputs: InjectionInputs<'_>, plan: &InjectionPlan) -> (String, FieldHashes) {
        let parts = ManifestInputs {
            pod: inputs.original,
            context: inputs.context,
            overrides: inputs.overrides,
            planned: &plan.planned,
            engine: plan.engine.as_ref(),
            numbers: &plan.numbers,
            resources: &plan.resources.value,
            native: plan.native,
            token: &plan.token,
            snapshot: &plan.snapshot,
            grace: plan.grace,
        };
        let hashes = self.add_containers(inputs.incoming, inputs.known, &parts);
        self.keep_default_container(plan.native);
        self.add_pod_requests(&plan.resources.pod_requests);
        hashes
    }

    /// Completes the report, and returns the name of the policy's profile if it exists.
    fn describe(&mut self, inputs: InjectionInputs<'_>, plan: &InjectionPlan) -> Option<String> {
        let InjectionInputs { context, overrides, .. } = inputs;
        self.report.facts.extend_from_slice(&plan.resources.notes);
        self.report.warnings.extend_from_slice(&plan.resources.warnings);
        report::describe(&mut self.report, &plan.planned, overrides, plan.grace);
        self.report.facts.extend(plan.engine.iter().flat_map(EnginePlan::facts));
        self.report.warnings.extend(plan.engine.iter().flat_map(|engine| engine.warnings.clone()));
        let policy = overrides.policy.as_ref()?;
        self.report.warnings.extend(policy::missing_profile(&policy.spec, context));
        policy::find_profile(&policy.spec, context).map(|profile| profile.name.clone())
    }
}
