//! Attention: how many heads share a block and how many parts the keys are cut into.

use std::fmt::Write as _;

use glmc_ir::diag::Diagnostic;
use glmc_ir::kernel::PagedAttentionKernel;
use glmc_ir::ops::Attention;
use glmc_ir::ty::{Dim, Elem, Extent, PendingKind};

use super::attention_tiles::{self, Tiles};
use super::cx::{Candidate, Cx, Draft, Entry, Part, choose, float};
use crate::program::settle::UNSETTLED;
use crate::request::GenerateError;

/// Keys that are scored between two updates of the output.
const TILE: u64 = 64;
/// The same where their rows are copied to shared memory: few, so that many parts fill the machine.
const STAGED: u64 = 16;
/// Most parts of the keys.
const MOST_PARTS: u64 = 128;
/// Columns and warps of a block that merges parts.
const MERGE: u64 = 32;
const MERGE_WARPS: u64 = 8;
/// Most floats of the output that one thread may hold.
const MOST_HELD: u64 = 32;

/// How queries meet keys.
enum Way {
    Scalar(Config),
    Tiles(Tiles),
}

/// One configuration of blocks that take a token.
struct Config {
    /// Heads of a block.
    heads: u64,
    /// Threads of a block.
    threads: u64,
}

pub(super) struct Sizes {
    pub(super) all_heads: u64,
    pub(super) qwidth: u64,
    pub(super) dv: u64,
    /// Words of the position bitmap; 0 without a selection.
    pub(super) words: u64,
    pub(super) list: u64,
    /// Keys of a tile.
    tile: u64,
    /// Rows of a tile that are looked up.
    places: u64,
    /// Floats of a row that is copied; 0 where none is.
    row: u64,
}

impl Sizes {
    fn shared(&self, heads: u64) -> u64 {
        let fixed = 4 * heads * (self.qwidth + self.tile) + 12 * heads + 160;
        (fixed + 4 * (self.words + self.list + self.places)).next_multiple_of(16) + 4 * self.tile * self.row
    }
}

/// What a launch attends to.
pub(super) struct Operands<'a> {
    pub(super) queries: &'a [Part],
    /// The keys of each part.
    pub(super) keys: Vec<Rows<'a>>,
    pub(super) v: Rows<'a>,
    /// `[Q, S]`.
    pub(super) positions: &'a [Dim],
    selection: Option<&'a Part>,
    pub(super) scale: f64,
    /// The table of rows, where they lie in a pool.
    pub(super) table: Option<&'a Part>,
}

/// Keys or values: `width` elements from `at` on of rows that are `stride` apart, or of each head's part of a row.
pub(super) struct Rows<'a> {
    pub(super) part: &'a Part,
    pub(super) width: u64,
    stride: u64,
    at: u64,
    pub(super) per_head: bool,
}

impl Operands<'_> {
    /// Floats of a row that holds keys and values, where it is one of a pool of floats in steps of 16 bytes.
    fn staged_row(&self) -> u64 {
        let f32s = self.v.part.ty.elem == Elem::F32 && self.v.stride.is_multiple_of(4);
        if self.table.is_some() && f32s { self.v.stride } else { 0 }
    }

    /// Constants of a configuration, and what any kernel of attention is told beside them.
    pub(super) fn constants(&self, cx: &Cx<'_>, list: &[(&str, u64)]) -> String {
        let mut m = String::new();
        for (name, value) in list {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let part = cx.request.options.merge == Some(PendingKind::Softmax);
        let _ = writeln!(m, "  static constexpr bool PART = {part};");
        let _ = writeln!(m, "  static constexpr f32 SCALE = {};", float(self.scale));
        let counts = [
            ("tokens", &self.queries[0].ty.dims[..1]),
            ("sequences", &self.positions[..1]),
            ("keys", &self.positions[1..2]),
        ];
        for (name, dims) in counts {
            let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {}; }}", cx.size(dims));
        }
        m
    }

    /// The functor that loads an element of a query, all parts of which lie side by side.
    pub(super) fn load_q(&self) -> String {
        let mut m = String::from("  GLMC_DEVICE static f32 load_q(const Args& args, u32 t, u32 h, u32 d) {\n");
        let _ = writeln!(m, "    u64 head = u64(t) * ALL_HEADS + h;");
        let mut at = 0;
        for (q, k) in self.queries.iter().zip(&self.keys) {
            let (w, decoder) = (k.width, q.decoder());
            let _ = writeln!(
                m,
                "    if (d < {}) return element<{decoder}>(args.{}, head * {w} + (d - {at}));",
                at + w,
                q.ident
            );
            at += w;
        }
        m.push_str("    return 0.0f;\n  }\n");
        m
    }

    /// The functor that loads a selected position.
    pub(super) fn selected(&self) -> String {
        match self.selection {
            Some(s) => format!(
                "  GLMC_DEVICE static i32 selected(const Args& args, u32 t, u32 i) {{\n    return reinterpret_cast<const \
                 i32*>(args.{})[u64(t) * LIST + i];\n  }}\n",
                s.ident
            ),
            None => "  GLMC_DEVICE static i32 selected(const Args&, u32, u32) { return -1; }\n".into(),
        }
    }

    /// What may be read before the queries are there; a selection is made right before them.
    fn early(&self, cx: &Cx<'_>) -> Vec<String> {
        let queries = self.queries.len();
        if !self.fours() || self.selection.is_some() {
            return Vec::new();
        }
        cx.inputs[queries..].iter().map(|p| p.ident.clone()).collect()
    }

    /// Whether rows are copied, queries are floats too, and all pieces begin and end at multiples of 16 bytes.
    fn fours(&self) -> bool {
        let floats = self.queries.iter().all(|q| q.ty.elem == Elem::F32);
        floats && self.staged_row() > 0 && self.keys.iter().all(|k| k.width.is_multiple_of(4) && k.at.is_multiple_of(4))
    }
}

