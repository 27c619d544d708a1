//! Encoding and decoding of netlink messages and their attributes.
//!
//! Headers are in native byte order, numbers in the attributes of `nf_tables` in network byte
//! order. Messages from the kernel are parsed like untrusted input: a truncated message ends the
//! iteration, and nothing panics.
//!
//! This module excludes the messages of a transaction (`ruleset`) and the meaning of attributes.

/// Length of a netlink header (`struct nlmsghdr`): length, kind, flags, sequence number and port
/// ID.
const HEAD: usize = 16;
/// Length of the netfilter header (`struct nfgenmsg`): family, version, resource ID.
const INNER: usize = 4;
/// Length of an attribute header: length and kind.
const ATTRIBUTE: usize = 4;
/// Flag of an attribute that contains other attributes (`NLA_F_NESTED`). `FLAGS` also includes the
/// flag for network byte order; neither is part of the kind.
const NESTED: u16 = 1 << 15;
const FLAGS: u16 = 3 << 14;

/// Marks a request (`NLM_F_REQUEST`).
pub(super) const REQUEST: u16 = 1;
/// Requests an acknowledgement of success too (`NLM_F_ACK`).
pub(super) const ACK: u16 = 4;
/// Requests a listing of all objects (`NLM_F_DUMP`).
pub(super) const DUMP: u16 = 0x300;
/// Creates the object if it does not exist (`NLM_F_CREATE`). `APPEND` puts it after all others
/// (`NLM_F_APPEND`).
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;

/// Kind of an error or acknowledgement (`NLMSG_ERROR`). `DONE` ends a listing (`NLMSG_DONE`).
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// A builder for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetlinkMessage {
    bytes: Vec<u8>,
}

/// A builder for attributes, each aligned to four bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AttributeBuilder {
    bytes: Vec<u8>,
}

/// A message from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetlinkReply<'a> {
    /// Result of the message with this sequence number: 0 or an error number.
    Ack { sequence: u32, errno: i32 },
    /// End of a listing.
    Done { errno: i32 },
    /// One object of a listing.
    Item(NfTablesObject<'a>),
}

/// An object of `nf_tables`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NfTablesObject<'a> {
    /// Message kind, including the subsystem.
    pub(super) kind: u16,
    pub(super) family: u8,
    /// Encoded attributes.
    pub(super) attributes: &'a [u8],
}

// === impl NetlinkMessage ===

impl NetlinkMessage {
    /// Creates a message with both headers. `resource` is 0 or, for the beginning and the end of a
    /// batch, its subsystem.
    pub(super) fn new(kind: u16, flags: u16, sequence: u32, (family, resource): (u8, u16)) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // The length, which `finish` fills in.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // Port ID, which the kernel fills in.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([family, 0]);
        bytes.extend(resource.to_be_bytes());
        Self { bytes }
    }

    pub(super) fn with(mut self, attributes: AttributeBuilder) -> Self {
        self.bytes.extend(attributes.bytes);
        self
    }

    /// Returns the encoded message, with its length filled in.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).to_ne_bytes();
        self.bytes.splice(..length.len(), length);
        self.bytes
    }
}

// === impl AttributeBuilder ===

impl AttributeBuilder {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // No attribute written here comes near 64 KiB.
        let length = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a null-terminated string.
    pub(super) fn text(self, kind: u16, text: &str) -> Self {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        self.bytes(kind, &value)
    }

    /// Adds a number in network byte order.
    pub(super) fn number(self, kind: u16, number: u32) -> Self {
        self.bytes(kind, &number.to_be_bytes())
    }

    /// Adds nested attributes.
    pub(super) fn nest(self, kind: u16, inner: &Self) -> Self {
        self.bytes(kind | NESTED, &inner.bytes)
    }
}

