//! Features of the adaptive policy that can be disabled one by one, so that the simulator can
//! measure the contribution of each (ablation).
//!
//! Only the simulator disables a feature: there is no configuration for it, and a proxy always has
//! them all. Deadlines that have passed expire calls under every policy, unless shedding is
//! disabled.

/// A feature that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Ends calls early that would be late, and gives up heads if more calls are served in time by
    /// that.
    Shedding,
    /// Groups calls by weight if the server pays for the heaviest.
    Grouping,
    /// Finds the number of slots, and dispatches shortly before one frees.
    Lead,
    /// Chooses sizes by learned cost and plan; without it, all queued items are dispatched.
    Cost,
    /// Solves plans; without it, the most efficient size is dispatched.
    Plan,
    /// Holds for arrivals that the profiles predict.
    Gather,
    /// Detects servers that batch by themselves, and passes calls through to them.
    StandAside,
}

// === impl Feature ===

impl Feature {
    /// Returns the name used in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shedding => "shedding",
            Self::Grouping => "grouping",
            Self::Lead => "lead and slot search",
            Self::Cost => "cost table and plan",
            Self::Plan => "plan",
            Self::Gather => "gather",
            Self::StandAside => "stand aside",
        }
    }
}
