//! Attention of many queries on tensor cores, over keys that lie in buffers.

use std::fmt::Write as _;

use super::attention::{Operands, Sizes};
use super::cx::{Cx, Draft, Entry, MOST_BLOCKS};
use crate::request::GenerateError;

/// Fewest tokens that fill a tile well enough.
const LEAST_TOKENS: u64 = 16;
/// Most values of a key.
const MOST_VALUES: u64 = 256;
/// Most bytes of what is split: queries, keys and values once more.
const MOST_SCRATCH: u64 = 1 << 30;

/// Queries and keys of a tile, and widths as tiles have them.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    rows: u64,
    keys: u64,
    d: u64,
    values: u64,
}

impl Tiles {
    /// Bytes of shared memory, as `AttentionMemory` lays them out.
    fn shared(self) -> u64 {
        let (q, v, p) = (2 * self.d + 16, 2 * self.values + 16, 2 * self.keys + 16);
        2 * (self.rows * q + self.keys * (q + v) + self.rows * p) + 16 * self.rows
    }

    /// The largest tiles that fit, or why there are none.
    pub(super) fn choose(cx: &Cx<'_>, s: &Sizes, of: &Operands<'_>) -> Result<Tiles, String> {
        let tokens = cx.bound(&of.queries[0].ty.dims[..1]).unwrap_or(0);
        if tokens < LEAST_TOKENS {
            return Err(format!("{tokens} tokens, {LEAST_TOKENS} at least"));
        }
        if of.table.is_some() {
            return Err("rows lie in a pool".into());
        }
        // Their sums lie in registers.
        if s.dv > MOST_VALUES {
            return Err(format!("{} output values, {MOST_VALUES} at most", s.dv));
        }
        let (d, values) = (s.qwidth.next_multiple_of(16), s.dv.next_multiple_of(64));
        let bytes = scratch(cx, s, of, d, values).end;
        if bytes > MOST_SCRATCH {
            return Err(format!("{bytes} bytes of scratch, {MOST_SCRATCH} at most"));
        }
        let most = u64::from(cx.request.arch.shared_per_block());
        let all = [(64, 64), (64, 32), (32, 32), (16, 32)].map(|(rows, keys)| Tiles { rows, keys, d, values });
        let fits = all.into_iter().find(|t| t.shared() <= most);
        fits.ok_or_else(|| format!("no tile fits {most} bytes of shared memory"))
    }
}

/// Where the parts of scratch start, in bytes, and a plane's bytes.
struct Scratch {
    queries: [u64; 2],
    keys: [u64; 2],
    values: [u64; 2],
    query_scales: u64,
    key_scales: u64,
    bits: u64,
    end: u64,
}

fn heads(s: &Sizes, of: &Operands<'_>) -> (u64, u64) {
    let all = |per_head: bool| if per_head { s.all_heads } else { 1 };
    (all(of.keys.iter().any(|k| k.per_head)), all(of.v.per_head))
}

fn scratch(cx: &Cx<'_>, s: &Sizes, of: &Operands<'_>, d: u64, values: u64) -> Scratch {
    let tokens = cx.bound(&of.queries[0].ty.dims[..1]).unwrap_or(0);
    let rows = cx.bound(of.positions).unwrap_or(0);
    let (key_heads, value_heads) = heads(s, of);
    let mut end = 0u64;
    let mut take = |bytes: u64| {
        let at = end;
        end = end.saturating_add(bytes.next_multiple_of(256));
        at
    };
    let mut planes = |lines: u64, width: u64| {
        let plane = (2 * lines * width).next_multiple_of(256);
        [take(2 * plane), plane]
    };
    let queries = planes(tokens * s.all_heads, d);
    let keys = planes(rows * key_heads, d);
    let values = planes(rows * value_heads, values);
    let (query_scales, key_scales) = (take(4 * tokens * s.all_heads), take(4 * rows * key_heads));
    let bits = take(4 * tokens * s.words);
    Scratch { queries, keys, values, query_scales, key_scales, bits, end }
}

