//! Who calls, without keeping what they said to prove it.

use std::fmt;

/// The key of the digests that stand for credentials, one for each process: digests of two processes cannot be compared.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Whose call it is, as a keyed digest.
///
/// # All zero
/// means anonymous: no identity header at all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tenant(pub [u8; 16]);

/// Who calls, as the certificate says that was shown on the caller's connection; it stands in the extensions of a request's head.
///
/// # The whole certificate
/// tells callers apart, not a name in it: which of its fields another server would look at is not known here. A renewed one is another caller's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer([u8; 32]);

// === impl Peer ===

impl Peer {
    /// Of a certificate in DER.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        Self(*blake3::hash(certificate).as_bytes())
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer(..)")
    }
}

// === impl Secret ===

impl Secret {
    /// A fresh one.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// A given one, for tests and replays.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The tenant that a value of the tenant header names: what the policy's weights are looked up by.
    #[must_use]
    pub fn tenant(&self, name: &[u8]) -> Tenant {
        Tenant::of(self.digest([&b"tenant"[..], name]))
    }

    /// A digest over parts, each with its length before it.
    pub(crate) fn digest<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

// === impl Tenant ===

impl Tenant {
    /// No identity header at all.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Whether the call bore no identity.
    #[must_use]
    pub fn is_anonymous(self) -> bool {
        self == Self::ANONYMOUS
    }

    pub(crate) fn of(digest: [u8; 32]) -> Self {
        let mut bytes = [0; 16];
        for (byte, from) in bytes.iter_mut().zip(digest) {
            *byte = from;
        }
        Self(bytes)
    }
}

impl fmt::Display for Tenant {
    /// Eight hexadecimal digits: enough to tell tenants apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenant({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_apart_where_its_parts_end_and_whose_it_is() {
        let secret = Secret::from_bytes([7; 32]);
        assert_ne!(secret.digest([&b"ab"[..], b"c"]), secret.digest([&b"a"[..], b"bc"]));
        assert_ne!(secret.tenant(b"a"), Secret::from_bytes([8; 32]).tenant(b"a"));
        assert_eq!(secret.tenant(b"a"), secret.tenant(b"a"));
        assert!(!secret.tenant(b"").is_anonymous());
    }

    #[test]
    fn a_secret_does_not_print_itself() {
        assert_eq!(format!("{:?}", Secret::from_bytes([7; 32])), "Secret(..)");
    }
}
