//! Owns machine descriptions: the TOML files of `targets/` and a user's own. Every number that a pass may know about a
//! machine stands in such a file and nowhere else. The unit of a number is the end of its key's name.

mod schema;
#[cfg(test)]
mod tests;

use serde::Serialize;

use schema::Keys;

/// A machine that plans are made for.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Target {
    /// What `--target` calls it.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// `cpu`, or a GPU architecture such as `sm_120`.
    pub arch: String,
    /// Logical ranks.
    pub ranks: u32,
    /// Default of `--max-batch`.
    pub max_batch: u64,
    /// Tokens of a prefill step.
    pub chunk: u64,
    /// One rank's device.
    pub device: Device,
    /// What joins the ranks; there is none for one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// How the ranks lie on the two sockets of the host, if that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
}

/// One rank's device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Device {
    /// Memory that a process may use. Not stated: weights stay mapped from their files and nothing is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Multiprocessors; none for `cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_count: Option<u64>,
    /// Shared memory that one block may have; none for `cpu`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory_per_block_bytes: Option<u64>,
    /// Memory read bandwidth that a good kernel reaches.
    pub read_bytes_per_s: f64,
    /// Multiplies and adds in f32, two for a multiply-add.
    pub f32_flops_per_s: f64,
    /// The same in bf16 on matrix units, f32 sums.
    pub bf16_flops_per_s: f64,
    /// The same in 8-bit integers on matrix units, i32 sums.
    pub int8_ops_per_s: f64,
    /// What a launch costs besides its bytes and its arithmetic.
    pub launch_s: f64,
    /// What the driver takes for a context.
    pub context_bytes: u64,
    /// What captured graphs take besides the next line.
    pub graph_bytes: u64,
    /// What the captured graph of each phase takes.
    pub graph_bytes_per_phase: u64,
    /// What is left free for whatever else uses the device.
    pub reserve_bytes: u64,
}

/// What joins the ranks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Link {
    /// What a rank can send while all ranks send to all.
    pub bytes_per_s: f64,
    /// One rendezvous: from a rank's last store to the moment that all ranks have seen all flags.
    pub latency_s: f64,
    /// Whether ranks read and write each other's memory; else everything goes through the host.
    pub p2p: bool,
}

/// Two sockets with ranks on both.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sockets {
    /// The ranks of each socket.
    pub ranks: Vec<Vec<u32>>,
    /// All ranks of one socket together to the other, each sending to one partner.
    pub bytes_per_s: f64,
    /// The same with every rank sending to every rank of the other socket.
    pub scattered_bytes_per_s: f64,
    /// What a rendezvous across sockets costs more than one within.
    pub latency_s: f64,
}

/// A target that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TargetError {
    /// No TOML.
    #[error("is not TOML: {0}")]
    Syntax(String),
    /// A key that is missing, unknown, of another type, or out of range.
    #[error("key `{key}` {why}")]
    Schema {
        /// The key with its table, such as `device.launch_s`.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// No shipped target has this name.
    #[error("there is no target `{name}`; shipped targets: {known}. A path ending in .toml names a file of your own")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

/// The shipped descriptions, in the order of `glmc targets`.
const SHIPPED: &[&str] = &[
    include_str!("../targets/cpu.toml"),
    include_str!("../targets/8x-cpu.toml"),
    include_str!("../targets/8x-rtx-pro-6000.toml"),
    include_str!("../targets/8x-rtx-pro-6000-two-sockets.toml"),
    include_str!("../targets/1x-h200.toml"),
    include_str!("../targets/2x-h200.toml"),
    include_str!("../targets/8x-h200.toml"),
    include_str!("../targets/8x-h100.toml"),
    include_str!("../targets/8x-a100.toml"),
];

/// Most ranks of a target.
pub const MAX_RANKS: u64 = 16;
/// Larger than any machine's memory, and far from what overflows.
const MOST_BYTES: u64 = 1 << 50;
/// Larger than any machine's rate; a model of "free" may use it.
const MOST_PER_S: f64 = 1e18;

impl Target {
    /// Parses a description.
    ///
    /// # Errors
    /// `Syntax`, or `Schema` with the key.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let mut top = Keys::parse(text)?;
        let arch = top.text("arch")?;
        let number = arch.strip_prefix("sm_").map(|n| n.trim_end_matches(['a', 'f']));
        let gpu = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if arch != "cpu" && !gpu {
            return Err(top.wrong("arch", format!("must be `cpu` or like `sm_90`, found `{arch}`")));
        }
        let ranks = top.whole("ranks", 1..=MAX_RANKS)? as u32;
        let target = Target {
            name: top.text("name")?,
            description: top.text("description")?,
            ranks,
            max_batch: top.whole("max_batch", 1..=1024)?,
            chunk: top.whole("chunk", 1..=65536)?,
            device: Device::read(top.table("device")?, gpu)?,
            link: top.table_if_any("link")?.map(Link::read).transpose()?,
            sockets: top.table_if_any("sockets")?.map(|s| Sockets::read(s, ranks)).transpose()?,
            arch,
        };
        if ranks > 1 && target.link.is_none() {
            return Err(top.wrong("link", format!("is missing: something joins {ranks} ranks")));
        }
        if ranks == 1 && target.link.is_some() {
            return Err(top.wrong("link", "joins nothing: there is one rank"));
        }
        top.finish()?;
        Ok(target)
    }

    /// The description as TOML; [`Target::parse`] gives the same target back.
    pub fn to_toml(&self) -> Result<String, TargetError> {
        toml::to_string(self).map_err(|e| TargetError::Syntax(e.to_string()))
    }

    /// All shipped targets.
    pub fn shipped() -> Vec<Target> {
        SHIPPED.iter().filter_map(|t| Target::parse(t).ok()).collect()
    }

    /// The shipped target called `name`.
    pub fn named(name: &str) -> Result<Self, TargetError> {
        let all = Target::shipped();
        let known = all.iter().map(|t| t.name.clone()).collect::<Vec<_>>().join(", ");
        all.into_iter().find(|t| t.name == name).ok_or(TargetError::Unknown { name: name.into(), known })
    }
}

