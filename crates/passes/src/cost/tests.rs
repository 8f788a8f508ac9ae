//! The model against numbers calculated by hand.

use glmc_ir::collective::CollectiveKind;
use glmc_ir::plan::{FORMAT, Limits, Model, PhaseKind, Plan, Target as PlanTarget};

use super::*;
use crate::lower;
use crate::pass::PassCx;
use crate::schedule::{EntryInfo, schedule};
use crate::target::Sockets;

/// Eight ranks with round figures: 1e12 B/s, 1 us a launch, links of 1e10 B/s and 5 us.
fn round() -> Target {
    let mut t = Target::named("8x-rtx-pro-6000").unwrap();
    t.device.read_bytes_per_s = 1e12;
    t.device.f32_flops_per_s = 1e12;
    t.device.bf16_flops_per_s = 2e12;
    t.device.int8_ops_per_s = 4e12;
    t.device.launch_s = 1e-6;
    let link = t.link.as_mut().unwrap();
    (link.bytes_per_s, link.latency_s) = (1e10, 5e-6);
    t
}

const SCATTER: CollectiveKind = CollectiveKind::ReduceScatter { dim: 0, unit: 1 };
const TO_ALL: CollectiveKind = CollectiveKind::AllToAll { dim: 0, unit: 1 };

#[track_caller]
fn us(seconds: f64, expected: f64) {
    assert!((seconds * 1e6 - expected).abs() <= 1e-6 * expected, "{} us, by hand {expected}", seconds * 1e6);
}

#[test]
fn a_launch_is_bound_by_its_bytes_or_its_arithmetic() {
    let t = round();
    us(launch_seconds(&t, 3_000_000, 0, Unit::F32), 4.0);
    us(launch_seconds(&t, 3_000_000, 8_000_000, Unit::F32), 9.0);
    us(launch_seconds(&t, 3_000_000, 8_000_000, Unit::Bf16), 5.0);
    us(launch_seconds(&t, 3_000_000, 8_000_000, Unit::Int8), 4.0);
    let mut classes = Classes::default();
    let bytes = Bytes { weights: 1_500_000, caches: 1_000_000, other: 500_000 };
    classes.add_launch(&t, bytes, 8_000_000, Unit::Bf16);
    us(classes.weights, 1.5);
    us(classes.caches, 1.0);
    us(classes.other, 0.5 + 1.0);
    us(classes.launches, 1.0);
    us(classes.total(), 5.0);
}

#[track_caller]
fn check(t: &Target, ranks: &[u32], kind: CollectiveKind, bytes: u64, form: Form, expected: f64) {
    let cost = collective(t, ranks, kind, bytes).unwrap();
    assert_eq!(cost.form, form);
    us(cost.seconds, expected);
}

const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn an_all_reduce_takes_the_form_that_is_cheapest() {
    let mut t = round();
    // One-shot 5 + 7 n / b, two-shot 10 + 1.75 n / b.
    check(&t, &ALL, CollectiveKind::AllReduce, 8_000, Form::OneShot, 10.6);
    check(&t, &ALL, CollectiveKind::AllReduce, 10_000, Form::TwoShot, 11.75);
    check(&t, &ALL, CollectiveKind::AllGather, 8_000, Form::OneShot, 5.7);
    check(&t, &ALL, SCATTER, 8_000, Form::OneShot, 5.7);
    check(&t, &ALL, TO_ALL, 8_000, Form::OneShot, 5.7);
    check(&t, &[3], CollectiveKind::AllReduce, 8_000, Form::OneShot, 0.0);
    // Two slots: what seven peers send and the own part, and 32 lines of flags a peer; two stages of a seventh each.
    let slots = |bytes| collective(&t, &ALL, CollectiveKind::AllReduce, bytes).unwrap().slot_bytes;
    assert_eq!(slots(8_000), 2 * (8 * 8_000 + 8 * 32 * 128));
    assert_eq!(slots(10_000), 2 * (2 * (8_750 + 10_000) + 8 * 32 * 128));
    // Through the host: twice the latency, twice the bytes.
    t.link.as_mut().unwrap().p2p = false;
    check(&t, &ALL, CollectiveKind::AllReduce, 8_000, Form::OneShot, 21.2);
    let one = Target::named("1x-h200").unwrap();
    assert_eq!(collective(&one, &[0, 1], CollectiveKind::AllReduce, 1), None);
}

