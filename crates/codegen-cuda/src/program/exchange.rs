//! The kernels of a collective whose ranks are on several devices: each device hands the parts that it holds to the
//! others and makes its ranks' results of all. See `kernels/exchange.cuh`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use glmc_ir::collective::CollectiveKind;
use glmc_ir::launch::MOST_FLAGS;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

use super::local::Symbols;
use super::meet::Meet;
use super::own::{most, size};
use super::share::{Along, along, part_statements};
use crate::request::{Generated, LaunchShape};
use crate::signature::{Field, Role, Signature};

const THREADS: u64 = 256;
/// Most blocks of the launch that ends a meeting.
const MOST_BLOCKS: u64 = 528;
/// Parts in a slot start at multiples of this.
pub(super) const ALIGN: u64 = 256;

/// A meeting as one device takes part in it.
pub(super) struct Exchange<'a> {
    pub(super) meet: Meet<'a>,
    pub(super) devices: usize,
    pub(super) me: usize,
    /// The rank whose symbols the kernel reads.
    pub(super) holder: usize,
    /// Most bytes of a value that goes whole to every device.
    pub(super) small: u64,
}

/// A device's kernel, and the bytes of a slot that its meeting needs.
pub(super) struct Made {
    pub(super) kernel: Generated,
    pub(super) slot: u64,
}

