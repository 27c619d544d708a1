//! Analysis of existing `nf_tables` rules: finds rules of other owners that redirect an inbound
//! port. Pure.
//!
//! The analysis follows a TCP packet from outside through every foreign chain at the prerouting
//! hook, in three-valued logic. Matches on protocol, destination port and device are evaluated; any
//! other match (sets, marks, addresses, all but two iptables extensions) may be true or false. A
//! certain redirect is a reason to refuse, a possible one is reported.
//!
//! Rules of legacy iptables, which `nf_tables` does not list (`kernel::unseen`), rules of devices
//! (`netdev`) and eBPF programs are excluded.

use std::collections::BTreeMap;

use super::message::{Item, Reply, attributes, number, replies, text};
use super::ruleset::{
    DEVICE_TYPE, EQUAL, INET, LOOPBACK, NEW_CHAIN, NEW_RULE, PORT_LENGTH, PORT_OFFSET, PREROUTING, PROTOCOL, TABLE,
    TCP, TRANSPORT, UNEQUAL, is,
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
const TAKING_TARGETS: [&str; 4] = ["REDIRECT", "DNAT", "NETMAP", "TPROXY"];

/// The rules of other owners.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Base chains at the prerouting hook.
    begin: Vec<Name>,
    rules: BTreeMap<Name, Vec<Rule>>,
}

/// A chain: family, table, name.
type Name = (u8, String, String);
type Rule = Vec<Expression>;

/// A rule that redirects a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// Description for a message.
    pub(super) by: String,
    /// `true` if the redirect is certain.
    pub(super) sure: bool,
}

/// Effect of an expression, reduced to what this analysis needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    /// Loads a value into a register.
    Load(u32, Loaded),
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
    Asks,
    /// Redirects the packet.
    Takes,
    Verdict(Verdict),
    /// Neither matches nor decides.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Protocol,
    DeviceType,
    Port,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Ends,
    Returns,
    Jumps(String),
    GoesTo(String),
    Continues,
}

/// Three-valued truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    No,
    Perhaps,
    Yes,
}

/// State of a packet after a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Continues after the rule that jumped to the chain.
    Returned,
    /// Left all chains of this hook's base chain without a redirect.
    Ended,
    Taken,
}

/// The evaluation of one packet.
struct Walk<'a> {
    others: &'a Others,
    port: u16,
    /// `true` if an earlier rule may have ended the evaluation.
    doubt: bool,
    /// `true` if an earlier rule may have redirected the packet.
    perhaps: bool,
    steps: usize,
}

// === impl Others ===

impl Others {
    /// Parses the chains and rules that the kernel listed.
    pub(super) fn read(chains: &[Vec<u8>], rules: &[Vec<u8>]) -> Self {
        let mut others = Self::default();
        others.begin.extend(items(chains, NEW_CHAIN).filter_map(incoming));
        for (name, rule) in items(rules, NEW_RULE).filter_map(rule) {
            others.rules.entry(name).or_default().push(rule);
        }
        others
    }

    /// Returns the rule that redirects, or may redirect, an inbound connection to a port.
    pub(super) fn take(&self, port: u16) -> Option<Taken> {
        let mut unsure = None;
        for name in &self.begin {
            let mut walk = Walk { others: self, port, doubt: false, perhaps: false, steps: 0 };
            let taken = walk.chain(name, 0) == After::Taken;
            if !taken && !walk.perhaps {
                continue;
            }
            let sure = taken && !walk.doubt;
            let (family, table, chain) = name;
            let family = match *family {
                INET => "inet",
                IPV4 => "ip",
                _ => "ip6",
            };
            let verb = if sure { "is already redirected" } else { "may already be redirected" };
            let by = format!("port {port} {verb} by chain {chain} of table {family} {table}");
            if sure {
                return Some(Taken { by, sure });
            }
            unsure.get_or_insert(Taken { by, sure });
        }
        unsure
    }
}

// === impl Walk ===

