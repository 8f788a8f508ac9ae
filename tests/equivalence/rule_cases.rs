//! For each rewrite rule a random function that meets its condition. Never runs one.

use std::collections::HashMap;

use glmc_ir::builder::Builder;
use glmc_ir::diag::Diagnostic;
use glmc_ir::entities::Value;
use glmc_ir::graph::Module;
use glmc_ir::ops::*;
use glmc_ir::quant::QuantType;
use glmc_ir::ty::{Dim, Elem, SymValues, TensorType};

use crate::run::Rng;

/// A function and what its operands may be.
pub(super) struct Case {
    pub(super) module: Module,
    /// Largest number of integer parameters, by name; others are 0.
    pub(super) most: HashMap<&'static str, usize>,
    /// Whether small integers go through without rounding, so that both sides have equal bits.
    pub(super) exact: bool,
    /// Values of the module's symbols.
    pub(super) syms: SymValues,
}

struct Make<'r, 'm> {
    rng: &'r mut Rng,
    b: Builder<'m>,
    most: HashMap<&'static str, usize>,
    exact: bool,
    /// Bounds and values of symbols.
    bounds: SymValues,
    syms: SymValues,
}

type Results = Result<Vec<Value>, Diagnostic>;

/// A case of the rule called `name`.
pub(super) fn case(name: &str, rng: &mut Rng) -> Option<Case> {
    made(name, rng, &|k| {
        Some(match name {
            "decode-in-consumer" => k.decode(),
            "absorb-key-weight" | "absorb-value-weight" => k.expanded(name == "absorb-key-weight"),
            "expand-key-weight" | "expand-value-weight" => k.absorbed(name == "expand-key-weight"),
            "share-input" => k.share(),
            "scale-of-scale" | "scale-by-one" => k.scales(name == "scale-by-one"),
            "scale-into-indexer" => k.indexer(),
            "scale-into-attention" => k.scaled_attention(),
            "reshape-of-reshape" | "reshape-to-itself" => k.reshape(name == "reshape-to-itself"),
            "piece-of-join" => k.piece_of_join(),
            "join-of-pieces" => k.join_of_pieces(),
            "fuse-swiglu" | "fuse-swiglu-pieces" => k.swiglu(name == "fuse-swiglu-pieces"),
            "fuse-gate-up" => k.gate_up(),
            "fuse-grouped-gate-up" => k.grouped_gate_up(),
            "fuse-grouped-down" => k.grouped_down(),
            "fuse-add-norm" => k.add_norm(),
            "fuse-rope-join" | "fuse-latent-row" => k.rows(name == "fuse-latent-row"),
            "fuse-index-row" => k.index_row(),
            "attend-to-all" => k.selected(Select::Everything),
            _ => return None,
        })
    })
}

/// What `attend-to-all` must leave alone.
pub(super) fn not_all(what: Select, rng: &mut Rng) -> Case {
    made("attend-to-all", rng, &|k| Some(k.selected(what))).expect("a case")
}

/// How many of the positions a selection holds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Select {
    /// All that there can be.
    Everything,
    /// Fewer than there can be.
    Fewer,
    /// All that other tokens may see.
    OfOthers,
}

fn made(name: &str, rng: &mut Rng, make: &dyn Fn(&mut Make<'_, '_>) -> Option<Results>) -> Option<Case> {
    let (empty, none) = (Module::default(), SymValues::default());
    let b = Builder::new(&empty, "f");
    let mut k = Make { rng, b, most: HashMap::new(), exact: true, bounds: none.clone(), syms: none };
    let results = make(&mut k)?.unwrap_or_else(|e| panic!("a case of `{name}`: {e}"));
    let f = k.b.finish(results.into_iter().enumerate().map(|(i, v)| (format!("r{i}"), v)));
    let (most, exact, syms) = (k.most, k.exact, k.syms);
    let mut module = Module { name: "m".into(), syms: k.bounds.0, ..Module::default() };
    module.funcs.push(f);
    Some(Case { module, most, exact, syms })
}

impl Make<'_, '_> {
    fn n(&mut self) -> u64 {
        1 + self.rng.below(5) as u64
    }

