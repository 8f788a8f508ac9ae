//! The one signature table of a kernel: it renders the argument struct, names the IR type of each field, and says in
//! which order a launch packs its addresses. Every field is an address of 8 bytes.

use std::fmt::Write as _;

use glmc_ir::kernel::Access;
use glmc_ir::ty::TensorType;

/// What a field points at.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    /// Parameter `index` of the contract.
    Param {
        /// Place in the contract's parameter list.
        index: usize,
        /// How it is touched.
        access: Access,
        /// Its type, as one rank holds it.
        ty: TensorType,
        /// How its bytes lie: `rows`, or a repacked layout.
        layout: &'static str,
    },
    /// The current values of the phase's symbols, `u32` each, in the order of the phase's table, in device memory.
    Symbols,
    /// The memory that device `device` has for the others: see `kernels/exchange.cuh`.
    Slab {
        /// Whose.
        device: usize,
    },
    /// The device's own count of meetings.
    Control,
    /// The word in host memory that ends every wait, and what each device waited for then.
    Halt,
    /// Device memory that no kernel that runs at the same time touches.
    Scratch {
        /// Bytes.
        bytes: u64,
        /// Whether it must hold zeros at first and then what the last launch of this kernel left; else any kernel may
        /// leave anything in it.
        kept: bool,
    },
}

/// One field of the argument struct.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// Name in the struct.
    pub ident: String,
    /// What it points at.
    pub role: Role,
}

/// The fields in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Signature(pub Vec<Field>);

/// A contract's parameter name as an identifier.
pub(crate) fn ident(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl Signature {
    /// Bytes of the argument struct.
    pub fn bytes(&self) -> usize {
        8 * self.0.len()
    }

    /// Bytes of scratch that a launch needs.
    pub fn scratch(&self) -> u64 {
        let of = |f: &Field| if let Role::Scratch { bytes, .. } = f.role { bytes } else { 0 };
        self.0.iter().map(of).sum()
    }

    /// The struct, its IR types as comments.
    pub(crate) fn render(&self) -> String {
        let mut out = String::from("struct Args {\n");
        for f in &self.0 {
            let (ty, note) = match &f.role {
                Role::Param { access, ty, layout, .. } => {
                    let note = match access {
                        Access::Read => "read",
                        Access::Write => "write",
                        Access::Update => "update",
                    };
                    let c = if *access == Access::Read { "const u8*" } else { "u8*" };
                    let layout = if *layout == "rows" { String::new() } else { format!(" as {layout}") };
                    (c, format!("{note} {ty}{layout}"))
                }
                Role::Symbols => ("const u32*", "values of the symbols".to_owned()),
                Role::Slab { device } => ("u8*", format!("slab of device {device}")),
                Role::Control => ("u8*", "count of meetings".to_owned()),
                Role::Halt => ("u8*", "ends every wait".to_owned()),
                Role::Scratch { bytes, .. } => ("u8*", format!("scratch, {bytes} bytes")),
            };
            let _ = writeln!(out, "  {ty} {};  // {note}", f.ident);
        }
        out.push_str("};\n");
        out
    }
}