impl<'a> Rows<'a> {
    fn dense(cx: &Cx<'_>, part: &'a Part) -> Result<Self, GenerateError> {
        let width = cx.constant(&part.ty.dims[part.ty.rank() - 1..])?;
        Ok(Rows { part, width, stride: width, at: 0, per_head: part.ty.rank() == 4 })
    }

    fn piece(cx: &Cx<'_>, pool: &'a Part, name: &str) -> Result<Self, GenerateError> {
        let stride = cx.constant(&pool.ty.dims[1..])?;
        let pieces = match pool.ty.last().map(|d| &d.extent) {
            Some(Extent::Joined(p)) => p.as_slice(),
            _ => &[],
        };
        let at = pieces.iter().position(|(piece, _)| piece.as_str() == name);
        let at = at.ok_or_else(|| GenerateError::Type {
            kernel: cx.request.kernel.name().to_owned(),
            why: Diagnostic::new("piece-order", format!("a pool of {} has no piece `{name}`", pool.ty)),
        })?;
        let before = pieces[..at].iter().map(|(_, n)| n).sum();
        Ok(Rows { part: pool, width: pieces[at].1, stride, at: before, per_head: false })
    }

    /// The index of element `d` of row `row`.
    pub(super) fn index(&self, all_heads: u64, d: &str) -> String {
        let Rows { width, stride, at, .. } = self;
        if self.per_head {
            return format!("(u64(row) * {all_heads} + head) * {width} + {d}");
        }
        match at {
            0 => format!("u64(row) * {stride} + {d}"),
            _ => format!("u64(row) * {stride} + {at} + {d}"),
        }
    }
}

/// Attention to rows of buffers.
pub(super) fn attention(cx: &Cx<'_>, op: &Attention) -> Result<Draft, GenerateError> {
    let p = op.parts;
    let keys = cx.inputs[p..2 * p].iter().map(|k| Rows::dense(cx, k)).collect::<Result<Vec<_>, _>>()?;
    let v = &cx.inputs[2 * p];
    let of = Operands {
        queries: &cx.inputs[..p],
        keys,
        v: Rows::dense(cx, v)?,
        positions: &v.ty.dims[..2],
        selection: cx.inputs.get(2 * p + 3).filter(|_| op.selected),
        scale: op.scale,
        table: None,
    };
    attend(cx, &of)
}

/// Attention to rows of a pool.
pub(super) fn paged_attention(cx: &Cx<'_>, k: &PagedAttentionKernel) -> Result<Draft, GenerateError> {
    let p = k.keys.len();
    let (pool, table) = (&cx.inputs[p], &cx.inputs[p + 1]);
    let keys = k.keys.iter().map(|name| Rows::piece(cx, pool, name)).collect::<Result<Vec<_>, _>>()?;
    let of = Operands {
        queries: &cx.inputs[..p],
        keys,
        v: Rows::piece(cx, pool, &k.value)?,
        positions: &table.ty.dims,
        selection: cx.inputs.get(p + 4).filter(|_| k.selected),
        scale: k.scale,
        table: Some(table),
    };
    attend(cx, &of)
}

