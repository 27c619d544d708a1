//! The admission webhook: the API server asks about a pod that is being made, and gets the sidecar as a patch.
//!
//! It never stands in anybody's way: what it does not understand, or does not know enough about yet, goes on as it came, with a warning at most. Deciding is
//! `answer`, a pure function of the question and of what is known; [`serve`] does the rest within bounds on bytes, time and connections. It runs no
//! template and no program, and asks nobody: its answer is made from what the reflectors hold.
//!
//! Left out: what is done to the pod (`injector`), and registering with the API server (the installation's manifests, `certs` for whom to believe).

mod answer;
mod bodies;
mod review;
mod server;

pub use self::answer::{Answer, Known, answer, would};
pub use self::review::{Question, Unreadable, decode, warnings};
pub use self::server::{Config, Listening, serve};

/// The path that the API server posts to.
pub const PATH: &str = "/inject";
/// The largest question: etcd takes objects of 1.5 MiB, and an update carries two.
pub const QUESTION_BYTES_MAX: usize = 3 << 20;
