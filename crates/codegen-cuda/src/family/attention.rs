//! Attention: how many heads share a block and how many parts the keys are cut into.

use std::fmt::Write as _;

use glmc_ir::ops::Attention;

use super::cx::{Candidate, Cx, Draft, Entry, Part, choose, float};
use crate::request::GenerateError;

/// Keys that are scored between two updates of the output.
const TILE: u64 = 64;
/// Most floats of the output that one thread may hold.
const MOST_HELD: u64 = 32;

/// One configuration.
struct Config {
    /// Heads of a block.
    heads: u64,
    /// Threads of a block.
    threads: u64,
}

struct Sizes {
    all_heads: u64,
    qwidth: u64,
    dv: u64,
    /// Words of the position bitmap; 0 without a selection.
    words: u64,
    list: u64,
}

impl Sizes {
    fn shared(&self, heads: u64) -> u64 {
        4 * heads * self.qwidth + 4 * heads * TILE + 12 * heads + 160 + 4 * self.words + 4 * self.list
    }
}

pub(super) fn attention(cx: &Cx<'_>, op: &Attention) -> Result<Draft, GenerateError> {
    let p = op.parts;
    let (queries, keys, v) = (&cx.inputs[..p], &cx.inputs[p..2 * p], &cx.inputs[2 * p]);
    let widths = queries.iter().map(|q| cx.constant(&q.ty.dims[2..])).collect::<Result<Vec<_>, _>>()?;
    let most_keys = cx.bound(&v.ty.dims[1..2]).unwrap_or(0);
    let selection = cx.inputs.get(2 * p + 3).filter(|_| op.selected);
    let sizes = Sizes {
        all_heads: cx.constant(&queries[0].ty.dims[1..2])?,
        qwidth: widths.iter().sum(),
        dv: cx.constant(&v.ty.dims[v.ty.rank() - 1..])?,
        words: if selection.is_some() { most_keys.div_ceil(32) } else { 0 },
        list: selection.map(|s| cx.constant(&s.ty.dims[1..])).transpose()?.unwrap_or(0),
    };
    let shared_keys = keys.iter().chain([v]).all(|k| k.ty.rank() == 3);
    let (_, config, rejected) = choose(cx, candidates(cx, &sizes, shared_keys))?;
    let tokens = &queries[0].ty.dims[..1];
    let groups = sizes.all_heads.div_ceil(config.heads);
    let blocks = cx.bound(tokens).unwrap_or(0) * groups;
    // Few blocks: cut the keys, but not below one tile a part.
    let most_seen = if selection.is_some() { sizes.list.min(most_keys) } else { most_keys };
    let wanted = 2 * u64::from(cx.request.options.multiprocessors());
    let parts = (wanted / blocks.max(1)).clamp(1, most_seen.div_ceil(TILE).clamp(1, 32));
    let mut m = format!("  typedef {} PUT;\n", cx.put(0)?);
    let columns = sizes.dv.div_ceil(config.threads);
    let constants = [
        ("PARTS", parts),
        ("HEADS", config.heads),
        ("GROUPS", groups),
        ("ALL_HEADS", sizes.all_heads),
        ("QWIDTH", sizes.qwidth),
        ("DV", sizes.dv),
        ("COLUMNS", columns),
        ("TILE", TILE),
        ("LIST", sizes.list),
        ("WORDS", sizes.words),
    ];
    for (name, value) in constants {
        let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
    }
    let _ = writeln!(m, "  static constexpr f32 SCALE = {};", float(op.scale));
    for (name, dims) in [("tokens", tokens), ("sequences", &v.ty.dims[..1]), ("keys", &v.ty.dims[1..2])] {
        let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {}; }}", cx.size(dims));
    }
    m.push_str(&functors(&sizes, queries, keys, v, &widths));
    if let Some(s) = selection {
        let _ = writeln!(
            m,
            "  GLMC_DEVICE static i32 selected(const Args& args, u32 t, u32 i) {{\n    return reinterpret_cast<const \
             i32*>(args.{})[u64(t) * LIST + i];\n  }}",
            s.ident
        );
    } else {
        m.push_str("  GLMC_DEVICE static i32 selected(const Args&, u32, u32) { return -1; }\n");
    }
    let counters = (4 * blocks).next_multiple_of(256);
    let scratch = if parts > 1 { counters + 4 * blocks * parts * config.heads * (sizes.dv + 2) } else { 0 };
    let base = if parts > 1 { "args.scratch" } else { "static_cast<u8*>(nullptr)" };
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static u32* counters(const Args& args) {{\n    return reinterpret_cast<u32*>({base});\n  }}"
    );
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static f32* partials(const Args& args) {{\n    return reinterpret_cast<f32*>({base} \
         + {counters});\n  }}"
    );
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("attention.cuh");
    let (heads, threads) = (config.heads, config.threads as u32);
    Ok(Draft {
        includes,
        members: m,
        entries: vec![Entry::only("attention<Config>(args);", [blocks, parts, 1], threads, sizes.shared(heads))],
        scratch,
        config: format!("{heads} heads a block of {threads} threads, keys in {parts} parts"),
        why: "heads that share keys load them once; parts fill the machine when tokens are few".into(),
        rejected,
        ..Draft::default()
    })
}