impl Walk<'_> {
    fn chain(&mut self, name: &Name, depth: usize) -> After {
        let others = self.others;
        for rule in others.rules.get(name).map(Vec::as_slice).unwrap_or_default() {
            self.steps += 1;
            if depth > DEPTH_MAX || self.steps > STEPS_MAX {
                self.perhaps = true;
                return After::Ended;
            }
            if let Some(after) = self.rule(name, rule, depth) {
                return after;
            }
        }
        After::Returned
    }

    /// Evaluates a rule. Returns the packet's state if the rule ends the chain, `None` if the next
    /// rule follows.
    fn rule(&mut self, name: &Name, rule: &Rule, depth: usize) -> Option<After> {
        let (mut truth, mut registers) = (Truth::Yes, BTreeMap::new());
        for expression in rule {
            match expression {
                Expression::Load(register, loaded) => {
                    registers.insert(*register, *loaded);
                }
                Expression::Nothing => {}
                Expression::Takes if truth == Truth::Yes => return Some(After::Taken),
                Expression::Takes => {
                    self.perhaps = true;
                    return None;
                }
                Expression::Verdict(verdict) => return self.verdict(verdict, truth, name, depth),
                asks => truth = truth.min(self.asked(asks, &registers)),
            }
            if truth == Truth::No {
                return None;
            }
        }
        None
    }

    /// Applies a verdict. An uncertain match adds doubt instead of ending the chain. An uncertain
    /// jump adds none if the target chain returns.
    fn verdict(&mut self, verdict: &Verdict, truth: Truth, name: &Name, depth: usize) -> Option<After> {
        let sure = truth == Truth::Yes;
        match verdict {
            Verdict::Continues => None,
            Verdict::Ends | Verdict::Returns if !sure => {
                self.doubt = true;
                None
            }
            Verdict::Ends => Some(After::Ended),
            Verdict::Returns => Some(After::Returned),
            Verdict::Jumps(to) | Verdict::GoesTo(to) => {
                let doubt = self.doubt;
                let after = self.chain(&(name.0, name.1.clone(), to.clone()), depth + 1);
                match after {
                    After::Taken if sure => Some(After::Taken),
                    After::Taken => {
                        (self.perhaps, self.doubt) = (true, doubt);
                        None
                    }
                    After::Ended if sure => Some(After::Ended),
                    After::Returned if sure && matches!(verdict, Verdict::GoesTo(_)) => Some(After::Returned),
                    After::Returned if sure => None,
                    After::Returned if matches!(verdict, Verdict::Jumps(_)) => None,
                    After::Ended | After::Returned => {
                        self.doubt = true;
                        None
                    }
                }
            }
        }
    }

    fn asked(&self, expression: &Expression, registers: &BTreeMap<u32, Loaded>) -> Truth {
        match expression {
            Expression::Compare { register, equal: Some(equal), value } => {
                let loaded = registers.get(register).copied().unwrap_or(Loaded::Other);
                let found = match loaded {
                    Loaded::Protocol => Some(value == &[TCP]),
                    Loaded::Port => Some(value == &self.port.to_be_bytes()),
                    // The packet did not arrive by the loopback device; its device type is unknown
                    // otherwise.
                    Loaded::DeviceType => (value == &LOOPBACK.to_ne_bytes()).then_some(false),
                    Loaded::Other => None,
                };
                found.map_or(Truth::Perhaps, |found| Truth::from(found == *equal))
            }
            Expression::Ports { ranges, inverted } => {
                let found = ranges.iter().any(|(from, to)| (*from..=*to).contains(&self.port));
                Truth::from(found != *inverted)
            }
            _ => Truth::Perhaps,
        }
    }
}

impl From<bool> for Truth {
    fn from(so: bool) -> Self {
        if so { Self::Yes } else { Self::No }
    }
}

fn items(listed: &[Vec<u8>], kind: u16) -> impl Iterator<Item = Item<'_>> {
    listed.iter().flat_map(|read| replies(read)).filter_map(move |reply| match reply {
        Reply::Item(item) if item.kind == kind => Some(item),
        _ => None,
    })
}

