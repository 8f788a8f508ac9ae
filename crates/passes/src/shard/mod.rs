//! Pass `shard`. Owns where weights and values lie on the ranks, and the collectives between them.
//!
//! Before: a module for one rank. After, on several ranks (on one nothing changes): the same functions on a mesh of one axis, each type with its placement, each
//! change of place an instruction. What is placed follows from the ops' dim rules ([`table`]) and from the target's
//! cost ([`place`]); no name of a tensor and no named strategy is known here. `docs/sharding.md` has the search.
//!
//! - [`solve`] is the search over one function, [`calls`] the joint one over all: boundary places are part of a call.
//! - [`insert`] builds the module, [`report`] says what was chosen and what it would have cost otherwise.
//! - [`cut`] is the decision how each weight and pool is cut, asked of fuel one by one: what gets none stays whole.

pub mod calls;
pub mod cut;
pub mod insert;
pub mod owners;
pub mod place;
pub mod report;
pub mod solve;
pub mod table;
pub mod units;

use std::collections::HashSet;

use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::FuncId;
use glmc_ir::graph::{InstKind, Module};

use crate::egraph::cost::Machine;
use crate::pass::{Pass, PassCx};
use calls::{Search, order};
use cut::{Cut, Cuts};
use insert::Insert;
use place::World;

/// The pass's name.
pub const NAME: &str = "shard";
/// The mesh axis.
pub const AXIS: &str = "tp";

/// The pass for a target; see the module's page.
#[derive(Clone, Debug)]
pub struct Shard {
    machine: Machine,
    explain: bool,
}

impl Shard {
    /// For the ranks of a machine's target.
    pub fn new(machine: Machine) -> Self {
        Shard { machine, explain: false }
    }

    /// The same, also working out what other placements would cost.
    pub fn explained(self) -> Self {
        Shard { explain: true, ..self }
    }

    /// Places `m`, with what was decided.
    ///
    /// # Errors
    /// `already-placed`: the module has a mesh. `no-placement`: nothing is legal, which no module of the op table is.
    /// `cut-refused`: a cut was asked for that cannot be had.
    pub fn place(&self, m: &Module, cx: &mut PassCx) -> Result<(Module, report::Report), Diagnostic> {
        if !m.mesh.is_empty() {
            return Err(Diagnostic::new("already-placed", "the module is placed on a mesh already"));
        }
        let target = &self.machine.target;
        let mut world = World::new(target, AXIS, self.machine.nominal(m));
        world.stands_for = self.machine.stands_for.clone();
        world.sub |= cx.asks("cut", Cut::SubBlock.name());
        let cuts = Cuts::decide(m, &world, cx)?;
        let device = &target.device;
        let taken = device.context_bytes.saturating_add(device.graph_bytes).saturating_add(device.reserve_bytes);
        let limit = device.memory_bytes.map(|n| n.saturating_sub(taken));
        let entries = Entries::of(m, &world, cx);
        let (mut search, mut taken) = decide(m, &world, &cuts, &entries, None)?;
        if let Some(limit) = limit.filter(|l| entries.kept(&search, &taken) > *l) {
            (search, taken) = decide(m, &world, &cuts, &entries, Some(limit))?;
        }
        let bytes = entries.kept(&search, &taken);
        let fits = limit.is_none_or(|l| bytes <= l);
        if !fits {
            tracing::debug!(bytes, "no placement fits the memory of a rank");
        }
        let others = cuts.kept(m, &world, &report::placed_values(&search, &taken))?;
        if !others.is_empty() && !cx.brief() {
            tracing::warn!("what was forced of all weights cannot be had, or is not read so, of {}", others.join(", "));
        }
        let mut insert = Insert::new(&search);
        let called = called(m);
        for (id, f) in &m.funcs {
            if let Some((at, path)) = taken.iter().find(|(at, _)| search.solved[*at].func == id) {
                insert.function(*at, *path)?;
            } else if !called.contains(&id) {
                insert.unused(f);
            }
        }
        let report = report::Report::of(
            &search,
            &taken,
            &|at, path| insert.name_of(at, path),
            fits,
            bytes,
            self.explain && !cx.brief(),
        );
        if report.cut && !cx.brief() {
            let of = report.functions.iter().filter(|f| f.cut).map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ");
            tracing::warn!("the search for placements hit a limit in {of}: a cheaper one may exist");
        }
        Ok((insert.finish().compacted(), report))
    }
}

/// The entries in the order in which they are placed.
struct Entries {
    /// Those that become phases: their weights and pools are in memory.
    phases: Vec<FuncId>,
    others: Vec<FuncId>,
}

impl Entries {
    fn of(m: &Module, world: &World<'_>, cx: &PassCx) -> Self {
        let (phases, others) = order(m, world).into_iter().partition(|id| cx.is_phase(&m.funcs[*id].name));
        Entries { phases, others }
    }

    /// Bytes of weights and pools that the largest rank keeps.
    fn kept(&self, search: &Search<'_>, taken: &[(usize, usize)]) -> u64 {
        let of = |(at, path): &(usize, usize)| {
            let s = &search.solved[*at];
            if self.phases.contains(&s.func) { s.found.paths[*path].bytes } else { 0 }
        };
        taken.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// Solves every entry; with `limit`, within so many bytes a rank if possible.
fn decide<'a>(
    m: &'a Module,
    world: &'a World<'a>,
    cuts: &'a Cuts,
    entries: &Entries,
    limit: Option<u64>,
) -> Result<(Search<'a>, Vec<(usize, usize)>), Diagnostic> {
    let mut search = Search::new(m, world, cuts, limit.is_some());
    let mut taken = Vec::new();
    for id in &entries.phases {
        let budget = limit.map(|l| l.saturating_sub(entries.kept(&search, &taken)));
        taken.push(search.entry(*id, budget)?);
    }
    for id in &entries.others {
        taken.push(search.entry(*id, None)?);
    }
    Ok((search, taken))
}

/// Functions that an entry reaches.
fn called(m: &Module) -> HashSet<FuncId> {
    let mut seen = HashSet::new();
    let mut open: Vec<FuncId> = m.entries().map(|(id, _)| id).collect();
    while let Some(id) = open.pop() {
        let f = &m.funcs[id];
        for i in &f.body {
            if let InstKind::Call { func, .. } = f.insts[*i].kind
                && seen.insert(func)
            {
                open.push(func);
            }
        }
    }
    seen
}

impl Pass for Shard {
    fn name(&self) -> &'static str {
        NAME
    }

    fn why(&self) -> &'static str {
        "where weights and values lie on the ranks, by cost, and the collectives between"
    }

    fn idempotent(&self) -> bool {
        // Only a module without a mesh is placed.
        false
    }

    fn run(&self, m: &Module, cx: &mut PassCx) -> Result<Module, Diagnostic> {
        if self.machine.target.ranks == 1 {
            return Ok(m.clone());
        }
        let (out, report) = self.place(m, cx)?;
        cx.sharded = Some(report);
        Ok(out)
    }
}
