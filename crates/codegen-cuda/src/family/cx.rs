//! What families share: types of the launch's arguments, extents as expressions, the choice among configurations, and
//! the frame around a body.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use glmc_ir::kernel::{Access, ParamSpec};
use glmc_ir::placement::{softmax_part, topk_part};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, Extent, PendingKind, TensorType};

use crate::repack::LaneType;
use crate::request::{GenerateError, Generated, LaunchShape, Request, Side, Storage};
use crate::signature::{Field, Role, Signature, ident};

/// Most blocks of a launch that loops over its work; larger launches only cost block starts.
pub(crate) const MOST_BLOCKS: u64 = 4096;

/// One argument of the launch.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The field of the argument struct.
    pub(crate) ident: String,
    /// Its type.
    pub(crate) ty: TensorType,
    /// How its bytes lie.
    pub(crate) storage: Storage,
}

impl Part {
    /// The decoder struct of the element, or the reader of a repacked tensor.
    pub(crate) fn decoder(&self) -> String {
        match self.lane() {
            Some(l) => {
                let units = self.ty.elems(&Default::default()).unwrap_or(0) / 32;
                format!("Lane<{}_LANE, {units}ull>", l.name)
            }
            None => decoder(self.ty.elem).0,
        }
    }

    /// The lane layout, if the part has it.
    pub(crate) fn lane(&self) -> Option<LaneType> {
        self.ty.elem.storage().filter(|_| self.storage == Storage::Lane).and_then(LaneType::of)
    }
}

/// A launch under construction.
pub(crate) struct Cx<'a> {
    pub(crate) request: &'a Request<'a>,
    params: Vec<ParamSpec>,
    /// Inputs (reads and updates) in order.
    pub(crate) inputs: Vec<Part>,
    /// Outputs in order.
    pub(crate) outputs: Vec<Part>,
}

/// What a family hands back.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Headers.
    pub(crate) includes: Vec<&'static str>,
    /// Tables before the constants.
    pub(crate) tables: String,
    /// The constants and functors: members of `struct Config`, or several structs if `entries` name them.
    pub(crate) members: String,
    /// Further structs after `Config`.
    pub(crate) more: String,
    /// Entries: suffix of the symbol, statement that runs it, grid, threads, blocks a multiprocessor, shared bytes.
    pub(crate) entries: Vec<Entry>,
    /// Bytes of scratch.
    pub(crate) scratch: u64,
    /// Whether its only launch may do the work of other kernels too: blocks are told apart by y.
    pub(crate) beside: Option<Beside>,
    /// See [`Generated::early`].
    pub(crate) early: Vec<String>,
    /// Whether scratch may hold anything before each run: all of it that is read was written by the same run.
    pub(crate) loose: bool,
    /// The chosen configuration in a few words, and why.
    pub(crate) config: String,
    pub(crate) why: String,
    pub(crate) rejected: Vec<String>,
}

/// What blocks a kernel takes beside others in its launch; it meets no block but its own either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beside {
    /// Blocks of its own threads alone; more blocks than its grid has do nothing.
    Exact,
    /// The same, of any number of warps from so many threads on.
    Wide(u32),
    /// Blocks of any number of warps, and any number of them: it loops over its work.
    Any,
}

/// One entry of a draft.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) suffix: String,
    pub(crate) call: String,
    pub(crate) grid: [u64; 3],
    pub(crate) threads: u32,
    pub(crate) blocks: u32,
    pub(crate) shared: u64,
}

impl Entry {
    /// The only entry of a kernel.
    pub(crate) fn only(call: impl Into<String>, grid: [u64; 3], threads: u32, shared: u64) -> Self {
        Entry { suffix: String::new(), call: call.into(), grid, threads, blocks: 1, shared }
    }
}

