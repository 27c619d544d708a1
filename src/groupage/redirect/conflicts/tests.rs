//! Rulesets built in the format in which the kernel lists them, and the result of the analysis for
//! a port.

use super::super::message::{AttributeBuilder, NetlinkMessage};
use super::super::ruleset::{compare, expression as named, meta, payload};
use super::*;

/// Chains and rules in the listing format.
#[derive(Default)]
struct RuleListing {
    chains: Vec<Vec<u8>>,
    rules: Vec<Vec<u8>>,
}

impl RuleListing {
    fn base(self, family: u8, table: &str, name: &str, hook: u32) -> Self {
        let hook = AttributeBuilder::default().number(attribute::HOOK_NUMBER, hook);
        let chain = AttributeBuilder::default()
            .text(attribute::CHAIN_TABLE, table)
            .text(attribute::CHAIN_NAME, name)
            .nest(attribute::CHAIN_HOOK, &hook);
        self.listed(NEW_CHAIN, family, chain)
    }

    fn rule(self, family: u8, table: &str, chain: &str, expressions: &[AttributeBuilder]) -> Self {
        let list =
            expressions.iter().fold(AttributeBuilder::default(), |list, each| list.nest(attribute::ELEMENT, each));
        let rule = AttributeBuilder::default()
            .text(attribute::RULE_TABLE, table)
            .text(attribute::RULE_CHAIN, chain)
            .nest(attribute::RULE_EXPRESSIONS, &list);
        self.listed(NEW_RULE, family, rule)
    }

    fn listed(mut self, kind: u16, family: u8, attributes: AttributeBuilder) -> Self {
        let message = NetlinkMessage::new(kind, 0, 1, (family, 0)).with(attributes).finish();
        if kind == NEW_CHAIN {
            self.chains.push(message);
        } else {
            self.rules.push(message);
        }
        self
    }

    fn nat(self, rules: &[&[AttributeBuilder]]) -> Self {
        let with_chain = self.base(IPV4, "nat", "PREROUTING", PREROUTING);
        rules.iter().fold(with_chain, |listed, rule| listed.rule(IPV4, "nat", "PREROUTING", rule))
    }

    /// Returns `None` if no rule redirects the port, otherwise whether the redirect is certain.
    fn conflict(&self, port: u16) -> Option<bool> {
        ForeignRules::read(&self.chains, &self.rules).find_conflict(port).map(|conflict| conflict.is_certain)
    }
}

fn tcp() -> [AttributeBuilder; 2] {
    [named("meta", &meta(PROTOCOL)), named("cmp", &compare(EQUAL, &[TCP]))]
}

fn udp() -> [AttributeBuilder; 2] {
    [named("meta", &meta(PROTOCOL)), named("cmp", &compare(EQUAL, &[17]))]
}

fn port(how: u32, port: u16) -> [AttributeBuilder; 2] {
    [named("payload", &payload()), named("cmp", &compare(how, &port.to_be_bytes()))]
}

fn target(name: &str) -> AttributeBuilder {
    named("target", &AttributeBuilder::default().text(1, name))
}

fn redir() -> AttributeBuilder {
    named("redir", &AttributeBuilder::default().number(1, 1))
}

fn verdict_of(code: i32, chain: Option<&str>) -> AttributeBuilder {
    let verdict = AttributeBuilder::default().bytes(1, &code.to_be_bytes());
    let verdict = chain.into_iter().fold(verdict, |verdict, chain| verdict.text(2, chain));
    named(
        "immediate",
        &AttributeBuilder::default().number(1, VERDICT).nest(2, &AttributeBuilder::default().nest(2, &verdict)),
    )
}

fn matches(name: &str, revision: u32, info: &[u8]) -> AttributeBuilder {
    named("match", &AttributeBuilder::default().text(1, name).number(2, revision).bytes(3, info))
}

fn unknown() -> AttributeBuilder {
    named("lookup", &AttributeBuilder::default())
}

/// `--dports` in the format of iptables.
fn multiport(ports: &[u16]) -> AttributeBuilder {
    let mut info = [0_u8; 48];
    (info[0], info[1]) = (1, u8::try_from(ports.len()).unwrap());
    for (at, port) in ports.iter().enumerate() {
        info[2 + 2 * at..4 + 2 * at].copy_from_slice(&port.to_ne_bytes());
    }
    matches("multiport", 1, &info)
}

