//! Identities of clients as keyed digests, without the credentials that prove them.

use std::fmt;

/// The key of the digests that replace credentials. Each process has its own, so digests of two
/// processes cannot be compared.
#[derive(Clone)]
pub struct DigestKey([u8; 32]);

/// The identity of a client, as a keyed digest.
///
/// All zero means anonymous: the call has no identity header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tenant(pub [u8; 16]);

/// The identity from the client certificate of a connection, stored in the extensions of a request
/// head.
///
/// It covers the whole certificate rather than a name in it, since the fields that another server
/// would check are unknown here. A renewed certificate therefore counts as another client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity([u8; 32]);

// === impl PeerIdentity ===

impl PeerIdentity {
    /// Creates the identity from a certificate in DER.
    #[must_use]
    pub fn from_certificate(certificate: &[u8]) -> Self {
        Self(*blake3::hash(certificate).as_bytes())
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerIdentity(..)")
    }
}

// === impl DigestKey ===

impl DigestKey {
    /// Generates a random key.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Creates a key from bytes, for tests and replays.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the tenant for a value of the tenant header. The weights of the policy are looked up
    /// by it.
    #[must_use]
    pub fn tenant(&self, name: &[u8]) -> Tenant {
        Tenant::from_digest(self.digest([&b"tenant"[..], name]))
    }

    /// Returns a digest over the parts, each prefixed with its length.
    pub fn digest<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(..)")
    }
}

// === impl Tenant ===

impl Tenant {
    /// The tenant of calls without any identity header.
    pub const ANONYMOUS: Self = Self([0; 16]);

    /// Returns `true` if the call had no identity.
    #[must_use]
    pub fn is_anonymous(self) -> bool {
        self == Self::ANONYMOUS
    }

    pub(crate) fn from_digest(digest: [u8; 32]) -> Self {
        let mut bytes = [0; 16];
        for (byte, from) in bytes.iter_mut().zip(digest) {
            *byte = from;
        }
        Self(bytes)
    }
}

impl fmt::Display for Tenant {
    /// Prints eight hexadecimal digits, which is enough to distinguish tenants in a log.
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
    fn digests_differ_by_part_boundaries_and_by_key() {
        let secret = DigestKey::from_bytes([7; 32]);
        assert_ne!(secret.digest([&b"ab"[..], b"c"]), secret.digest([&b"a"[..], b"bc"]));
        assert_ne!(secret.tenant(b"a"), DigestKey::from_bytes([8; 32]).tenant(b"a"));
        assert_eq!(secret.tenant(b"a"), secret.tenant(b"a"));
        assert!(!secret.tenant(b"").is_anonymous());
    }

    #[test]
    fn the_debug_output_of_a_key_hides_its_bytes() {
        assert_eq!(format!("{:?}", DigestKey::from_bytes([7; 32])), "DigestKey(..)");
    }
}