fn attend(cx: &Cx<'_>, of: &Operands<'_>) -> Result<Draft, GenerateError> {
    let (queries, selection) = (of.queries, of.selection);
    let widths: Vec<u64> = of.keys.iter().map(|k| k.width).collect();
    let most_keys = cx.bound(&of.positions[1..2]).unwrap_or(0);
    let row = of.staged_row();
    let sizes = Sizes {
        all_heads: cx.constant(&queries[0].ty.dims[1..2])?,
        qwidth: widths.iter().sum(),
        dv: of.v.width,
        words: if selection.is_some() { most_keys.div_ceil(32) } else { 0 },
        list: selection.map(|s| cx.constant(&s.ty.dims[1..])).transpose()?.unwrap_or(0),
        tile: if row > 0 { STAGED } else { TILE },
        places: match of.table {
            Some(_) if row > 0 => STAGED,
            Some(_) => TILE,
            None => 0,
        },
        row,
    };
    let shared_keys = !of.keys.iter().chain([&of.v]).any(|k| k.per_head);
    let mut list = candidates(cx, &sizes, shared_keys);
    list.push(("tensor", Tiles::choose(cx, &sizes, of).map(|t| (0.01, Way::Tiles(t)))));
    let (_, way, rejected) = choose(cx, list)?;
    let config = match way {
        Way::Scalar(config) => config,
        Way::Tiles(tiles) => {
            let draft = attention_tiles::draft(cx, &sizes, of, tiles)?;
            return Ok(Draft { rejected, ..draft });
        }
    };
    let tokens = &queries[0].ty.dims[..1];
    let groups = sizes.all_heads.div_ceil(config.heads);
    let blocks = cx.bound(tokens).unwrap_or(0) * groups;
    // Few blocks: cut the keys, but not below one tile a part.
    let most_seen = if selection.is_some() { sizes.list.min(most_keys) } else { most_keys };
    let machine = u64::from(cx.request.options.multiprocessors());
    let wanted = if row > 0 { machine } else { 2 * machine };
    let parts = (wanted / blocks.max(1)).clamp(1, most_seen.div_ceil(sizes.tile).clamp(1, MOST_PARTS));
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
        ("TILE", sizes.tile),
        ("ROW", row),
        ("LIST", sizes.list),
        ("WORDS", sizes.words),
        ("MERGE_WARPS", MERGE_WARPS),
    ];
    m.push_str(&of.constants(cx, &constants));
    m.push_str(&functors(cx, &sizes, of));
    m.push_str(&of.selected());
    let scratch = if parts > 1 { 4 * blocks * parts * config.heads * (sizes.dv + 2) } else { 0 };
    let base = if parts > 1 { "args.scratch" } else { "static_cast<u8*>(nullptr)" };
    let _ = writeln!(
        m,
        "  GLMC_DEVICE static f32* partials(const Args& args) {{\n    return reinterpret_cast<f32*>({base});\n  }}"
    );
    let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
    includes.push("attention.cuh");
    let (heads, threads) = (config.heads, config.threads as u32);
    let mut entries = vec![Entry::only("attention<Config>(args);", [blocks, parts, 1], threads, sizes.shared(heads))];
    if parts > 1 {
        let all = cx.bound(tokens).unwrap_or(0) * sizes.all_heads;
        let grid = [all, sizes.dv.div_ceil(MERGE), 1];
        let threads = MERGE * MERGE_WARPS;
        let shared = 4 * (parts + threads) + 16;
        let merge = Entry::only("attention_merge<Config>(args);", grid, threads as u32, shared);
        entries.push(Entry { suffix: "merge".into(), ..merge });
    }
    Ok(Draft {
        includes,
        members: m,
        entries,
        scratch,
        loose: true,
        early: of.early(cx),
        config: format!("{heads} heads a block of {threads} threads, keys in up to {parts} parts"),
        why: "heads that share keys load them once; parts fill the machine when tokens are few".into(),
        rejected,
        ..Draft::default()
    })
}

fn candidates(cx: &Cx<'_>, s: &Sizes, shared_keys: bool) -> Vec<Candidate<Way>> {
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
        Ok((1.0 / heads as f64, Way::Scalar(Config { heads, threads })))
    };
    vec![("1 head", one(1)), ("2 heads", one(2)), ("4 heads", one(4)), ("8 heads", one(8))]
}

