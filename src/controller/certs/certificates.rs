//! Issues certificates and keys, and converts them to and from the data of a Secret.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

use super::{BACKDATE, CA_LIFE, LEAF_LIFE};
use crate::error::BoxError;
use crate::tls::{self, provider};
pub use crate::tls::{Validity, parse_certificates, validity};

/// Keys of the Secret. Those of the leaf are the standard ones of `kubernetes.io/tls`.
pub(super) const CA_CERT: &str = "ca.crt";
pub(super) const CA_KEY: &str = "ca.key";
pub(super) const CERT: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
/// Maximum number of CAs read from a bundle. One is expected, or two for some weeks.
const AUTHORITIES_MAX: usize = 16;

/// A trusted CA certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaCertificate {
    /// The certificate in DER.
    pub der: Vec<u8>,
    /// Validity period.
    pub validity: Validity,
}

/// A server certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafCertificate {
    /// Validity period.
    pub validity: Validity,
    /// Index of its issuer in the list of authorities, 0 for the newest.
    pub authority: usize,
    /// `true` if it covers every requested name.
    pub covers_names: bool,
}

/// The usable contents of the Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretContents {
    /// Trusted CAs, the newest first.
    pub authorities: Vec<CaCertificate>,
    /// `true` if the key of the newest CA is available.
    pub has_ca_key: bool,
    /// The server certificate; `None` also if key and certificate do not match, or if it was issued
    /// by none of the authorities.
    pub leaf: Option<LeafCertificate>,
}

pub(super) type SecretData = BTreeMap<String, Vec<u8>>;

// === impl SecretContents ===

impl SecretContents {
    /// Parses the data of a Secret. Invalid parts count as absent.
    #[must_use]
    pub fn read(data: &BTreeMap<String, Vec<u8>>, names: &[String]) -> Self {
        let text = |key: &str| data.get(key).map(Vec::as_slice).unwrap_or_default();
        let authorities: Vec<CaCertificate> = parse_certificates(text(CA_CERT))
            .into_iter()
            .filter_map(|der| Some(CaCertificate { validity: validity(&der)?, der: der.to_vec() }))
            .take(AUTHORITIES_MAX)
            .collect();
        let signs = authorities.first().is_some_and(|newest| {
            let chain = vec![CertificateDer::from(newest.der.clone())];
            certified_key(chain, text(CA_KEY)).is_ok()
        });
        let leaf = parse_pair(text(CERT), text(KEY)).ok().and_then(|pair| {
            let der = pair.cert.first()?.clone();
            let validity = validity(&der)?;
            let authority = authorities.iter().position(|ca| signed_by(&der, validity, ca))?;
            Some(LeafCertificate { validity, authority, covers_names: is_for(&der, names) })
        });
        Self { authorities, has_ca_key: signs, leaf }
    }

    /// Returns the CA that can sign.
    #[must_use]
    pub fn newest(&self) -> Option<&CaCertificate> {
        self.authorities.first().filter(|_| self.has_ca_key)
    }
}

/// Parses a certificate chain and its key. Fails if they do not match.
pub(super) fn parse_pair(cert: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, BoxError> {
    let chain = parse_certificates(cert);
    if chain.is_empty() {
        return Err("no certificate found".into());
    }
    certified_key(chain, key)
}

fn certified_key(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Arc<CertifiedKey>, BoxError> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("cannot parse the private key: {error}"))?;
    let pair = tls::certified_key(chain, key)
        .map_err(|error| format!("the certificate and the private key do not match: {error}"))?;
    Ok(pair)
}

fn signed_by(leaf: &CertificateDer<'_>, validity: Validity, authority: &CaCertificate) -> bool {
    let Ok(leaf) = ParsedCertificate::try_from(leaf) else { return false };
    let mut roots = RootCertStore::empty();
    if roots.add(CertificateDer::from(authority.der.clone())).is_err() {
        return false;
    }
    let at = UnixTime::since_unix_epoch(Duration::from_secs(validity.end));
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, &[], at, algorithms).is_ok()
}

fn is_for(leaf: &CertificateDer<'_>, names: &[String]) -> bool {
    let Ok(leaf) = ParsedCertificate::try_from(leaf) else { return false };
    names
        .iter()
        .all(|name| ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&leaf, &name).is_ok()))
}

/// Adds a new CA in front of the existing ones.
pub(super) fn introduce(data: &mut SecretData, now: u64) -> Result<(), BoxError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = ca_params(&key, now)?.self_signed(&key)?;
    let mut bundle = certificate.pem();
    bundle.push_str(&String::from_utf8_lossy(data.get(CA_CERT).map(Vec::as_slice).unwrap_or_default()));
    data.insert(CA_CERT.to_owned(), bundle.into_bytes());
    data.insert(CA_KEY.to_owned(), key.serialize_pem().into_bytes());
    Ok(())
}

/// Issues a new leaf with the available CA key.
pub(super) fn renew(data: &mut SecretData, now: u64, names: &[String]) -> Result<(), BoxError> {
    let text = String::from_utf8(data.get(CA_KEY).cloned().unwrap_or_default())?;
    let key = KeyPair::from_pem(&text)?;
    let issuer = Issuer::new(ca_params(&key, now)?, key);
    let leaf = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "groupage-controller");
    params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(now).saturating_sub(BACKDATE);
    params.not_after = params.not_before + LEAF_LIFE;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&leaf, &issuer)?;
    data.insert(CERT.to_owned(), certificate.pem().into_bytes());
    data.insert(KEY.to_owned(), leaf.serialize_pem().into_bytes());
    Ok(())
}

/// Removes CAs that are no longer needed from the bundle.
pub(super) fn retire(data: &mut SecretData, now: u64, names: &[String]) {
    let held = SecretContents::read(data, names);
    let used = held.leaf.as_ref().map_or(0, |leaf| leaf.authority);
    let keep = |at: usize, ca: &CaCertificate| at == 0 || at == used || (used != 0 && ca.validity.contains(now));
    let retained: Vec<_> =
        held.authorities.iter().enumerate().filter(|(at, ca)| keep(*at, ca)).map(|(_, ca)| &ca.der).collect();
    data.insert(CA_CERT.to_owned(), to_pem(retained.into_iter().map(Vec::as_slice)).into_bytes());
}

/// Returns the parameters of a CA certificate. Its name is derived from its key, so the key alone
/// suffices to sign further certificates.
fn ca_params(key: &KeyPair, now: u64) -> Result<CertificateParams, BoxError> {
    let mut params = CertificateParams::new(Vec::new())?;
    let id: String = params.key_identifier(key).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("groupage-ca-{id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(now).saturating_sub(BACKDATE);
    params.not_after = params.not_before + CA_LIFE;
    Ok(params)
}

pub(super) fn to_pem<'a>(certificates: impl Iterator<Item = &'a [u8]>) -> String {
    let certificate = |der: &[u8]| {
        // Kubernetes' API types contain an encoder of Base64, so none is added as a dependency.
        let encoded = serde_json::to_value(ByteString(der.to_vec())).unwrap_or_default();
        let letters: Vec<char> = encoded.as_str().unwrap_or_default().chars().collect();
        let lines: String = letters.chunks(64).map(|line| line.iter().chain(&['\n']).collect::<String>()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n")
    };
    certificates.map(certificate).collect()
}

#[cfg(test)]
mod tests;
