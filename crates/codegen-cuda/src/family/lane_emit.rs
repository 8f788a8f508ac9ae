//! What the lane kernels' device code takes of a configuration: constants, functions, the launch, and its words.

use std::fmt::Write as _;

use glmc_ir::ty::Elem;

use super::cx::{Beside, Cx, Draft, Entry, Part};
use super::lane::Config;
use crate::program::adds::ALONE;
use crate::program::settle::{EARLY, LATE, UNSETTLED};
use crate::request::GenerateError;

/// The functions by which device code finds the launch's arguments.
pub(super) fn accessors(x: &str, y: &str, w: &[&str]) -> String {
    let matrix = match w {
        [gate, up] => format!("way ? args.{up} : args.{gate}"),
        _ => format!("args.{}", w.first().unwrap_or(&"w")),
    };
    format!(
        "  GLMC_DEVICE static const u8* x(const Args& args) {{ return args.{x}; }}\n  GLMC_DEVICE static u8* y(const \
         Args& args) {{ return args.{y}; }}\n  GLMC_DEVICE static const u8* w(const Args& args, u32 way) {{ return \
         {matrix}; }}\n"
    )
}

impl Config {
    /// The constants that the device code takes; `w` is one of the matrices.
    pub(super) fn members(&self, w: &Part) -> String {
        let mut m = format!("  typedef {}_LANE L;\n", self.lane.name);
        let total = w.ty.elems(&Default::default()).unwrap_or(0) / 32;
        let s = &self.shape;
        let constants = [
            ("K", s.k),
            ("FREE", s.free),
            ("BATCHES", s.batches),
            ("TOKENS", s.tokens.next_power_of_two()),
            ("FOLD", s.fold()),
            ("WAYS", s.ways),
            ("SHARE", s.share),
            ("EXPERTS", s.experts),
            ("VECTORS", self.vectors),
            ("BLOCKS", self.blocks),
            ("THREADS", self.threads),
            ("GROUP", self.group),
            ("PASS", u64::from(self.tuning.pass.max(1))),
            ("PARTS", u64::from(self.tuning.parts.max(1))),
            ("STAGES", self.stages),
            ("LANES", self.lanes),
            ("UNROLL", u64::from(self.tuning.unroll.max(1))),
            ("DIGITS", self.digits),
        ];
        for (name, value) in constants {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        let _ = writeln!(m, "  static constexpr u64 UNITS_TOTAL = {total};");
        for (name, value) in [("BULK", self.bulk), ("WEIGHTED", s.folded > 0)] {
            let _ = writeln!(m, "  static constexpr bool {name} = {value};");
        }
        let _ = writeln!(m, "  {ALONE}");
        // Who waits first has nothing to gain from an early successor.
        let _ = writeln!(m, "  {}\n  {UNSETTLED}", if s.experts > 0 { LATE } else { EARLY });
        m
    }

    /// A launch of its own: the matrices, the weights of choices, and expressions for the numbers of batches and tokens.
    pub(super) fn draft(
        &self,
        cx: &Cx<'_>,
        w: &[&Part],
        weights: Option<&Part>,
        [batches, tokens]: [String; 2],
    ) -> Result<Draft, GenerateError> {
        let (x, y, s) = (&cx.inputs[0], &cx.outputs[0], &self.shape);
        let mut m = format!("  typedef {} X;\n  typedef {} PUT;\n{}", x.decoder(), cx.put(0)?, self.members(w[0]));
        for (name, value) in [("XSTEP", s.k), ("YSTEP", s.free * s.batches), ("YFIRST", 0)] {
            let _ = writeln!(m, "  static constexpr u32 {name} = {value};");
        }
        m.push_str(&accessors(&x.ident, &y.ident, &w.iter().map(|w| w.ident.as_str()).collect::<Vec<_>>()));
        let mut includes = cx.decoders(&cx.inputs.iter().collect::<Vec<_>>());
        includes.push("gemv.cuh");
        for (name, value) in [("batches", batches), ("tokens", tokens)] {
            let _ = writeln!(m, "  GLMC_DEVICE static u32 {name}(const Args& args) {{ return {value}; }}");
        }
        let ids = cx.inputs.iter().find(|p| p.ty.elem == Elem::I32).filter(|_| s.experts > 0);
        if let Some(ids) = ids {
            let _ = writeln!(
                m,
                "  GLMC_DEVICE static const i32* ids(const Args& args) {{ return reinterpret_cast<const i32*>(args.{}); \
                 }}",
                ids.ident
            );
        }
        if let Some(p) = weights {
            let _ = writeln!(
                m,
                "  GLMC_DEVICE static f32 weight(const Args& args, u32 i) {{ return element<{}>(args.{}, i); }}",
                p.decoder(),
                p.ident
            );
        }
        let why = if s.experts == 0 {
            "bound by the weights' bytes, whose copies hide the launch before"
        } else {
            "ids come from the launch before, so the copies follow the wait, all at once"
        };
        Ok(Draft {
            includes,
            members: m,
            entries: vec![Entry {
                suffix: String::new(),
                call: "gemv_lane<Config>(args, glmc_block_x());".into(),
                grid: [self.blocks, 1, 1],
                threads: self.threads as u32,
                blocks: self.resident as u32,
                shared: self.shared,
            }],
            config: self.words(),
            why: why.into(),
            rejected: self.rejected.clone(),
            beside: Some(Beside::Exact),
            early: ids.into_iter().map(|p| p.ident.clone()).collect(),
            ..Draft::default()
        })
    }

    /// In a few words.
    pub(super) fn words(&self) -> String {
        let Config { blocks, group, stages, .. } = self;
        let warps = self.threads / 32;
        let parts = match self.tuning.parts {
            0 | 1 => String::new(),
            n => format!(" in {n} parts"),
        };
        let copies = match (self.bulk, self.copies) {
            (false, _) => "loads from memory".to_owned(),
            (true, n) if n <= *stages => format!("all {n} of its copies ahead"),
            (true, n) => format!("{n} copies in a ring of {stages}"),
        };
        let pass = self.tuning.pass;
        let x = if self.digits == 1 { "8-bit" } else { "24-bit" };
        let of = match (self.shape.ways, self.shape.folded) {
            (2, _) => " of both matrices",
            (_, 1..) => " of each expert",
            _ => "",
        };
        format!(
            "{blocks} blocks of {warps} warps, {group} rows{of} a warp{parts}, {pass} a pass, {copies}, {x} activations"
        )
    }
}
