//! The ruleset as one netlink transaction. Pure, and identical byte for byte to that of `nft`.
//!
//! ```text
//! table inet groupage {
//!   chain prerouting {
//!     type nat hook prerouting priority dstnat; policy accept;
//!     iiftype != loopback tcp dport 8080 redirect to :15080
//!   }
//! }
//! ```
//! The transaction creates the table, deletes it and creates it again, which replaces the table
//! whether or not it exists: deleting an absent table would fail, and `destroy` requires Linux 6.3.
//! The transaction is atomic, so the table is never absent for packets.
//!
//! A rule excludes the loopback device explicitly. Tracked packets of that device have already
//! passed another NAT hook and would not be redirected, but untracked ones would.

use std::fmt;

use super::Redirect;
use super::message::{ACK, APPEND, AttributeBuilder, CREATE, NetlinkMessage, REQUEST};

/// Name of the table.
pub(super) const TABLE: &str = "groupage";
const CHAIN: &str = "prerouting";

/// Family of both IP versions (`NFPROTO_INET`).
pub(super) const INET: u8 = 1;
/// `NFNL_SUBSYS_NFTABLES`, the upper byte of a message kind.
pub(super) const SUBSYSTEM: u16 = 10;
/// Returns the kind of a message of `nf_tables` (`enum nf_tables_msg_types`).
const fn kind(number: u16) -> u16 {
    SUBSYSTEM << 8 | number
}
/// The messages that begin and end a transaction (`NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`).
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = kind(0);
const DELETE_TABLE: u16 = kind(2);
pub(super) const NEW_CHAIN: u16 = kind(3);
pub(super) const GET_CHAIN: u16 = kind(4);
pub(super) const NEW_RULE: u16 = kind(6);
pub(super) const GET_RULE: u16 = kind(7);

/// Attribute kinds, grouped by the object that they belong to (`linux/netfilter/nf_tables.h`).
pub(super) mod attribute {
    pub(in super::super) const TABLE_NAME: u16 = 1;
    pub(in super::super) const CHAIN_TABLE: u16 = 1;
    pub(in super::super) const CHAIN_NAME: u16 = 3;
    pub(in super::super) const CHAIN_HOOK: u16 = 4;
    pub(in super::super) const CHAIN_POLICY: u16 = 5;
    pub(in super::super) const CHAIN_TYPE: u16 = 7;
    pub(in super::super) const HOOK_NUMBER: u16 = 1;
    pub(in super::super) const HOOK_PRIORITY: u16 = 2;
    pub(in super::super) const RULE_TABLE: u16 = 1;
    pub(in super::super) const RULE_CHAIN: u16 = 2;
    pub(in super::super) const RULE_EXPRESSIONS: u16 = 4;
    pub(in super::super) const ELEMENT: u16 = 1;
    pub(in super::super) const EXPRESSION_NAME: u16 = 1;
    pub(in super::super) const EXPRESSION_DATA: u16 = 2;
    pub(in super::super) const META_REGISTER: u16 = 1;
    pub(in super::super) const META_KEY: u16 = 2;
    pub(in super::super) const COMPARE_REGISTER: u16 = 1;
    pub(in super::super) const COMPARE_HOW: u16 = 2;
    pub(in super::super) const COMPARE_DATA: u16 = 3;
    pub(in super::super) const PAYLOAD_REGISTER: u16 = 1;
    pub(in super::super) const PAYLOAD_BASE: u16 = 2;
    pub(in super::super) const PAYLOAD_OFFSET: u16 = 3;
    pub(in super::super) const PAYLOAD_LENGTH: u16 = 4;
    pub(in super::super) const IMMEDIATE_REGISTER: u16 = 1;
    pub(in super::super) const IMMEDIATE_DATA: u16 = 2;
    pub(in super::super) const REDIRECT_PORT: u16 = 1;
    pub(in super::super) const REDIRECT_FLAGS: u16 = 3;
    pub(in super::super) const VALUE: u16 = 1;
}

