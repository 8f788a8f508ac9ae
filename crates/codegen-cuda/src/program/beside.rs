//! Small calls of a decode step as one launch: those that need nothing of each other stand side by side, a row of blocks
//! each, and what depends on one of them alone may follow it in its block. A launch costs more than such a call does.
//!
//! Owns what a graph launches in place of the calls; the calls stay as they are, and give the same bits.

use std::fmt::Write as _;

use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, PhaseLaunches, Place};
use glmc_ir::plan::{Mem, Phase};

use super::adds::is_sum;
use crate::arch::Arch;
use crate::request::{Generated, LaunchShape, Side};
use crate::signature::{Field, Role, Signature};

/// Calls of a launch, and calls that are looked over for them.
const MOST: usize = 6;
const WINDOW: usize = 10;
/// Threads of a kernel that one block may do the work of.
const SMALL: u64 = 8192;

/// Memory that a call touches.
#[derive(Default)]
pub(super) struct Touched {
    /// Whose, from where, to where; whether it is written.
    ranges: Vec<(Space, u64, u64, bool)>,
    /// It meets other devices, or touches what nothing here knows.
    apart: bool,
    scratch: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Arena(usize),
    State(usize, u32),
}

impl Touched {
    pub(super) fn of(phase: &Phase, kernel: &Generated, call: &Call) -> Touched {
        Self::fields(phase, &kernel.signature.0, &call.args)
    }

    /// What these fields touch, given their places.
    pub(super) fn fields(phase: &Phase, fields: &[Field], places: &[Place]) -> Touched {
        let mut out = Touched::default();
        for (place, field) in places.iter().zip(fields) {
            let access = match &field.role {
                Role::Param { access, .. } => *access,
                Role::Symbols => Access::Read,
                Role::Scratch { .. } => Access::Update,
                Role::Slab { .. } | Role::Control | Role::Halt => {
                    out.apart = true;
                    continue;
                }
            };
            let writes = access != Access::Read;
            match place {
                Place::Mem { rank, mem: Mem::Buf(b) } => {
                    let buffer = &phase.buffers[*b];
                    let (from, to) = (buffer.offset, buffer.offset + buffer.bytes.max(1));
                    out.ranges.push((Space::Arena(*rank), from, to, writes));
                }
                Place::Mem { rank, mem: Mem::State(s) } => {
                    out.ranges.push((Space::State(*rank, s.as_u32()), 0, 1, writes));
                }
                // Nothing writes these while a step runs.
                Place::Mem { .. } | Place::Symbols { .. } => out.apart |= writes,
                // All calls share it.
                Place::Scratch(_) => out.scratch = true,
                Place::Slab { .. } | Place::Control | Place::Halt => out.apart = true,
            }
        }
        out
    }

    /// Whether one of the two must see what the other does, or must not.
    pub(super) fn bound_to(&self, other: &Touched) -> bool {
        let meet = |a: &(Space, u64, u64, bool), b: &(Space, u64, u64, bool)| {
            a.0 == b.0 && a.1 < b.2 && b.1 < a.2 && (a.3 || b.3)
        };
        self.scratch && other.scratch || self.ranges.iter().any(|a| other.ranges.iter().any(|b| meet(a, b)))
    }
}

/// Calls of one launch: rows of blocks, each a list of calls by their places.
type Group = Vec<Vec<usize>>;

/// Puts calls side by side.
pub(super) fn join(phase: &Phase, arch: Arch, kernels: &mut Vec<Generated>, of: &mut PhaseLaunches) {
    let groups = groups(phase, arch, kernels, &of.calls);
    if groups.len() < of.calls.len() {
        of.graph = groups.iter().map(|g| joined(arch, kernels, &of.calls, g)).collect();
    }
}

fn groups(phase: &Phase, arch: Arch, kernels: &[Generated], calls: &[Call]) -> Vec<Group> {
    let touched: Vec<Touched> = calls.iter().map(|c| Touched::of(phase, &kernels[c.kernel], c)).collect();
    let of = |i: usize| &kernels[calls[i].kernel];
    let mut taken = vec![false; calls.len()];
    let mut out = Vec::new();
    for i in 0..calls.len() {
        if taken[i] {
            continue;
        }
        taken[i] = true;
        let (mut group, mut between): (Group, Vec<usize>) = (vec![vec![i]], Vec::new());
        let last = calls.len().min(i + WINDOW);
        for j in (i + 1..last).take_while(|j| !touched[*j].apart).filter(|j| !taken[*j]).collect::<Vec<_>>() {
            let size: usize = group.iter().map(Vec::len).sum();
            let free = size < MOST && !touched[i].apart && !between.iter().any(|k| touched[*k].bound_to(&touched[j]));
            let rows = (0..group.len()).filter(|r| group[*r].iter().any(|k| touched[*k].bound_to(&touched[j])));
            let rows: Vec<usize> = rows.collect();
            let grown = match rows.as_slice() {
                _ if !free => None,
                [] => Some(group.iter().cloned().chain([vec![j]]).collect::<Group>()),
                [row] => {
                    let mut grown = group.clone();
                    grown[*row].push(j);
                    Some(grown)
                }
                _ => None,
            };
            match grown.filter(|g| Frame::of(arch, &of, g).is_some()) {
                Some(g) => {
                    group = g;
                    taken[j] = true;
                }
                None => between.push(j),
            }
        }
        out.push(group);
    }
    out
}

