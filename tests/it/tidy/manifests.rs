//! Tests that the manifests in the tree match those that the binary writes.

use std::process::Command;

use super::golden_file;

fn groupage(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_groupage")).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_committed_definitions_equal_the_printed_ones() {
    let printed = groupage(&["crds"]);
    golden_file("manifests/crds.yaml", &printed);
    // The chart has its own copy, because helm reads no file outside the chart.
    golden_file("charts/groupage/files/crds.yaml", &printed);
}

#[test]
fn the_definitions_are_printed_as_a_list_for_programs_too() {
    let list: serde_json::Value = serde_json::from_str(&groupage(&["crds", "-o", "json"])).unwrap();
    let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|crd| &crd["metadata"]["name"]).collect();
    assert_eq!(names, ["batchpolicies.groupage.dev", "batchprofiles.groupage.dev"]);
    assert_eq!((&list["apiVersion"], &list["kind"]), (&"v1".into(), &"List".into()));
}

#[test]
fn the_charts_page_names_every_value_and_no_other() {
    let page = super::read("charts/groupage/README.md");
    let values: serde_json::Value = serde_saphyr::from_str(&super::read("charts/groupage/values.yaml")).unwrap();
    let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next()).collect();
    let mut named = std::collections::BTreeSet::new();
    for row in rows {
        let mut group = "";
        for name in row.split('`').filter(|name| !name.trim().is_empty()) {
            let name = match name.strip_prefix('.') {
                Some(last) => format!("{group}.{last}"),
                None => {
                    group = name.rsplit_once('.').map_or(name, |(group, _)| group);
                    name.to_owned()
                }
            };
            let there = values.pointer(&format!("/{}", name.replace('.', "/")));
            assert!(there.is_some() || name == "global", "{name} is not a value");
            named.insert(name);
        }
    }
    for (group, own) in values.as_object().unwrap() {
        for name in own.as_object().unwrap().keys() {
            let name = format!("{group}.{name}");
            let within = named.iter().any(|known| *known == name || known.starts_with(&format!("{name}.")));
            assert!(within, "{name} is missing");
        }
    }
}

/// KEDA divides the value of a prometheus trigger by the threshold to get the number of replicas. A
/// mean over pods would scale down under load.
#[test]
fn the_sample_scaler_uses_the_sum_of_queued_items() {
    let sample = super::read("examples/kubernetes/autoscale.yaml");
    let query = sample.lines().find_map(|line| line.trim().strip_prefix("query: ")).unwrap();
    assert!(query.starts_with("sum(groupage_queue_items{") && !query.contains('/'), "{query}");
}
