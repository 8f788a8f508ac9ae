//! What a plan is compared with: the lifted model of its file in the interpreter, or the model compiled without
//! optimisation for one rank. Owns caches and steps of the reference; never compares.

use std::collections::HashMap;
use std::path::Path;

use glmc_frontend_gguf::arch::LiftOptions;
use glmc_frontend_gguf::{GgufSet, Model, open};
use glmc_ir::entities::WeightId;
use glmc_ir::graph::Module;
use glmc_ir::interp::Arith;
use glmc_ir::interp::global::{Interp, WeightSource};
use glmc_ir::plan::{Plan, param};
use glmc_ir::tensor::{Data, EvalError, Tensor};
use glmc_ir::ty::{SymValues, TensorType};
use glmc_runtime::engine::{Engine, SeqId, Want};
use glmc_runtime::load::map_weights;

use super::choices::Choices;
use super::metric::Rounding;
use super::names;
use super::record::Recorded;
use super::{CHUNK, ReferenceKind};
use crate::cli::{DeviceArgs, SizeArgs};
use crate::cmd::device::{Opened, Placed};
use crate::error::CliError;

/// Whole values by name; what goes into a pool by the pool's name.
pub(super) type Values = HashMap<String, Tensor>;

pub(super) enum Reference {
    Interpreter(Box<Interpreter>),
    Plain(Box<Plain>),
}

impl Reference {
    /// The reference for a plan, with room for `total` tokens.
    ///
    /// # Errors
    /// A model file that is gone or is not what it was, or, of a plain plan, that does not fit the device.
    pub(super) fn open(
        kind: ReferenceKind,
        plan: &Plan,
        device: &Opened,
        args: &DeviceArgs,
        total: u64,
        quiet: bool,
    ) -> Result<Reference, CliError> {
        let file = plan.files.first().ok_or_else(|| CliError::internal("a plan without weight files"))?;
        let file = Path::new(&file.path);
        Ok(match kind {
            ReferenceKind::Interpreter => Reference::Interpreter(Box::new(Interpreter::open(file, plan, total)?)),
            ReferenceKind::Plain => Reference::Plain(Box::new(Plain::open(file, plan, device, args, total, quiet)?)),
        })
    }

    /// What it is, for people.
    pub(super) fn about(&self) -> String {
        match self {
            Reference::Interpreter(_) => "interpreter: the model as its file says it, in exact arithmetic".into(),
            Reference::Plain(p) => format!("plain: the model without optimisation, one rank, on {}", p.place),
        }
    }

    /// The values of the step that was recorded: `tokens` after all before them.
    pub(super) fn step(
        &mut self,
        plan: &Plan,
        tokens: &[u32],
        recorded: &Recorded,
        rounding: Rounding,
    ) -> Result<Values, CliError> {
        match self {
            Reference::Interpreter(i) => {
                let made = choices(plan, recorded);
                i.step(plan, tokens, recorded, &Choices { made, thin: rounding.model().max })
            }
            Reference::Plain(p) => p.step(tokens),
        }
    }
}

/// The ids that a plan's steps chose, by every name that a reference may know them by.
fn choices(plan: &Plan, recorded: &Recorded) -> HashMap<String, Tensor> {
    let known = names::of_phase(plan, &plan.phases[recorded.phase]);
    let mut out = HashMap::new();
    for (at, k) in known {
        if let Some(t) = recorded.whole_ids(plan, at, &k.ty) {
            k.names.into_iter().for_each(|n| {
                out.insert(n, t.clone());
            });
        }
    }
    out
}

/// The lifted model.
pub(super) struct Interpreter {
    set: GgufSet,
    module: Module,
    pools: HashMap<String, Tensor>,
    len: usize,
}

struct Stored<'a>(&'a GgufSet, &'a Module);

impl WeightSource for Stored<'_> {
    fn bytes(&self, w: WeightId) -> Result<std::borrow::Cow<'_, [u8]>, EvalError> {
        let s = self.1.weights[w].span;
        let bytes = self.0.tensor_bytes(s.part as usize, s.offset, s.bytes);
        bytes.map(Into::into).ok_or_else(|| EvalError::new("a weight lies outside its file"))
    }
}

fn failed(e: EvalError) -> CliError {
    CliError::usage("reference", format!("the reference has no answer: {e}")).class("verification")
}

impl Interpreter {
    fn open(file: &Path, plan: &Plan, total: u64) -> Result<Self, CliError> {
        let set = open(file)?;
        let model = Model::load(&set)?;
        let chunk = plan.limits.chunk.min(CHUNK);
        // Rows of its own: how a plan deals them is no part of a value.
        let options = LiftOptions { ctx: plan.limits.ctx, max_batch: 1, cache_rows: total, chunk };
        let lifted = model.lift(&options).map_err(|d| CliError::internal(d.to_string()))?;
        Ok(Interpreter { module: lifted.module, set, pools: HashMap::new(), len: 0 })
    }

