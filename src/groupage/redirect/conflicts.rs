//! Analysis of existing `nf_tables` rules: finds rules of other owners that redirect an inbound
//! port. Pure.
//!
//! The analysis follows a TCP packet from outside through every foreign chain at the prerouting
//! hook, in the three-valued logic of Kleene. Matches on protocol, destination port and device type
//! are evaluated. Any other match (sets, marks, addresses, most iptables extensions) may be true or
//! false. If a redirect is certain, no rule is written; if it is only possible, there is a warning.
//!
//! Not analysed: rules of legacy iptables, which `nf_tables` does not list
//! (`kernel::legacy_iptables_warning`), rules of devices (`netdev`) and eBPF programs.

use std::collections::BTreeMap;

use super::message::{NetlinkReply, NfTablesObject, attributes, number, replies, text};
use super::ruleset::{
    DEVICE_TYPE, EQUAL, INET, LOOPBACK, NEW_CHAIN, NEW_RULE, PORT_LENGTH, PORT_OFFSET, PREROUTING, PROTOCOL, TABLE,
    TCP, TRANSPORT, UNEQUAL, attribute,
};

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Maximum nesting of chains; the kernel allows 16 (`NFT_JUMP_STACK_SIZE`).
const DEPTH_MAX: usize = 16;
/// Maximum number of rules that are evaluated for one port. Chains with many paths between them
/// could take exponential time; beyond the limit the result is uncertain.
const STEPS_MAX: usize = 100_000;
/// Verdict codes of the kernel (`enum nft_verdicts`, `NF_ACCEPT`, `NF_DROP`).
const ACCEPT: i32 = 1;
const DROP: i32 = 0;
const CONTINUE: i32 = -1;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;
/// Register of verdicts (`NFT_REG_VERDICT`).
const VERDICT: u32 = 0;
/// `NFT_NAT_DNAT`.
const DNAT: u32 = 1;
/// Targets of iptables that redirect a packet.
const REDIRECTING_TARGETS: [&str; 4] = ["REDIRECT", "DNAT", "NETMAP", "TPROXY"];

/// The rules of other owners.
#[derive(Debug, Default)]
pub(super) struct ForeignRules {
    /// Base chains of other owners at the prerouting hook, at which an evaluation begins.
    base_chains: Vec<ChainId>,
    /// Rules of all listed chains, in their order.
    rules: BTreeMap<ChainId, Vec<RuleExpressions>>,
}

/// A chain: family, table, name.
type ChainId = (u8, String, String);
type RuleExpressions = Vec<Expression>;

/// A chain that redirects a port, or may redirect it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedirectConflict {
    /// Description for a message.
    pub(super) by: String,
    /// `true` if the redirect is certain.
    pub(super) is_certain: bool,
}

/// Effect of an expression, reduced to what this analysis needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    /// Loads a value into a register.
    Load(u32, RegisterValue),
    /// Compares a register for equality or inequality; `equal` is `None` for another comparison.
    Compare {
        register: u32,
        equal: Option<bool>,
        value: Vec<u8>,
    },
    /// Matches the destination port against ranges.
    Ports {
        ranges: Vec<(u16, u16)>,
        inverted: bool,
    },
    /// An unsupported match.
    Unsupported,
    /// Redirects the packet.
    Redirect,
    Verdict(RuleVerdict),
    /// Neither matches nor decides.
    Nothing,
}

/// Content of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegisterValue {
    Protocol,
    DeviceType,
    /// The destination port.
    Port,
    /// A value that this analysis does not know.
    Other,
}

/// Verdict of a rule, with the name of the target chain.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleVerdict {
    /// Accepts or drops the packet, which ends the base chain.
    Ends,
    /// Continues after the rule that jumped to this chain.
    Returns,
    /// Evaluates another chain, then continues with the next rule of this one.
    Jumps(String),
    /// Evaluates another chain in place of the rest of this one.
    GoesTo(String),
    /// Continues with the next rule.
    Continues,
}

/// Three-valued truth. The conjunction of two values is their minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ternary {
    No,
    Perhaps,
    Yes,
}

/// State of a packet after a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketState {
    /// Continues after the rule that jumped to the chain.
    Returned,
    /// Was accepted or dropped, which ends the base chain.
    Ended,
    /// Was redirected.
    Redirected,
}

/// The evaluation of one packet in one base chain.
struct PacketTrace<'a> {
    foreign: &'a ForeignRules,
    /// Destination port of the packet.
    port: u16,
    /// `true` if an earlier rule may have ended the evaluation.
    may_have_ended: bool,
    /// `true` if an earlier rule may have redirected the packet.
    may_have_redirected: bool,
    /// Number of evaluated rules.
    steps: usize,
}

