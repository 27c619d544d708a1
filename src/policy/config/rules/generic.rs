//! Rules between the keys of `routes[].generic`, and between them and the rest of their route.

use serde_json::Value as Json;

use super::list;
use crate::config::check::Validator;
use crate::config::code::ConfigCode;
use crate::config::generic::declaration;
use crate::protocol::generic::GenericOptions;

/// Checks the declaration of one route.
pub(super) fn apply(check: &mut Validator, path: &str, route: &Json) {
    let protocol = route["protocol"].as_str();
    if !check.has(&format!("{path}.generic")) {
        if protocol == Some("Generic") {
            let message = format!("`{path}.protocol: Generic` needs `generic`");
            check.push_bad_value(
                &format!("{path}.protocol"),
                &message,
                "write generic: {items: /POINTER, results: /POINTER}",
            );
        }
        return;
    }
    // An invalid protocol has already been reported.
    if protocol != Some("Generic") && (protocol.is_some() || !check.has(&format!("{path}.protocol"))) {
        let found = protocol.unwrap_or("Auto");
        let message = format!("`{path}.generic` requires protocol Generic, but the protocol is {found}");
        check.push_finding(
            ConfigCode::Excluded,
            &format!("{path}.generic"),
            &message,
            "write protocol: Generic, or leave `generic` out",
        );
        return;
    }
    check_single(check, path, &route["generic"]);
    check_clashes(check, path, &route["generic"]);
    check_merge_fields(check, path, route);
}

/// Checks that each form of a single item has a form of a single result, and the reverse.
fn check_single(check: &mut Validator, path: &str, generic: &Json) {
    let at = |key: &str| format!("{path}.generic.{key}");
    if check.has(&at("single.items")) && !check.has(&at("single.results")) && !check.has(&at("resultWrap")) {
        let message = "`single.items` needs `single.results`, or `resultWrap`";
        check.push_bad_value(&at("single.items"), message, "give the location of the single result");
    }
    if check.has(&at("single.results")) && !check.has(&at("single.items")) && !check.has(&at("single.wrapScalar")) {
        let message = "`single.results` needs `single.items`, or `single.wrapScalar: true`";
        check.push_bad_value(&at("single.results"), message, "give the location of the single item");
    }
    let bare = generic["single"]["wrapScalar"] == true;
    if bare && !check.has(&at("single.results")) && !check.has(&at("resultWrap")) {
        let message = "`single.wrapScalar: true` needs `resultWrap`, or `single.results`";
        let help = "write resultWrap: None if the server answers a bare value with a bare result, List if with a \
                    list of one";
        check.push_bad_value(&at("single.wrapScalar"), message, help);
    }
}

/// Applies the rules of the adapter itself.
fn check_clashes(check: &mut Validator, path: &str, generic: &Json) {
    for clash in declaration(generic).iter().flat_map(GenericOptions::clashes) {
        let code = if matches!(clash.key, "resultKey" | "single.items" | "single.results") {
            ConfigCode::Excluded
        } else {
            ConfigCode::BadValue
        };
        let path = format!("{path}.generic.{}", clash.key);
        check.push_finding(code, &path, &format!("`{path}` conflicts with the rest of its `generic`"), clash.reason);
    }
}

/// Checks that the items of a call are not among the fields by which calls of a batch may differ.
fn check_merge_fields(check: &mut Validator, path: &str, route: &Json) {
    let items: Vec<&Json> = match &route["generic"]["items"] {
        Json::Array(items) => items.iter().collect(),
        one => vec![one],
    };
    for (index, field) in list(&route["mergeOver"]["fields"]).iter().enumerate() {
        if items.iter().any(|item| *item == field && item.is_string()) {
            let message = format!(
                "`{}` is in `mergeOver.fields`, but it is the list of items",
                field.as_str().unwrap_or_default()
            );
            check.excluded(&format!("{path}.mergeOver.fields[{index}]"), &message);
        }
    }
}
