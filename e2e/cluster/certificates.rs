//! Identities of the cluster: a certificate authority, a certificate for each component, and the
//! corresponding kubeconfig files.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::network::{HOST, SERVICE_OF_THE_API};
use crate::TestError;

/// Certificates and keys, in one folder.
#[derive(Debug)]
pub(super) struct Certificates {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

// === impl Certificates ===

impl Certificates {
    /// Creates the authority, all certificates, and the key pair for service account tokens.
    pub(super) fn make(folder: PathBuf) -> Result<Self, TestError> {
        std::fs::create_dir_all(&folder)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, "groupage-e2e");
        std::fs::write(folder.join("ca.crt"), params.self_signed(&key)?.pem())?;
        let made = Self { folder, issuer: Issuer::new(params, key) };
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"];
        made.leaf("apiserver", "kube-apiserver", None, &[&names[..], &[HOST, SERVICE_OF_THE_API]].concat())?;
        made.leaf("kubelet", "system:node:node1", Some("system:nodes"), &["node1", HOST])?;
        made.leaf("admin", "admin", Some("system:masters"), &[])?;
        for component in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
            made.leaf(component, &format!("system:{component}"), None, &[])?;
        }
        let tokens = KeyPair::generate()?;
        std::fs::write(made.file("sa.key"), tokens.serialize_pem())?;
        std::fs::write(made.file("sa.pub"), tokens.public_key_pem())?;
        Ok(made)
    }

    /// Returns the path of one of the files.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn leaf(&self, file: &str, name: &str, group: Option<&str>, names: &[&str]) -> Result<(), TestError> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        std::fs::write(self.file(&format!("{file}.crt")), params.signed_by(&key, &self.issuer)?.pem())?;
        std::fs::write(self.file(&format!("{file}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// Writes the kubeconfig with which a component connects to the API server.
    pub(super) fn kubeconfig(&self, component: &str) -> Result<PathBuf, TestError> {
        let file = self.file(&format!("{component}.kubeconfig"));
        let path = |name: &str| path_text(&self.file(name));
        let text = format!(
            "apiVersion: v1
kind: Config
clusters: [{{name: e2e, cluster: {{server: 'https://127.0.0.1:6443', certificate-authority: {}}}}}]
users: [{{name: {component}, user: {{client-certificate: {}, client-key: {}}}}}]
contexts: [{{name: e2e, context: {{cluster: e2e, user: {component}}}}}]
current-context: e2e
",
            path("ca.crt"),
            path(&format!("{component}.crt")),
            path(&format!("{component}.key")),
        );
        std::fs::write(&file, text)?;
        Ok(file)
    }
}

/// Converts a path to text. All paths here are created by this program and are valid UTF-8.
pub(super) fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