#[test]
fn sockets_are_crossed_by_partners() {
    let mut t = round();
    t.sockets = Some(Sockets {
        ranks: vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]],
        bytes_per_s: 2e10,
        scattered_bytes_per_s: 1e9,
        latency_s: 3e-6,
    });
    // One-shot 8 + 16 n / 1e9 = 136; two-shot 2 (8 + 2 n / 1e9) = 48; owners 5.6 + 8.4 + 5.6 = 19.6.
    check(&t, &ALL, CollectiveKind::AllReduce, 8_000, Form::Islands, 7.4 + 9.6);
    // Islands 29 + 24 = 53.
    check(&t, &ALL, CollectiveKind::AllReduce, 80_000, Form::Owners, 11.0 + 12.0 + 11.0);
    // Flat 8 + 16 = 24.
    check(&t, &ALL, CollectiveKind::AllGather, 8_000, Form::Islands, 8.2 + 5.6);
    check(&t, &ALL, SCATTER, 8_000, Form::Islands, 8.2 + 5.6);
    check(&t, &ALL, TO_ALL, 8_000, Form::OneShot, 24.0);
    // Ranks of one socket cross nothing; three ranks have no partners: one-shot 8 + 2 n / 1e9.
    check(&t, &[4, 5, 6, 7], CollectiveKind::AllReduce, 8_000, Form::OneShot, 7.4);
    check(&t, &[0, 1, 4], CollectiveKind::AllReduce, 8_000, Form::OneShot, 24.0);
}

/// The shipped descriptions against what was published for such machines.
#[test]
fn shipped_links_give_the_published_latencies() {
    let cost = |name: &str, bytes| {
        let t = Target::named(name).unwrap();
        collective(&t, &ALL, CollectiveKind::AllReduce, bytes).unwrap()
    };
    let rtx = cost("8x-rtx-pro-6000", 12_288);
    assert!((7e-6..12e-6).contains(&rtx.seconds), "{rtx:?}");
    let h100 = cost("8x-h100", 12_288);
    assert!((5.5e-6..6.5e-6).contains(&h100.seconds), "{h100:?}");
    // On two sockets the flat forms lose from the smallest row on, and crossing costs time.
    let two = cost("8x-rtx-pro-6000-two-sockets", 24_576);
    assert!(matches!(two.form, Form::Islands | Form::Owners) && two.seconds > cost("8x-rtx-pro-6000", 24_576).seconds);
}

const MODULE: &str = r#"module m MESH{
  sym S <= 100
  weight @table = "t" part 0 at 0 size 12800 : f32[100, 32]
  weight @w = "w" part 0 at 12800 size 2176 : q8_0[64SPLIT, 32] rows

  entry @decode_1(%tokens: i32[1], %row: i32[1], %rows: i32[1, S], %pool: state f32[1000, 32])
      -> (y: f32[1, 64SPLIT], z: f32[1, 100], seen: f32[1, S, 32], pool: state f32[1000, 32]) {
    %x = gather @table, %tokens : f32[1, 32]
    %pool_2 = append %pool, %row, %x : state f32[1000, 32]
    %seen = gather %pool_2, %rows : f32[1, S, 32]
    %d = dequant @w : f32[64SPLIT, 32]
    %y = matmul %x, %d {spec: "tk,nk->tn"} : f32[1, 64SPLIT]
    %z = matmul %x, @table {spec: "tk,nk->tn"} : f32[1, 100]
    return y: %y, z: %z, seen: %seen, pool: %pool_2
  }
}
"#;

