//! What the learning policy can do, part by part, so that the simulator can run it without one and say what that part is worth.
//!
//! Nobody but the simulator switches one off: there is no key for it, and a proxy has them all. What it leaves out: deadlines that have passed count in
//! every policy that is not told to go without shedding.

/// A part that can be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skill {
    /// Ends early what would be late, and gives heads up for more served.
    Shedding,
    /// Groups by weight where the server pays for the heaviest.
    Grouping,
    /// Finds slots, and sends just before one frees.
    Lead,
    /// Chooses sizes by learned cost and plan; without it, all that is queued leaves.
    Cost,
    /// Solves plans; without it, the most efficient size leaves.
    Plan,
    /// Holds for arrivals that were learned to come.
    Gather,
    /// Asks whether the server batches by itself, and stands aside.
    StandAside,
}

/// Those that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Missing(u8);

// === impl Skill ===

impl Skill {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Shedding, Self::Grouping, Self::Lead, Self::Cost, Self::Plan, Self::Gather, Self::StandAside];

    /// Its name in tables.
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

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

// === impl Missing ===

impl Missing {
    pub(super) const fn and(self, skill: Skill) -> Self {
        Self(self.0 | skill.bit())
    }

    pub(super) const fn has(self, skill: Skill) -> bool {
        self.0 & skill.bit() != 0
    }
}