/// The launch that holds a group.
struct Frame {
    threads: u32,
    /// Blocks of a row.
    width: u32,
    shared: u32,
    /// Blocks that must fit a multiprocessor.
    resident: u32,
}

impl Frame {
    fn of<'k>(arch: Arch, kernel: &dyn Fn(usize) -> &'k Generated, group: &Group) -> Option<Frame> {
        let all: Vec<&Generated> = group.iter().flatten().map(|i| kernel(*i)).collect();
        let parts: Vec<(&Side, &LaunchShape)> =
            all.iter().map(|k| Some((k.side.as_ref()?, k.launches.first()?))).collect::<Option<_>>()?;
        // The launch before may take it whole.
        if all.iter().any(|k| is_sum(k)) {
            return None;
        }
        let exact: Vec<u32> = parts.iter().filter(|p| p.0.exact).map(|p| p.0.threads).collect();
        let work = |s: &LaunchShape| u64::from(s.grid[0]) * u64::from(s.threads);
        let small = parts.iter().all(|p| p.0.loops && work(p.1) <= SMALL);
        let widest = parts.iter().map(|p| p.1.threads).max()?;
        let threads = match exact.first() {
            Some(n) => *n,
            // One block does all of a row's work.
            None if small => (parts.iter().map(|p| work(p.1)).max()? as u32).clamp(widest, widest.max(1024)),
            None => widest,
        };
        let alike = exact.iter().all(|n| *n == threads) && parts.iter().all(|p| p.0.threads <= threads);
        let resident = parts.iter().filter(|p| p.0.exact).map(|p| p.0.blocks).min();
        let shared = parts.iter().map(|p| p.1.shared).max()?;
        let width = if small { 1 } else { parts.iter().map(|p| p.1.grid[0]).max()? };
        // Blocks of two rows must fit a multiprocessor together, or the second row waits for the first.
        let fit = threads <= 512 && resident.is_none_or(|n| n > 1);
        let room = shared <= arch.shared_per_block() / 2 && (small || fit);
        // Only within a block does one call see what another has written.
        let chains = small || group.iter().all(|row| row.len() == 1);
        let resident = if small { 1 } else { resident.unwrap_or(2) };
        (alike && room && chains).then_some(Frame { threads, width, shared, resident })
    }
}

/// The call that does the work of a group.
fn joined(arch: Arch, kernels: &mut Vec<Generated>, calls: &[Call], group: &Group) -> Call {
    let members: Vec<usize> = group.iter().flatten().copied().collect();
    let Some(first) = members.first().map(|i| &calls[*i]) else { return Call::default() };
    let of = |i: usize| &kernels[calls[i].kernel];
    let made = match members.len() {
        1 => None,
        _ => kernel(arch, &of, group),
    };
    let Some(made) = made else { return first.clone() };
    let at = kernels.iter().position(|k| k.name == made.name).unwrap_or_else(|| {
        kernels.push(made);
        kernels.len() - 1
    });
    let args = members.iter().flat_map(|i| calls[*i].args.iter().copied()).collect();
    Call { kernel: at, args, ..first.clone() }
}

fn kernel<'k>(arch: Arch, of: &dyn Fn(usize) -> &'k Generated, group: &Group) -> Option<Generated> {
    let frame = Frame::of(arch, of, group)?;
    let (mut head, mut parts, mut args, mut run) = (String::new(), String::new(), String::new(), String::new());
    let (mut fields, mut config) = (Vec::new(), Vec::new());
    let mut n = 0;
    for (row, list) in group.iter().enumerate() {
        let _ = writeln!(run, "  if (glmc_block_y() == {row}) {{");
        for (k, i) in list.iter().enumerate() {
            let (kernel, space) = (of(*i), format!("NAME_{n}"));
            let (side, shape) = (kernel.side.as_ref()?, kernel.launches.first()?);
            let after = if k > 0 { " after it" } else { "" };
            let _ = writeln!(head, "// row {row}{after}: {} ({})", kernel.name, kernel.config);
            let _ = writeln!(
                parts,
                "namespace {space} {{\n{}GLMC_DEVICE void run(const Args& args) {{\n  {}\n}}\n}}  // namespace",
                side.inner, side.call
            );
            let _ = writeln!(args, "  {space}::Args a{n};");
            if k > 0 {
                run.push_str("    glmc_sync();\n");
            }
            let guard = if side.loops { String::new() } else { format!("if (glmc_block_x() < {}) ", shape.grid[0]) };
            let _ = writeln!(run, "    {guard}{space}::run(args.a{n});");
            let field = |f: &Field| Field { ident: format!("a{n}.{}", f.ident), role: f.role.clone() };
            fields.extend(kernel.signature.0.iter().map(field));
            config.push(kernel.name.split('_').take(2).collect::<Vec<_>>().join("_"));
            n += 1;
        }
        run.push_str("  }\n");
    }
    let Frame { threads, width, shared, resident } = frame;
    let text = format!(
        "{head}{parts}namespace NAME_ {{\nstruct Args {{\n{args}}};\n}}  // namespace\nGLMC_KERNEL(NAME, NAME_::Args, \
         {threads}, {resident}) {{\n{run}}}\n"
    );
    let hash = blake3::hash(format!("{text} {width} {shared}").as_bytes()).to_hex();
    let name = format!("beside_{}", &hash[..12]);
    let members = || group.iter().flatten().map(|i| of(*i));
    Some(Generated {
        includes: members().flat_map(|k| k.includes.iter().copied()).collect(),
        body: text.replace("NAME", &name),
        signature: Signature(fields),
        launches: vec![LaunchShape { symbol: name.clone(), grid: [width, group.len() as u32, 1], threads, shared }],
        side: None,
        early: Vec::new(),
        config: format!("side by side: {}", config.join(", ")),
        rejected: Vec::new(),
        name,
    })
}