fn plan(ranks: u32) -> Plan {
    let (mesh, split) = if ranks == 1 { (String::new(), "") } else { (format!("mesh(tp: {ranks}) "), "/tp") };
    let text = MODULE.replace("MESH", &mesh).replace("SPLIT", split);
    let m = glmc_ir::text::parse_module(&text).unwrap();
    let lowered = lower::lower(&m, &mut PassCx::new(None)).unwrap();
    let entry = EntryInfo { func: "decode_1".into(), kind: PhaseKind::Decode, tokens: 1 };
    let s = schedule(&m, &lowered, &[entry]).unwrap();
    Plan {
        format: FORMAT,
        producer: "test".into(),
        target: PlanTarget { name: "test".into(), arch: "cpu".into(), ranks },
        model: Model {
            arch: "none".into(),
            name: String::new(),
            layers: 1,
            vocab: 1,
            trained_ctx: 1,
            stop: vec![],
            suppress: vec![],
        },
        limits: Limits { ctx: 100, max_batch: 1, cache_rows: 1000, chunk: 1 },
        mesh: m.mesh,
        files: vec![],
        weights: s.weights,
        states: s.states,
        phases: s.phases,
    }
}

fn slow_cpu() -> Target {
    let mut t = Target::named("cpu").unwrap();
    (t.device.read_bytes_per_s, t.device.f32_flops_per_s, t.device.launch_s) = (1e9, 1e9, 1e-6);
    t
}

#[test]
fn a_phase_is_the_sum_of_its_launches() {
    let p = plan(1);
    let c = decode(&p, &slow_cpu(), 50).unwrap().unwrap();
    assert_eq!((c.launches, c.context, c.tokens), (5, 50, 1));
    // Products: 2 x 32 x 64 and 2 x 32 x 100.
    assert_eq!(c.flops, 4096 + 6400);
    // A row of the table, the quantised weight as stored, and the table as a head.
    assert_eq!(c.bytes.weights, 128 + 2176 + 12800);
    // A row written, 50 rows read.
    assert_eq!(c.bytes.caches, 128 + 6400);
    // look-up 4 + 128, append 4 + 128, rows 200 + 6400, products 128 + 256 and 128 + 400.
    assert_eq!(c.bytes.other, 132 + 132 + 6600 + 384 + 528);
    us(c.classes_s.weights, 15.104);
    us(c.classes_s.caches, 6.528);
    // The first product computes for 4.096 us and moves its 2560 bytes in 2.560.
    us(c.classes_s.other, 7.776 + 1.536);
    us(c.classes_s.launches, 5.0);
    assert_eq!(c.classes_s.collectives, 0.0);
    us(c.step_s, 35.944);
    us(c.limit_s, 21.632);
    assert!((c.share() - 21.632 / 35.944).abs() < 1e-9);
    let mut eight = c.clone();
    eight.add_collective(&round(), &collective(&round(), &ALL, CollectiveKind::AllReduce, 8_000).unwrap());
    us(eight.step_s, 35.944 + 10.6 + 1.0);
    us(eight.classes_s.collectives, 10.6);
    // A nominal context beyond the plan's is the plan's.
    let long = decode(&p, &slow_cpu(), 8192).unwrap().unwrap();
    assert_eq!((long.context, long.bytes.caches), (100, 128 + 12800));
}

#[test]
fn products_of_quantised_weights_use_matrix_units_on_a_gpu() {
    let p = plan(1);
    let units = |t: &Target| {
        let of = |s: &glmc_ir::plan::Step| {
            let inputs: Vec<&TensorType> = s.args.iter().map(|a| &a.ty).collect();
            (s.name.clone(), Unit::of(&s.kernel, &inputs, t))
        };
        p.phases[0].steps.iter().map(of).collect::<std::collections::BTreeMap<_, _>>()
    };
    let gpu = units(&round());
    assert_eq!((gpu["y"], gpu["z"], gpu["x"]), (Unit::Bf16, Unit::F32, Unit::F32));
    assert!(units(&slow_cpu()).values().all(|u| *u == Unit::F32));
}