impl Device {
    fn read(mut k: Keys, gpu: bool) -> Result<Self, TargetError> {
        let rate = 1.0..=MOST_PER_S;
        let device = Device {
            memory_bytes: k.whole_if_any("memory_bytes", 1..=MOST_BYTES)?,
            sm_count: k.whole_if_any("sm_count", 1..=1024)?,
            shared_memory_per_block_bytes: k.whole_if_any("shared_memory_per_block_bytes", 1024..=1 << 30)?,
            read_bytes_per_s: k.number("read_bytes_per_s", rate.clone())?,
            f32_flops_per_s: k.number("f32_flops_per_s", rate.clone())?,
            bf16_flops_per_s: k.number("bf16_flops_per_s", rate.clone())?,
            int8_ops_per_s: k.number("int8_ops_per_s", rate)?,
            launch_s: k.number("launch_s", 0.0..=1.0)?,
            context_bytes: k.whole("context_bytes", 0..=MOST_BYTES)?,
            graph_bytes: k.whole("graph_bytes", 0..=MOST_BYTES)?,
            graph_bytes_per_phase: k.whole("graph_bytes_per_phase", 0..=MOST_BYTES)?,
            reserve_bytes: k.whole("reserve_bytes", 0..=MOST_BYTES)?,
        };
        if gpu {
            // Kernels are generated for these; a processor has neither.
            let stated = [
                ("memory_bytes", device.memory_bytes),
                ("sm_count", device.sm_count),
                ("shared_memory_per_block_bytes", device.shared_memory_per_block_bytes),
            ];
            if let Some((key, _)) = stated.iter().find(|(_, v)| v.is_none()) {
                return Err(k.wrong(key, "is missing"));
            }
        }
        k.finish()?;
        Ok(device)
    }
}

impl Link {
    fn read(mut k: Keys) -> Result<Self, TargetError> {
        let link = Link {
            bytes_per_s: k.number("bytes_per_s", 1.0..=MOST_PER_S)?,
            latency_s: k.number("latency_s", 0.0..=1.0)?,
            p2p: k.flag("p2p")?,
        };
        k.finish()?;
        Ok(link)
    }
}

impl Sockets {
    fn read(mut k: Keys, ranks: u32) -> Result<Self, TargetError> {
        let groups = k.groups("ranks", ranks)?;
        if groups.len() != 2 || groups.iter().any(Vec::is_empty) {
            return Err(k.wrong("ranks", "must be two lists, the ranks of each socket"));
        }
        let mut all: Vec<u32> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        if all != (0..ranks).collect::<Vec<_>>() {
            return Err(k.wrong("ranks", format!("must name each of the ranks 0 to {} once", ranks - 1)));
        }
        let sockets = Sockets {
            ranks: groups,
            bytes_per_s: k.number("bytes_per_s", 1.0..=MOST_PER_S)?,
            scattered_bytes_per_s: k.number("scattered_bytes_per_s", 1.0..=MOST_PER_S)?,
            latency_s: k.number("latency_s", 0.0..=1.0)?,
        };
        k.finish()?;
        Ok(sockets)
    }
}