#[cfg(test)]
impl AttributeBuilder {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Parses the messages of one read. An incomplete message ends the iteration.
pub(super) fn replies(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkReply<'_>> {
    std::iter::from_fn(move || {
        loop {
            let length = usize::try_from(u32::from_ne_bytes(take(bytes, 0)?)).ok()?;
            let body = bytes.get(HEAD..length)?;
            let (kind, sequence) = (u16::from_ne_bytes(take(bytes, 4)?), u32::from_ne_bytes(take(bytes, 8)?));
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            // The kernel writes error numbers with a negative sign.
            let errno = || take(body, 0).map_or(0, i32::from_ne_bytes).saturating_neg();
            return Some(match kind {
                ERROR => NetlinkReply::Ack { sequence, errno: errno() },
                DONE => NetlinkReply::Done { errno: errno() },
                // Kinds below 16 are control messages of netlink itself, which are irrelevant here.
                kind if kind < 16 => continue,
                kind => {
                    let [family, ..]: [u8; INNER] = take(body, 0)?;
                    NetlinkReply::Item(NfTablesObject { kind, family, attributes: body.get(INNER..)? })
                }
            });
        }
    })
}

/// Parses attributes into kind and value. A truncated attribute ends the iteration.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(take(bytes, 0)?));
        let kind = u16::from_ne_bytes(take(bytes, 2)?) & !FLAGS;
        let value = bytes.get(ATTRIBUTE..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Parses a number in network byte order.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    take(value, 0).map(u32::from_be_bytes)
}

/// Parses a null-terminated string.
pub(super) fn text(value: &[u8]) -> Option<&str> {
    value.split(|byte| *byte == 0).next().and_then(|text| str::from_utf8(text).ok())
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_message_has_the_byte_layout_of_netlink() {
        let inner = AttributeBuilder::default().number(2, 0xff9c);
        let attributes = AttributeBuilder::default().text(1, "ab").nest(4, &inner);
        let message = NetlinkMessage::new(0xa00, REQUEST | ACK, 7, (1, 10)).with(attributes).finish();
        let expected: &[u8] = &[
            40, 0, 0, 0, // length
            0, 0x0a, 5, 0, // kind, flags
            7, 0, 0, 0, 0, 0, 0, 0, // sequence number, port ID
            1, 0, 0, 10, // family, version, resource ID
            7, 0, 1, 0, b'a', b'b', 0, 0, // a string of three bytes, padded to the alignment
            12, 0, 4, 0x80, 8, 0, 2, 0, 0, 0, 0xff, 0x9c, // a number in a nested attribute
        ];
        assert_eq!(message, expected);
    }

    #[test]
    fn an_encoded_message_decodes_to_its_attributes() {
        let inner = AttributeBuilder::default().number(1, 5).bytes(2, &[1, 2, 3]);
        let message = NetlinkMessage::new(0xa03, 0, 1, (2, 0))
            .with(AttributeBuilder::default().text(3, "name").nest(4, &inner))
            .finish();
        let replies: Vec<_> = replies(&message).collect();
        let [NetlinkReply::Item(item)] = replies[..] else { panic!("{replies:?}") };
        assert_eq!((item.kind, item.family), (0xa03, 2));
        let found: Vec<_> = attributes(item.attributes).collect();
        assert_eq!((found[0].0, text(found[0].1)), (3, Some("name")));
        let inner: Vec<_> = attributes(found[1].1).collect();
        assert_eq!((inner[0].0, number(inner[0].1), inner[1]), (1, Some(5), (2, &[1, 2, 3][..])));
    }

    #[test]
    fn a_reply_has_the_sequence_number_of_its_message() {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(ERROR.to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(9_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-1_i32).to_ne_bytes());
        assert_eq!(replies(&bytes).collect::<Vec<_>>(), [NetlinkReply::Ack { sequence: 9, errno: 1 }]);
        bytes.splice(4..6, DONE.to_ne_bytes());
        let twice = [bytes.clone(), bytes].concat();
        assert_eq!(replies(&twice).collect::<Vec<_>>(), [NetlinkReply::Done { errno: 1 }; 2]);
    }

    proptest! {
        #[test]
        fn random_bytes_decode_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let items = replies(&bytes).count();
            prop_assert!(items <= bytes.len() / HEAD);
            for (_, value) in attributes(&bytes) {
                let _read = (number(value), text(value), attributes(value).count());
            }
        }
    }
}