/// The launches: what is multiplied is split, selections become bits, tiles are computed.
pub(super) fn draft(cx: &Cx<'_>, s: &Sizes, of: &Operands<'_>, t: Tiles) -> Result<Draft, GenerateError> {
    let tokens = &of.queries[0].ty.dims[..1];
    let most_tokens = cx.bound(tokens).unwrap_or(0);
    let (key_heads, value_heads) = heads(s, of);
    let at = scratch(cx, s, of, t.d, t.values);
    let mut m = format!("  typedef {} PUT;\n", cx.put(0)?);
    let constants = [
        ("HEADS", s.all_heads),
        ("ALL_HEADS", s.all_heads),
        ("KEY_HEADS", key_heads),
        ("VALUE_HEADS", value_heads),
        ("WIDTH", s.qwidth),
        ("D", t.d),
        ("DV", s.dv),
        ("VALUES", t.values),
        ("ROWS", t.rows),
        ("KEYS", t.keys),
        ("LIST", s.list),
        ("WORDS", s.words),
    ];
    m.push_str(&of.constants(cx, &constants));
    m.push_str(&of.load_q());
    m.push_str("  GLMC_DEVICE static f32 load_k(const Args& args, u64 row, u32 head, u32 d) {\n    (void)head;\n");
    let mut before = 0;
    for k in &of.keys {
        let index = k.index(s.all_heads, &format!("(d - {before})"));
        let (end, decoder, ident) = (before + k.width, k.part.decoder(), &k.part.ident);
        let _ = writeln!(m, "    if (d < {end}) return element<{decoder}>(args.{ident}, {index});");
        before = end;
    }
    m.push_str("    return 0.0f;\n  }\n");
    m.push_str("  GLMC_DEVICE static f32 load_v(const Args& args, u64 row, u32 head, u32 d) {\n    (void)head;\n");
    let (index, decoder, ident) = (of.v.index(s.all_heads, "d"), of.v.part.decoder(), &of.v.part.ident);
    let _ = writeln!(m, "    return element<{decoder}>(args.{ident}, {index});\n  }}");
    m.push_str(&of.selected());
    for (name, [at, plane]) in [("queries", at.queries), ("key_rows", at.keys), ("values", at.values)] {
        let _ = writeln!(
            m,
            "  GLMC_DEVICE static u8* {name}(const Args& args, u32 part) {{ return args.scratch + {at}ull + part * \
             {plane}ull; }}"
        );
    }
    let words =
        [("f32", "query_scales", at.query_scales), ("f32", "key_scales", at.key_scales), ("u32", "bits", at.bits)];
    for (ty, name, at) in words {
        let _ = writeln!(
            m,
            "  GLMC_DEVICE static {ty}* {name}(const Args& args) {{ return reinterpret_cast<{ty}*>(args.scratch + \
             {at}ull); }}"
        );
    }
    let threads = (8 * t.rows / 2) as u32;
    let lines = most_tokens * s.all_heads + cx.bound(of.positions).unwrap_or(0) * (key_heads + value_heads);
    let entry = |suffix: &str, template: &str, grid, threads, shared| Entry {
        suffix: suffix.into(),
        ..Entry::only(format!("{template}<Config>(args);"), grid, threads, shared)
    };
    let split = [lines.div_ceil(8).min(MOST_BLOCKS), 1, 1];
    let mut entries = vec![entry("split", "split_attention", split, 256, 0)];
    if s.list > 0 {
        let grid = [most_tokens.min(MOST_BLOCKS), 1, 1];
        entries.push(entry("bits", "selection_bits", grid, 256, 4 * s.words));
    }
    let grid = [most_tokens.div_ceil(t.rows), s.all_heads, 1];
    entries.push(entry("tiles", "attention_tiles", grid, threads, t.shared()));
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("attention_tiles.cuh");
    Ok(Draft {
        includes,
        members: m,
        entries,
        scratch: at.end,
        loose: true,
        config: format!("tensor cores, {} queries of a head by {} keys", t.rows, t.keys),
        why: "many queries share keys and values".into(),
        ..Draft::default()
    })
}
