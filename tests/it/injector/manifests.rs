//! Reports of `groupage inject` on faulty manifests, and the ways to pass manifests to it.

use std::path::PathBuf;

use super::binary::{CommandOutput, groupage};

/// Exit code for errors in the user's input.
const FINDINGS: i32 = 79;
/// Exit code for an input that cannot be read.
const NO_INPUT: i32 = 66;
/// Exit code of clap for usage errors.
const USAGE: i32 = 2;

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: m, image: m, ports: [{containerPort: 8080, name: http}], resources: {requests: {cpu: 1}}}]}\n";

fn inject(more: &[&str], input: &str) -> CommandOutput {
    groupage(&[&["inject", "-f", "-"], more].concat(), input)
}

fn pod(name: &str, metadata: &str) -> String {
    POD.replace("{name: p}", &format!("{{name: {name}, {metadata}}}"))
}

/// Creates an empty folder for one test.
fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _was = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_policy_that_validate_would_refuse_is_refused_with_its_lines() {
    let policy = "# mine\n---\napiVersion: groupage.dev/v1alpha1\nkind: BatchPolicy\nmetadata: {name: p}\nspec:\n  selector: {matchLabels: {app: m}}\n  mod: Observe\n  injection: {capture: Magic, appListen: nonsense}\n";
    let ran = inject(&[], &format!("{policy}---\n{POD}"));
    assert_eq!((ran.exit, ran.out.as_str()), (FINDINGS, ""), "{}", ran.report);
    for expected in ["standard input:8:", "standard input:9:", "`mod`", "Magic", "nonsense"] {
        assert!(ran.report.contains(expected), "{expected}: {}", ran.report);
    }
    let listed = "kind: List\nitems:\n- {apiVersion: groupage.dev/v1alpha1, kind: BatchPolicy, metadata: {name: p}, spec: {mode: Magic}}\n";
    let ran = inject(&[], listed);
    assert_eq!(ran.exit, FINDINGS);
    assert!(ran.report.contains("BatchPolicy p of the list"), "{}", ran.report);
}

#[test]
fn a_refusal_names_the_line_of_the_value_that_it_is_about() {
    let good = "- apiVersion: v1\n  kind: Pod\n  metadata: {name: good, annotations: {groupage.dev/capture: Auto}}\n  spec: {containers: [{name: m}]}\n";
    let bad = "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: bad\n    annotations:\n      groupage.dev/capture: Magic\n  spec: {containers: [{name: m}]}\n";
    let ran = inject(&[], &format!("kind: List\nitems:\n# groupage.dev/capture: Magic would not do\n{good}{bad}"));
    assert!(ran.report.contains("--> standard input:13\n"), "{}", ran.report);
    let namespace =
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: odd\n  labels:\n    groupage.dev/inject: maybe\n---\n";
    let ran = inject(&["-n", "odd"], &format!("{namespace}{POD}"));
    assert!(ran.report.contains("--> standard input:6\n"), "{}", ran.report);
    let ran = inject(&[], &format!("---\n{}\n", pod("p", "labels: {groupage.dev/inject: maybe}")));
    assert!(ran.report.contains("--> standard input:4\n"), "{}", ran.report);
}

#[test]
fn misplaced_annotations_and_labels_are_reported() {
    let namespace =
        "kind: Namespace\napiVersion: v1\nmetadata: {name: prod, annotations: {groupage.dev/inject: disabled}}\n---\n";
    let ran = inject(&[], &format!("{namespace}{}", pod("p", "labels: {groupage.dev/capture: Redirect}")));
    assert!(ran.report.contains("namespace/prod: annotation groupage.dev/inject has no effect"), "{}", ran.report);
    assert!(ran.report.contains("pod/p: label groupage.dev/capture has no effect"), "{}", ran.report);
}

#[test]
fn port_without_service_is_reported() {
    let report_of = |text: &str| inject(&["--controller", "off"], text).report;
    assert!(report_of(POD).contains("no Service in these files refers to port 8080"), "{}", report_of(POD));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {app: p}, ports: [{port: 80, targetPort: http}]}\n---\n";
    let found = report_of(&format!("{service}{}", pod("p", "labels: {app: p}")));
    assert_eq!(found, "pod/p injected\n");
    // An application that can be configured to listen on loopback needs no Service as evidence.
    let output = report_of(&pod("p", "annotations: {groupage.dev/app-listen: 'env:HOST=127.0.0.1'}"));
    assert_eq!(output, "pod/p injected\n");
}

#[test]
fn flag_values_that_work_in_no_cluster_are_refused_before_a_file_is_read() {
    let missing = ["inject", "-f", "/nowhere.yaml"];
    let ran = groupage(&missing, "");
    assert!(ran.exit == NO_INPUT && ran.report.contains("No such file"), "{}", ran.report);
    for flags in [["--image", ""], ["--image", "a b"], ["--controller", "ftp://x"], ["--controller", "https://"]] {
        let ran = groupage(&[&missing[..], &flags[..]].concat(), "");
        assert_eq!((ran.exit, ran.out.as_str()), (USAGE, ""), "{flags:?}: {}", ran.report);
        assert!(ran.report.contains(flags[0]) && !ran.report.contains("No such file"), "{}", ran.report);
    }
}

