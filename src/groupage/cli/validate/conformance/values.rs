//! Comparison of each member's part of a batch response with the answer to the member alone, by its
//! values.

use bytes::Bytes;
use http::HeaderMap;

use super::result::MemberComparison;
use super::sample::TestCommand;
use super::{ConformanceClient, ServerAnswer};
use crate::protocol::{AnswerComparison, AnswerContent, Call, Endpoint};

// === impl ConformanceClient ===

impl ConformanceClient {
    /// Compares the parts of the members with their answers alone. `answer` is the batch response, and
    /// `unbatched` the answer to the first member.
    pub(super) async fn compare_members(
        &self,
        endpoint: &Endpoint,
        (members, path): ([&Call; 2], &str),
        (answer, unbatched): (&ServerAnswer, &ServerAnswer),
        parts: &[Bytes],
    ) -> Vec<MemberComparison> {
        let mut comparisons = Vec::new();
        if !self.has_values(endpoint, members[0]) {
            return comparisons;
        }
        for (place, (part, call)) in parts.iter().zip(members).enumerate() {
            // A pair has two different calls, each with an answer of its own.
            let own = match place {
                0 => Some(unbatched.body.clone()),
                _ if members[0].body == members[1].body => None,
                _ => self.send_member(call, path).await,
            };
            if let Some(own) = own {
                // Samples are JSON, and so are the answers.
                comparisons.push(self.compare_member(endpoint, (call, path), &answer.headers, [part, &own]).await);
            }
        }
        comparisons
    }

    /// Returns `true` if the values in answers to a call are compared.
    fn has_values(&self, endpoint: &Endpoint, call: &Call) -> bool {
        let has_text = endpoint.generates_text() && !call.streaming;
        endpoint.is_comparable(call) || has_text && self.command == TestCommand::Check
    }

    /// Compares the part of a member, which is the first body, with the answer to it alone.
    async fn compare_member(
        &self,
        endpoint: &Endpoint,
        (call, path): (&Call, &str),
        headers: &HeaderMap,
        [part, own]: [&Bytes; 2],
    ) -> MemberComparison {
        let compare = |one: &Bytes, other: &Bytes| {
            let [one, other] = [one, other].map(|body| AnswerContent { headers, body });
            endpoint.compare_answers(call, one, other)
        };
        if part == own {
            return MemberComparison::Identical;
        }
        let comparison = compare(part, own);
        // Texts may differ from one time to the next, which shows nothing about the batch.
        if matches!(comparison, AnswerComparison::Different(_))
            && endpoint.generates_text()
            && let Some(again) = self.send_member(call, path).await
            && let AnswerComparison::Different(found) = compare(own, &again)
        {
            return MemberComparison::Varying(found);
        }
        MemberComparison::Compared(comparison)
    }
}
