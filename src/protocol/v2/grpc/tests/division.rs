//! Calls with more rows than a server accepts, in parts.

use super::*;
use crate::tests::division::{items, join as join_replies};

/// Divides a call into parts of at most `rows` rows.
fn divide(call: &Call, rows: u32) -> Option<Vec<Call>> {
    let mut head = http::Request::post(PATH).version(Version::HTTP_2).body(()).unwrap().into_parts().0;
    head.headers.clone_from(&call.head.headers);
    head.headers.insert("te", "trailers".parse().unwrap());
    let plan = grpc().plan_division(call, &items(rows))?;
    let calls = grpc().divide_call(call, &head, &plan, &secret())?;
    assert!(calls.iter().map(|part| part.body.len()).sum::<usize>() <= plan.bytes);
    Some(calls)
}

fn join(calls: &[Call], messages: &[Vec<u8>]) -> Result<Reply, MismatchKind> {
    let trailers = headers_of(&[("grpc-status", "0")]);
    let reply = |message: &Vec<u8>| Reply {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: framed(message),
        trailers: Some(trailers.clone()),
    };
    let replies: Vec<Reply> = messages.iter().map(reply).collect();
    join_replies(&grpc(), calls, &replies)
}

#[test]
fn a_part_has_its_own_rows_of_each_input() {
    let id = field(3, b"q");
    let call = read(&raw(b"\x03", b"aabbcc", &id));
    let parts = divide(&call, 2).unwrap();
    let bodies: Vec<Bytes> = parts.iter().map(|part| part.body.clone()).collect();
    assert_eq!(bodies, [framed(&raw(b"\x02", b"aabb", &id)), framed(&raw(b"\x01", b"cc", &id))]);
    assert!(parts.iter().all(|part| key(part) == key(&call)), "the parts may share batches with other calls");
    assert!(divide(&call, 3).is_none());
    let typed = |shape: &[u8], elements: &[u8]| {
        let input = tensor("x", "INT32", shape, Some(&field(2, elements)));
        [field(1, b"m"), field(5, &input)].concat()
    };
    let parts = divide(&read(&typed(b"\x03", b"\x01\xac\x02\x03")), 1).unwrap();
    let bodies: Vec<Call> = [&b"\x01"[..], b"\xac\x02", b"\x03"].map(|element| read(&typed(b"\x01", element))).into();
    assert!(parts.iter().map(|part| &part.body).eq(bodies.iter().map(|call| &call.body)), "{parts:?}");
}

#[test]
fn the_response_has_the_rows_of_all_parts() {
    let calls = divide(&read(&raw(b"\x03", b"aabbcc", b"")), 2).unwrap();
    let joined = join(&calls, &[outputs(b"\x02", b"AABB", b""), outputs(b"\x01", b"CC", b"")]).unwrap();
    assert_eq!(joined.body, framed(&outputs(b"\x03", b"AABBCC", b"")));
    assert_eq!(joined.trailers.unwrap()["grpc-status"], "0");
    let few = join(&calls, &[outputs(b"\x02", b"AABB", b""), outputs(b"\x02", b"CCDD", b"")]);
    assert_eq!(few.unwrap_err(), MismatchKind::Count);
    // A parameter may count the rows.
    let counts = join(&calls, &[outputs(b"\x02", b"AABB", &parameter(4, "n")), outputs(b"\x01", b"CC", b"")]);
    assert_eq!(counts.unwrap_err(), MismatchKind::Undeclared);
    let other = outputs(b"\x01", b"CC", b"");
    let other = [field(1, b"m"), field(2, b"2"), other[6..].to_vec()].concat();
    assert_eq!(join(&calls, &[outputs(b"\x02", b"AABB", b""), other]).unwrap_err(), MismatchKind::Undeclared);
}
