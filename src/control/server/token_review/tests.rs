use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;

use super::*;

fn status(change: impl FnOnce(&mut TokenReviewStatus, &mut UserInfo)) -> TokenReviewStatus {
    let extra = [(POD_NAME, "embedder-7"), (POD_UID, "u-7")];
    let extra: BTreeMap<_, _> = extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into();
    let mut user = UserInfo {
        username: Some("system:serviceaccount:prod:default".to_owned()),
        extra: Some(extra),
        ..UserInfo::default()
    };
    let mut status = TokenReviewStatus {
        authenticated: Some(true),
        audiences: Some(vec![AUDIENCE.to_owned()]),
        ..TokenReviewStatus::default()
    };
    change(&mut status, &mut user);
    status.user = Some(user);
    status
}

#[test]
fn a_reviewed_token_identifies_one_pod_and_any_other_is_refused() {
    let expected = PodIdentity { uid: "u-7".into(), name: "embedder-7".into(), namespace: "prod".into() };
    assert_eq!(identity_from_status(status(|_, _| ())), Ok(expected));
    let refused = |change: fn(&mut TokenReviewStatus, &mut UserInfo)| identity_from_status(status(change)).unwrap_err();
    assert!(matches!(refused(|status, _| status.authenticated = Some(false)), AuthError::Invalid(_)));
    assert!(matches!(refused(|status, _| status.authenticated = None), AuthError::Invalid(_)));
    assert!(matches!(refused(|status, _| status.audiences = None), AuthError::Invalid(_)));
    assert!(matches!(refused(|status, _| status.audiences = Some(vec!["kubernetes".into()])), AuthError::Invalid(_)));
    assert!(matches!(refused(|_, user| user.extra = None), AuthError::Forbidden(_)));
    assert!(matches!(refused(|_, user| user.username = Some("prod:admin".into())), AuthError::Forbidden(_)));
    let two = |_: &mut TokenReviewStatus, user: &mut UserInfo| {
        user.extra.as_mut().unwrap().get_mut(POD_UID).unwrap().push("u-8".into());
    };
    assert!(matches!(refused(two), AuthError::Forbidden(_)));
}

#[test]
fn a_review_is_cached_until_the_token_expires_and_for_five_minutes_at_most() {
    let ttl = |exp| cache_ttl(&Claims::with_expiry(exp), 1000).as_secs();
    assert_eq!([ttl(Some(1060)), ttl(Some(999)), ttl(Some(9000)), ttl(None)], [60, 0, 300, 300]);
}

#[test]
fn cached_reviews_are_not_charged_and_others_are_limited_by_the_budget() {
    let someone = PodIdentity { uid: "u".into(), name: "n".into(), namespace: "ns".into() };
    let mut known = ReviewCache::new(Tick(0));
    known.insert(Tick(0), [0; 32], &someone, Duration::from_secs(60));
    for at in 0..50 {
        let namespace = if at < 40 { "n" } else { "m" };
        assert_eq!(known.lookup_or_charge(Tick(0), &[1; 32], (namespace, &format!("u-{at}"))), Ok(None), "{at}");
        assert_eq!(known.lookup_or_charge(Tick(0), &[0; 32], ("n", "u")), Ok(Some(someone.clone())));
    }
    let busy = |millis| Err(AuthError::Busy(Duration::from_millis(millis)));
    assert_eq!(
        known.lookup_or_charge(Tick(0), &[1; 32], ("n", "v")),
        busy(25),
        "the rest is reserved for other namespaces"
    );
    assert_eq!(known.lookup_or_charge(Tick(0), &[1; 32], ("o", "w")), busy(20));
    assert_eq!(known.lookup_or_charge(Tick::from_millis(20), &[1; 32], ("o", "w")), Ok(None));
    assert_eq!(known.lookup_or_charge(Tick::from_millis(60_000), &[0; 32], ("n", "u")), Ok(None), "it is over");
    assert!(known.identities.is_empty());
}

#[test]
fn invalid_tokens_of_one_pod_use_no_reviews_of_another() {
    let mut known = ReviewCache::new(Tick(0));
    assert_eq!(known.lookup_or_charge(Tick(0), &[0; 32], ("n", "mine")), Ok(None));
    for at in 1..200 {
        let now = Tick::from_millis(4 * at);
        assert!(matches!(known.lookup_or_charge(now, &[1; 32], ("n", "mine")), Err(AuthError::Busy(_))), "{at}");
    }
    assert_eq!(known.lookup_or_charge(Tick::from_millis(900), &[2; 32], ("n", "another")), Ok(None));
    assert_eq!(
        known.lookup_or_charge(Tick::from_millis(900), &[1; 32], ("n", "mine")),
        Err(AuthError::Busy(Duration::from_millis(100)))
    );
    assert_eq!(known.lookup_or_charge(Tick::from_millis(1000), &[1; 32], ("n", "mine")), Ok(None));
}
