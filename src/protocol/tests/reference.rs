//! Compares the table of servers in `docs/servers.md` with the adapters.

use super::*;

const PAGE: &str = include_str!("../../../docs/servers.md");

/// Protocols by their names in a policy.
pub(crate) const PROTOCOLS: [(&str, RouteProtocol); 21] = [
    ("Auto", RouteProtocol::Auto),
    ("PassThrough", RouteProtocol::PassThrough),
    ("Generic", RouteProtocol::Generic),
    ("KServeV1", RouteProtocol::KServeV1),
    ("OpenInferenceV2", RouteProtocol::OpenInferenceV2),
    ("TFServing", RouteProtocol::TfServing),
    ("OpenAI", RouteProtocol::OpenAi),
    ("TEI", RouteProtocol::Tei),
    ("VLLM", RouteProtocol::Vllm),
    ("SGLang", RouteProtocol::SgLang),
    ("Infinity", RouteProtocol::Infinity),
    ("Ollama", RouteProtocol::Ollama),
    ("MLflow", RouteProtocol::MlFlow),
    ("Seldon", RouteProtocol::Seldon),
    ("SageMaker", RouteProtocol::SageMaker),
    ("Cohere", RouteProtocol::Cohere),
    ("Voyage", RouteProtocol::Voyage),
    ("Jina", RouteProtocol::Jina),
    ("LlamaCpp", RouteProtocol::LlamaCpp),
    ("BentoML", RouteProtocol::BentoMl),
    ("TGI", RouteProtocol::Tgi),
];

/// Returns the rows of the table: the path, the name of the protocol, and what happens to calls.
fn table() -> Vec<(&'static str, &'static str, &'static str)> {
    let rows = PAGE.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        <[&str; 6]>::try_from(cells).ok()
    });
    let rows = rows.filter(|cells| !matches!(cells[0], "server" | "---"));
    rows.map(|[_, path, protocol, calls, ..]| (path, protocol, calls)).collect()
}

/// Returns what happens to calls to a path on a route with this protocol.
fn treatment(path: &str, protocol: RouteProtocol) -> &'static str {
    match routes_of(&[(path, protocol)]).recognise(&Method::POST, path).map(|endpoint| endpoint.label) {
        None => "passed",
        Some(ProtocolLabel::Generation) => "queued",
        Some(_) => "merged",
    }
}

#[test]
fn the_table_of_servers_matches_the_adapters() {
    let rows = table();
    assert!(rows.len() > 60, "{}", rows.len());
    // Calls to any path are merged as a Generic route declares.
    for (path, name, calls) in rows.into_iter().filter(|(path, ..)| *path != "any") {
        let protocol = PROTOCOLS.iter().find(|(own, _)| *own == name).map(|(_, protocol)| *protocol);
        let protocol = protocol.unwrap_or_else(|| panic!("{name} is no protocol"));
        assert_eq!(treatment(path, protocol), calls, "{path} with {name}");
        if protocol == RouteProtocol::Auto {
            let without = routes(Vec::new()).recognise(&Method::POST, path);
            assert_eq!(without.is_some(), calls != "passed", "{path} without configuration");
        }
    }
}

#[test]
fn the_table_of_servers_names_every_protocol() {
    let rows = table();
    for (name, _) in PROTOCOLS {
        assert!(rows.iter().any(|(_, protocol, _)| *protocol == name), "{name}");
    }
}