// === impl ForeignRules ===

impl ForeignRules {
    /// Parses the chains and rules that the kernel listed.
    pub(super) fn read(chains: &[Vec<u8>], rules: &[Vec<u8>]) -> Self {
        let mut foreign = Self::default();
        foreign.base_chains.extend(items(chains, NEW_CHAIN).filter_map(parse_base_chain));
        for (name, rule) in items(rules, NEW_RULE).filter_map(parse_rule) {
            foreign.rules.entry(name).or_default().push(rule);
        }
        foreign
    }

    /// Returns the base chain that redirects an inbound connection to a port, or else the first one
    /// that may redirect it.
    pub(super) fn find_conflict(&self, port: u16) -> Option<RedirectConflict> {
        let mut uncertain = None;
        for name in &self.base_chains {
            let mut trace =
                PacketTrace { foreign: self, port, may_have_ended: false, may_have_redirected: false, steps: 0 };
            let is_redirected = trace.evaluate_chain(name, 0) == PacketState::Redirected;
            if !is_redirected && !trace.may_have_redirected {
                continue;
            }
            let is_certain = is_redirected && !trace.may_have_ended;
            let (family, table, chain) = name;
            let family = match *family {
                INET => "inet",
                IPV4 => "ip",
                _ => "ip6",
            };
            let verb = if is_certain { "is already redirected" } else { "may already be redirected" };
            let by = format!("port {port} {verb} by chain {chain} of table {family} {table}");
            if is_certain {
                return Some(RedirectConflict { by, is_certain });
            }
            uncertain.get_or_insert(RedirectConflict { by, is_certain });
        }
        uncertain
    }
}

// === impl PacketTrace ===

impl PacketTrace<'_> {
    fn evaluate_chain(&mut self, name: &ChainId, depth: usize) -> PacketState {
        let foreign = self.foreign;
        for rule in foreign.rules.get(name).map(Vec::as_slice).unwrap_or_default() {
            self.steps += 1;
            if depth > DEPTH_MAX || self.steps > STEPS_MAX {
                self.may_have_redirected = true;
                return PacketState::Ended;
            }
            if let Some(after) = self.evaluate_rule(name, rule, depth) {
                return after;
            }
        }
        PacketState::Returned
    }

    /// Evaluates a rule. Returns the packet's state if the rule ends the chain, `None` if the next
    /// rule follows.
    fn evaluate_rule(&mut self, name: &ChainId, rule: &RuleExpressions, depth: usize) -> Option<PacketState> {
        let (mut truth, mut registers) = (Ternary::Yes, BTreeMap::new());
        for expression in rule {
            match expression {
                Expression::Load(register, loaded) => {
                    registers.insert(*register, *loaded);
                }
                Expression::Nothing => {}
                Expression::Redirect if truth == Ternary::Yes => return Some(PacketState::Redirected),
                Expression::Redirect => {
                    self.may_have_redirected = true;
                    return None;
                }
                Expression::Verdict(verdict) => return self.apply_verdict(verdict, truth, name, depth),
                condition => truth = truth.min(self.evaluate_match(condition, &registers)),
            }
            if truth == Ternary::No {
                return None;
            }
        }
        None
    }

    /// Applies the verdict of a rule that matches, or may match (`truth`). Returns the packet's
    /// state if the chain ends, `None` if the next rule follows.
    ///
    /// If the match is uncertain, the evaluation continues as for a packet that does not match, and
    /// records what may have happened to one that does.
    fn apply_verdict(
        &mut self,
        verdict: &RuleVerdict,
        truth: Ternary,
        name: &ChainId,
        depth: usize,
    ) -> Option<PacketState> {
        let matched = truth == Ternary::Yes;
        match verdict {
            RuleVerdict::Continues => None,
            RuleVerdict::Ends | RuleVerdict::Returns if !matched => {
                self.may_have_ended = true;
                None
            }
            RuleVerdict::Ends => Some(PacketState::Ended),
            RuleVerdict::Returns => Some(PacketState::Returned),
            RuleVerdict::Jumps(to) | RuleVerdict::GoesTo(to) => {
                let after = self.evaluate_chain(&(name.0, name.1.clone(), to.clone()), depth + 1);
                match after {
                    PacketState::Redirected if matched => Some(PacketState::Redirected),
                    // A packet that matches may have ended in the target chain before its redirect,
                    // so that stays possible even if a later rule redirects all others.
                    PacketState::Redirected => {
                        self.may_have_redirected = true;
                        None
                    }
                    PacketState::Ended if matched => Some(PacketState::Ended),
                    // After a jump, the next rule follows, whether or not the rule matched.
                    PacketState::Returned if matches!(verdict, RuleVerdict::Jumps(_)) => None,
                    // After a goto, the rest of this chain is skipped.
                    PacketState::Returned if matched => Some(PacketState::Returned),
                    PacketState::Ended | PacketState::Returned => {
                        self.may_have_ended = true;
                        None
                    }
                }
            }
        }
    }

    fn evaluate_match(&self, expression: &Expression, registers: &BTreeMap<u32, RegisterValue>) -> Ternary {
        match expression {
            Expression::Compare { register, equal: Some(equal), value } => {
                let loaded = registers.get(register).copied().unwrap_or(RegisterValue::Other);
                let found = match loaded {
                    RegisterValue::Protocol => Some(value == &[TCP]),
                    RegisterValue::Port => Some(value == &self.port.to_be_bytes()),
                    // The packet did not arrive by the loopback device; its device type is unknown
                    // otherwise.
                    RegisterValue::DeviceType => (value == &LOOPBACK.to_ne_bytes()).then_some(false),
                    RegisterValue::Other => None,
                };
                found.map_or(Ternary::Perhaps, |found| Ternary::from(found == *equal))
            }
            Expression::Ports { ranges, inverted } => {
                let found = ranges.iter().any(|(from, to)| (*from..=*to).contains(&self.port));
                Ternary::from(found != *inverted)
            }
            _ => Ternary::Perhaps,
        }
    }
}

