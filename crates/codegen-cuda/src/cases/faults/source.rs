//! Faults in the source of a kernel: in the functions and types of its `Config`, which every family takes its sizes and
//! its writes from.

use glmc_ir::kernel::Access;

use crate::cases::Check;
use crate::request::Generated;
use crate::signature::Role;

/// What writes floats.
const PUT: &str = "typedef AsF32 PUT;";
/// Functions that say how many tokens, rows, choices or elements there are.
const COUNTS: [&str; 7] = ["tokens", "rows", "count", "choices", "outputs", "ids", "batches"];

/// The kernel under another name, with another body.
fn renamed(k: &Generated, mark: &str, body: String) -> Generated {
    let name = format!("{}_{mark}", k.name);
    let body = body.replace(&k.name, &name);
    let mut launches = k.launches.clone();
    launches.iter_mut().for_each(|l| l.symbol = l.symbol.replace(&k.name, &name));
    Generated { name, body, launches, ..k.clone() }
}

/// The body with every count that `of` takes changed by `by`; `None` where there is none.
fn counts(k: &Generated, of: impl Fn(&str, &str) -> bool, by: &str) -> Option<String> {
    let mut found = false;
    let one = |line: &str| {
        let count = |name: &&str| line.contains(&format!(" {name}(const Args& args) {{ return "));
        let name = COUNTS.iter().find(|n| count(n))?;
        let (head, value) = line.split_once("{ return ")?;
        let value = value.strip_suffix("; }")?;
        of(name, value).then(|| format!("{head}{{ return ({value}) {by}; }}"))
    };
    let lines = k.body.lines().map(|l| {
        let changed = one(l);
        found |= changed.is_some();
        changed.unwrap_or_else(|| l.to_owned())
    });
    let body = lines.collect::<Vec<_>>().join("\n") + "\n";
    found.then_some(body)
}

/// The last row of the last result is not written; of kernels that write without rows the last element is not made.
pub(super) fn last_row(check: &Check, k: &Generated) -> Option<Generated> {
    let result = k.signature.0.iter().rev().find_map(|f| match &f.role {
        Role::Param { access: Access::Write, ty, .. } => Some(ty),
        _ => None,
    });
    let kept = result.and_then(|ty| {
        let all = ty.elems(&check.values)?;
        Some(all - ty.dims.last()?.extent.as_const()?.min(all))
    });
    // That of the last step: what products leave for it is no result.
    let step = k.body.rfind("struct Config {").unwrap_or(0);
    let body = match (k.body.rfind(PUT).filter(|at| *at > step), kept) {
        (Some(at), Some(kept)) => {
            let put = format!(
                "struct PUT {{ GLMC_DEVICE static void put(u8* y, u64 i, f32 v) {{ if (i < {kept}ull) AsF32::put(y, i, v); }} }};"
            );
            format!("{}{put}{}", &k.body[..at], &k.body[at + PUT.len()..])
        }
        _ => counts(k, |name, _| name != "batches", "- 1u")?,
    };
    Some(renamed(k, "last", body))
}

/// One token, row or element more than there are. Batches of known number size shared memory, and stay.
pub(super) fn tail(k: &Generated) -> Option<Generated> {
    let body = counts(k, |name, value| name != "batches" || value.contains("syms"), "+ 1u")?;
    Some(renamed(k, "tail", body))
}