#[test]
fn a_weight_counts_once_and_is_read_by_every_launch_of_every_rank() {
    let once = 2176 + 12800;
    let one = bytes_per_token(&plan(1), &slow_cpu(), 50).unwrap();
    assert_eq!(one, TokenBytes { weights_once: once, weights_read: once + 128, cache: 6528 });
    let p = plan(2);
    let two = bytes_per_token(&p, &slow_cpu(), 50).unwrap();
    assert_eq!(two, TokenBytes { weights_once: once, weights_read: 2176 + 2 * (12800 + 128), cache: 2 * 6528 });
    for c in phase_costs(&p, &p.phases[0], &slow_cpu(), 50).unwrap() {
        assert_eq!((c.flops, c.bytes.weights), (2048 + 6400, 128 + 1088 + 12800));
        assert_eq!(c.bytes.other, 132 + 132 + 6600 + (128 + 128) + 528);
    }
}

/// The calculation of `docs/cost.md`: GLM-5 in UD-Q4_K_XL types on 8x-rtx-pro-6000, one token at 8192 positions.
#[test]
fn glm_5_by_hand() {
    let t = Target::named("8x-rtx-pro-6000").unwrap();
    let q8 = |parameters: u64| parameters / 32 * 34;
    let (q_b, k_b, v_b, o) = (33_554_432, 6_291_456, 8_388_608, 100_663_296);
    let (q_a, kv_a) = (12_582_912, 3_538_944);
    let (indexer_q, indexer_k, indexer_proj) = (8_388_608, 786_432, 196_608);
    let gathered = 78 * (q8(q_a + kv_a + indexer_k) + 4 * indexer_proj);
    let cut = gathered
        + 78 * q8(q_b + k_b + v_b + o)
        + 3 * q8(226_492_416)
        + 75 * (q8(37_748_736) + 8 * 22_806_528)
        + q8(951_582_720);
    let norms = 4 * (2048 + 512 + 2 * 6144 + 256);
    let whole = 78 * (q8(indexer_q) + norms) + 75 * 4 * (1_572_864 + 256);
    assert!(((cut + whole) as f64 / 33.4e9 - 1.0).abs() < 1e-3, "{}", cut + whole);
    let bytes = Bytes { weights: cut / 8 + whole, caches: 78 * (2048 * 1152 + 8192 * 256), other: 0 };
    // 12 launches a layer, 11 in the 3 dense ones; look-up and head.
    let launches = 12 * 75 + 11 * 3 + 2;
    let mut c = Classes::default();
    c.add_launch(&t, bytes, 0, Unit::Bf16);
    (1..launches).for_each(|_| c.add_launch(&t, Bytes::default(), 0, Unit::Bf16));
    let reduce = collective(&t, &ALL, CollectiveKind::AllReduce, 6144 * 4).unwrap();
    assert_eq!(reduce.form, Form::OneShot);
    (0..156).for_each(|_| c.add_collective(&t, &reduce));
    let joined = (2048 + 576 + 128 + 32) * 4;
    (0..78).for_each(|_| c.add_collective(&t, &collective(&t, &ALL, CollectiveKind::AllGather, joined).unwrap()));
    c.add_collective(&t, &collective(&t, &ALL, CollectiveKind::AllGather, 154_880 * 4).unwrap());
    let ms = |s: f64| (s * 1e5).round() / 100.0;
    assert_eq!(
        [ms(c.weights), ms(c.caches), ms(c.collectives), ms(c.launches), ms(c.total())],
        [3.19, 0.21, 2.52, 1.05, 6.97]
    );
    assert_eq!((1.0 / c.total()).round(), 143.0);
}