impl From<bool> for Ternary {
    fn from(is_true: bool) -> Self {
        if is_true { Self::Yes } else { Self::No }
    }
}

/// Returns the listed objects of one kind.
fn items(listed: &[Vec<u8>], kind: u16) -> impl Iterator<Item = NfTablesObject<'_>> {
    listed.iter().flat_map(|read| replies(read)).filter_map(move |reply| match reply {
        NetlinkReply::Item(item) if item.kind == kind => Some(item),
        _ => None,
    })
}

/// Returns the value of an attribute.
fn find_attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Returns a base chain of another owner at the prerouting hook.
fn parse_base_chain(NfTablesObject { family, attributes, .. }: NfTablesObject<'_>) -> Option<ChainId> {
    let table = text(find_attribute(attributes, attribute::CHAIN_TABLE)?)?;
    let name = text(find_attribute(attributes, attribute::CHAIN_NAME)?)?;
    let hook = number(find_attribute(find_attribute(attributes, attribute::CHAIN_HOOK)?, attribute::HOOK_NUMBER)?)?;
    let ours = family == INET && table == TABLE;
    (hook == PREROUTING && matches!(family, INET | IPV4 | IPV6) && !ours)
        .then(|| (family, table.to_owned(), name.to_owned()))
}

/// Returns a rule and its chain.
fn parse_rule(item: NfTablesObject<'_>) -> Option<(ChainId, RuleExpressions)> {
    let table = text(find_attribute(item.attributes, attribute::RULE_TABLE)?)?;
    let chain = text(find_attribute(item.attributes, attribute::RULE_CHAIN)?)?;
    let list = find_attribute(item.attributes, attribute::RULE_EXPRESSIONS).unwrap_or_default();
    let expressions =
        attributes(list).filter(|(kind, _)| *kind == attribute::ELEMENT).map(|(_, each)| parse_expression(each));
    Some(((item.family, table.to_owned(), chain.to_owned()), expressions.collect()))
}

/// Parses an expression. An unsupported one becomes a match with an unknown result.
fn parse_expression(bytes: &[u8]) -> Expression {
    let name = find_attribute(bytes, attribute::EXPRESSION_NAME).and_then(text).unwrap_or_default();
    let data = find_attribute(bytes, attribute::EXPRESSION_DATA).unwrap_or_default();
    let value = |kind| find_attribute(data, kind).and_then(number);
    let read = match name {
        "counter" | "log" | "notrack" | "last" => Some(Expression::Nothing),
        "meta" => parse_meta(data),
        "payload" => parse_payload(data),
        "cmp" => parse_compare(data),
        "immediate" => parse_immediate(data),
        "redir" | "tproxy" => Some(Expression::Redirect),
        // Only a change of the destination matters here (`NFTA_NAT_TYPE`).
        "nat" => value(1).map(|kind| if kind == DNAT { Expression::Redirect } else { Expression::Nothing }),
        "match" => parse_match(data),
        // A target of iptables (`NFTA_TARGET_NAME`).
        "target" => find_attribute(data, 1)
            .and_then(text)
            .map(|name| if REDIRECTING_TARGETS.contains(&name) { Expression::Redirect } else { Expression::Nothing }),
        _ => None,
    };
    read.unwrap_or(Expression::Unsupported)
}