    fn step(
        &mut self,
        plan: &Plan,
        tokens: &[u32],
        recorded: &Recorded,
        choices: &Choices,
    ) -> Result<Values, CliError> {
        let (n, seen) = (tokens.len(), self.len + tokens.len());
        let phase = &plan.phases[recorded.phase];
        let out = phase.param_named(param::OUT).and_then(|p| recorded.params.get(p.as_u32() as usize));
        let out: Vec<i64> = out.into_iter().flatten().map(|i| i64::from(*i)).collect();
        let syms =
            SymValues::default().with("T", n as u64).with(param::VISIBLE, seen as u64).with("R", out.len() as u64);
        let entry = self.module.func_named("prefill");
        let entry = entry.ok_or_else(|| CliError::internal("the lifted model has no prefill"))?;
        let f = &self.module.funcs[entry];
        let ramp = |from: usize, n: usize| (from..from + n).map(|i| i as i64).collect::<Vec<_>>();
        let mut args = Vec::new();
        for p in &f.params {
            let name = f.value_name(*p);
            args.push(match name.as_str() {
                param::TOKENS => Tensor::i(vec![n], tokens.iter().map(|t| i64::from(*t)).collect()),
                param::POS | param::ROW => Tensor::i(vec![n], ramp(self.len, n)),
                param::SEQ => Tensor::i(vec![n], vec![0; n]),
                param::LEN => Tensor::i(vec![n], ramp(self.len + 1, n)),
                param::TABLE => Tensor::i(vec![1, seen], ramp(0, seen)),
                param::OUT => Tensor::i(vec![out.len()], out.clone()),
                _ => match self.pools.remove(&name) {
                    Some(pool) => pool,
                    None => Tensor::poison(f.ty(*p), &syms).map_err(failed)?,
                },
            });
        }
        let mut values = Values::new();
        let mut see = |path: &str, _: &TensorType, t: &Tensor| {
            if !matches!(t.data, Data::Q(..)) {
                values.insert(path.to_owned(), t.clone());
            }
        };
        let mut amend =
            |path: &str, op: &_, args: &[&Tensor], outs: &mut Vec<Tensor>| choices.amend(path, op, args, outs);
        let stored = Stored(&self.set, &self.module);
        let interp = Interp::new(&self.module, Arith::Real, syms, &stored).observe(&mut see).amended(&mut amend);
        let mut interp = interp;
        let results = interp.run(entry, args).map_err(failed)?;
        drop(interp);
        for ((name, v), t) in f.results.iter().zip(results) {
            if f.ty(*v).state {
                values.insert(name.clone(), rows(&t, self.len, n)?);
                self.pools.insert(name.clone(), t);
            }
        }
        self.len = seen;
        Ok(values)
    }
}

/// Rows `from..from + n` of a pool.
fn rows(pool: &Tensor, from: usize, n: usize) -> Result<Tensor, CliError> {
    let width = pool.shape.get(1).copied().unwrap_or(1);
    let all = pool.floats().map_err(failed)?;
    let part =
        all.get(from * width..(from + n) * width).ok_or_else(|| failed(EvalError::new("a pool is too short")))?;
    Ok(Tensor::f(vec![n, width], part.to_vec()))
}

/// The model compiled without optimisation.
pub(super) struct Plain {
    engine: Engine,
    seq: SeqId,
    first: bool,
    place: String,
}

impl Plain {
    fn open(
        file: &Path,
        plan: &Plan,
        device: &Opened,
        args: &DeviceArgs,
        total: u64,
        quiet: bool,
    ) -> Result<Self, CliError> {
        let target = if device.is_cpu() { "cpu" } else { "1x-h200" };
        let sizes = SizeArgs {
            target: Some(target.into()),
            ctx: Some(plan.limits.ctx),
            max_batch: Some(1),
            cache: Some(total),
            fuel: Some(0),
            ..SizeArgs::default()
        };
        let made = crate::cmd::compile::compile(file, &sizes, glmc_passes::cost::TUNE_CTX, None)?;
        let loaded = map_weights(made.plan, file)?;
        let Placed { mut engine, .. } = device.engine(loaded, args, quiet)?;
        engine.set_poison(true);
        engine.set_chunk(CHUNK);
        let seq = engine.start();
        Ok(Plain { engine, seq, first: true, place: device.place.to_string() })
    }

    fn step(&mut self, tokens: &[u32]) -> Result<Values, CliError> {
        let (seq, first) = (self.seq, self.first);
        self.first = false;
        let recorded = Recorded::of(&mut self.engine, |e, see| match tokens {
            [one] if !first => e.decode_observed(&[(seq, *one)], Some(see)),
            _ => e.feed_observed(seq, tokens, Want::Last, Some(see)),
        })?;
        if let Some(e) = recorded.ended {
            return Err(e.into());
        }
        let plan = self.engine.plan();
        let known = names::of_phase(plan, &plan.phases[recorded.phase]);
        let mut values = Values::new();
        // Of two values of one name the later is what the name means.
        for (at, k) in known {
            let Some(t) = recorded.parts.get(&at).and_then(|p| p.first()).and_then(Option::as_ref) else { continue };
            k.names.into_iter().for_each(|n| {
                values.insert(n, t.clone());
            });
        }
        Ok(values)
    }
}
