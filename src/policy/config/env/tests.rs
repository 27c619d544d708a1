use super::*;

#[test]
fn a_flag_takes_precedence_over_the_environment_and_an_empty_variable_is_absent() {
    let env = Overrides::from_variables(|name| match name {
        "GROUPAGE_LISTEN" => Some(":1, :2".to_owned()),
        "RUST_LOG" => Some("debug".to_owned()),
        "GROUPAGE_UPSTREAM" => Some("http://env".to_owned()),
        "GROUPAGE_ADMIN" => Some(String::new()),
        _ => None,
    });
    let flags = Overrides {
        upstream: Some(SourcedValue::flag("--upstream", "http://flag".to_owned())),
        ..Overrides::default()
    };
    let both = flags.or(env);
    assert_eq!(both.upstream, Some(SourcedValue::flag("--upstream", "http://flag".to_owned())));
    assert_eq!(both.listen.map(|given| given.value), Some(vec![":1".to_owned(), ":2".to_owned()]));
    assert_eq!(both.log_level.map(|given| given.source.to_string()), Some("env RUST_LOG".to_owned()));
    assert_eq!(both.admin, None);
}

#[test]
fn a_pod_is_known_from_its_environment_and_shows_no_secret() {
    let pod = PodInfo::from_variables(|name| match name {
        "GROUPAGE_POD_NAME" => Some("embedder-7".to_owned()),
        "GROUPAGE_DRAIN_TOKEN" => Some("s3cret".to_owned()),
        "GROUPAGE_POLICY" => Some(String::new()),
        _ => None,
    });
    assert_eq!((pod.name.as_deref(), pod.policy.as_deref()), (Some("embedder-7"), None));
    assert_eq!(pod.drain_token.as_deref(), Some("s3cret"));
    assert!(!format!("{pod:?}").contains("s3cret"));
}