#[test]
fn the_ca_file_of_the_controller_must_contain_a_certificate_and_its_absence_is_reported() {
    let folder = scratch("inject-ca");
    let (good, bad) = (folder.join("good.pem"), folder.join("bad.pem"));
    std::fs::write(&bad, "no certificate").unwrap();
    let ran = inject(&["--controller-ca", bad.to_str().unwrap()], POD);
    assert_eq!(ran.exit, FINDINGS);
    assert!(ran.report.contains("the file contains no certificate"), "{}", ran.report);
    let own = rcgen::generate_simple_self_signed(vec!["c".to_owned()]).unwrap();
    std::fs::write(&good, own.cert.pem()).unwrap();
    assert!(!inject(&["--controller-ca", good.to_str().unwrap()], POD).report.contains("--controller-ca"));
    assert_eq!(inject(&[], POD).report.matches("without --controller-ca").count(), 1);
    assert!(!inject(&["--controller", "OFF"], POD).report.contains("--controller-ca"));
}

#[test]
fn files_are_named_with_and_without_a_flag_and_a_folder_gives_all_of_its_own() {
    let folder = scratch("inject-folder");
    std::fs::write(folder.join("b.yml"), pod("b", "labels: {}")).unwrap();
    std::fs::write(folder.join("a.yaml"), format!("# whose\n---\n{}", pod("a", "labels: {}"))).unwrap();
    std::fs::write(folder.join("notes.md"), "nothing").unwrap();
    let (folder, one) = (folder.to_str().unwrap(), folder.join("b.yml"));
    let order = |ran: &CommandOutput| ran.report.matches("injected").count();
    for args in [vec!["inject", folder], vec!["inject", "-f", folder]] {
        let ran = groupage(&args, "");
        assert_eq!((ran.exit, order(&ran)), (0, 2), "{}", ran.report);
        assert!(ran.report.find("pod/a") < ran.report.find("pod/b"), "{}", ran.report);
    }
    let ran = groupage(&["inject", "-f", one.to_str().unwrap(), folder], "");
    assert_eq!(order(&ran), 3, "{}", ran.report);
    assert_eq!(groupage(&["uninject", one.to_str().unwrap()], "").exit, 0);
    assert_eq!(groupage(&["inject"], "").exit, USAGE);
}

#[test]
fn a_missing_input_is_reported_with_its_own_exit_code() {
    let empty = scratch("inject-empty-folder");
    let empty = empty.to_str().unwrap();
    for (args, message) in [
        (&["inject", "/nowhere.yaml"][..], "× cannot read /nowhere.yaml: No such file"),
        (&["uninject", "/nowhere"], "× cannot read /nowhere: No such file"),
        (&["validate", "/nowhere"], "× cannot read /nowhere: No such file"),
        (&["inject", empty], "the folder contains no *.yaml, *.yml, *.json files"),
        (&["inject", "-f", "-", "--controller-ca", "/nowhere"], "× cannot read /nowhere: No such file"),
    ] {
        let ran = groupage(args, POD);
        let text = ran.report + &ran.out;
        assert!(ran.exit == NO_INPUT && text.contains(message), "{args:?}: {text}");
    }
}

#[test]
fn unrendered_template_is_reported() {
    let ran = inject(&[], "kind: Pod\nmetadata: {{ .Values.x }}\n");
    assert_eq!(ran.exit, FINDINGS);
    assert!(ran.report.contains("helm template"), "{}", ran.report);
}

#[test]
fn malformed_pod_is_reported_with_its_field() {
    let report_of = |container: &str| {
        let ran = inject(
            &[],
            &format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: {container}}}\n"),
        );
        assert_eq!(ran.exit, 0);
        ran.report
    };
    for (container, reason) in [
        ("{name: m}", "spec.containers is not a list"),
        ("", "it has no containers"),
        ("[{name: m, ports: [{containerPort: '8080'}]}]", "ports[0].containerPort is \"8080\""),
        ("[{name: m, ports: [{containerPort: 80}, {containerPort: 70000}]}]", "ports[1].containerPort is 70000"),
        ("[{name: m, ports: [8080]}]", "ports[0] is 8080, expected a map"),
        ("[{name: a}, {name: on}]", "the name of container 2 is true"),
        ("[{image: a}]", "container 1 has no name"),
        ("[{name: a}, {name: a}]", "two containers are named a"),
    ] {
        let report = report_of(container);
        assert!(report.contains("skipped (Malformed)") && report.contains(reason), "{container}: {report}");
    }
    let nested = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec: {replicatedJobs: [{template: {spec: {template: {spec: {containers: [{name: m, image: m}]}}}}}]}\n";
    assert!(inject(&[], nested).report.contains("jobset/j left unchanged: its pod templates"));
}

#[test]
fn patches_of_objects_with_one_shown_name_are_all_printed() {
    let two = format!("{POD}---\n{POD}").replace("{name: p}", "{generateName: p-}");
    let patches = inject(&["-o", "patch"], &two).json();
    let names: Vec<&String> = patches.as_object().unwrap().keys().collect();
    assert_eq!(names, ["pod/p-", "pod/p-#2"]);
}

#[test]
fn comments_before_the_first_marker_stay_where_nothing_is_changed() {
    let text = "# whose it is\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    assert_eq!(inject(&[], text).out, text);
}