/// The decoder of an element and its header.
pub(crate) fn decoder(e: Elem) -> (String, &'static str) {
    let Some(q) = e.storage() else { return ("I32".into(), "quant/float.cuh") };
    let header = match q {
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => "quant/float.cuh",
        QuantType::Q4_0 | QuantType::Q4_1 => "quant/q4_0.cuh",
        QuantType::Q5_0 | QuantType::Q5_1 => "quant/q5_0.cuh",
        QuantType::Q8_0 => "quant/q8_0.cuh",
        QuantType::Q2_K => "quant/q2_k.cuh",
        QuantType::Q3_K => "quant/q3_k.cuh",
        QuantType::Q4_K => "quant/q4_k.cuh",
        QuantType::Q5_K => "quant/q5_k.cuh",
        QuantType::Q6_K => "quant/q6_k.cuh",
        QuantType::IQ1_S | QuantType::IQ1_M => "quant/iq1.cuh",
        QuantType::IQ2_XXS | QuantType::IQ2_XS | QuantType::IQ2_S => "quant/iq2.cuh",
        QuantType::IQ3_XXS | QuantType::IQ3_S => "quant/iq3.cuh",
        QuantType::IQ4_NL | QuantType::IQ4_XS => "quant/iq4.cuh",
        QuantType::TQ1_0 | QuantType::TQ2_0 => "quant/tq.cuh",
        QuantType::MXFP4 | QuantType::NVFP4 => "quant/fp4.cuh",
        QuantType::Q1_0 | QuantType::Q2_0 => "quant/q1_0.cuh",
        QuantType::Q4_K_SUB | QuantType::Q5_K_SUB | QuantType::Q6_K_SUB => "quant/sub.cuh",
    };
    (format!("{q:?}"), header)
}

/// How a float output is stored.
pub(crate) fn writer(e: Elem) -> Option<&'static str> {
    match e {
        Elem::F32 => Some("AsF32"),
        Elem::F16 => Some("AsF16"),
        Elem::BF16 => Some("AsBF16"),
        Elem::I32 | Elem::Quant(_) => None,
    }
}

/// A float constant, exact in f32 as `x as f32` rounds it.
pub(crate) fn float(x: f64) -> String {
    let x = x as f32;
    if x.is_finite() { format!("{x:e}f") } else { format!("glmc_bits_to_float(0x{:08x}u)", x.to_bits()) }
}

