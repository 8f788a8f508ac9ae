//! How many positions a measured sequence sees, and how many steps it makes after them.

/// Positions that a decoded token sees unless told otherwise.
pub(super) const CTX: u64 = 1024;
/// Most decode steps that are timed, and as many that are watched; each of other tokens.
pub(super) const STEPS: u64 = 64;
/// Most decode steps before them.
const WARM: u64 = 4;

/// What each sequence decodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    /// Positions that the first timed token sees.
    pub(super) ctx: u64,
    /// Steps before it.
    pub(super) warm: u64,
    /// Steps that are timed, and as many that are watched.
    pub(super) steps: u64,
}

impl Pace {
    /// All steps.
    pub(super) fn whole(ctx: u64) -> Pace {
        Pace { ctx, warm: WARM.min(ctx.saturating_sub(1)), steps: STEPS }
    }

    /// Steps after `ctx` positions in the room of a sequence: all, or as many as fit. Where nothing is said, a small room
    /// is shared by what is seen and what is decoded.
    ///
    /// # Errors
    /// The positions that are needed at least.
    pub(super) fn fitting(ctx: Option<u64>, room: u64) -> Result<Pace, u64> {
        let all = 2 * STEPS - 1;
        let ctx = ctx.unwrap_or_else(|| CTX.min(room.saturating_sub(all).max(room / 2)).max(1));
        let steps = STEPS.min((room + 1).saturating_sub(ctx) / 2);
        if steps == 0 { Err(ctx.saturating_add(1)) } else { Ok(Pace { steps, ..Pace::whole(ctx) }) }
    }

    /// Tokens that are read before the first step.
    pub(super) fn prompt(self) -> u64 {
        self.ctx.saturating_sub(1 + self.warm)
    }

    /// Positions that a sequence takes.
    pub(super) fn positions(self) -> u64 {
        (self.ctx.saturating_sub(1)).saturating_add(2 * self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_fits_its_room_and_makes_as_many_steps_as_do() {
        for room in 0..2000 {
            for ctx in [None, Some(1), Some(100), Some(room), Some(u64::MAX)] {
                match Pace::fitting(ctx, room) {
                    Ok(p) => {
                        assert!(p.positions() <= room && (1..=STEPS).contains(&p.steps), "{room} {ctx:?}: {p:?}");
                        assert!(p.steps == STEPS || p.positions() + 2 > room, "{room} {ctx:?}: {p:?}");
                        assert_eq!(p.prompt() + p.warm + 1, p.ctx);
                        assert!(ctx.is_none_or(|c| c == p.ctx));
                    }
                    Err(need) => assert!(need > room, "{room} {ctx:?}: {need}"),
                }
            }
        }
        assert_eq!(Pace::fitting(None, 2), Ok(Pace { ctx: 1, warm: 0, steps: 1 }));
        assert_eq!(Pace::fitting(None, 64), Ok(Pace { ctx: 32, warm: 4, steps: 16 }));
        assert_eq!(Pace::fitting(None, 256), Ok(Pace { ctx: 129, warm: 4, steps: 64 }));
        assert_eq!(Pace::fitting(None, 1 << 20), Ok(Pace::whole(CTX)));
        assert_eq!((Pace::fitting(None, 1), Pace::fitting(Some(300), 300)), (Err(2), Err(301)));
    }
}
