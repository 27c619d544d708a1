//! The certificates of the controller's two TLS ports: webhook and control stream.
//!
//! By default it is its own authority: a CA for a year and a leaf for thirty days in one Secret, written by the leader, read by every replica, exchanged while
//! connections live on. What is due is decided by `plan`, a pure function of the time and of what the Secret holds. A new CA is believed before it is used
//! and an old one is believed long after: [`INTRODUCE`] and [`RETIRE`] say how long, so whoever looks in between (API server, sidecars that were away) always
//! believes the leaf that is shown. Instead of it the files of cert-manager, or of anybody, are read (`files`); who believes those is not ours then.
//!
//! Left out: revocation, and telling sidecars of a new CA (the stream takes it from [`Served`]).

mod files;
mod keeper;
mod material;
mod plan;
mod served;

pub use self::files::watch_files;
pub use self::keeper::{KeeperSettings, keep};
pub use self::material::{Authority, Held, Leaf, Validity, certificates, validity};
pub use self::plan::{Action, plan};
pub use self::served::{Presented, Served};

use std::time::Duration;

/// Life of a CA.
pub const CA_LIFE: Duration = days(365);
/// Life of a leaf.
pub const LEAF_LIFE: Duration = days(30);
/// A new CA is believed so long before a leaf of it is shown: longer than the 72 h for which a sidecar may be without a controller.
pub const INTRODUCE: Duration = days(4);
/// A CA is believed so long after the one that follows it came: the introduction, and the life of a leaf.
pub const RETIRE: Duration = days(34);
/// The leaf of the new CA has been shown for so long before the old one is believed no more; as [`INTRODUCE`], where nobody was there to exchange it earlier.
pub const SHOWN: Duration = days(4);
/// A leaf of an old CA that has no more than this left is exchanged although its successor's CA is young: an expired one helps nobody.
pub const LAST: Duration = days(1);
/// How much earlier than now a certificate begins, for those whose clocks are behind.
pub const BACKDATE: Duration = Duration::from_secs(3600);

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

/// A time in seconds since 1970, as certificates have it.
pub type Seconds = u64;