/// Hook of inbound packets (`NF_INET_PRE_ROUTING`).
pub(super) const PREROUTING: u32 = 0;
/// Priority of destination NAT (`NF_IP_PRI_NAT_DST`).
const DSTNAT: i32 = -100;
/// Policy for a packet that no rule matches (`NF_ACCEPT`).
const ACCEPT: u32 = 1;
/// The first register (`NFT_REG_1`).
const REGISTER: u32 = 1;
/// Keys of `meta`: the type of the input device, and the transport protocol (`enum nft_meta_keys`).
pub(super) const DEVICE_TYPE: u32 = 8;
pub(super) const PROTOCOL: u32 = 16;
/// Device type of loopback (`ARPHRD_LOOPBACK`), in native byte order.
pub(super) const LOOPBACK: u16 = 772;
/// `IPPROTO_TCP`.
pub(super) const TCP: u8 = 6;
/// Comparisons (`enum nft_cmp_ops`).
pub(super) const EQUAL: u32 = 0;
pub(super) const UNEQUAL: u32 = 1;
/// Payload base after the IP header (`NFT_PAYLOAD_TRANSPORT_HEADER`). TCP's destination port has
/// two bytes at offset 2.
pub(super) const TRANSPORT: u32 = 2;
pub(super) const PORT_OFFSET: u32 = 2;
pub(super) const PORT_LENGTH: u32 = 2;
/// Flag of a redirect with an explicit port (`NF_NAT_RANGE_PROTO_SPECIFIED`), as `nft` sets it.
const PORT_GIVEN: u32 = 2;

/// Subject of a netlink message, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectStep {
    /// Opening the socket.
    Socket,
    /// Listing the existing rules.
    ListRules,
    /// The transaction itself.
    Transaction,
    /// The table of Groupage.
    Table,
    /// The chain of Groupage.
    Chain,
    /// The rule of a redirect.
    Rule(Redirect),
}

/// A message of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TransactionMessage {
    pub(super) step: RedirectStep,
    pub(super) sequence: u32,
    pub(super) bytes: Vec<u8>,
}

/// Messages that the kernel applies atomically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NetlinkBatch {
    pub(super) parts: Vec<TransactionMessage>,
}

// === impl NetlinkBatch ===

impl NetlinkBatch {
    /// Adds the message that begins or ends the batch.
    fn add_boundary(&mut self, kind: u16) {
        let sequence = self.next_sequence();
        let bytes = NetlinkMessage::new(kind, REQUEST, sequence, (0, SUBSYSTEM)).finish();
        self.parts.push(TransactionMessage { step: RedirectStep::Transaction, sequence, bytes });
    }

    fn add(&mut self, step: RedirectStep, (kind, flags): (u16, u16), attributes: AttributeBuilder) {
        let sequence = self.next_sequence();
        let bytes = NetlinkMessage::new(kind, REQUEST | flags, sequence, (INET, 0)).with(attributes).finish();
        self.parts.push(TransactionMessage { step, sequence, bytes });
    }

    /// Returns the next sequence number; the first is 1.
    fn next_sequence(&self) -> u32 {
        self.parts.last().map_or(1, |part| part.sequence + 1)
    }

    /// Returns all messages in one buffer, as the kernel requires.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.bytes.iter().copied()).collect()
    }

    /// Returns the sequence number of the message that the kernel acknowledges, which is the last
    /// one before the end of the batch (see [`build_transaction`]).
    pub(super) fn acknowledged_sequence(&self) -> u32 {
        self.parts.iter().rev().map(|part| part.sequence).nth(1).unwrap_or_default()
    }

    /// Returns the step of a sequence number.
    pub(super) fn step(&self, sequence: u32) -> RedirectStep {
        self.parts.iter().find(|part| part.sequence == sequence).map_or(RedirectStep::Transaction, |part| part.step)
    }
}

impl fmt::Display for RedirectStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket => f.write_str("opening a netlink socket"),
            Self::ListRules => f.write_str("reading the existing rules"),
            Self::Transaction => f.write_str("writing the rules"),
            Self::Table => f.write_str("writing the table"),
            Self::Chain => f.write_str("writing the chain"),
            Self::Rule(redirect) => write!(f, "writing the rule of port {}", redirect.port),
        }
    }
}

