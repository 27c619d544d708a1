//! The words that labels have. Enums, so that no label ever holds a path, an id or a tenant.

use crate::error::FailureKind;

/// How a call or an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered by the upstream, alone or in a batch.
    Served,
    /// Never accepted: no room.
    Rejected,
    /// Its deadline passed in the queue.
    Expired,
    /// The client left.
    Cancelled,
    /// Answered by us with an error.
    Failed,
    /// Not ours to merge: forwarded untouched.
    Passed,
}

/// The label `route` of routes beyond the bound on its values.
pub const OTHER_ROUTE: &str = "other";

/// What a call waited for before it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// As many requests as the server runs at once, or as a policy allows, were in flight.
    Limit,
    /// Other calls, to share a batch with.
    Company,
    /// The end of a pause that the server set by `Retry-After`.
    Pause,
}

/// What came of reading the settings again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reload {
    /// They are in force.
    Applied,
    /// Something is wrong with them: those before stay in force.
    Refused,
}

/// Why a connection of a captured port is carried on as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relayed {
    /// No route can hold for the port.
    NoRoute,
    /// Its client does not speak HTTP.
    NotHttp,
    /// Its server spoke first.
    ServerFirst,
}

/// Why a TLS handshake with a client came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handshake {
    /// The client sent nothing.
    Silent,
    /// Too many others were shaking hands.
    Busy,
    /// The client began and did not end in time.
    Slow,
    /// The client does not speak TLS.
    NotTls,
    /// Its certificate is missing, or not accepted.
    ClientCertificate,
    /// The client refused.
    Refused,
    /// Nothing that both can speak.
    Protocol,
    /// The client left, or the port was to be left.
    Left,
}

/// A part of our own work on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Scanning a call and making its key.
    Read,
    /// Writing a batch.
    Merge,
    /// Validating and cutting its answer.
    Split,
    /// Making the answer of one caller.
    Write,
}

/// Why nothing was predicted of a call that passed in mode `Observe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unpredicted {
    /// Too few calls have shown what they take.
    Unlearned,
    /// It is larger than a call that is merged.
    TooLarge,
    /// The process holds as many bytes as it may.
    BuffersFull,
    /// Calls come faster than they are looked at.
    Behind,
}

/// Why items are refused, in the order of the metrics page.
pub const REJECTED: [FailureKind; 5] = [
    FailureKind::QueueFull,
    FailureKind::BytesFull,
    FailureKind::TenantShare,
    FailureKind::LatePredicted,
    FailureKind::Draining,
];

/// Why items are ended early, in the order of the metrics page.
pub const EXPIRED: [FailureKind; 2] = [FailureKind::Deadline, FailureKind::LatePredicted];

/// What came of an SLO.
pub const SLO_RESULTS: [&str; 2] = ["met", "missed"];

// === impl Outcome ===

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 6] =
        [Self::Served, Self::Rejected, Self::Expired, Self::Cancelled, Self::Failed, Self::Passed];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Passed => "passed",
        }
    }
}

// === impl HoldReason ===

impl HoldReason {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::Limit, Self::Company, Self::Pause];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Company => "company",
            Self::Pause => "pause",
        }
    }
}

// === impl Reload ===

impl Reload {
    /// Every result.
    pub const ALL: [Self; 2] = [Self::Applied, Self::Refused];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
        }
    }
}

// === impl Relayed ===

impl Relayed {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::NoRoute, Self::NotHttp, Self::ServerFirst];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::NotHttp => "not_http",
            Self::ServerFirst => "server_first",
        }
    }
}

// === impl Handshake ===

impl Handshake {
    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Busy => "busy",
            Self::Slow => "slow",
            Self::NotTls => "not_tls",
            Self::ClientCertificate => "client_certificate",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Left => "left",
        }
    }
}

// === impl Unpredicted ===

impl Unpredicted {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Unlearned, Self::TooLarge, Self::BuffersFull, Self::Behind];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unlearned => "unlearned",
            Self::TooLarge => "too_large",
            Self::BuffersFull => "buffers_full",
            Self::Behind => "behind",
        }
    }
}

// === impl Stage ===

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 4] = [Self::Read, Self::Merge, Self::Split, Self::Write];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Merge => "merge",
            Self::Split => "split",
            Self::Write => "write",
        }
    }
}