fn candidates(cx: &Cx<'_>, s: &Sizes, shared_keys: bool) -> Vec<Candidate<Config>> {
    let most = u64::from(cx.request.arch.shared_per_block());
    let threads = s.dv.next_multiple_of(32).clamp(64, 256);
    let one = |heads: u64| {
        if heads > 1 && !shared_keys {
            return Err("keys differ by head".to_owned());
        }
        if heads > 1 && heads >= 2 * s.all_heads {
            return Err(format!("there are {} heads", s.all_heads));
        }
        let held = heads * s.dv.div_ceil(threads);
        if heads > 1 && held > MOST_HELD {
            return Err(format!("{held} output values a thread"));
        }
        let bytes = s.shared(heads);
        if bytes > most {
            return Err(format!("{bytes} bytes of shared memory, a block has {most}"));
        }
        Ok((1.0 / heads as f64, Config { heads, threads }))
    };
    vec![("1 head", one(1)), ("2 heads", one(2)), ("4 heads", one(4)), ("8 heads", one(8))]
}

/// Loads of queries, keys and values.
fn functors(s: &Sizes, queries: &[Part], keys: &[Part], v: &Part, widths: &[u64]) -> String {
    let mut m = String::from("  GLMC_DEVICE static f32 load_q(const Args& args, u32 t, u32 h, u32 d) {\n");
    let _ = writeln!(m, "    u64 head = u64(t) * ALL_HEADS + h;");
    let mut at = 0;
    for (q, w) in queries.iter().zip(widths) {
        let _ = writeln!(
            m,
            "    if (d < {}) return element<{}>(args.{}, head * {w} + (d - {at}));",
            at + w,
            q.decoder(),
            q.ident
        );
        at += w;
    }
    m.push_str("    return 0.0f;\n  }\n");
    m.push_str(
        "  // The lane's share of the products of key `row` with the queries of `heads` heads.\n  GLMC_DEVICE static \
         void dot(const Args& args, const f32* q, u64 row, u32 head, u32 heads, f32 (&sum)[HEADS]) {\n",
    );
    let mut at = 0;
    for (k, w) in keys.iter().zip(widths) {
        let index =
            if k.ty.rank() == 4 { format!("(row * {} + head) * {w}", s.all_heads) } else { format!("row * {w}") };
        let _ = writeln!(m, "    for (u32 d = glmc_lane(); d < {w}; d += WARP) {{");
        let _ = writeln!(m, "      f32 k = element<{}>(args.{}, {index} + d);", k.decoder(), k.ident);
        let _ = writeln!(m, "#pragma unroll\n      for (u32 h = 0; h < HEADS; ++h)");
        let _ = writeln!(m, "        if (h < heads) sum[h] = glmc_fma(q[h * QWIDTH + {at} + d], k, sum[h]);\n    }}");
        at += w;
    }
    m.push_str("    (void)head;\n  }\n");
    let dv = s.dv;
    let index =
        if v.ty.rank() == 4 { format!("(row * {} + head) * {dv} + d", s.all_heads) } else { format!("row * {dv} + d") };
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static f32 value(const Args& args, u64 row, u32 head, u32 d) {{\n    (void)head;\n    return \
         element<{}>(args.{}, {index});\n  }}",
        v.decoder(),
        v.ident
    );
    m
}