/// Builds the transaction that replaces the table.
pub(super) fn build_transaction(redirects: &[Redirect]) -> NetlinkBatch {
    let table = || AttributeBuilder::default().text(attribute::TABLE_NAME, TABLE);
    let mut transaction = NetlinkBatch { parts: Vec::with_capacity(redirects.len() + 6) };
    transaction.add_boundary(BATCH_BEGIN);
    transaction.add(RedirectStep::Table, (NEW_TABLE, CREATE), table());
    transaction.add(RedirectStep::Table, (DELETE_TABLE, 0), table());
    transaction.add(RedirectStep::Table, (NEW_TABLE, CREATE), table());
    transaction.add(RedirectStep::Chain, (NEW_CHAIN, CREATE), chain());
    for (index, redirect) in redirects.iter().enumerate() {
        // The kernel reports errors of every message. Success is requested for the last rule only,
        // because each acknowledgement occupies the receive buffer until it is read.
        let flags = CREATE | APPEND | if index + 1 == redirects.len() { ACK } else { 0 };
        transaction.add(RedirectStep::Rule(*redirect), (NEW_RULE, flags), rule(*redirect));
    }
    transaction.add_boundary(BATCH_END);
    transaction
}

fn chain() -> AttributeBuilder {
    let hook = AttributeBuilder::default()
        .number(attribute::HOOK_NUMBER, PREROUTING)
        .bytes(attribute::HOOK_PRIORITY, &DSTNAT.to_be_bytes());
    AttributeBuilder::default()
        .text(attribute::CHAIN_TABLE, TABLE)
        .text(attribute::CHAIN_NAME, CHAIN)
        .text(attribute::CHAIN_TYPE, "nat")
        .number(attribute::CHAIN_POLICY, ACCEPT)
        .nest(attribute::CHAIN_HOOK, &hook)
}

fn rule(Redirect { port, listen }: Redirect) -> AttributeBuilder {
    // Each `cmp` compares the value that the expression before it has loaded into the register.
    // `redir` reads its port from the same register.
    let target = AttributeBuilder::default()
        .number(attribute::REDIRECT_PORT, REGISTER)
        .number(attribute::REDIRECT_FLAGS, PORT_GIVEN);
    let expressions = [
        expression("meta", &meta(DEVICE_TYPE)),
        expression("cmp", &compare(UNEQUAL, &LOOPBACK.to_ne_bytes())),
        expression("meta", &meta(PROTOCOL)),
        expression("cmp", &compare(EQUAL, &[TCP])),
        expression("payload", &payload()),
        expression("cmp", &compare(EQUAL, &port.to_be_bytes())),
        expression("immediate", &immediate(&listen.to_be_bytes())),
        expression("redir", &target),
    ];
    let list =
        expressions.into_iter().fold(AttributeBuilder::default(), |list, each| list.nest(attribute::ELEMENT, &each));
    AttributeBuilder::default()
        .text(attribute::RULE_TABLE, TABLE)
        .text(attribute::RULE_CHAIN, CHAIN)
        .nest(attribute::RULE_EXPRESSIONS, &list)
}

pub(super) fn expression(name: &str, data: &AttributeBuilder) -> AttributeBuilder {
    AttributeBuilder::default().text(attribute::EXPRESSION_NAME, name).nest(attribute::EXPRESSION_DATA, data)
}

pub(super) fn meta(key: u32) -> AttributeBuilder {
    AttributeBuilder::default().number(attribute::META_KEY, key).number(attribute::META_REGISTER, REGISTER)
}

pub(super) fn compare(how: u32, value: &[u8]) -> AttributeBuilder {
    AttributeBuilder::default()
        .number(attribute::COMPARE_REGISTER, REGISTER)
        .number(attribute::COMPARE_HOW, how)
        .nest(attribute::COMPARE_DATA, &self::value(value))
}

pub(super) fn payload() -> AttributeBuilder {
    AttributeBuilder::default()
        .number(attribute::PAYLOAD_REGISTER, REGISTER)
        .number(attribute::PAYLOAD_BASE, TRANSPORT)
        .number(attribute::PAYLOAD_OFFSET, PORT_OFFSET)
        .number(attribute::PAYLOAD_LENGTH, PORT_LENGTH)
}

pub(super) fn immediate(value: &[u8]) -> AttributeBuilder {
    AttributeBuilder::default()
        .number(attribute::IMMEDIATE_REGISTER, REGISTER)
        .nest(attribute::IMMEDIATE_DATA, &self::value(value))
}

