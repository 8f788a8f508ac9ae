//! Multi-head latent attention: a weight between latents and attention may stand on the other side of it.
//!
//! Keys: `q . (W c) = (W^T q) . c`. Values: `sum_s p_s (W c_s) = W sum_s p_s c_s`. Both are associativity and linearity
//! alone, so they hold for any mask, selection and scale. Expanded costs the weight once a cached row, absorbed once
//! a query and more a visible pair; which is cheaper is for the cost to say.
//!
//! Specs are not compared as text: a key product is any einsum that contracts one letter of the latents with a weight
//! that has the key's width, per head or shared.

use glmc_ir::op::Op;
use glmc_ir::ops::{Einsum, Matmul};

use super::{Rule, What};
use crate::egraph::analysis::{has_stored_form, name, ty};

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "absorb-key-weight",
        why: "decode: the weight meets each query once instead of each cached row",
        what: What::Rewrite {
            left: "(attention@a ?pre* (matmul@k ?lat ?w) ?post*)",
            right: "(attention@a ?q0* (matmul@absorbed ?q ?w) ?q1* ?k0* ?lat ?post*)",
            binds: &["?q0*", "?q", "?q1*", "?k0*", "@absorbed"],
            when: |g, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                let (p, at) = (a.parts, m.seq("pre").len());
                let i = at.checked_sub(p).filter(|i| *i < p)?;
                if has_stored_form(g, m.op("k"), m.var("w")) {
                    return None;
                }
                let spec = Rows::of(m.op("k"))?.to_query()?;
                let pre = m.seq("pre").to_vec();
                m.bind_seq("q0", &pre[..i]);
                m.bind("q", pre[i]);
                m.bind_seq("q1", &pre[i + 1..p]);
                m.bind_seq("k0", &pre[p..]);
                m.bind_op("absorbed", Matmul::new(&spec));
                if let Some(name) = name(g, pre[i]) {
                    m.call("absorbed", format!("{name}_absorbed"));
                }
                Some(())
            },
        },
    },
    Rule {
        name: "expand-key-weight",
        why: "prefill: as many rows as queries, and narrower keys",
        what: What::Rewrite {
            left: "(attention@a ?q0* (matmul@q ?q ?w) ?post*)",
            right: "(attention@a ?q0* ?q ?mid* (matmul@k ?lat ?w) ?rest*)",
            binds: &["?mid*", "?lat", "?rest*", "@k"],
            when: |g, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                let (p, i) = (a.parts, m.seq("q0").len());
                if i >= p || has_stored_form(g, m.op("q"), m.var("w")) {
                    return None;
                }
                let post = m.seq("post").to_vec();
                let lat = *post.get(p - 1)?;
                let spec = Query::of(m.op("q"))?.to_keys(ty(g, lat)?.rank())?;
                m.bind_seq("mid", &post[..p - 1]);
                m.bind("lat", lat);
                m.bind_seq("rest", &post[p..]);
                m.bind_op("k", Matmul::new(&spec));
                Some(())
            },
        },
    },
    Rule {
        name: "absorb-value-weight",
        why: "decode: the weight meets each query's sum instead of each cached row",
        what: What::Rewrite {
            left: "(attention@a ?pre* (matmul@v ?lat ?w) ?post*)",
            right: "(matmul@up (attention@a ?pre* ?lat ?post*) ?w)",
            binds: &["@up"],
            when: |g, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                if m.seq("pre").len() != 2 * a.parts || has_stored_form(g, m.op("v"), m.var("w")) {
                    return None;
                }
                let spec = Rows::of(m.op("v"))?.to_output()?;
                m.bind_op("up", Matmul::new(&spec));
                Some(())
            },
        },
    },
    Rule {
        name: "expand-value-weight",
        why: "prefill: as many rows as queries, and narrower values",
        what: What::Rewrite {
            left: "(matmul@up (attention@a ?pre* ?lat ?seq ?len ?sel*) ?w)",
            right: "(attention@a ?pre* (matmul@v ?lat ?w) ?seq ?len ?sel*)",
            binds: &["@v"],
            when: |g, m| {
                let Op::Attention(a) = m.op("a") else { return None };
                if m.seq("pre").len() != 2 * a.parts || has_stored_form(g, m.op("up"), m.var("w")) {
                    return None;
                }
                let spec = Query::of(m.op("up"))?.to_values(ty(g, m.var("lat"))?.rank())?;
                m.bind_op("v", Matmul::new(&spec));
                Some(())
            },
        },
    },
];

