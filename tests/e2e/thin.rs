//! Two runs of one prompt may part where a choice of keys or experts is thinner than f32 noise. This proves it: the
//! first choices that differ, before which nothing differs but by rounding, must all be thin, and one of the
//! choices that differ must reach the last token.

use std::collections::BTreeSet;

/// A choice this thin, as a share of the largest score of its row, may go either way.
pub(crate) const THIN: f32 = 1e-5;

/// One token's choice: the scores it was made from, and the chosen indices, sorted.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) scores: Vec<f32>,
    pub(crate) chosen: Vec<usize>,
}

/// All choices of one kind in one layer, a row for each token.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) layer: usize,
    pub(crate) rows: Vec<Row>,
}

/// The first thin choice that parted two runs, by layer, then token.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) name: String,
    pub(crate) token: usize,
    pub(crate) margin: f32,
}

/// Why the last logits of `a` and `b` differ; stages stand in the order they are computed.
///
/// A token's choice depends on its own earlier choices, and through the caches on those that it and tokens before it
/// made in earlier layers. Choices that depend on a parted one may differ by any amount, and are not judged.
///
/// # Errors
/// A sentence: a choice that differs with nothing before it to blame is not thin, or none reaches the last token.
pub(crate) fn explain(a: &[Stage], b: &[Stage]) -> Result<Parting, String> {
    assert_eq!(a.len(), b.len());
    let tokens = a.first().map_or(0, |s| s.rows.len());
    let mut first = None;
    // The first token that a parted choice of an earlier layer reaches, and the parted tokens of this layer.
    let (mut from, mut layer, mut parted) = (usize::MAX, 0, BTreeSet::new());
    for (x, y) in a.iter().zip(b) {
        assert_eq!((&x.name, x.layer, x.rows.len()), (&y.name, y.layer, tokens));
        assert_eq!(y.rows.len(), tokens);
        if x.layer != layer {
            assert!(x.layer > layer, "stages are in order");
            from = parted.pop_first().map_or(from, |t| from.min(t));
            (layer, parted) = (x.layer, BTreeSet::new());
        }
        for (token, (p, q)) in x.rows.iter().zip(&y.rows).enumerate() {
            if p.chosen == q.chosen {
                continue;
            }
            if token < from && !parted.contains(&token) {
                let margin = spread(p, q);
                // A NaN is not thin.
                if margin.is_nan() || margin > THIN {
                    return Err(format!("{} of token {token} differs, and its margin is {margin:e}", x.name));
                }
                first.get_or_insert_with(|| Parting { name: x.name.clone(), token, margin });
            }
            parted.insert(token);
        }
    }
    let last = tokens.wrapping_sub(1);
    match first {
        Some(found) if from <= last || parted.contains(&last) => Ok(found),
        Some(found) => Err(format!("{} of token {} parted, but does not reach the logits", found.name, found.token)),
        None => Err("no choice parted".into()),
    }
}

/// How far apart the scores of all exchanged indices lie, in the run where that is more: with one exchanged pair the
/// margin between the last that is chosen and the first that is not.
fn spread(p: &Row, q: &Row) -> f32 {
    if p.chosen.len() != q.chosen.len() {
        return f32::INFINITY;
    }
    let exchanged: Vec<usize> = (p.chosen.iter().filter(|i| !q.chosen.contains(i)))
        .chain(q.chosen.iter().filter(|i| !p.chosen.contains(i)))
        .copied()
        .collect();
    let of = |r: &Row| {
        let scale = r.scores.iter().filter(|s| s.is_finite()).fold(0.0f32, |m, s| m.max(s.abs()));
        let values = exchanged.iter().map(|i| r.scores.get(*i).copied().unwrap_or(f32::NAN));
        if values.clone().any(|v| !v.is_finite()) {
            return f32::INFINITY;
        }
        let (low, high) = values.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        (high - low) / scale
    };
    let (x, y) = (of(p), of(q));
    if x.is_nan() || y.is_nan() { f32::NAN } else { x.max(y) }
}

/// Two layers of one kind of choice, three tokens, one of three chosen.
fn sample(scores: [[[f32; 3]; 3]; 2]) -> Vec<Stage> {
    let row = |s: [f32; 3]| {
        let best = (0..3).rev().max_by(|i, j| s[*i].total_cmp(&s[*j])).unwrap();
        Row { scores: s.to_vec(), chosen: vec![best] }
    };
    let stage = |(layer, rows): (usize, [[f32; 3]; 3])| Stage {
        name: format!("blk.{layer}.top_k"),
        layer,
        rows: rows.map(row).to_vec(),
    };
    scores.into_iter().enumerate().map(stage).collect()
}

#[test]
fn only_thin_choices_that_reach_the_end_explain() {
    const PLAIN: [f32; 3] = [1.0, 2.0, 4.0];
    let with = |changes: &[(usize, usize, [f32; 3])]| {
        let mut all = [[PLAIN; 3]; 2];
        for (layer, token, row) in changes {
            all[*layer][*token] = *row;
        }
        sample(all)
    };
    let (thin, thin2) = ([1.0, 4.0, 4.000_01], [1.0, 4.000_01, 4.0]);
    let thick = [1.0, 4.001, 4.0];
    // Thin: named. What follows in later layers is not judged.
    let found = explain(&with(&[(0, 1, thin)]), &with(&[(0, 1, thin2), (1, 1, [9.0, 0.0, 0.0])])).unwrap();
    assert_eq!((found.name.as_str(), found.token), ("blk.0.top_k", 1));
    assert!(found.margin > 1e-6 && found.margin < THIN);
    // Not thin, in either run, also beside a thin one, and before the one that it might be blamed on.
    for (a, b) in [
        (with(&[(0, 1, thin)]), with(&[(0, 1, thick)])),
        (with(&[(0, 1, PLAIN)]), with(&[(0, 1, thick)])),
        (with(&[(0, 1, thin)]), with(&[(0, 1, thin2), (0, 2, thick)])),
        (with(&[(0, 1, thin)]), with(&[(0, 1, thin2), (1, 0, thick)])),
    ] {
        assert!(explain(&a, &b).unwrap_err().contains("its margin is"));
        assert!(explain(&b, &a).is_err());
    }
    // A parted choice of an earlier token in the last layer moves no logit of the last.
    let error = explain(&with(&[(1, 1, thin)]), &with(&[(1, 1, thin2)])).unwrap_err();
    assert!(error.contains("does not reach"), "{error}");
    assert_eq!(explain(&with(&[(1, 2, thin)]), &with(&[(1, 2, thin2)])).unwrap().name, "blk.1.top_k");
    assert_eq!(explain(&with(&[]), &with(&[])).unwrap_err(), "no choice parted");
    // NaN, and rows of unequal length.
    let mut nan = with(&[(0, 1, thin2)]);
    nan[0].rows[1].scores[1] = f32::NAN;
    assert!(explain(&with(&[(0, 1, thin)]), &nan).is_err());
    let mut short = with(&[]);
    short[0].rows[1].chosen.clear();
    assert!(explain(&with(&[]), &short).is_err());
}