fn value(bytes: &[u8]) -> AttributeBuilder {
    AttributeBuilder::default().bytes(attribute::VALUE, bytes)
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::super::message::{NetlinkReply, replies};
    use super::*;

    /// Bytes that `nft` 1.0.6 sends for the hook of the table above and for the expressions of its
    /// rule, captured with `strace`.
    const HOOK_OF_NFT: &str = "14000480080001000000000008000200ffffff9c";
    const EXPRESSIONS_OF_NFT: [&str; 8] = [
        // iiftype
        "24000180090001006d657461000000001400028008000200000000080800010000000001",
        // != loopback
        "2c00018008000100636d700020000280080001000000000108000200000000010c0003800600010004030000",
        // l4proto
        "24000180090001006d657461000000001400028008000200000000100800010000000001",
        // == tcp
        "2c00018008000100636d700020000280080001000000000108000200000000000c0003800500010006000000",
        // destination port
        "340001800c0001007061796c6f616400240002800800010000000001080002000000000208000300000000020800040000000002",
        // == 8080
        "2c00018008000100636d700020000280080001000000000108000200000000000c000380060001001f900000",
        // 15080
        "2c0001800e000100696d6d6564696174650000001800028008000100000000010c000280060001003ae80000",
        // redirect
        "240001800a00010072656469720000001400028008000100000000010800030000000002",
    ];

    const REDIRECTS: [Redirect; 2] = [Redirect { port: 8080, listen: 15080 }, Redirect { port: 9000, listen: 15081 }];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_encoded_rule_equals_that_of_nft() {
        let rule = hex(rule(REDIRECTS[0]).as_bytes());
        // Names of the table and the chain, then a list of 340 bytes.
        let names = "0d00010067726f7570616765000000000f000200707265726f7574696e670000";
        assert_eq!(rule, format!("{names}54010480{}", EXPRESSIONS_OF_NFT.concat()));
    }

    #[test]
    fn the_encoded_chain_equals_that_of_nft() {
        let names = "0d00010067726f7570616765000000000f000300707265726f7574696e670000";
        let (nat, accept) = ("080007006e617400", "0800050000000001");
        assert_eq!(hex(chain().as_bytes()), format!("{names}{nat}{accept}{HOOK_OF_NFT}"));
    }

    #[test]
    fn a_transaction_begins_replaces_the_table_and_ends() {
        let transaction = build_transaction(&REDIRECTS);
        let bytes = transaction.bytes();
        let kinds: Vec<(u16, u8)> = replies(&bytes)
            .map(|reply| match reply {
                NetlinkReply::Item(item) => (item.kind, item.family),
                other => panic!("{other:?}"),
            })
            .collect();
        let table = [(NEW_TABLE, 1), (DELETE_TABLE, 1), (NEW_TABLE, 1), (NEW_CHAIN, 1)];
        let rules = [(NEW_RULE, 1), (NEW_RULE, 1)];
        assert_eq!(kinds, [&[(BATCH_BEGIN, 0)][..], &table, &rules, &[(BATCH_END, 0)]].concat());
        // Length 20, kind 16, flag `REQUEST`, sequence number 1; no family, version 0, the
        // subsystem in network byte order.
        assert_eq!(hex(&bytes[..20]), "140000001000010001000000000000000000000a");
        assert_eq!((transaction.acknowledged_sequence(), transaction.step(7)), (7, RedirectStep::Rule(REDIRECTS[1])));
        assert_eq!((transaction.step(5), transaction.step(99)), (RedirectStep::Chain, RedirectStep::Transaction));
        let flags = |part: &TransactionMessage| u16::from_le_bytes([part.bytes[6], part.bytes[7]]);
        let flags_sent: Vec<u16> = transaction.parts.iter().map(flags).collect();
        assert_eq!(flags_sent, [1, 0x401, 1, 0x401, 0x401, 0xc01, 0xc05, 1], "one answer, to the last rule");
    }

    #[test]
    fn a_transaction_with_64_ports_fits_one_send() {
        let many: Vec<Redirect> = (1..=64).map(|port| Redirect { port, listen: port + 15080 }).collect();
        // The default send buffer of a socket is 208 KiB.
        assert!(build_transaction(&many).bytes().len() < 64 << 10);
    }
}