/// A product of cached rows, `[q, s, (h,) c] x W -> [q, s, (h,) n]`.
struct Rows {
    w: Vec<u8>,
    /// The head letter, if keys have heads.
    head: Option<u8>,
    /// Contracted, and made.
    c: u8,
    n: u8,
}

/// A product of heads, `[t, h, c] x W -> [t, h, n]`.
struct Query {
    w: Vec<u8>,
    head: u8,
    c: u8,
    n: u8,
}

/// The spec of a product of one right operand that contracts one letter.
fn single(op: &Op) -> Option<(Einsum, u8)> {
    let Op::Matmul(m) = op else { return None };
    let e = Einsum::parse(&m.spec).ok().filter(|_| m.names.is_empty())?;
    match e.contracted().as_slice() {
        [c] => Some((e.clone(), *c)),
        _ => None,
    }
}

/// The first of `like`, then of the alphabet, that is not `used`; it is then.
fn fresh(used: &mut Vec<u8>, like: u8) -> Option<u8> {
    let c = std::iter::once(like).chain(b'a'..=b'z').find(|c| !used.contains(c))?;
    used.push(c);
    Some(c)
}

fn spec(lhs: &[u8], rhs: &[u8], out: &[u8]) -> String {
    let text = |s: &[u8]| String::from_utf8_lossy(s).into_owned();
    format!("{},{}->{}", text(lhs), text(rhs), text(out))
}

impl Rows {
    fn of(op: &Op) -> Option<Rows> {
        let (e, c) = single(op)?;
        let (n, w) = (*e.out.last()?, e.rhs.clone());
        // The last letter of the rows is summed, the last of the result is the weight's alone.
        if e.lhs.last() != Some(&c) || e.lhs.contains(&n) || !w.contains(&n) || e.out.len() > 4 {
            return None;
        }
        let (outer, made) = (&e.lhs[..e.lhs.len() - 1], &e.out[..e.out.len() - 1]);
        let rows = outer.get(..2)?;
        let head = made.get(2).copied();
        // Both sides begin with sequence and position, which the weight has not; a head may be of either side.
        let fits = made.get(..2) == Some(rows)
            && !rows.iter().any(|l| w.contains(l))
            && outer.get(2).is_none_or(|h| Some(*h) == head)
            && w.iter().all(|l| [c, n].contains(l) || Some(*l) == head);
        fits.then_some(Rows { w, head, c, n })
    }

    /// `q [t, h, n] -> [t, h, c]`.
    fn to_query(&self) -> Option<String> {
        let mut used = self.w.clone();
        used.extend(self.head);
        let t = fresh(&mut used, b't')?;
        let h = self.head.or_else(|| fresh(&mut used, b'h'))?;
        Some(spec(&[t, h, self.n], &self.w, &[t, h, self.c]))
    }

    /// `o [t, h, c] -> [t, h, n]`.
    fn to_output(&self) -> Option<String> {
        let mut used = self.w.clone();
        used.extend(self.head);
        let t = fresh(&mut used, b't')?;
        let h = self.head.or_else(|| fresh(&mut used, b'h'))?;
        Some(spec(&[t, h, self.c], &self.w, &[t, h, self.n]))
    }
}

impl Query {
    fn of(op: &Op) -> Option<Query> {
        let (e, c) = single(op)?;
        let ([t, h, last], [t2, h2, n]) = (e.lhs.as_slice(), e.out.as_slice()) else { return None };
        let w = e.rhs.clone();
        let fits = (t, h, *last) == (t2, h2, c) && !w.contains(t) && w.contains(n) && n != h;
        fits.then_some(Query { w, head: *h, c, n: *n })
    }

    /// Latents have the width that the query got: `[q, s, (h,) n] -> [q, s, (h,) c]`.
    fn to_keys(&self, rank: usize) -> Option<String> {
        self.rows(rank, self.n, self.c)
    }

    /// Latents have the width that the product took: `[q, s, (h,) c] -> [q, s, (h,) n]`.
    fn to_values(&self, rank: usize) -> Option<String> {
        self.rows(rank, self.c, self.n)
    }

    fn rows(&self, rank: usize, x: u8, y: u8) -> Option<String> {
        let mut used = self.w.clone();
        used.push(self.head);
        let (q, s) = (fresh(&mut used, b'q')?, fresh(&mut used, b's')?);
        let heads = |some: bool| if some { vec![self.head] } else { vec![] };
        let own = match rank {
            3 => false,
            4 => true,
            _ => return None,
        };
        let lhs = [&[q, s][..], &heads(own), &[x]].concat();
        let out = [&[q, s][..], &heads(own || self.w.contains(&self.head)), &[y]].concat();
        Some(spec(&lhs, &self.w, &out))
    }
}