/// Loads of queries, keys and values.
fn functors(cx: &Cx<'_>, s: &Sizes, of: &Operands<'_>) -> String {
    let mut m = of.load_q();
    let fours = of.fours();
    m.push_str("  GLMC_DEVICE static const u8* query_chunk(const Args& args, u32 t, u32 h, u32 d) {\n");
    m.push_str("    u64 head = u64(t) * ALL_HEADS + h;\n");
    let mut at = 0;
    for (q, k) in of.queries.iter().zip(&of.keys).filter(|_| fours) {
        let w = k.width;
        let _ = writeln!(m, "    if (d < {}) return args.{} + 4 * (head * {w} + (d - {at}));", at + w, q.ident);
        at += w;
    }
    m.push_str("    (void)args, (void)head, (void)d;\n    return nullptr;\n  }\n");
    let (paged, staged) = (of.table.is_some(), s.row > 0);
    let _ = writeln!(m, "  static constexpr bool PAGED = {paged}, STAGED = {staged}, FOURS = {fours};");
    let _ = writeln!(m, "  {UNSETTLED}");
    let _ = writeln!(m, "  static constexpr u32 KEYS = {}, VALUE_AT = {};", of.keys.len(), of.v.at);
    let widths: Vec<u64> = of.keys.iter().map(|k| k.width).collect();
    let before: Vec<u64> = (0..widths.len()).map(|i| widths[..i].iter().sum()).collect();
    let at: Vec<u64> = of.keys.iter().map(|k| k.at).collect();
    for (name, values) in [("key_width", &widths), ("query_at", &before), ("key_at", &at)] {
        let cases: String = values.iter().enumerate().map(|(i, n)| format!("k == {i} ? {n}u : ")).collect();
        let _ = writeln!(m, "  GLMC_DEVICE static constexpr u32 {name}(u32 k) {{ return {cases}0u; }}");
    }
    let pool = if s.row > 0 { format!("args.{}", of.v.part.ident) } else { "static_cast<const u8*>(nullptr)".into() };
    let _ = writeln!(m, "  GLMC_DEVICE static const u8* pool(const Args& args) {{ return {pool}; }}");
    let rows = if s.row > 0 { cx.size(&of.v.part.ty.dims[..1]) } else { "0u".into() };
    let _ = writeln!(m, "  GLMC_DEVICE static u32 pool_rows(const Args& args) {{ return {rows}; }}");
    let none = match of.table {
        None => {
            m.push_str("  GLMC_DEVICE static i32 place(const Args&, u64) { return -1; }\n");
            None
        }
        Some(t) => {
            let _ = writeln!(
                m,
                "  GLMC_DEVICE static i32 place(const Args& args, u64 position) {{\n    return reinterpret_cast<const \
                 i32*>(args.{})[position];\n  }}",
                t.ident
            );
            Some(cx.size(&of.v.part.ty.dims[..1]))
        }
    };
    m.push_str(
        "  // The lane's share of the products of key `row` with the queries of `heads` heads.\n  GLMC_DEVICE static \
         void dot(const Args& args, const f32* q, i64 row, u32 head, u32 heads, f32 (&sum)[HEADS]) {\n",
    );
    if let Some(rows) = &none {
        // A row past the pool makes the scores no numbers, and so the result; it is not read.
        m.push_str("    if (row < 0) return;\n");
        let _ = writeln!(m, "    if (row >= i64({rows})) {{\n#pragma unroll");
        m.push_str("      for (u32 h = 0; h < HEADS; ++h) sum[h] = not_a_number();\n      return;\n    }\n");
    }
    let mut at = 0;
    for k in &of.keys {
        let w = k.width;
        let _ = writeln!(m, "    for (u32 d = glmc_lane(); d < {w}; d += WARP) {{");
        let index = k.index(s.all_heads, "d");
        let _ = writeln!(m, "      f32 k = element<{}>(args.{}, {index});", k.part.decoder(), k.part.ident);
        let _ = writeln!(m, "#pragma unroll\n      for (u32 h = 0; h < HEADS; ++h)");
        let _ = writeln!(m, "        if (h < heads) sum[h] = glmc_fma(q[h * QWIDTH + {at} + d], k, sum[h]);\n    }}");
        at += w;
    }
    m.push_str("    (void)head;\n  }\n");
    m.push_str("  GLMC_DEVICE static f32 value(const Args& args, i64 row, u32 head, u32 d) {\n    (void)head;\n");
    if let Some(rows) = &none {
        let _ = writeln!(m, "    if (row < 0 || row >= i64({rows})) return 0.0f;");
    }
    let index = of.v.index(s.all_heads, "d");
    let _ = writeln!(m, "    return element<{}>(args.{}, {index});\n  }}", of.v.part.decoder(), of.v.part.ident);
    m
}
