//! A case with one kernel that is made for it.

use std::sync::Arc;

use glmc_ir::kernel::{Access, Kernel};
use glmc_ir::quant::QuantType;
use glmc_ir::tensor::Tensor;
use glmc_ir::ty::{Dim, Extent, SymValues, TensorType};

use super::judge::{Bound, L2, compare, untouched};
use super::{Case, In, cases};
use crate::host::{Buffer, Job, Launch};
use crate::request::{Activations, GenerateError, Generated, Options, Request, Storage};
use crate::{Arch, Role, generate, repack};

/// A case, and what a kernel for it is made from.
#[derive(Clone, Debug)]
pub struct Check {
    /// The operands and what they mean together.
    pub case: Arc<Case>,
    /// For messages.
    pub what: String,
    /// Types that the kernel is made for; their symbols have the bounds and values below.
    pub types: Vec<TensorType>,
    /// Bounds of the symbols.
    pub bounds: SymValues,
    /// Values of the symbols.
    pub values: SymValues,
    /// How it is made.
    pub options: Options,
}

impl Check {
    /// The case with constant dims.
    pub fn new(case: Arc<Case>, options: Options) -> Check {
        let types = case.inputs.iter().map(|i| i.ty().clone()).collect();
        let (bounds, values) = (SymValues::default(), SymValues::default());
        // With symbols nothing is known to stay as it is: both ways are checked.
        let fixed = case.inputs.iter().enumerate().map(|(i, of)| i > 0 && !matches!(of, In::Pool(..))).collect();
        let options = Options { fixed, ..options };
        Check { what: case.what.clone(), case, types, bounds, values, options }
    }

    /// The same with symbols for tokens and keys, below their bounds; `None` where the contract's rule does not allow
    /// it.
    pub fn with_symbols(&self) -> Option<Check> {
        let case = &self.case;
        let lead = usize::from(matches!(case.kernel, Kernel::Gather(_) | Kernel::Append(_) | Kernel::AppendRow(_)));
        let constant = |t: &TensorType, d: usize| {
            t.dims.get(d).and_then(|d| match d.extent {
                Extent::Const(n) => Some(n),
                _ => None,
            })
        };
        let tokens = constant(&self.types[lead], 0)?;
        let mut types = self.types.clone();
        for (i, t) in types.iter_mut().enumerate() {
            // Experts are a matrix even where a case holds them as floats.
            let experts = match case.kernel {
                Kernel::GroupedMatmul(_) | Kernel::GroupedDown(_) => i == 1,
                Kernel::GroupedGateUp(_) => i == 1 || i == 2,
                _ => false,
            };
            let free = !matches!(case.inputs[i], In::W(..) | In::Pool(..)) && i >= lead && !experts;
            if free && constant(t, 0) == Some(tokens) {
                t.dims[0] = Dim::sym("T");
            }
        }
        let none = SymValues::default();
        let (mut bounds, mut values) = (none.clone().with("T", tokens + 3), none.with("T", tokens));
        let keyed: Vec<usize> = match &case.kernel {
            Kernel::Attention(k) => (k.0.parts..=2 * k.0.parts).collect(),
            Kernel::Indexer(_) => vec![1],
            Kernel::PagedAttention(k) => vec![k.keys.len() + 1],
            Kernel::PagedIndexer(_) => vec![2],
            Kernel::TopK(_) => vec![0],
            _ => Vec::new(),
        };
        for i in keyed {
            if let Some(n) = constant(&types[i], 1) {
                (bounds, values) = (bounds.with("S", n + 70), values.with("S", n));
                types[i].dims[1] = Dim::sym("S");
            }
        }
        case.kernel.result_types(&types.iter().collect::<Vec<_>>()).ok()?;
        let what = format!("{} with symbols", self.what);
        let options = Options { fixed: Vec::new(), ..self.options.clone() };
        Some(Check { what, types, bounds, values, options, ..self.clone() })
    }

    /// What a relative L2 may be.
    pub fn budget(&self) -> f64 {
        match self.options.activations {
            Activations::F32 => L2,
            Activations::BF16 => 2e-3,
            Activations::Int8 => 1e-2,
        }
    }

    /// The type of the stored weights; of the first where there are several.
    pub fn quant(&self) -> Option<QuantType> {
        let stored = self.case.inputs.iter().filter(|i| matches!(i, In::W(..)));
        stored.filter_map(|i| i.ty().elem.storage()).next()
    }

    /// Whether weights lie in the lane layout.
    pub fn in_lanes(&self) -> bool {
        self.options.storage.contains(&Storage::Lane)
    }