#[test]
fn a_redirect_of_the_port_is_a_certain_conflict_and_of_another_port_is_none() {
    let listed = RuleListing::default().nat(&[&[tcp().as_slice(), &port(EQUAL, 8080), &[redir()]].concat()]);
    assert_eq!((listed.conflict(8080), listed.conflict(8081)), (Some(true), None));
    let found = ForeignRules::read(&listed.chains, &listed.rules).find_conflict(8080).unwrap();
    assert_eq!(found.by, "port 8080 is already redirected by chain PREROUTING of table ip nat");
    let others = RuleListing::default().nat(&[&[port(UNEQUAL, 8080).as_slice(), &[redir()]].concat()]);
    assert_eq!((others.conflict(8080), others.conflict(8081)), (None, Some(true)));
    let udp = RuleListing::default().nat(&[&[udp().as_slice(), &[redir()]].concat()]);
    assert_eq!(udp.conflict(8080), None);
}

#[test]
fn our_own_table_and_other_hooks_are_no_conflict() {
    let rule = [redir()];
    let own = RuleListing::default().base(INET, TABLE, "prerouting", PREROUTING).rule(INET, TABLE, "prerouting", &rule);
    assert_eq!(own.conflict(8080), None);
    let namesake =
        RuleListing::default().base(IPV6, TABLE, "prerouting", PREROUTING).rule(IPV6, TABLE, "prerouting", &rule);
    assert_eq!(namesake.conflict(8080), Some(true));
    let output = RuleListing::default().base(IPV4, "nat", "OUTPUT", 3).rule(IPV4, "nat", "OUTPUT", &rule);
    assert_eq!(output.conflict(8080), None);
    let device = RuleListing::default().base(5, "x", "ingress", 0).rule(5, "x", "ingress", &rule);
    assert_eq!(device.conflict(8080), None);
}

#[test]
fn a_mesh_is_followed_through_its_chains() {
    // The rules of istio-init, which redirect all but some ports.
    let inbound = |listed: RuleListing, rule: &[AttributeBuilder]| listed.rule(IPV4, "nat", "ISTIO_INBOUND", rule);
    let mut listed =
        RuleListing::default().nat(&[&[tcp().as_slice(), &[verdict_of(JUMP, Some("ISTIO_INBOUND"))]].concat()]);
    listed = inbound(listed, &[tcp().as_slice(), &port(EQUAL, 15090), &[verdict_of(RETURN, None)]].concat());
    listed = inbound(listed, &[tcp().as_slice(), &[verdict_of(JUMP, Some("ISTIO_IN_REDIRECT"))]].concat());
    listed = listed.rule(IPV4, "nat", "ISTIO_IN_REDIRECT", &[tcp().as_slice(), &[target("REDIRECT")]].concat());
    assert_eq!((listed.conflict(8080), listed.conflict(15090)), (Some(true), None));
    // The rules of linkerd-init.
    let proxy = |listed: RuleListing, rule: &[AttributeBuilder]| listed.rule(IPV4, "nat", "PROXY_INIT", rule);
    let comment = || matches("comment", 0, b"proxy-init");
    let mut listed = RuleListing::default().nat(&[&[comment(), verdict_of(JUMP, Some("PROXY_INIT"))]]);
    listed = proxy(listed, &[tcp().as_slice(), &[multiport(&[4190, 4191]), verdict_of(RETURN, None)]].concat());
    listed = proxy(listed, &[tcp().as_slice(), &[comment(), target("REDIRECT")]].concat());
    assert_eq!((listed.conflict(8080), listed.conflict(4191)), (Some(true), None));
}

#[test]
fn an_unsupported_match_makes_a_redirect_uncertain() {
    let perhaps = RuleListing::default().nat(&[&[unknown(), redir()]]);
    assert_eq!(perhaps.conflict(8080), Some(false));
    let found = ForeignRules::read(&perhaps.chains, &perhaps.rules).find_conflict(8080).unwrap();
    assert_eq!(found.by, "port 8080 may already be redirected by chain PREROUTING of table ip nat");
    // An uncertain accept before a certain redirect.
    let accepted = RuleListing::default().nat(&[&[unknown(), verdict_of(ACCEPT, None)], &[redir()]]);
    assert_eq!(accepted.conflict(8080), Some(false));
    // An uncertain jump to a chain that returns; the next rule is certain again.
    let jump = RuleListing::default().nat(&[&[unknown(), verdict_of(JUMP, Some("x"))], &[redir()]]);
    assert_eq!(jump.conflict(8080), Some(true));
    let goto = RuleListing::default().nat(&[&[unknown(), verdict_of(GOTO, Some("x"))], &[redir()]]);
    assert_eq!(goto.conflict(8080), Some(false));
    // An uncertain jump to a chain that redirects: with the next rule, every packet is redirected.
    let redirecting = || RuleListing::default().nat(&[&[unknown(), verdict_of(JUMP, Some("x"))], &[redir()]]);
    assert_eq!(redirecting().rule(IPV4, "nat", "x", &[redir()]).conflict(8080), Some(true));
    // An uncertain accept in that chain, before its redirect.
    let accepting = redirecting().rule(IPV4, "nat", "x", &[unknown(), verdict_of(ACCEPT, None)]);
    assert_eq!(accepting.rule(IPV4, "nat", "x", &[redir()]).conflict(8080), Some(false));
    // An uncertain redirect in one chain, a certain one in another.
    let both = perhaps.base(INET, "x", "y", PREROUTING).rule(INET, "x", "y", &[redir()]);
    assert_eq!(both.conflict(8080), Some(true));
}

