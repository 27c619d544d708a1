//! Who else takes a port where packets come in: a reader of the rules that are there, pure.
//!
//! It follows a TCP packet from outside through every chain of others at that hook, as far as it can tell: what a rule asks of protocol, destination port and device is
//! known, everything else (sets, marks, addresses, extensions of iptables but two) may be so or not. What is sure is a reason to refuse, what may be is said.
//!
//! It leaves out rules of the older iptables, which `nf_tables` does not show (`kernel::unseen`), and those of devices (`netdev`) and eBPF.

use std::collections::BTreeMap;

use super::message::{Item, Reply, attributes, number, replies, text};
use super::ruleset::{
    DEVICE_TYPE, EQUAL, INET, LOOPBACK, NEW_CHAIN, NEW_RULE, PORT_LENGTH, PORT_OFFSET, PREROUTING, PROTOCOL, TABLE,
    TCP, TRANSPORT, UNEQUAL, is,
};

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// Chains in one another: the kernel allows 16 (`NFT_JUMP_STACK_SIZE`).
const DEPTH_MAX: usize = 16;
/// Rules looked at for one port. Chains that lead to one another in many ways would take for ever; past it the rest is not sure.
const STEPS_MAX: usize = 100_000;
/// Verdicts (`enum nft_verdicts`, `NF_ACCEPT`, `NF_DROP`) as the kernel writes them.
const ACCEPT: i32 = 1;
const DROP: i32 = 0;
const CONTINUE: i32 = -1;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;
/// The register of verdicts.
const VERDICT: u32 = 0;
/// `NFT_NAT_DNAT`.
const DNAT: u32 = 1;
/// What of iptables' targets takes a packet elsewhere.
const TAKING_TARGETS: [&str; 4] = ["REDIRECT", "DNAT", "NETMAP", "TPROXY"];

/// The rules of others.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Chains where packets come in, with their families.
    begin: Vec<Name>,
    rules: BTreeMap<Name, Vec<Rule>>,
}

/// A chain: family, table, name.
type Name = (u8, String, String);
type Rule = Vec<Expression>;

/// Who takes a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// In words.
    pub(super) by: String,
    /// Whether it can be told for sure.
    pub(super) sure: bool,
}

/// What an expression does, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    /// Puts something into a register.
    Load(u32, Loaded),
    /// Asks whether a register is so, or is not.
    Compare {
        register: u32,
        equal: Option<bool>,
        value: Vec<u8>,
    },
    /// Asks whether the destination port is one of these.
    Ports {
        ranges: Vec<(u16, u16)>,
        inverted: bool,
    },
    /// Asks something else.
    Asks,
    /// Takes the packet elsewhere.
    Takes,
    Verdict(Verdict),
    /// Neither asks nor decides.
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

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Truth {
    No,
    Perhaps,
    Yes,
}

/// Where a packet is after a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Back where it came from.
    Returned,
    /// Past every rule of this hook's chain.
    Ended,
    Taken,
}

/// A packet on its way.
struct Walk<'a> {
    others: &'a Others,
    port: u16,
    /// Something may have led it off before.
    doubt: bool,
    /// Something may have taken it.
    perhaps: bool,
    steps: usize,
}

// === impl Others ===

impl Others {
    /// From what the kernel listed.
    pub(super) fn read(chains: &[Vec<u8>], rules: &[Vec<u8>]) -> Self {
        let mut others = Self::default();
        others.begin.extend(items(chains, NEW_CHAIN).filter_map(incoming));
        for (name, rule) in items(rules, NEW_RULE).filter_map(rule) {
            others.rules.entry(name).or_default().push(rule);
        }
        others
    }

    /// Who takes a port that is dialled from outside, if anybody does or may.
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
            let verb = if sure { "is redirected" } else { "may be redirected" };
            let by = format!("port {port} {verb} already, by chain {chain} of table {family} {table}");
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

    /// Where the packet is, unless it goes on to the next rule.
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
                    // It did not come by loopback; what else its device is nobody knows.
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

/// The value of an attribute among others.
fn within(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The name of a chain of others at our hook.
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

/// What cannot be read asks something that nobody knows.
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
        // To another destination; another source is no matter here.
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
    // A mark is set from a register, and none is filled.
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
    // A field of the packet is written.
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
    // `NFTA_DATA_VERDICT`, in it `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`.
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

/// Two of iptables' extensions: what `-p tcp --dport` and `-m multiport --dports` were in versions that did not write them otherwise. `NFTA_MATCH_NAME`, `_REV`, `_INFO`.
fn matching(data: &[u8]) -> Option<Expression> {
    let revision = within(data, 2).and_then(number)?;
    let info = within(data, 3)?;
    let port = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
    match (within(data, 1).and_then(text)?, revision) {
        ("comment", _) => Some(Expression::Nothing),
        // `struct xt_tcp`: two source ports, two destination ports, option, flags, inversions (2: of the destination).
        ("tcp", 0) => {
            let [option, flags, _, inverted] = *info.get(8..12)? else { return None };
            let every_source = (port(0)?, port(2)?) == (0, u16::MAX);
            let plain = option == 0 && flags == 0 && inverted & !2 == 0 && every_source;
            plain
                .then(|| Some(Expression::Ports { ranges: vec![(port(4)?, port(6)?)], inverted: inverted & 2 != 0 }))?
        }
        // `struct xt_multiport_v1`: which (1: destination), count, 15 ports, 15 marks that a port begins a range, inversion.
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
