//! A sum of two values right behind the product that makes one of them: the product's launch adds the other to each
//! result. The bits are those of two launches.

use glmc_ir::kernel::Access;
use glmc_ir::launch::{Call, PhaseLaunches, Place};
use glmc_ir::plan::{Mem, Phase};
use glmc_ir::quant::QuantType;
use glmc_ir::ty::TensorType;

use super::beside::Touched;
use crate::request::Generated;
use crate::signature::{Field, Role};

/// A product that could add another value, and one that does.
pub(crate) const ALONE: &str = "static constexpr bool MORE = false;\n  GLMC_DEVICE static f32 more(const Args&, u64) { \
                                return 0.0f; }";
const ADDS: &str = "static constexpr bool MORE = true;\n  GLMC_DEVICE static f32 more(const Args& args, u64 i) { return \
                    element<F32>(args.more, i); }";

/// Whether the kernel is an addition.
pub(super) fn is_sum(kernel: &Generated) -> bool {
    kernel.name.rsplit_once('_').is_some_and(|(stem, _)| stem == "add")
}

/// Takes additions into the launches before them.
pub(super) fn take(phase: &Phase, kernels: &mut Vec<Generated>, of: &mut PhaseLaunches) {
    let calls = of.launched();
    let (mut out, mut i) = (Vec::with_capacity(calls.len()), 0);
    while i < calls.len() {
        let both = calls.get(i + 1).and_then(|add| taken(phase, kernels, &calls[i], add, &calls[i + 2..]));
        i += if both.is_some() { 2 } else { 1 };
        out.push(both.unwrap_or_else(|| calls[i - 1].clone()));
    }
    if out.len() < calls.len() {
        of.graph = out;
    }
}

/// The call that does both, if nothing but the addition wants what the product makes.
fn taken(phase: &Phase, kernels: &mut Vec<Generated>, product: &Call, add: &Call, later: &[Call]) -> Option<Call> {
    let (made, sum) = (&kernels[product.kernel], &kernels[add.kernel]);
    // A launch of several kernels has arguments of each.
    let one = made.body.matches("struct Args {").count() == 1 && made.launches.len() == 1;
    if !made.body.contains(ALONE) || !one || !is_sum(sum) {
        return None;
    }
    let writes = |f: &Field| matches!(f.role, Role::Param { access: Access::Write, .. });
    let at = made.signature.0.iter().position(writes)?;
    let (from, [a, b, to]) = (product.args[at], <[Place; 3]>::try_from(add.args.as_slice()).ok()?);
    let other = match (a == from, b == from) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    let types: Vec<&TensorType> = made.signature.0[at..=at].iter().chain(&sum.signature.0).filter_map(ty).collect();
    let floats = |t: &&TensorType| t.elem.storage() == Some(QuantType::F32);
    let alike = types.len() == 4 && types.iter().all(floats) && types.iter().all(|t| t.dims == types[0].dims);
    let mem = |p: Place| if let Place::Mem { mem, .. } = p { Some(mem) } else { None };
    let wanted = later.iter().any(|c| c.args.contains(&from)) || phase.results.iter().any(|r| Some(r.mem) == mem(from));
    // All but the old result, and the other value, are read while the sum is written.
    let reads: Vec<(Field, Place)> = made.signature.0.iter().cloned().zip(product.args.iter().copied()).collect();
    let (mut fields, mut places): (Vec<Field>, Vec<Place>) =
        reads.into_iter().enumerate().filter(|(i, _)| *i != at).map(|(_, r)| r).unzip();
    fields.push(sum.signature.0[0].clone());
    places.push(other);
    let written = Touched::fields(phase, &sum.signature.0[2..3], &[to]);
    let buffers = matches!(mem(to), Some(Mem::Buf(_))) && matches!(mem(other), Some(Mem::Buf(_)));
    if !alike || wanted || !buffers || Touched::fields(phase, &fields, &places).bound_to(&written) {
        return None;
    }
    let field = Field { ident: "more".into(), ..sum.signature.0[0].clone() };
    let mut args = product.args.clone();
    args[at] = to;
    args.push(other);
    let kernel = adding(kernels, product.kernel, field)?;
    Some(Call { kernel, args, ..product.clone() })
}

fn ty(f: &Field) -> Option<&TensorType> {
    if let Role::Param { ty, .. } = &f.role { Some(ty) } else { None }
}

/// The product that takes one operand more.
fn adding(kernels: &mut Vec<Generated>, at: usize, field: Field) -> Option<usize> {
    let made = &kernels[at];
    let start = made.body.find("struct Args {")?;
    let end = start + made.body[start..].find("};")?;
    let (head, tail) = made.body.split_at(end);
    let body = format!("{head}  const u8* more;  // added to each result\n{tail}").replace(ALONE, ADDS);
    let k = super::settle::renamed(made, body);
    if let Some(i) = kernels.iter().position(|o| o.name == k.name) {
        return Some(i);
    }
    let mut k = k;
    k.signature.0.push(field);
    k.includes.insert("quant/float.cuh");
    kernels.push(k);
    Some(kernels.len() - 1)
}
