//! Kernels that try what joins devices: a pair by data, all-reduces by sums that are exact, each replay with numbers of
//! its own. See `kernels/links.cuh`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use glmc_ir::collective::{Collective, CollectiveKind};
use glmc_ir::kernel::Access;
use glmc_ir::placement::Mesh;
use glmc_ir::ty::{Axis, Elem, PendingKind, SymValues, TensorType};

use super::exchange::{Exchange, Made};
use super::local::Symbols;
use super::meet::Meet;
use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

/// The words that the probe of a pair writes.
pub const PROBE_WORDS: u64 = 1 << 18;
const STRESS_THREADS: u32 = 512;

/// All-reduces of one size over ranks on devices.
#[derive(Clone, PartialEq, Debug)]
pub struct AllReduce {
    /// For each device the kernel: operands, then results of the ranks that are there.
    pub kernels: Vec<Generated>,
    /// For each device what makes operands: each one, then the state, two words of 64 bits that begin as zeros.
    pub make: Vec<Generated>,
    /// For each device what counts wrong words in the low half of the state's second word: results, then the state.
    pub check: Vec<Generated>,
    /// Bytes of a slot.
    pub slot: u64,
}

fn framed(stem: &str, fields: Vec<Field>, members: &str, call: &str, blocks: u32, threads: u32) -> Generated {
    let signature = Signature(fields);
    let inner = format!("{}struct Config {{\n  typedef Args Arguments;\n{members}}};\n", signature.render());
    let hash = blake3::hash(format!("{inner}{call}").as_bytes()).to_hex();
    let name = format!("{stem}_{}", &hash[..12]);
    let body = format!(
        "namespace {name}_ {{\n{inner}}}  // namespace\nGLMC_KERNEL({name}, {name}_::Args, {threads}, 1) {{\n  \
         {call}<{name}_::Config>(args);\n}}\n"
    );
    let shape = LaunchShape { symbol: name.clone(), grid: [blocks, 1, 1], threads, shared: 0 };
    Generated {
        name,
        includes: BTreeSet::from(["links.cuh"]),
        body,
        signature,
        launches: vec![shape],
        side: None,
        early: Vec::new(),
        config: String::new(),
        rejected: Vec::new(),
    }
}

fn field(ident: String, index: usize, access: Access, words: u64) -> Field {
    let ty = TensorType::new(Elem::F32, [words]);
    Field { ident, role: Role::Param { index, access, ty, layout: "rows" } }
}

/// The kernel that tries a pair of devices. Its arguments: where it writes, a word that counts, the seed.
pub fn probe() -> Generated {
    let fields = vec![
        field("to".into(), 0, Access::Update, PROBE_WORDS),
        field("bad".into(), 1, Access::Update, 1),
        field("seed".into(), 2, Access::Read, 1),
    ];
    let members = format!("  static constexpr u32 WORDS = {PROBE_WORDS};\n");
    framed("probe", fields, &members, "probe_link", 64, 256)
}

/// Rank `r` on device `map[r]`, values of `words` floats; those up to `small` bytes go whole to every device.
///
/// # Errors
/// A map that is none.
pub fn all_reduce(words: u64, map: &[usize], small: u64) -> Result<AllReduce, String> {
    let devices = map.iter().max().map_or(0, |d| d + 1);
    let axis = Axis::from("tp");
    let mesh: Mesh = std::iter::once((axis.clone(), map.len() as u64)).collect();
    let whole = TensorType::new(Elem::F32, [words]);
    let part = TensorType { pending: Some((PendingKind::Sum, axis.clone())), ..whole.clone() };
    let what = Collective { kind: CollectiveKind::AllReduce, axis };
    let members: Vec<usize> = (0..map.len()).collect();
    let mut out = AllReduce { kernels: Vec::new(), make: Vec::new(), check: Vec::new(), slot: 0 };
    for me in 0..devices {
        let ours: Vec<usize> = members.iter().copied().filter(|r| map[*r] == me).collect();
        let holder = *ours.first().ok_or("a device without ranks")?;
        let here: Vec<bool> = map.iter().map(|d| *d == me).collect();
        let mut symbols = Symbols::of(&SymValues::default());
        let meet = Meet { what: &what, arg: &part, result: &whole, mesh: &mesh, members: &members, here: &here };
        if devices == 1 {
            out.kernels.push(meet.kernel(&mut symbols)?);
        } else {
            let Made { kernel, slot } = Exchange { meet, devices, me, holder, small }.kernel(&mut symbols)?;
            out.kernels.push(kernel);
            out.slot = out.slot.max(slot);
        }
        let late = me + 1 == devices;
        let (make, check) = stress(words, &ours, map.len(), late);
        out.make.push(make);
        out.check.push(check);
    }
    Ok(out)
}

fn stress(words: u64, ours: &[usize], ranks: usize, late: bool) -> (Generated, Generated) {
    let mut m = format!(
        "  static constexpr u32 WORDS = {words}, LOCAL = {}, RANKS = {ranks};\n  static constexpr bool LATE = {late};\n",
        ours.len()
    );
    m.push_str("  GLMC_DEVICE static u32 rank(u32 local) {\n");
    for (i, r) in ours.iter().enumerate() {
        let _ = writeln!(m, "    if (local == {i}) return {r};");
    }
    m.push_str("    return 0;\n  }\n");
    let of = |name: &str, ty: &str| {
        let mut m = format!("{m}  GLMC_DEVICE static {ty} {name}(const Args& args, u32 local) {{\n");
        for i in 0..ours.len() {
            let _ = writeln!(m, "    if (local == {i}) return reinterpret_cast<{ty}>(args.{name}{i});");
        }
        m.push_str("    return nullptr;\n  }\n");
        m
    };
    let fields = |name: &str, access: Access| {
        let mut all: Vec<Field> = (0..ours.len()).map(|i| field(format!("{name}{i}"), i, access, words)).collect();
        all.push(field("state".into(), ours.len(), Access::Update, 4));
        all
    };
    let make = framed("stress", fields("x", Access::Write), &of("x", "f32*"), "stress_make", 1, STRESS_THREADS);
    let check = framed("stress", fields("y", Access::Read), &of("y", "const f32*"), "stress_check", 1, STRESS_THREADS);
    (make, check)
}