    /// The kernel.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub fn kernel(&self, arch: Arch) -> Result<Generated, GenerateError> {
        let (kernel, inputs, syms, options) = (&self.case.kernel, &self.types, &self.bounds, &self.options);
        generate(&Request { kernel, inputs, syms, arch, options })
    }

    fn stored(&self, i: usize) -> Result<Vec<u8>, String> {
        let lane = self.options.storage.get(i) == Some(&Storage::Lane);
        Ok(match self.case.inputs.get(i).ok_or("an input is missing")? {
            In::F(_, v) | In::Pool(_, v) => v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            In::W(t, b) if lane => {
                let q = t.elem.storage().ok_or("no weight")?;
                repack::to_lane(q, b).ok_or_else(|| format!("{t} has no lane layout"))?
            }
            In::W(_, b) => b.clone(),
            In::I(_, v) => v.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
        })
    }

    /// The buffers and launches of its kernel; its outputs in the order of the contract's meaning.
    ///
    /// # Errors
    /// A kernel that takes other inputs than the case has.
    pub fn job(&self, k: &Generated) -> Result<(Job, Vec<Bound>), String> {
        let (mut buffers, mut outputs) = (Vec::new(), Vec::new());
        let (mut next, mut back) = (0, 0);
        let size = |t: &TensorType, s: &SymValues| t.bytes(s).map(|n| n as usize).ok_or(format!("no size of {t}"));
        let mut input = || {
            next += 1;
            self.stored(next - 1)
        };
        for f in &k.signature.0 {
            let buffer = match &f.role {
                Role::Param { access, ty, .. } => {
                    if *access != Access::Read {
                        outputs.push(Bound { buffer: back, bytes: size(ty, &self.values)?, elem: ty.elem });
                    }
                    match access {
                        Access::Read => Buffer::Input(input()?),
                        Access::Update => Buffer::Changed(input()?),
                        Access::Write => Buffer::Output(size(ty, &self.bounds)?),
                    }
                }
                Role::Symbols => {
                    Buffer::Input(self.values.0.values().flat_map(|v| (*v as u32).to_le_bytes()).collect())
                }
                Role::Scratch { bytes, .. } => Buffer::Changed(vec![0; *bytes as usize]),
                Role::Slab { .. } | Role::Control | Role::Halt => return Err("a kernel of several devices".into()),
            };
            back += usize::from(!matches!(buffer, Buffer::Input(_)));
            buffers.push(buffer);
        }
        let args: Vec<u32> = (0..buffers.len() as u32).collect();
        let launches = k.launches.iter().map(|s| Launch { shape: s.clone(), args: args.clone(), device: 0 }).collect();
        Ok((Job { buffers, launches }, outputs))
    }

    /// Judges what came back: the worst relative L2 of its outputs.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn judge(&self, bounds: &[Bound], back: &[Vec<u8>], want: &[Tensor]) -> Result<f64, String> {
        if bounds.len() != want.len() {
            return Err(format!("{} outputs for {}", bounds.len(), want.len()));
        }
        let mut worst = 0.0f64;
        for (b, w) in bounds.iter().zip(want) {
            let bytes = back.get(b.buffer).ok_or("an output is missing")?;
            untouched(bytes, b)?;
            worst = worst.max(compare(&b.numbers(bytes)?, w, self.budget())?.0);
        }
        Ok(worst)
    }
}

/// Fewest results whose relative L2 the budget of bf16 activations holds for. A rounding moves a product by up to 4e-3,
/// by 1.5e-3 in the mean: 2e-3 is a bound for the mean over some hundred results, not for one.
const MANY: u64 = 300;

/// The case with activations that bf16 holds exactly, if it has too few results for a budget of rounded ones; larger
/// cases keep theirs, so that the rounding is tested too.
fn fit_for_bf16(mut case: Case) -> Case {
    let types: Vec<&TensorType> = case.inputs.iter().map(In::ty).collect();
    let results = case.kernel.result_types(&types).unwrap_or_default();
    let count = |t: &TensorType| t.elems(&SymValues::default()).unwrap_or(0);
    let few = results.iter().map(count).any(|n| n < MANY);
    if let (true, Some(In::F(_, v))) = (few, case.inputs.first_mut()) {
        v.iter_mut().for_each(|x| *x = f64::from(f32::from_bits((*x as f32).to_bits() & 0xffff_0000)));
    }
    case
}

/// Every kernel of a contract's cases: with constant dims and with symbols.
pub fn checks(name: &str, seed: u64, options: &Options) -> Vec<Check> {
    let mut out = Vec::new();
    for case in cases(name, seed) {
        let case = if options.activations == Activations::BF16 { fit_for_bf16(case) } else { case };
        let check = Check::new(Arc::new(case), options.clone());
        let symbolic = check.with_symbols();
        out.push(check);
        out.extend(symbolic);
    }
    out
}
