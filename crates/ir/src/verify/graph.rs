//! Owns the order of the graph rules. Never owns a rule.

use super::{calls, owners, state, structure, types, weights};
use crate::diag::{Diagnostic, Diagnostics};
use crate::entities::FuncId;
use crate::graph::{Function, Module};
use crate::text::Names;

/// What the rules of one function share.
pub(super) struct Scope<'m> {
    pub(super) m: &'m Module,
    pub(super) id: FuncId,
    pub(super) f: &'m Function,
    pub(super) names: Names<'m>,
    /// For each function, whether its ids may be followed without a check.
    pub(super) sound: &'m [bool],
    /// Whether every call leads to an earlier function, so that no calls form a cycle.
    pub(super) ordered: bool,
}

impl Scope<'_> {
    /// Whether `func` is there and its ids may be followed.
    pub(super) fn is_sound(&self, func: FuncId) -> bool {
        self.sound.get(func.as_u32() as usize).copied().unwrap_or(false)
    }
}

/// Judges a whole module by every rule.
///
/// # Errors
/// All findings, each with one of [`super::CODES`].
pub fn verify_module(m: &Module) -> Result<(), Diagnostics> {
    let mut found = Vec::new();
    module_rules(m, &mut found);
    let sound: Vec<bool> = m.funcs.values().map(|f| structure::definitions(m, f, &mut found)).collect();
    let ordered = calls::all_ordered(m);
    let origins = state::result_origins(m, &sound);
    for (id, f) in m.funcs.iter().filter(|(id, _)| sound[id.as_u32() as usize]) {
        let s = Scope { m, id, f, names: Names::new(m, f), sound: &sound, ordered };
        function_rules(&s, &origins, &mut found);
    }
    Diagnostics(found).into_result()
}

fn module_rules(m: &Module, found: &mut Vec<Diagnostic>) {
    types::symbols(m, found);
    types::mesh(m, found);
    weights::names(m, found);
    weights::types(m, found);
    weights::spans(m, found);
    weights::uses(m, found);
    structure::function_names(m, found);
}

fn function_rules(s: &Scope<'_>, origins: &state::Origins, found: &mut Vec<Diagnostic>) {
    structure::value_names(s, found);
    structure::use_before_def(s, found);
    structure::unused_results(s, found);
    types::values(s, found);
    types::inference(s, found);
    owners::same_owners(s, found);
    calls::order(s, found);
    calls::entry_params(s, found);
    state::linear(s, found);
    state::entry_results(s, origins, found);
}