fn parse_meta(data: &[u8]) -> Option<Expression> {
    // An expression without a destination register sets a mark or other metadata and loads nothing.
    let Some(register) = find_attribute(data, attribute::META_REGISTER).and_then(number) else {
        return Some(Expression::Nothing);
    };
    let loaded = match find_attribute(data, attribute::META_KEY).and_then(number)? {
        PROTOCOL => RegisterValue::Protocol,
        DEVICE_TYPE => RegisterValue::DeviceType,
        _ => RegisterValue::Other,
    };
    Some(Expression::Load(register, loaded))
}

fn parse_payload(data: &[u8]) -> Option<Expression> {
    let value = |kind| find_attribute(data, kind).and_then(number);
    // An expression without a destination register writes a field of the packet.
    let Some(register) = value(attribute::PAYLOAD_REGISTER) else { return Some(Expression::Nothing) };
    let place = (value(attribute::PAYLOAD_BASE)?, value(attribute::PAYLOAD_OFFSET)?, value(attribute::PAYLOAD_LENGTH)?);
    let is_port = place == (TRANSPORT, PORT_OFFSET, PORT_LENGTH);
    Some(Expression::Load(register, if is_port { RegisterValue::Port } else { RegisterValue::Other }))
}

fn parse_compare(data: &[u8]) -> Option<Expression> {
    let equal = match find_attribute(data, attribute::COMPARE_HOW).and_then(number)? {
        EQUAL => Some(true),
        UNEQUAL => Some(false),
        _ => None,
    };
    let value = find_attribute(find_attribute(data, attribute::COMPARE_DATA)?, attribute::VALUE)?.to_vec();
    Some(Expression::Compare {
        register: find_attribute(data, attribute::COMPARE_REGISTER).and_then(number)?,
        equal,
        value,
    })
}

fn parse_immediate(data: &[u8]) -> Option<Expression> {
    let register = find_attribute(data, attribute::IMMEDIATE_REGISTER).and_then(number)?;
    if register != VERDICT {
        return Some(Expression::Load(register, RegisterValue::Other));
    }
    // `NFTA_DATA_VERDICT`, which contains `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`.
    let verdict = find_attribute(find_attribute(data, attribute::IMMEDIATE_DATA)?, 2)?;
    let code: [u8; 4] = find_attribute(verdict, 1)?.try_into().ok()?;
    let chain = || find_attribute(verdict, 2).and_then(text).map(str::to_owned);
    Some(Expression::Verdict(match i32::from_be_bytes(code) {
        ACCEPT | DROP => RuleVerdict::Ends,
        RETURN => RuleVerdict::Returns,
        JUMP => RuleVerdict::Jumps(chain()?),
        GOTO => RuleVerdict::GoesTo(chain()?),
        CONTINUE => RuleVerdict::Continues,
        _ => return None,
    }))
}

/// Parses a match of an iptables extension (attributes `NFTA_MATCH_NAME`, `_REV` and `_INFO`).
/// Supported are comments, and the two extensions that older iptables versions write for `-p tcp
/// --dport` and `-m multiport --dports`.
fn parse_match(data: &[u8]) -> Option<Expression> {
    let revision = find_attribute(data, 2).and_then(number)?;
    let info = find_attribute(data, 3)?;
    let port = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    match (find_attribute(data, 1).and_then(text)?, revision) {
        ("comment", _) => Some(Expression::Nothing),
        // `struct xt_tcp`: two source ports, two destination ports, option, flags, inversion flags
        // (2: destination).
        ("tcp", 0) => {
            let [option, flags, _, inverted] = *info.get(8..12)? else { return None };
            let every_source = (port(0)?, port(2)?) == (0, u16::MAX);
            let plain = option == 0 && flags == 0 && inverted & !2 == 0 && every_source;
            plain
                .then(|| Some(Expression::Ports { ranges: vec![(port(4)?, port(6)?)], inverted: inverted & 2 != 0 }))?
        }
        // `struct xt_multiport_v1`: direction (1: destination), count, 15 ports, 15 flags for a
        // port that begins a range, inversion.
        ("multiport", 1) => {
            let [which, count] = *info.get(..2)? else { return None };
            let (marks, inverted) = (info.get(32..47)?, *info.get(47)? != 0);
            let mut ranges = Vec::new();
            let mut at = 0;
            while at < usize::from(count.min(15)) {
                let is_range = marks.get(at) != Some(&0);
                let last = if is_range { at + 1 } else { at };
                ranges.push((port(2 + 2 * at)?, port(2 + 2 * last)?));
                at = last + 1;
            }
            (which == 1).then_some(Expression::Ports { ranges, inverted })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