    fn f(&mut self, name: &str, dims: &[u64]) -> Value {
        self.b.param(name, TensorType::new(Elem::F32, dims.iter().copied()))
    }

    fn i(&mut self, name: &'static str, dims: &[u64], most: u64) -> Value {
        self.most.insert(name, most as usize);
        self.b.param(name, TensorType::new(Elem::I32, dims.iter().copied()))
    }

    /// A stored tensor, or a plain one; decoded where it is stored.
    fn w(&mut self, name: &str, dims: &[u64]) -> Result<Value, Diagnostic> {
        let q = *self.rng.pick(&[QuantType::Q8_0, QuantType::Q4_0, QuantType::F16, QuantType::F32]);
        let whole = dims.last().is_some_and(|n| n.is_multiple_of(q.block_elems() as u64));
        if !whole || q == QuantType::F32 {
            return Ok(self.f(name, dims));
        }
        let v = self.b.param(name, TensorType::new(q, dims.iter().copied()));
        self.b.one(Dequant {}, &[v])
    }

    /// A width: small, or one that blocks fit.
    fn width(&mut self) -> u64 {
        if self.rng.flip() { 32 } else { self.n() }
    }

    fn decode(&mut self) -> Results {
        let (t, k, n) = (self.n(), 32, self.n());
        let q = *self.rng.pick(&[QuantType::Q8_0, QuantType::Q4_0, QuantType::Q5_0]);
        let stored = |b: &mut Builder<'_>, dims: &[u64]| {
            let v = b.param("w", TensorType::new(q, dims.iter().copied()));
            b.one(Dequant {}, &[v])
        };
        match self.rng.below(9) {
            0 => {
                let x = self.f("x", &[t, k]);
                let w = stored(&mut self.b, &[n, k])?;
                self.b.op(Matmul::new("tk,nk->tn"), &[x, w])
            }
            1 => {
                let (x, ids) = (self.f("x", &[t, k]), self.i("ids", &[t, 2], 3));
                let w = stored(&mut self.b, &[4, n, k])?;
                self.b.op(GroupedMatmul {}, &[x, w, ids])
            }
            2 => {
                let ids = self.i("ids", &[t], 6);
                let w = stored(&mut self.b, &[7, k])?;
                self.b.op(Gather {}, &[w, ids])
            }
            3 => {
                let x = self.f("x", &[t, k]);
                let w = stored(&mut self.b, &[k])?;
                self.b.op(RmsNorm { eps: 1e-5 }, &[x, w])
            }
            4 => {
                let (x, bias) = (self.f("x", &[t, k]), self.f("bias", &[k]));
                let w = stored(&mut self.b, &[k])?;
                self.b.op(LayerNorm { eps: 1e-5 }, &[x, w, bias])
            }
            5 => {
                let x = self.f("x", &[t, k]);
                let bias = stored(&mut self.b, &[k])?;
                let (gating, k) = (Gating::Sigmoid, 3);
                let route = MoeRoute { gating, k, bias: true, groups: 1, groups_used: 1, norm: true, scale: 2.5 };
                self.b.op(route, &[x, bias])
            }
            6 => {
                let x = self.f("x", &[t, k]);
                let y = stored(&mut self.b, &[1, k])?;
                self.b.op(Add {}, &[x, y])
            }
            7 => {
                let x = self.f("x", &[t, k]);
                let y = stored(&mut self.b, &[t, k])?;
                self.b.op(Mul {}, &[x, y])
            }
            _ => {
                let w = stored(&mut self.b, &[t, k])?;
                self.b.op(Silu {}, &[w])
            }
        }
    }

    /// The operands after the keys and values.
    fn tail(&mut self, t: u64, q: u64, s: u64, selected: bool) -> Vec<Value> {
        let mut out = vec![self.i("seq", &[t], q - 1), self.i("len", &[t], s)];
        if selected {
            out.push(self.i("sel", &[t, 3], s));
        }
        out
    }

    /// Attention over keys or values that are products of latents, the other parts plain; latents with or without
    /// heads, weights a head or shared, letters of any order.
    fn expanded(&mut self, key: bool) -> Results {
        self.exact = false;
        let (t, h, q, s, c, n) = (self.n(), self.n(), self.n(), self.n(), self.width(), self.width());
        let (lat_heads, w_heads) = (self.rng.below(3) == 0, self.rng.below(4) > 0);
        let turned = self.rng.flip();
        let head = |some: bool| if some { "h" } else { "" };
        let w_letters = if turned { format!("{}cn", head(w_heads)) } else { format!("{}nc", head(w_heads)) };
        let spec = format!("qs{}c,{w_letters}->qs{}n", head(lat_heads), head(lat_heads || w_heads));
        let lat_dims = if lat_heads { vec![q, s, h, c] } else { vec![q, s, c] };
        let mut w_dims = if w_heads { vec![h] } else { vec![] };
        w_dims.extend(if turned { [c, n] } else { [n, c] });
        let (lat, w) = (self.f("lat", &lat_dims), self.w("w", &w_dims)?);
        let made = self.b.one(Matmul::new(&spec), &[lat, w])?;
        let parts = 1 + self.rng.below(2);
        let at = if key { self.rng.below(parts) } else { parts };
        let (mut qs, mut ks) = (Vec::new(), Vec::new());
        for i in 0..parts {
            let d = if i == at { n } else { self.n() };
            qs.push(self.f(&format!("q{i}"), &[t, h, d]));
            ks.push(if i == at { made } else { self.f(&format!("k{i}"), &[q, s, d]) });
        }
        let v = if key {
            let dv = self.n();
            self.f("v", &[q, s, h, dv])
        } else {
            made
        };
        let selected = self.rng.flip();
        let tail = self.tail(t, q, s, selected);
        let args = [qs, ks, vec![v], tail].concat();
        self.b.op(Attention { parts, scale: 0.3, selected }, &args)
    }

    /// Attention over latents, with a weight on the query or on the result.
    fn absorbed(&mut self, key: bool) -> Results {
        self.exact = false;
        let (t, h, q, s, c, n) = (self.n(), self.n(), self.n(), self.n(), self.width(), self.width());
        let (lat_heads, w_heads, turned) = (self.rng.below(3) == 0, self.rng.below(4) > 0, self.rng.flip());
        let lat_dims = if lat_heads { vec![q, s, h, c] } else { vec![q, s, c] };
        let lat = self.f("lat", &lat_dims);
        let head = if w_heads { "h" } else { "" };
        let letters = if turned { format!("{head}cn") } else { format!("{head}nc") };
        let mut w_dims = if w_heads { vec![h] } else { vec![] };
        w_dims.extend(if turned { [c, n] } else { [n, c] });
        let w = self.w("w", &w_dims)?;
        let (parts, selected) = (1 + self.rng.below(2), self.rng.flip());
        let at = if key { self.rng.below(parts) } else { parts };
        let (mut qs, mut ks) = (Vec::new(), Vec::new());
        for i in 0..parts {
            if i == at {
                let x = self.f("x", &[t, h, n]);
                qs.push(self.b.one(Matmul::new(&format!("thn,{letters}->thc")), &[x, w])?);
                ks.push(lat);
            } else {
                let d = self.n();
                qs.push(self.f(&format!("q{i}"), &[t, h, d]));
                ks.push(self.f(&format!("k{i}"), &[q, s, d]));
            }
        }
        let v = if key {
            let dv = self.n();
            self.f("v", &[q, s, dv])
        } else {
            lat
        };
        let tail = self.tail(t, q, s, selected);
        let args = [qs, ks, vec![v], tail].concat();
        let o = self.b.one(Attention { parts, scale: 0.3, selected }, &args)?;
        if key { Ok(vec![o]) } else { self.b.op(Matmul::new(&format!("thc,{letters}->thn")), &[o, w]) }
    }

    fn share(&mut self) -> Results {
        let (t, k, count) = (self.n(), self.width(), 2 + self.rng.below(3));
        let heads = self.rng.flip();
        let h = self.n();
        let x = self.f("x", &[t, k]);
        let mut out = Vec::new();
        for i in 0..count {
            let n = self.n();
            let name = ["w.gate", "up", "w.q a", "w.up"][i];
            if heads {
                let w = self.f(name, &[h, n, k]);
                out.push(self.b.one(Matmul::new("tk,hnk->thn"), &[x, w])?);
            } else if self.rng.flip() {
                let dims = [Dim::joined(&[("a", n), ("b", 2)]), Dim::new(k)];
                let w = self.b.param(name, TensorType::new(Elem::F32, dims));
                out.push(self.b.one(Matmul::new("tk,nk->tn"), &[x, w])?);
            } else {
                let w = self.f(name, &[n, k]);
                out.push(self.b.one(Matmul::new("tk,nk->tn"), &[x, w])?);
            }
        }
        Ok(out)
    }

    fn power(&mut self) -> f64 {
        *self.rng.pick(&[0.25, 0.5, 2.0, 8.0])
    }

    fn scales(&mut self, one: bool) -> Results {
        let dims = [self.n(), self.n()];
        let x = self.f("x", &dims);
        let (a, sign) = (self.power(), if self.rng.flip() { 1.0 } else { -1.0 });
        let b = if one { 1.0 } else { sign * self.power() };
        let y = if one { x } else { self.b.one(Scale { factor: a }, &[x])? };
        self.b.op(Scale { factor: b }, &[y])
    }

    fn indexer(&mut self) -> Results {
        let (t, h, d, q, s) = (self.n(), self.n(), self.n(), self.n(), self.n());
        let (x, k, w) = (self.f("q", &[t, h, d]), self.f("k", &[q, s, d]), self.f("w", &[t, h]));
        let factor = self.power();
        let w = self.b.one(Scale { factor }, &[w])?;
        let tail = self.tail(t, q, s, false);
        self.b.op(IndexerScores { scale: 0.5 }, &[vec![x, k, w], tail].concat())
    }

    /// Attention to the best of scored positions, whose number is a constant or a symbol; keys in parts, with heads or
    /// without.
    fn selected(&mut self, what: Select) -> Results {
        self.exact = false;
        let (t, h, q, d) = (self.n(), self.n(), self.n(), self.n());
        let most = 1 + self.n();
        let (positions, now) = if self.rng.flip() {
            let now = if what == Select::Fewer { most } else { 1 + self.rng.below(most as usize) as u64 };
            self.bounds = self.bounds.clone().with("S", most);
            self.syms = self.syms.clone().with("S", now);
            (Dim::sym("S"), now)
        } else {
            (Dim::new(most), most)
        };
        let k = match what {
            Select::Fewer => 1 + self.rng.below(most as usize - 1) as u64,
            _ => most + self.rng.below(3) as u64,
        };
        let float = |b: &mut Builder<'_>, name: &str, dims: &[Dim]| {
            b.param(name, TensorType::new(Elem::F32, dims.iter().cloned()))
        };
        let tail = self.tail(t, q, now, false);
        let mut scored = tail.clone();
        if what == Select::OfOthers {
            scored[1] = self.i("other", &[t], now);
        }
        let (x, w) = (self.f("x", &[t, 2, d]), self.f("w", &[t, 2]));
        let keys = float(&mut self.b, "keys", &[q.into(), positions.clone(), d.into()]);
        let scores = self.b.one(IndexerScores { scale: 0.5 }, &[vec![x, keys, w], scored].concat())?;
        let top = self.b.one(TopK { k }, &[scores])?;
        let parts = 1 + self.rng.below(2);
        let (mut qs, mut ks) = (Vec::new(), Vec::new());
        for i in 0..parts {
            let n = self.n();
            qs.push(self.f(&format!("q{i}"), &[t, h, n]));
            let head = if self.rng.flip() { vec![h.into()] } else { vec![] };
            let dims = [vec![q.into(), positions.clone()], head, vec![n.into()]].concat();
            ks.push(float(&mut self.b, &format!("k{i}"), &dims));
        }
        let v = float(&mut self.b, "v", &[q.into(), positions, h.into(), 3.into()]);
        let args = [qs, ks, vec![v], tail, vec![top]].concat();
        self.b.op(Attention { parts, scale: 0.3, selected: true }, &args)
    }

    fn scaled_attention(&mut self) -> Results {
        self.exact = false;
        let (t, h, d, q, s) = (self.n(), self.n(), self.n(), self.n(), self.n());
        let (x, k, v) = (self.f("q", &[t, h, d]), self.f("k", &[q, s, d]), self.f("v", &[q, s, h, 3]));
        let factor = 0.1 + self.rng.below(30) as f64 / 7.0;
        let x = self.b.one(Scale { factor }, &[x])?;
        let selected = self.rng.flip();
        let tail = self.tail(t, q, s, selected);
        self.b.op(Attention { parts: 1, scale: 0.5, selected }, &[vec![x, k, v], tail].concat())
    }

    fn reshape(&mut self, itself: bool) -> Results {
        let (a, b, c) = (self.n(), self.n(), self.n());
        let x = self.f("x", &[a, b, c]);
        let dims = |d: &[u64]| d.iter().map(|n| Dim::new(*n)).collect::<Vec<_>>();
        if itself {
            return self.b.op(Reshape { dims: dims(&[a, b, c]) }, &[x]);
        }
        let y = self.b.one(Reshape { dims: dims(&[1, a * b, c]) }, &[x])?;
        self.b.op(Reshape { dims: dims(&[a * b * c, 1, 1]) }, &[y])
    }

    fn piece_of_join(&mut self) -> Results {
        let (t, n) = (self.n(), 1 + self.rng.below(3));
        let names: Vec<String> = (0..n).map(|i| format!("p{i}")).collect();
        let mut parts = Vec::new();
        for i in 0..n {
            let d = self.n();
            parts.push(self.f(&format!("x{i}"), &[t, d]));
        }
        let j = self.b.one(Join { names: names.clone() }, &parts)?;
        let piece = self.rng.pick(&names).clone();
        self.b.piece(j, &piece).map(|v| vec![v])
    }

    fn joined(&mut self, name: &str, outer: &[u64], pieces: &[(&str, u64)]) -> Value {
        let dims: Vec<Dim> = outer.iter().map(|n| Dim::new(*n)).chain([Dim::joined(pieces)]).collect();
        self.b.param(name, TensorType::new(Elem::F32, dims))
    }

    fn join_of_pieces(&mut self) -> Results {
        let (t, a, c, d) = (self.n(), self.n(), self.n(), self.n());
        let all = [("a", a), ("b", c), ("c", d)];
        let some = &all[..1 + self.rng.below(3)];
        let x = self.joined("x", &[t], some);
        let mut parts = Vec::new();
        for (name, _) in some {
            parts.push(self.b.piece(x, name)?);
        }
        self.b.op(Join { names: some.iter().map(|(n, _)| (*n).to_owned()).collect() }, &parts)
    }

    fn swiglu(&mut self, pieces: bool) -> Results {
        let (t, n) = (self.n(), self.n());
        let (gate, up) = if pieces {
            let order = if self.rng.flip() { [("gate", n), ("up", n)] } else { [("up", n), ("gate", n)] };
            let x = self.joined("x", &[t], &order);
            (self.b.piece(x, "gate")?, self.b.piece(x, "up")?)
        } else {
            (self.f("gate", &[t, n]), self.f("up", &[t, n]))
        };
        let s = self.b.one(Silu {}, &[gate])?;
        self.b.op(Mul {}, &[s, up])
    }

    fn gated(&mut self, gate: Value, up: Value) -> Results {
        let s = self.b.one(Silu {}, &[gate])?;
        self.b.op(Mul {}, &[s, up])
    }

    fn gate_up(&mut self) -> Results {
        let (t, n, k) = (self.n(), self.n(), self.width());
        let x = self.f("x", &[t, k]);
        let (g, u) = (self.w("g", &[n, k])?, self.w("u", &[n, k])?);
        let gate = self.b.one(Matmul::new("tk,nk->tn"), &[x, g])?;
        let up = self.b.one(Matmul::new("tk,nk->tn"), &[x, u])?;
        self.gated(gate, up)
    }

    fn grouped_gate_up(&mut self) -> Results {
        let (t, n, k, j) = (self.n(), self.n(), self.width(), self.n());
        let (x, ids) = (self.f("x", &[t, k]), self.i("ids", &[t, j], 3));
        let (g, u) = (self.w("g", &[4, n, k])?, self.w("u", &[4, n, k])?);
        let gate = self.b.one(GroupedMatmul {}, &[x, g, ids])?;
        let up = self.b.one(GroupedMatmul {}, &[x, u, ids])?;
        self.gated(gate, up)
    }

    fn grouped_down(&mut self) -> Results {
        let (t, n, k, j) = (self.n(), self.n(), self.width(), self.n());
        let dims = if self.rng.flip() { vec![t, k] } else { vec![t, j, k] };
        let (x, ids, weights) = (self.f("x", &dims), self.i("ids", &[t, j], 3), self.f("weights", &[t, j]));
        let w = self.w("w", &[4, n, k])?;
        let y = self.b.one(GroupedMatmul {}, &[x, w, ids])?;
        self.b.op(Matmul::new("tj,tjd->td"), &[weights, y])
    }

    fn add_norm(&mut self) -> Results {
        let (t, n) = (self.n(), self.width());
        let rows = if self.rng.flip() { t } else { 1 };
        let (x, y, w) = (self.f("x", &[t, n]), self.f("y", &[rows, n]), self.w("w", &[n])?);
        let h = self.b.one(Add {}, &[x, y])?;
        let norm = self.b.one(RmsNorm { eps: 1e-5 }, &[h, w])?;
        Ok(if self.rng.flip() { vec![h, norm] } else { vec![norm] })
    }

    /// Pieces of a wider row, joined, normed, and put together again with one of them rotated.
    fn index_row(&mut self) -> Results {
        let (t, r, n) = (self.n(), 2 * self.n(), self.width());
        let pos = self.i("pos", &[t], 1000);
        let (w, bias) = (self.w("w", &[r + n])?, self.w("b", &[r + n])?);
        let mut order = vec![("k.rope", "rope", r), ("k.nope", "nope", n)];
        if self.rng.flip() {
            order.reverse();
        }
        let before = self.n();
        let wide: Vec<(&str, u64)> =
            [("q", before)].into_iter().chain(order.iter().map(|(k, _, n)| (*k, *n))).collect();
        let z = self.joined("z", &[t], &wide);
        let names: Vec<String> = order.iter().map(|(_, name, _)| (*name).to_owned()).collect();
        let parts = order.iter().map(|(k, ..)| self.b.piece(z, k)).collect::<Result<Vec<_>, _>>()?;
        let row = self.b.one(Join { names: names.clone() }, &parts)?;
        let normed = self.b.one(LayerNorm { eps: 1e-6 }, &[row, w, bias])?;
        let mut made = Vec::new();
        for (_, name, _) in order {
            let part = self.b.piece(normed, name)?;
            made.push(if name == "rope" { self.b.one(Rope { theta: 1e4 }, &[part, pos])? } else { part });
        }
        self.b.op(Join { names }, &made)
    }

    fn rows(&mut self, latent: bool) -> Results {
        let (t, r, n, h) = (self.n(), 2 * self.n(), self.width(), self.n());
        let pos = self.i("pos", &[t], 1000);
        let rope = Rope { theta: 1e4 };
        if latent {
            let (z, w) = (self.joined("z", &[t], &[("latent", n), ("rope", r)]), self.w("w", &[n])?);
            let (c, k) = (self.b.piece(z, "latent")?, self.b.piece(z, "rope")?);
            let c = self.b.one(RmsNorm { eps: 1e-5 }, &[c, w])?;
            let k = self.b.one(rope, &[k, pos])?;
            return self.b.op(Join { names: vec!["latent".into(), "rope".into()] }, &[c, k]);
        }
        let order = if self.rng.flip() { [("rope", r), ("nope", n)] } else { [("nope", n), ("rope", r)] };
        let outer = if self.rng.flip() { vec![t, h] } else { vec![t] };
        let x = self.joined("x", &outer, &order);
        let mut parts = Vec::new();
        for (name, _) in order {
            let part = self.b.piece(x, name)?;
            parts.push(if name == "rope" { self.b.one(rope.clone(), &[part, pos])? } else { part });
        }
        self.b.op(Join { names: order.iter().map(|(n, _)| (*n).to_owned()).collect() }, &parts)
    }
}