#[cfg(test)]
mod tests {
    use glmc_ir::entities::BufId;
    use glmc_ir::plan::{Buffer, PhaseKind};
    use glmc_ir::ty::{Elem, TensorType};

    use super::*;
    use crate::cases::Rng;

    fn phase(rng: &mut Rng, buffers: usize) -> Phase {
        let ty = TensorType::new(Elem::F32, [1u64]);
        let one = |rng: &mut Rng| Buffer {
            name: "b".into(),
            ty: ty.clone(),
            offset: 256 * rng.below(12) as u64,
            bytes: 256 * (1 + rng.below(2)) as u64,
        };
        Phase {
            name: "decode_1".into(),
            kind: PhaseKind::Decode,
            tokens: 1,
            syms: Default::default(),
            params: Default::default(),
            buffers: (0..buffers).map(|_| one(rng)).collect(),
            arena_bytes: 0,
            steps: Vec::new(),
            segments: Vec::new(),
            overlaps: Vec::new(),
            results: Vec::new(),
        }
    }

    /// A kernel that reads and writes one value each: small, of its own blocks and threads, or one that nothing joins.
    fn one(i: usize, rng: &mut Rng) -> Generated {
        let field = |access| {
            let role = Role::Param { index: 0, access, ty: TensorType::new(Elem::F32, [1u64]), layout: "rows" };
            Field { ident: "x".into(), role }
        };
        let (name, kind) = (format!("one_{i}"), rng.below(4));
        let (exact, loops) = (kind == 1, kind < 1 || kind == 2);
        let side = Side { inner: String::new(), call: ";".into(), threads: 64, exact, loops, blocks: 2 };
        let grid = [if kind == 2 { 200 } else { 4 }, 1, 1];
        Generated {
            includes: Default::default(),
            body: String::new(),
            signature: Signature(vec![field(Access::Read), field(Access::Write)]),
            launches: vec![LaunchShape { symbol: name.clone(), grid, threads: 64, shared: 0 }],
            side: (kind < 3).then_some(side),
            early: Vec::new(),
            config: String::new(),
            rejected: Vec::new(),
            name,
        }
    }

    #[test]
    fn calls_that_need_each_other_keep_their_order() {
        let (mut joined, mut chained) = (0, 0);
        for seed in 0..300 {
            let mut rng = Rng(seed);
            let phase = phase(&mut rng, 8);
            let kernels: Vec<Generated> = (0..8).map(|i| one(i, &mut rng)).collect();
            let place = |rng: &mut Rng| Place::Mem { rank: 0, mem: Mem::Buf(BufId::from_u32(rng.below(8) as u32)) };
            let calls: Vec<Call> = (0..30)
                .map(|step| Call { step, rank: 0, kernel: rng.below(8), args: vec![place(&mut rng), place(&mut rng)] })
                .collect();
            let touched: Vec<Touched> = calls.iter().map(|c| Touched::of(&phase, &kernels[c.kernel], c)).collect();
            let groups = groups(&phase, Arch::Sm90, &kernels, &calls);
            // Where each call is: launch, row, place in the row.
            let mut at = vec![None; calls.len()];
            for (g, group) in groups.iter().enumerate() {
                for (r, row) in group.iter().enumerate() {
                    chained += row.len() - 1;
                    row.iter().enumerate().for_each(|(k, i)| assert_eq!(at[*i].replace((g, r, k)), None, "twice"));
                }
            }
            joined += calls.len() - groups.len();
            for b in 0..calls.len() {
                for a in (0..b).filter(|a| touched[*a].bound_to(&touched[b])) {
                    let (a, b) = (at[a].expect("every call"), at[b].expect("every call"));
                    assert!(a.0 < b.0 || (a.0, a.1) == (b.0, b.1) && a.2 < b.2, "seed {seed}: {a:?} before {b:?}");
                }
            }
        }
        assert!(joined > 500 && chained > 50, "{joined} joined, {chained} in chains");
    }
}