/// Returns the value of an attribute.
fn within(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Returns a base chain of another owner at the prerouting hook.
fn incoming(Item { family, attributes, .. }: Item<'_>) -> Option<Name> {
    let table = text(within(attributes, is::CHAIN_TABLE)?)?;
    let name = text(within(attributes, is::CHAIN_NAME)?)?;
    let hook = number(within(within(attributes, is::CHAIN_HOOK)?, is::HOOK_NUMBER)?)?;
    let ours = family == INET && table == TABLE;
    (hook == PREROUTING && matches!(family, INET | IPV4 | IPV6) && !ours)
        .then(|| (family, table.to_owned(), name.to_owned()))
}

fn rule(item: Item<'_>) -> Option<(Name, Rule)> {
    let table = text(within(item.attributes, is::RULE_TABLE)?)?;
    let chain = text(within(item.attributes, is::RULE_CHAIN)?)?;
    let list = within(item.attributes, is::RULE_EXPRESSIONS).unwrap_or_default();
    let expressions = attributes(list).filter(|(kind, _)| *kind == is::ELEMENT).map(|(_, each)| expression(each));
    Some(((item.family, table.to_owned(), chain.to_owned()), expressions.collect()))
}

/// Parses an expression. An unsupported one becomes a match with an unknown result.
fn expression(bytes: &[u8]) -> Expression {
    let name = within(bytes, is::EXPRESSION_NAME).and_then(text).unwrap_or_default();
    let data = within(bytes, is::EXPRESSION_DATA).unwrap_or_default();
    let value = |kind| within(data, kind).and_then(number);
    let read = match name {
        "counter" | "log" | "notrack" | "last" => Some(Expression::Nothing),
        "meta" => meta(data),
        "payload" => payload(data),
        "cmp" => compare(data),
        "immediate" => verdict(data),
        "redir" | "tproxy" => Some(Expression::Takes),
        // Only a change of the destination matters here.
        "nat" => value(1).map(|kind| if kind == DNAT { Expression::Takes } else { Expression::Nothing }),
        "match" => matching(data),
        "target" => within(data, 1)
            .and_then(text)
            .map(|name| if TAKING_TARGETS.contains(&name) { Expression::Takes } else { Expression::Nothing }),
        _ => None,
    };
    read.unwrap_or(Expression::Asks)
}

fn meta(data: &[u8]) -> Option<Expression> {
    // An expression without a destination register sets a mark or other metadata and loads nothing.
    let Some(register) = within(data, is::META_REGISTER).and_then(number) else { return Some(Expression::Nothing) };
    let loaded = match within(data, is::META_KEY).and_then(number)? {
        PROTOCOL => Loaded::Protocol,
        DEVICE_TYPE => Loaded::DeviceType,
        _ => Loaded::Other,
    };
    Some(Expression::Load(register, loaded))
}

fn payload(data: &[u8]) -> Option<Expression> {
    let value = |kind| within(data, kind).and_then(number);
    // An expression without a destination register writes a field of the packet.
    let Some(register) = value(is::PAYLOAD_REGISTER) else { return Some(Expression::Nothing) };
    let place = (value(is::PAYLOAD_BASE)?, value(is::PAYLOAD_OFFSET)?, value(is::PAYLOAD_LENGTH)?);
    let is_port = place == (TRANSPORT, PORT_OFFSET, PORT_LENGTH);
    Some(Expression::Load(register, if is_port { Loaded::Port } else { Loaded::Other }))
}

fn compare(data: &[u8]) -> Option<Expression> {
    let equal = match within(data, is::COMPARE_HOW).and_then(number)? {
        EQUAL => Some(true),
        UNEQUAL => Some(false),
        _ => None,
    };
    let value = within(within(data, is::COMPARE_DATA)?, is::VALUE)?.to_vec();
    Some(Expression::Compare { register: within(data, is::COMPARE_REGISTER).and_then(number)?, equal, value })
}

fn verdict(data: &[u8]) -> Option<Expression> {
    let register = within(data, is::IMMEDIATE_REGISTER).and_then(number)?;
    if register != VERDICT {
        return Some(Expression::Load(register, Loaded::Other));
    }
    // `NFTA_DATA_VERDICT`, which contains `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`.
    let verdict = within(within(data, is::IMMEDIATE_DATA)?, 2)?;
    let code: [u8; 4] = within(verdict, 1)?.try_into().ok()?;
    let chain = || within(verdict, 2).and_then(text).map(str::to_owned);
    Some(Expression::Verdict(match i32::from_be_bytes(code) {
        ACCEPT | DROP => Verdict::Ends,
        RETURN => Verdict::Returns,
        JUMP => Verdict::Jumps(chain()?),
        GOTO => Verdict::GoesTo(chain()?),
        CONTINUE => Verdict::Continues,
        _ => return None,
    }))
}

/// Parses two iptables extensions, which older iptables versions write for `-p tcp --dport` and `-m
/// multiport --dports` (attributes `NFTA_MATCH_NAME`, `_REV` and `_INFO`).
fn matching(data: &[u8]) -> Option<Expression> {
    let revision = within(data, 2).and_then(number)?;
    let info = within(data, 3)?;
    let port = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    match (within(data, 1).and_then(text)?, revision) {
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
