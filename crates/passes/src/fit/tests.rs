//! Needs at other limits against plans really made for them, and what is said to fit against every possibility.

use glmc_ir::plan::{FORMAT, Limits, Model, PhaseKind, Target as PlanTarget};

use super::*;
use crate::lower;
use crate::pass::PassCx;
use crate::schedule::{EntryInfo, schedule};

const CHUNK: u64 = 16;

/// Decode phases of the batches up to `max_batch`, and a prefill.
fn plan(ctx: u64, max_batch: u64) -> Plan {
    let entry = |name: &str, t: &str, q: u64| {
        format!(
            "  entry @{name}(%tokens: i32[{t}], %row: i32[{t}], %rows: i32[{q}, S], %a.kv: state f32[{ctx}, 32], %b.kv: state f32[{ctx}, 32], %a.index: state f32[{ctx}, 8])
      -> (z: f32[{t}, 100], seen: f32[{q}, S, 32], kv: state f32[{ctx}, 32], b: state f32[{ctx}, 32], i: state f32[{ctx}, 8]) {{
    %x = gather @table, %tokens : f32[{t}, 32]
    %kv_2 = append %a.kv, %row, %x : state f32[{ctx}, 32]
    %old = gather %kv_2, %rows : f32[{q}, S, 32]
    %seen = scale %old {{factor: 2.0}} : f32[{q}, S, 32]
    %h = scale %x {{factor: 2.0}} : f32[{t}, 32]
    %z = matmul %h, @table {{spec: \"tk,nk->tn\"}} : f32[{t}, 100]
    return z: %z, seen: %seen, kv: %kv_2, b: %b.kv, i: %a.index
  }}
"
        )
    };
    let chunk = CHUNK.min(ctx);
    let batches: Vec<u64> = [1, 2, 4, 8].into_iter().filter(|b| *b <= max_batch).collect();
    let mut text = format!(
        "module m {{\n  sym S <= {ctx}\n  sym T <= {chunk}\n  weight @table = \"t\" part 0 at 0 size 12800 : f32[100, 32]\n"
    );
    let mut entries = Vec::new();
    for b in &batches {
        text += &entry(&format!("decode_{b}"), &b.to_string(), *b);
        entries.push(EntryInfo { func: format!("decode_{b}"), kind: PhaseKind::Decode, tokens: *b });
    }
    text += &entry("prefill", "T", 1);
    entries.push(EntryInfo { func: "prefill".into(), kind: PhaseKind::Prefill, tokens: chunk });
    let m = glmc_ir::text::parse_module(&(text + "}\n")).unwrap();
    let lowered = lower::lower(&m, &mut PassCx::new(None)).unwrap();
    let s = schedule(&m, &lowered, &entries).unwrap();
    Plan {
        format: FORMAT,
        producer: "test".into(),
        target: PlanTarget { name: "test".into(), arch: "cpu".into(), ranks: 1 },
        model: Model {
            arch: "none".into(),
            name: String::new(),
            layers: 1,
            vocab: 1,
            trained_ctx: 1,
            stop: vec![],
            suppress: vec![],
        },
        limits: Limits { ctx, max_batch, cache_rows: ctx, chunk },
        mesh: m.mesh,
        files: vec![],
        weights: s.weights,
        states: s.states,
        phases: s.phases,
    }
}

/// `cpu` with this memory and overheads that show.
fn target(memory: Option<u64>) -> Target {
    let mut t = Target::named("cpu").unwrap();
    let d = &mut t.device;
    (d.memory_bytes, d.context_bytes, d.graph_bytes, d.graph_bytes_per_phase, d.reserve_bytes) =
        (memory, 1000, 200, 30, 4000);
    t
}

#[test]
fn every_part_is_counted() {
    let (p, t) = (plan(100, 2), target(None));
    let fit = Fit { plan: &p, target: &t };
    let needs = fit.needs().unwrap();
    assert_eq!(needs.len(), 1);
    let n = &needs[0];
    assert_eq!((n.weights, n.collectives, n.context, n.reserve), (12800, 0, 1000, 4000));
    assert_eq!(n.graphs, 200 + 3 * 30);
    let caches: Vec<(&str, u64)> = n.caches.iter().map(|(k, b)| (k.as_str(), *b)).collect();
    assert_eq!(caches, [("kv", 2 * 100 * 32 * 4), ("index", 100 * 8 * 4)]);
    assert_eq!(n.arena, p.phases.iter().map(|p| p.arena_bytes).max().unwrap());
    assert_eq!(n.total(), 12800 + 25600 + 3200 + n.arena + 1000 + 290 + 4000);
    assert_eq!(n.plan_bytes(), 12800 + 25600 + 3200 + n.arena);
    assert_eq!(fit.check(), Ok(Ok(needs.clone())));
}

#[test]
fn each_rank_counts_what_it_holds_and_the_slots_of_the_largest_exchange() {
    let text = "module m mesh(tp: 4) {
  sym S <= 64
  weight @w = \"w\" part 0 at 0 size 2560 : f32[10/tp, 64]
  entry @decode_1(%tokens: i32[1], %row: i32[1], %rows: i32[1, S], %a.kv: state f32[64/tp:24, 32])
      -> (z: f32[1, 10], seen: f32[1, S, 32], a.kv: state f32[64/tp:24, 32]) {
    %x = gather @w, %tokens : f32[1, 64] +tp
    %y = all_reduce %x {axis: \"tp\"} : f32[1, 64]
    %z = matmul %y, @w {spec: \"tk,nk->tn\"} : f32[1, 10/tp]
    %zw = all_gather %z {axis: \"tp\"} : f32[1, 10]
    %h = reshape %y {dims: [\"2\", \"32\"]} : f32[2, 32]
    %one = gather %h, %tokens : f32[1, 32]
    %kv_2 = append %a.kv, %row, %one : state f32[64/tp:24, 32]
    %old = gather %kv_2, %rows : f32[1, S, 32] +tp
    %seen = all_reduce %old {axis: \"tp\"} : f32[1, S, 32]
    return z: %zw, seen: %seen, a.kv: %kv_2
  }
}
";
    let m = glmc_ir::text::parse_module(text).unwrap();
    glmc_ir::verify::verify_module(&m).unwrap();
    let lowered = lower::lower(&m, &mut PassCx::new(None)).unwrap();
    let entries = [EntryInfo { func: "decode_1".into(), kind: PhaseKind::Decode, tokens: 1 }];
    let s = schedule(&m, &lowered, &entries).unwrap();
    let mut p = plan(64, 1);
    (p.mesh, p.weights, p.states, p.phases) = (m.mesh, s.weights, s.states, s.phases);
    p.target.ranks = 4;
    let mut t = Target::named("8x-h200").unwrap();
    t.ranks = 4;
    let needs = Fit { plan: &p, target: &t }.needs().unwrap();
    // Rows 3, 3, 2, 2 of 256 bytes; pool rows in units of 24: 24, 24, 16 and none.
    let held: Vec<(u64, u64)> = needs.iter().map(|n| (n.weights, n.cache_bytes())).collect();
    assert_eq!(held, [(768, 24 * 128), (768, 24 * 128), (512, 16 * 128), (512, 0)]);
    // The largest: 64 positions of 128 bytes, one-shot, two slots; flags of 4 ranks.
    let slots = |n: &Need| n.collectives;
    assert!(needs.iter().all(|n| slots(n) == 2 * (4 * 64 * 128 + 4 * 32 * 128)), "{needs:?}");
}

#[test]
fn a_plan_larger_than_its_target_is_refused_with_every_part() {
    let p = plan(100, 8);
    let total = Fit { plan: &p, target: &target(None) }.needs().unwrap()[0].total();
    assert!(Fit { plan: &p, target: &target(Some(total)) }.check().unwrap().is_ok());
    let refused = Fit { plan: &p, target: &target(Some(total - 1)) }.check().unwrap().unwrap_err();
    assert_eq!((refused.rank, refused.need.total(), refused.memory), (0, total, total - 1));
    let text = refused.to_string();
    for part in ["weights 12800", "kv cache 25600", "index cache 3200", "arena", "context 1000", "graphs 350"] {
        assert!(text.contains(part), "{text}");
    }
}

/// By `need` of every size from 1, at every memory.
fn all_memories(need: &[i128], bends: &[u64]) -> usize {
    let mut most = 0;
    let (low, high) = (need.iter().min().unwrap() - 2, *need.last().unwrap());
    for memory in low..high {
        let over = |n: u64| need[n as usize - 1] - memory;
        let mut probes = 0;
        let asked = need.len() as u64;
        let found = largest(asked, over(asked), bends, |n| {
            probes += 1;
            assert!((1..asked).contains(&n));
            Ok::<_, ()>(over(n))
        });
        match found.unwrap() {
            Some(n) => assert!(over(n) <= 0 && over(n + 1) > 0, "memory {memory}: {n}"),
            None => assert!(over(1) > 0, "memory {memory}"),
        }
        most = most.max(probes);
    }
    most
}

#[test]
fn what_fits_is_found_where_needs_are_straight_bent_or_jump() {
    let of = |need: fn(i128) -> i128| (1..=500).map(need).collect::<Vec<_>>();
    // 1, where the line crosses, and the next; one more where it crosses at a whole number.
    assert!(all_memories(&of(|n| 300 + 7 * n), &[]) <= 4);
    for need in [|n| n * n / 40, |n| n + 3000 * (n / 400), |n| n / 100, |n| 2000 - 2000 / n, |n| n + 90 * (n % 3)] {
        let most = all_memories(&of(need), &[]);
        assert!(most <= 20, "{most}");
    }
    let bent = of(|n| 2 * n + 50 * n.min(100));
    let (blind, told) = (all_memories(&bent, &[]), all_memories(&bent, &[100]));
    assert!(told <= 5 && blind > 2 * told, "{blind} {told}");
    assert_eq!(largest(1, 5, &[], |_| Err(())), Ok(None));
    assert_eq!(largest(9, 5, &[], |_| Err(())), Err(()));
    assert_eq!(largest(u64::MAX, i128::MAX, &[], |n| Ok::<_, ()>(i128::from(n) - 77)), Ok(Some(77)));
}
