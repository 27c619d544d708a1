use super::*;
use crate::certs::{RotationStep, plan};

const DAY: u64 = 24 * 3600;
/// 2026-11-22 00:00 UTC.
const NOW: u64 = 1_795_305_600;

fn names() -> Vec<String> {
    vec!["groupage-webhook.groupage-system.svc".into(), "groupage-stream.groupage-system.svc.cluster.local".into()]
}

fn made(now: u64) -> SecretData {
    let mut data = SecretData::new();
    introduce(&mut data, now).unwrap();
    renew(&mut data, now, &names()).unwrap();
    data
}

#[test]
fn generated_certificates_are_read_back_with_times_signer_and_names() {
    let held = SecretContents::read(&made(NOW), &names());
    let begin = NOW - 3600;
    assert_eq!(held.authorities.len(), 1);
    assert_eq!(held.authorities[0].validity, Validity { begin, end: begin + 365 * DAY });
    let leaf = held.leaf.unwrap();
    assert_eq!(
        leaf,
        LeafCertificate { validity: Validity { begin, end: begin + 30 * DAY }, authority: 0, covers_names: true }
    );
    assert!(held.has_ca_key);
    assert_eq!(plan(NOW, &SecretContents::read(&made(NOW), &names())), RotationStep::Keep(begin + 20 * DAY));
}

#[test]
fn a_leaf_for_other_names_does_not_cover_the_wanted_names() {
    let held = SecretContents::read(&made(NOW), &["elsewhere.svc".to_owned()]);
    assert!(!held.leaf.unwrap().covers_names);
}

#[test]
fn a_mismatched_pair_and_a_leaf_of_another_ca_are_ignored() {
    let mut torn = made(NOW);
    torn.insert(KEY.to_owned(), made(NOW)[KEY].clone());
    assert_eq!(SecretContents::read(&torn, &names()).leaf, None);
    let mut foreign = made(NOW);
    let other = made(NOW);
    foreign.insert(CERT.to_owned(), other[CERT].clone());
    foreign.insert(KEY.to_owned(), other[KEY].clone());
    assert_eq!(SecretContents::read(&foreign, &names()).leaf, None);
}

#[test]
fn a_key_of_another_ca_does_not_sign() {
    let mut data = made(NOW);
    data.insert(CA_KEY.to_owned(), made(NOW)[CA_KEY].clone());
    let held = SecretContents::read(&data, &names());
    assert!(!held.has_ca_key && held.leaf.is_some());
}

#[test]
fn invalid_certificates_are_read_as_absent() {
    let mut data = SecretData::new();
    for key in [CA_CERT, CA_KEY, CERT, KEY] {
        data.insert(key.to_owned(), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec());
    }
    assert_eq!(SecretContents::read(&data, &names()), SecretContents::default());
    assert_eq!(SecretContents::read(&SecretData::new(), &names()), SecretContents::default());
}

#[test]
fn a_new_ca_is_listed_first_and_signs_the_leaf_from_the_next_renewal() {
    let mut data = made(NOW);
    let later = NOW + 250 * DAY;
    introduce(&mut data, later).unwrap();
    let held = SecretContents::read(&data, &names());
    assert_eq!(held.authorities.len(), 2);
    assert_eq!(held.leaf.as_ref().map(|leaf| leaf.authority), Some(1));
    assert!(held.has_ca_key && held.authorities[0].validity.begin == later - 3600);
    renew(&mut data, later, &names()).unwrap();
    assert_eq!(SecretContents::read(&data, &names()).leaf.map(|leaf| leaf.authority), Some(0));
    retire(&mut data, later, &names());
    let held = SecretContents::read(&data, &names());
    assert_eq!((held.authorities.len(), held.leaf.map(|leaf| leaf.authority)), (1, Some(0)));
}

#[test]
fn written_pem_equals_the_pem_of_rcgen() {
    let data = made(NOW);
    let der = parse_certificates(&data[CA_CERT]);
    let ours = to_pem(der.iter().map(AsRef::as_ref));
    assert_eq!(ours.replace("\r\n", "\n"), String::from_utf8(data[CA_CERT].clone()).unwrap().replace("\r\n", "\n"));
}