/// A configuration's name, and its cost (lower is better, comparable within a family) or why it is not possible.
pub(crate) type Candidate<C> = (&'static str, Result<(f64, C), String>);

/// Picks the cheapest configuration that is possible; the reasons of the others.
pub(crate) fn choose<C>(
    cx: &Cx<'_>,
    candidates: Vec<Candidate<C>>,
) -> Result<(&'static str, C, Vec<String>), GenerateError> {
    let mut best: Option<(&'static str, f64, C)> = None;
    let mut rejected = Vec::new();
    for (name, verdict) in candidates {
        match verdict {
            Err(why) => rejected.push(format!("{name}: {why}")),
            Ok((cost, c)) => match &best {
                Some((other, least, _)) if *least <= cost => {
                    rejected.push(format!("{name}: cost {cost:.3}, {other} {least:.3}"));
                }
                _ => {
                    if let Some((other, more, _)) = best.replace((name, cost, c)) {
                        rejected.push(format!("{other}: cost {more:.3}, {name} {cost:.3}"));
                    }
                }
            },
        }
    }
    match best {
        Some((name, _, c)) => Ok((name, c, rejected)),
        None => Err(GenerateError::NoConfig {
            kernel: cx.request.kernel.name().to_owned(),
            arch: cx.request.arch,
            why: rejected.join("; "),
        }),
    }
}

impl<'a> Cx<'a> {
    pub(crate) fn new(request: &'a Request<'a>) -> Result<Self, GenerateError> {
        let kernel = request.kernel;
        let types: Vec<&TensorType> = request.inputs.iter().collect();
        let fail = |why| GenerateError::Type { kernel: kernel.name().to_owned(), why };
        let results = kernel.result_types(&types).map_err(fail)?;
        let params = kernel.params();
        let updates = params.iter().filter(|p| p.access == Access::Update).count();
        let ins = params.iter().filter(|p| p.access != Access::Write).zip(request.inputs).enumerate();
        let inputs = ins
            .map(|(i, (p, t))| Part {
                ident: ident(&p.name),
                ty: t.clone(),
                storage: request.options.storage.get(i).copied().unwrap_or_default(),
            })
            .collect();
        let outs = params.iter().filter(|p| p.access == Access::Write).zip(results.into_iter().skip(updates));
        let form = |ty: TensorType| match request.options.merge {
            Some(PendingKind::Softmax) => softmax_part(&ty),
            Some(PendingKind::TopK) => topk_part(&ty),
            _ => ty,
        };
        let outputs =
            outs.map(|(p, ty)| Part { ident: ident(&p.name), ty: form(ty), storage: Storage::Rows }).collect();
        let cx = Cx { request, params, inputs, outputs };
        for part in cx.inputs.iter().chain(&cx.outputs) {
            if part.storage == Storage::Lane && part.lane().is_none() {
                return Err(cx.no_config(format!("{} of {} has no lane layout", part.ident, part.ty)));
            }
            let n = cx.bound(&part.ty.dims);
            if n.is_none_or(|n| n >= 1 << 40) {
                return Err(cx.too_large(format!("{} is {} with a bound of {n:?} elements", part.ident, part.ty)));
            }
        }
        Ok(cx)
    }

    pub(crate) fn too_large(&self, why: String) -> GenerateError {
        GenerateError::TooLarge { kernel: self.request.kernel.name().to_owned(), why }
    }

    /// Most elements of these dims.
    pub(crate) fn bound(&self, dims: &[Dim]) -> Option<u64> {
        dims.iter().try_fold(1u64, |n, d| n.checked_mul(self.most(d)?))
    }

    /// Largest size of a dim.
    pub(crate) fn most(&self, d: &Dim) -> Option<u64> {
        match &d.extent {
            Extent::Sym(s) => self.request.syms.get(s),
            e => e.as_const(),
        }
    }

    /// The size of these dims as an expression over `args`, in `u32`.
    pub(crate) fn size(&self, dims: &[Dim]) -> String {
        let mut constant = 1u64;
        let mut factors = Vec::new();
        for d in dims {
            match &d.extent {
                Extent::Sym(s) => {
                    let at = self.request.syms.0.get_index_of(s).unwrap_or(0);
                    factors.push(format!("args.syms[{at}]"));
                }
                e => constant *= e.as_const().unwrap_or(0),
            }
        }
        if constant != 1 || factors.is_empty() {
            factors.push(format!("{constant}u"));
        }
        factors.join(" * ")
    }

    /// Whether no launch writes input `i`.
    pub(crate) fn fixed(&self, i: usize) -> bool {
        self.request.options.fixed.get(i) == Some(&true)
    }

    /// Headers of the decoders of these parts.
    pub(crate) fn decoders(&self, parts: &[&Part]) -> Vec<&'static str> {
        let of = |p: &&Part| if p.lane().is_some() { "quant/lane.cuh" } else { decoder(p.ty.elem).1 };
        parts.iter().map(of).collect()
    }

    /// How output `i` stores its floats.
    pub(crate) fn put(&self, i: usize) -> Result<&'static str, GenerateError> {
        self.writer_of(&self.outputs[i])
    }

    /// How a part that is written stores its floats.
    pub(crate) fn writer_of(&self, part: &Part) -> Result<&'static str, GenerateError> {
        writer(part.ty.elem).ok_or_else(|| self.no_config(format!("an output of {}", part.ty)))
    }

    fn no_config(&self, why: String) -> GenerateError {
        GenerateError::NoConfig { kernel: self.request.kernel.name().to_owned(), arch: self.request.arch, why }
    }

    /// The size of dims that must not be symbolic, and fit 32 bits.
    pub(crate) fn constant(&self, dims: &[Dim]) -> Result<u64, GenerateError> {
        let size = dims.iter().try_fold(1u64, |n, d| n.checked_mul(d.extent.as_const()?));
        let text = || dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
        size.filter(|n| *n < 1 << 31).ok_or_else(|| self.no_config(format!("no constant size of [{}]", text())))
    }

    fn symbolic(&self) -> bool {
        let dims = self.inputs.iter().chain(&self.outputs).flat_map(|p| &p.ty.dims);
        dims.into_iter().any(|d| matches!(d.extent, Extent::Sym(_)))
    }

    pub(crate) fn signature(&self, scratch: u64, loose: bool) -> Signature {
        let (mut ins, mut outs) = (self.inputs.iter(), self.outputs.iter());
        let mut fields = Vec::new();
        for (index, p) in self.params.iter().enumerate() {
            let part = if p.access == Access::Write { outs.next() } else { ins.next() };
            let Some(part) = part else { continue };
            let layout = match part.storage {
                Storage::Rows => "rows",
                Storage::Lane => "lane",
            };
            let role = Role::Param { index, access: p.access, ty: part.ty.clone(), layout };
            fields.push(Field { ident: part.ident.clone(), role });
        }
        if self.symbolic() {
            fields.push(Field { ident: "syms".into(), role: Role::Symbols });
        }
        if scratch > 0 {
            fields.push(Field { ident: "scratch".into(), role: Role::Scratch { bytes: scratch, kept: !loose } });
        }
        Signature(fields)
    }

    /// The source around a draft.
    pub(crate) fn finish(&self, d: Draft) -> Result<Generated, GenerateError> {
        let signature = self.signature(d.scratch, d.loose);
        let kernel = self.request.kernel;
        let attrs = serde_json::to_string(&kernel.attrs()).unwrap_or_default();
        let mut head = format!("// {} {attrs}\n", kernel.name());
        for p in self.inputs.iter().chain(&self.outputs) {
            let _ = writeln!(head, "//   {}: {}", p.ident, p.ty);
        }
        if self.symbolic() {
            let bounds: Vec<String> = self.request.syms.0.iter().map(|(s, n)| format!("{s} <= {n}")).collect();
            let _ = writeln!(head, "// symbols: {}", bounds.join(", "));
        }
        let _ = writeln!(head, "// config: {}", d.config);
        let _ = writeln!(head, "// why: {}", d.why);
        for r in &d.rejected {
            let _ = writeln!(head, "// not {r}");
        }
        let mut inner = format!("{}\n{}", signature.render(), d.tables);
        let _ = write!(inner, "struct Config {{\n  typedef Args Arguments;\n{}}};\n{}", d.members, d.more);
        let hash = blake3::hash(format!("{head}{inner}{:?}", d.entries).as_bytes()).to_hex();
        let name = format!("{}_{}", kernel.name(), &hash[..12]);
        let mut body = format!("{head}namespace {name}_ {{\n{inner}}}  // namespace\n");
        let side = match (d.beside, d.entries.as_slice()) {
            (Some(how), [e]) if d.scratch == 0 && e.grid[1..] == [1, 1] => Some(Side {
                inner,
                call: e.call.clone(),
                threads: match how {
                    Beside::Exact => e.threads,
                    Beside::Wide(least) => least,
                    Beside::Any => 32,
                },
                exact: how == Beside::Exact,
                loops: how == Beside::Any,
                blocks: e.blocks,
            }),
            _ => None,
        };
        let mut launches = Vec::new();
        for e in d.entries {
            let symbol = if e.suffix.is_empty() { name.clone() } else { format!("{name}_{}", e.suffix) };
            let _ = write!(
                body,
                "GLMC_KERNEL({symbol}, {name}_::Args, {}, {}) {{\n  using namespace {name}_;\n  {}\n}}\n",
                e.threads, e.blocks, e.call
            );
            launches.push(self.shape(symbol, &e)?);
        }
        let includes: BTreeSet<&'static str> = d.includes.into_iter().collect();
        let (config, rejected, early) = (d.config, d.rejected, d.early);
        Ok(Generated { name, includes, body, signature, launches, side, early, config, rejected })
    }

    fn shape(&self, symbol: String, e: &Entry) -> Result<LaunchShape, GenerateError> {
        let limits = [0x7fff_ffff, 65_535, 65_535];
        let mut grid = [0; 3];
        for (g, (n, most)) in grid.iter_mut().zip(e.grid.iter().zip(limits)) {
            if *n > most {
                return Err(self.too_large(format!("a grid of {:?} blocks", e.grid)));
            }
            *g = (*n).max(1) as u32;
        }
        let most = u64::from(self.request.arch.shared_per_block());
        if e.shared > most {
            let why = format!("{} bytes of shared memory, a block of {} has {most}", e.shared, self.request.arch);
            return Err(self.too_large(why));
        }
        Ok(LaunchShape { symbol, grid, threads: e.threads, shared: e.shared as u32 })
    }
}
