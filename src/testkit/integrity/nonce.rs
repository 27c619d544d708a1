//! Items of the ledger, and the only correct response to each.
//!
//! A nonce has 128 bits. The first 64 bits encode the item (client, call, place, tenant, form,
//! poison), and the last 64 bits are a keyed checksum of them. The mock can therefore distinguish a
//! genuine item from a damaged one without shared state, and both ends can look up an item without
//! a growing map. The response is a BLAKE3 digest of tenant and nonce, so it cannot be correct by
//! chance.

use std::fmt;

use strum::VariantArray;

use crate::item::splitmix64;

/// Maximum number of items in one call, because the place is encoded in two bits.
pub(super) const ITEMS_MAX: usize = 4;
/// Maximum number of tenants: four bits.
pub(super) const TENANTS_MAX: usize = 16;
/// Maximum number of clients: sixteen bits.
pub(super) const CLIENTS_MAX: usize = 1 << 16;

/// Form of a call, which determines the adapter that processes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, VariantArray)]
pub(super) enum CallForm {
    /// `POST /v1/embeddings` with a list.
    OpenAi,
    /// `POST /v1/embeddings` with a string.
    OpenAiSingle,
    /// `POST /v1/models/ledger:predict`.
    KServe,
    /// `POST /ledger`, for the generic adapter.
    Generic,
}

/// Properties of an item that its nonce encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LedgerItem {
    pub(super) client: usize,
    pub(super) call: u64,
    /// Index of the item in its call.
    pub(super) place: usize,
    pub(super) tenant: usize,
    pub(super) form: CallForm,
    pub(super) poison: bool,
}

/// Identifier of an item, written as 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemToken(u128);

/// Expected result of an item.
pub(super) type Digest = [u8; 16];

// === impl CallForm ===

impl CallForm {
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::OpenAi | Self::OpenAiSingle => "/v1/embeddings",
            Self::KServe => "/v1/models/ledger:predict",
            Self::Generic => "/ledger",
        }
    }

    /// Returns `true` if a response of this form contains the index of each result.
    pub(super) const fn has_index(self) -> bool {
        matches!(self, Self::OpenAi | Self::OpenAiSingle)
    }
}

// === impl LedgerItem ===

impl LedgerItem {
    /// Encodes the item: 16 bits for the client, 32 for the call, 2 for the place, 4 for the
    /// tenant, 2 for the form and 1 for the poison flag. All other bits are zero.
    fn head(self) -> u64 {
        let word = (self.client as u64) << 32 | (self.call & 0xffff_ffff);
        word << 16
            | (self.place as u64) << 8
            | (self.tenant as u64) << 4
            | (self.form as u64) << 1
            | u64::from(self.poison)
    }

    /// Decodes an item; `None` if bits are set that no item sets.
    fn decode(head: u64) -> Option<Self> {
        let field = |shift: u32, bits: u32| usize::try_from((head >> shift) & ((1 << bits) - 1)).unwrap_or_default();
        let item = Self {
            client: field(48, 16),
            call: (head >> 16) & 0xffff_ffff,
            place: field(8, 2),
            tenant: field(4, 4),
            form: CallForm::VARIANTS[field(1, 2)],
            poison: field(0, 1) == 1,
        };
        (item.head() == head).then_some(item)
    }

    /// Returns the nonce of the item in the run with this key.
    pub(super) fn nonce(self, key: u64) -> ItemToken {
        let head = self.head();
        ItemToken(u128::from(head) << 64 | u128::from(checksum(head, key)))
    }
}

// === impl ItemToken ===

impl ItemToken {
    /// Parses the output of [`fmt::Display`]. Returns `None` if it is not a genuine nonce of this
    /// run.
    pub(super) fn read(text: &str, key: u64) -> Option<(Self, LedgerItem)> {
        if text.len() != 32 || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let word = u128::from_str_radix(text, 16).ok()?;
        let head = u64::try_from(word >> 64).ok()?;
        (u128::from(checksum(head, key)) == word & u128::from(u64::MAX)).then_some(())?;
        Some((Self(word), LedgerItem::decode(head)?))
    }

    /// Returns the correct result of a model release for the item with this nonce.
    pub(super) fn expected_result(self, tenant: usize, release: u64) -> Digest {
        let mut digest = Digest::default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&tenant.to_le_bytes()).update(&self.0.to_le_bytes()).update(&release.to_le_bytes());
        hasher.finalize_xof().fill(&mut digest);
        digest
    }
}

impl fmt::Display for ItemToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Returns the keyed checksum of an encoded item. It detects damage and foreign items, and is not
/// cryptographic.
fn checksum(head: u64, key: u64) -> u64 {
    splitmix64(splitmix64(head ^ key).wrapping_add(key))
}

/// Returns a digest as the four numbers of an embedding.
pub(super) fn numbers(digest: &Digest) -> [u32; 4] {
    let word = u128::from_le_bytes(*digest);
    [0, 32, 64, 96].map(|shift| u32::try_from((word >> shift) & 0xffff_ffff).unwrap_or_default())
}

/// Returns a digest as the string that the other forms use.
pub(super) fn hex(digest: &Digest) -> String {
    format!("{:032x}", u128::from_le_bytes(*digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: LedgerItem =
        LedgerItem { client: 65_535, call: 4_000_000_000, place: 3, tenant: 15, form: CallForm::Generic, poison: true };

    #[test]
    fn nonce_round_trips_its_item() {
        for &form in CallForm::VARIANTS {
            let item = LedgerItem { form, ..ITEM };
            let text = item.nonce(9).to_string();
            assert_eq!(ItemToken::read(&text, 9), Some((item.nonce(9), item)));
            assert_eq!(ItemToken::read(&text, 8), None, "of another run");
        }
    }

    #[test]
    fn a_damaged_nonce_is_rejected() {
        let text = ITEM.nonce(9).to_string();
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] = if damaged[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(ItemToken::read(&String::from_utf8(damaged).unwrap(), 9), None, "at {at}");
        }
    }

    #[test]
    fn answers_differ_by_nonce_by_tenant_and_by_model() {
        let nonce = ITEM.nonce(9);
        assert_ne!(nonce.expected_result(0, 0), nonce.expected_result(1, 0));
        assert_ne!(nonce.expected_result(0, 0), nonce.expected_result(0, 1));
        assert_ne!(nonce.expected_result(0, 0), LedgerItem { place: 2, ..ITEM }.nonce(9).expected_result(0, 0));
    }
}