#[test]
fn unreachable_redirects_and_rules_that_do_not_redirect_are_no_conflict() {
    let accepted = RuleListing::default()
        .nat(&[&[port(EQUAL, 8080).as_slice(), &[verdict_of(ACCEPT, None)]].concat(), &[redir()]]);
    assert_eq!((accepted.conflict(8080), accepted.conflict(1)), (None, Some(true)));
    let unconditional_goto = RuleListing::default().nat(&[&[verdict_of(GOTO, Some("x"))], &[redir()]]);
    assert_eq!(unconditional_goto.conflict(8080), None);
    let counts = named("counter", &AttributeBuilder::default());
    let loopback = [named("meta", &meta(DEVICE_TYPE)), named("cmp", &compare(EQUAL, &LOOPBACK.to_ne_bytes()))];
    let local = RuleListing::default().nat(&[&[loopback.as_slice(), &[counts, redir()]].concat()]);
    assert_eq!(local.conflict(8080), None, "the packet comes from outside");
    let source = RuleListing::default().nat(&[&[named("nat", &AttributeBuilder::default().number(1, 0))]]);
    let destination = RuleListing::default().nat(&[&[named("nat", &AttributeBuilder::default().number(1, 1))]]);
    assert_eq!((source.conflict(8080), destination.conflict(8080)), (None, Some(true)));
    let marks = RuleListing::default().nat(&[&[target("MARK")]]);
    assert_eq!(marks.conflict(8080), None);
}

#[test]
fn ports_of_older_rules_of_iptables_are_read() {
    let range = |from: u16, to: u16, inverted: u8| {
        let mut info = Vec::new();
        for port in [0, u16::MAX, from, to] {
            info.extend(port.to_ne_bytes());
        }
        info.extend([0, 0, 0, inverted]);
        RuleListing::default().nat(&[&[matches("tcp", 0, &info), target("DNAT")]])
    };
    assert_eq!((range(80, 90, 0).conflict(85), range(80, 90, 0).conflict(91)), (Some(true), None));
    assert_eq!((range(80, 90, 2).conflict(85), range(80, 90, 2).conflict(91)), (None, Some(true)));
    let short = RuleListing::default().nat(&[&[matches("tcp", 0, &[0; 3]), target("DNAT")]]);
    assert_eq!(short.conflict(85), Some(false));
}

#[test]
fn cyclic_and_wide_jumps_terminate_as_uncertain() {
    let circle = RuleListing::default()
        .nat(&[&[verdict_of(JUMP, Some("a"))]])
        .rule(IPV4, "nat", "a", &[verdict_of(JUMP, Some("b"))])
        .rule(IPV4, "nat", "b", &[verdict_of(JUMP, Some("a"))]);
    assert_eq!(circle.conflict(8080), Some(false));
    let wide: Vec<Vec<AttributeBuilder>> = (0..40).map(|_| vec![verdict_of(JUMP, Some("PREROUTING"))]).collect();
    let wide: Vec<&[AttributeBuilder]> = wide.iter().map(Vec::as_slice).collect();
    assert_eq!(RuleListing::default().nat(&wide).conflict(8080), Some(false));
}

proptest::proptest! {
    #[test]
    fn random_bytes_conflict_only_if_they_decode_to_a_redirect(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..120)) {
        let read = parse_expression(&bytes);
        let rule = AttributeBuilder::default().text(attribute::RULE_TABLE, "t").text(attribute::RULE_CHAIN, "c").nest(attribute::RULE_EXPRESSIONS, &AttributeBuilder::default().bytes(attribute::ELEMENT, &bytes));
        let listed = RuleListing::default().base(IPV4, "t", "c", 0).listed(NEW_RULE, IPV4, rule);
        let conflict = listed.conflict(8080);
        proptest::prop_assert!(conflict.is_none() || matches!(read, Expression::Redirect));
    }
}