/// One entry: suffix, what it runs, blocks.
type Entry = (&'static str, String, u64);

impl Exchange<'_> {
    pub(super) fn kernel(&self, symbols: &mut Symbols) -> Result<Made, String> {
        // The holder's parts of symbols come first, so that the table holds those.
        for ty in [self.meet.arg, self.meet.result] {
            symbols.local(ty, self.meet.mesh, self.holder as u64)?;
        }
        match (self.meet.what.kind, self.meet.reduction()) {
            (CollectiveKind::AllReduce, Some(op)) => self.reduced(symbols, &format!("{op:?}")),
            _ => self.handed(symbols),
        }
    }

    fn reduced(&self, symbols: &mut Symbols, op: &str) -> Result<Made, String> {
        let value = self.meet.value(symbols)?;
        let words = size(&value.dims, &symbols.bounds)?;
        let bound = most(&value.dims, &symbols.bounds)?;
        let members = self.meet.members.len() as u64;
        let mut m = format!(
            "  typedef {op} OP;\n  static constexpr u32 MEMBERS = {members};\n  static constexpr u64 SMALL = {}u;\n",
            self.small
        );
        let _ = writeln!(m, "  GLMC_DEVICE static u64 words(const Args& args) {{ return {words}; }}");
        let here: Vec<String> = self.meet.ours().map(|i| format!("m == {i}")).collect();
        let here = if here.is_empty() { "false".into() } else { here.join(" || ") };
        let _ = writeln!(m, "  GLMC_DEVICE static constexpr bool here(u32 m) {{ return {here}; }}");
        for (name, ty, field) in [("part", "const u8*", "in"), ("result", "u8*", "out")] {
            let _ = writeln!(m, "  GLMC_DEVICE static {ty} {name}(const Args& args, u32 m) {{");
            for i in self.meet.ours() {
                let _ = writeln!(m, "    if (m == {i}) return args.{field}{i};");
            }
            m.push_str("    return nullptr;\n  }\n");
        }
        let fours = bound.div_ceil(4);
        let chunk = fours.div_ceil(self.devices as u64);
        let small = members * 16 * fours.min(self.small / 16 + 1);
        let large = if 4 * bound > self.small { 16 * chunk * members.max(self.devices as u64) } else { 0 };
        let blocks = fours.div_ceil(THREADS).clamp(1, MOST_FLAGS);
        let entries = vec![("", "all_reduce<Config>(args);".to_owned(), blocks)];
        self.frame(symbols, &m, entries, small.max(large))
    }

    fn handed(&self, symbols: &mut Symbols) -> Result<Made, String> {
        let body = self.meet.body(symbols)?;
        let bounds = symbols.bounds.clone();
        let mut push = String::new();
        let mut ins = String::new();
        let mut at = 0u64;
        for (i, rank) in self.meet.members.iter().enumerate() {
            let local = symbols.local(self.meet.arg, self.meet.mesh, *rank as u64)?;
            let bytes = 4 * most(&local.dims, &bounds)?;
            if self.meet.here[i] {
                let words = self.words(&mut push, *rank, &local, &bounds, i)?;
                let _ = writeln!(push, "    copy_words(to + {at}u, args.in{i}, 0, {words}, begin, step);");
                let _ = writeln!(ins, "    const u8* in{i} = args.in{i};");
            } else {
                let _ = writeln!(ins, "    const u8* in{i} = got + {at}u;");
            }
            at += bytes.next_multiple_of(ALIGN);
        }
        // As many blocks on every device, whatever it has to send: the others wait for that many flags.
        let flags = (at / 16).div_ceil(THREADS * self.devices as u64).clamp(1, MOST_FLAGS);
        let ours = self.meet.ours().next().is_some();
        let count = if ours { size(&body.over, &bounds)? } else { "0".into() };
        let elements = if ours { most(&body.over, &bounds)? } else { 1 };
        let run = if ours { format!("{ins}{}", body.run) } else { String::new() };
        let m = format!(
            "  static constexpr u32 FLAGS = {flags};\n  GLMC_DEVICE static u64 least(u64 a, u64 b) {{ return a < b ? a : b; \
             }}\n  GLMC_DEVICE static u64 count(const Args& args) {{ return {count}; }}\n  GLMC_DEVICE static void \
             push(const Args& args, u8* to, u64 begin, u64 step) {{\n{push}  }}\n  GLMC_DEVICE static void run(const Args& \
             args, const u8* got, u64 i) {{\n{run}  }}\n"
        );
        let blocks = elements.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
        let entries = vec![
            ("give", "hand_over<Config>(args);".to_owned(), flags),
            ("take", "take_over<Config>(args);".to_owned(), blocks),
        ];
        self.frame(symbols, &m, entries, at)
    }

    /// The words of a rank's operand, by the values of the symbols.
    fn words(
        &self,
        run: &mut String,
        rank: usize,
        local: &TensorType,
        bounds: &SymValues,
        member: usize,
    ) -> Result<String, String> {
        let mut out = String::from("u64(1)");
        for (d, (own, dim)) in local.dims.iter().zip(&self.meet.arg.dims).enumerate() {
            let cut = matches!((&dim.extent, &dim.split), (Extent::Sym(_), Some(_)));
            if !cut {
                let whole =
                    Dim { split: None, ..if own.extent.as_const().is_some() { own.clone() } else { dim.clone() } };
                let _ = write!(out, " * ({})", size(&[whole], bounds)?);
                continue;
            }
            if let Along::Part { symbol, unit, at, size } = along(self.meet.arg, d, self.meet.mesh, rank, bounds)? {
                let tag = format!("_{member}_{d}");
                run.push_str(&part_statements(symbol, unit, at, size, &tag));
                let _ = write!(out, " * (end{tag} - start{tag})");
            }
        }
        Ok(out)
    }

    fn frame(&self, symbols: &mut Symbols, members: &str, entries: Vec<Entry>, slot: u64) -> Result<Made, String> {
        let mut signature = Signature::default();
        for (index, (ident, access, ty)) in self.meet.fields(symbols)?.into_iter().enumerate() {
            signature.0.push(Field { ident, role: Role::Param { index, access, ty, layout: "rows" } });
        }
        let mut slab = String::from("  GLMC_DEVICE static u8* slab(const Args& args, u32 device) {\n");
        for device in 0..self.devices {
            signature.0.push(Field { ident: format!("slab{device}"), role: Role::Slab { device } });
            let _ = writeln!(slab, "    if (device == {device}) return args.slab{device};");
        }
        slab.push_str("    return nullptr;\n  }\n");
        signature.0.push(Field { ident: "control".into(), role: Role::Control });
        signature.0.push(Field { ident: "halt".into(), role: Role::Halt });
        if members.contains("args.syms") {
            signature.0.push(Field { ident: "syms".into(), role: Role::Symbols });
        }
        let inner = format!(
            "{}struct Config {{\n  typedef Args Arguments;\n  static constexpr u32 DEVICES = {}, ME = {};\n{slab}{members}}};\n",
            signature.render(),
            self.devices,
            self.me
        );
        let head = format!("// {}, on device {} of {}\n", self.meet.comment(), self.me, self.devices);
        let hash = blake3::hash(format!("{head}{inner}{entries:?}").as_bytes()).to_hex();
        let name = format!("exchange_{}", &hash[..12]);
        let mut body = format!("{head}namespace {name}_ {{\n{inner}}}  // namespace\n");
        let mut launches = Vec::new();
        for (suffix, call, blocks) in entries {
            let symbol = if suffix.is_empty() { name.clone() } else { format!("{name}_{suffix}") };
            let _ = write!(
                body,
                "GLMC_KERNEL({symbol}, {name}_::Args, {THREADS}, 1) {{\n  using namespace {name}_;\n  {call}\n}}\n"
            );
            launches.push(LaunchShape { symbol, grid: [blocks as u32, 1, 1], threads: THREADS as u32, shared: 0 });
        }
        let kernel = Generated {
            name,
            includes: BTreeSet::from(["exchange.cuh", "merge.cuh"]),
            body,
            signature,
            launches,
            side: None,
            early: Vec::new(),
            config: "one meeting of all devices".into(),
            rejected: Vec::new(),
        };
        Ok(Made { kernel, slot: slot.next_multiple_of(ALIGN) })
    }
}
