//! Classification of handshake failures, as text for logs and as labels for metrics.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use crate::telemetry::names::HandshakeResult;

/// Alerts by which a server reports that the client certificate is missing or not accepted.
const CLIENT_CERTIFICATE_ALERTS: [AlertDescription; 8] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

/// Classifies the failure of a handshake with a client.
#[must_use]
pub fn classify(error: &io::Error) -> HandshakeResult {
    match as_tls_error(error) {
        Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => HandshakeResult::ClientCertificate,
        Some(Error::AlertReceived(_)) => HandshakeResult::Refused,
        Some(_) => HandshakeResult::Protocol,
        None => HandshakeResult::Left,
    }
}

/// Returns the TLS error inside an I/O error, if any.
pub(super) fn as_tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref::<Error>()
}

/// Describes the failure of TLS with a model server: the likely cause, and the configuration key
/// that changes it.
pub(super) fn describe_server_error(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(reason) => describe_certificate_error(reason),
        Error::AlertReceived(alert) if CLIENT_CERTIFICATE_ALERTS.contains(alert) => format!(
            "it rejected the client certificate, or requires one and none is configured ({alert:?}): set `proxy.upstreamTls.certFile` and `keyFile`"
        ),
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "it does not support the HTTP version that `proxy.connection.http2` requires".to_owned()
        }
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "it has no certificate for the requested name: set another one with `proxy.upstreamTls.serverName`"
                .to_owned()
        }
        Error::AlertReceived(alert) => format!("it rejected the handshake ({alert:?})"),
        Error::InvalidMessage(_) => {
            "it does not support TLS: if it is plain HTTP, write `http://` in `proxy.upstream`".to_owned()
        }
        Error::PeerIncompatible(reason) => format!("it supports neither TLS 1.3 nor TLS 1.2 with AEAD ({reason:?})"),
        error => format!("TLS failed: {error}"),
    }
}

/// Returns the alert of [`CLIENT_CERTIFICATE_ALERTS`] that an error contains, if any. Errors of
/// HTTP/2 preserve only its text.
pub(super) fn as_client_certificate_alert(error: &io::Error) -> Option<Error> {
    let alerts = || CLIENT_CERTIFICATE_ALERTS.into_iter().map(Error::AlertReceived);
    match as_tls_error(error) {
        Some(found) => alerts().find(|alert| alert == found),
        None => {
            let text = error.get_ref()?.to_string();
            alerts().find(|alert| alert.to_string() == text)
        }
    }
}

fn describe_certificate_error(reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer => {
            "its certificate is signed by an authority that is not trusted: set `proxy.upstreamTls.caFile` to the file of that authority".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "its certificate is for another name ({reason}): set `proxy.upstreamTls.serverName` to the name to check"
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("its certificate has expired ({reason})")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("its certificate is not valid yet, or the local clock is behind ({reason})")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("its certificate is not a server certificate ({reason})")
        }
        reason => format!("its certificate cannot be accepted ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_certificate_is_recognised_by_error_kind_and_text() {
        let alert = Error::AlertReceived(AlertDescription::CertificateRequired);
        let as_it_is = io::Error::new(io::ErrorKind::InvalidData, alert.clone());
        let as_text = io::Error::new(io::ErrorKind::InvalidData, alert.to_string());
        assert_eq!(
            [as_client_certificate_alert(&as_it_is), as_client_certificate_alert(&as_text)],
            [Some(alert.clone()), Some(alert)]
        );
        let other = Error::AlertReceived(AlertDescription::InternalError);
        for other in [io::Error::new(io::ErrorKind::InvalidData, other), io::ErrorKind::BrokenPipe.into()] {
            assert_eq!(as_client_certificate_alert(&other), None);
        }
    }

    #[test]
    fn an_error_that_a_key_can_resolve_names_the_key() {
        for (error, message) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "`proxy.upstreamTls.caFile`"),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "`proxy.upstreamTls.serverName`"),
            (Error::InvalidCertificate(CertificateError::Expired), "has expired"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "`proxy.upstreamTls.certFile`"),
            (Error::AlertReceived(AlertDescription::NoApplicationProtocol), "`proxy.connection.http2`"),
            (Error::AlertReceived(AlertDescription::UnrecognisedName), "`proxy.upstreamTls.serverName`"),
            (Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), "`http://`"),
        ] {
            assert!(describe_server_error(&error).contains(message), "{}", describe_server_error(&error));
        }
    }
}
