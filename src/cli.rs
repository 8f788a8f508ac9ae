//! Owns the command line: what can be said, with its help. Never acts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// A model compiler for GLM-5: a GGUF file becomes a verified plan, and a small runtime runs it.
#[derive(Debug, Parser)]
#[command(name = "glmc", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compile a GGUF file into a plan
    Compile(CompileArgs),
    /// Run a plan (or a GGUF file, compiled into the user's cache first)
    Run(RunArgs),
    /// Show what is in a GGUF file or a plan
    Inspect(InspectArgs),
    /// Show what the steps and the memory of a plan are made of
    Explain(ExplainArgs),
    /// Measure a plan's perplexity on a text
    Perplexity(PerplexityArgs),
    /// Run a plan beside a reference and find the first value that differs
    Verify(VerifyArgs),
    /// List the machines that are described
    Targets(TargetsArgs),
    /// List the GPUs of this machine and the libraries that they need
    Devices(DevicesArgs),
    /// Check every kernel on the GPU against what it means
    Selftest(SelftestArgs),
    /// Measure a plan, or the kernels of this GPU
    Bench(BenchArgs),
    /// Write a GGUF file with random weights
    Synth(SynthArgs),
}

impl Command {
    pub(crate) fn json(&self) -> bool {
        match self {
            Command::Compile(a) => a.json,
            Command::Run(a) => a.json,
            Command::Inspect(a) => a.json,
            Command::Explain(a) => a.json,
            Command::Perplexity(a) => a.json,
            Command::Verify(a) => a.json,
            Command::Targets(a) => a.json,
            Command::Devices(a) => a.json,
            Command::Selftest(a) => a.json,
            Command::Bench(a) => a.json,
            Command::Synth(a) => a.json,
        }
    }
}

/// Sizes fixed at compile time.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct SizeArgs {
    /// Machine to compile for: a name of `glmc targets`, or the path of a TOML file
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Longest sequence in tokens [default: the smaller of the model's and 32768]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ctx: Option<u64>,
    /// Most sequences decoded at once [default: the target's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) max_batch: Option<u64>,
    /// Cache rows shared by all sequences [default: ctx]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) cache: Option<u64>,
    /// Stop optional rewrites after N of them, to bisect a miscompile
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) fuel: Option<u64>,
    /// Make each optional rewrite or not, by a seed: finds rewrites that are right only together
    #[arg(long, value_name = "SEED")]
    pub(crate) shuffle: Option<u64>,
    /// Settle a named decision: `cut=STRATEGY` or `cut:FUNCTION.VALUE=STRATEGY` (`cut:decode_1.dense_full.kv=equal`),
    /// where STRATEGY is equal, sub-block, uneven, replicate or refuse; for targets of several ranks
    #[arg(long, value_name = "NAME=CANDIDATE", value_parser = forced)]
    pub(crate) force: Vec<(String, String)>,
}

impl SizeArgs {
    /// What is settled of a compilation's choices.
    pub(crate) fn choices(&self) -> glmc_passes::pass::Choices {
        glmc_passes::pass::Choices { fuel: self.fuel, shuffle: self.shuffle, brief: false, forced: self.force.clone() }
    }
}

/// `NAME=CANDIDATE`.
fn forced(text: &str) -> Result<(String, String), String> {
    let (name, candidate) = text.split_once('=').ok_or("say NAME=CANDIDATE, such as cut=replicate")?;
    Ok((name.to_owned(), candidate.to_owned()))
}

/// Where a plan runs.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct DeviceArgs {
    /// Where to run: cpu, a GPU as cuda:0, or several as cuda:0,1 [default: what the plan is for, on all GPUs]
    #[arg(long, value_name = "DEVICE", value_parser = crate::cmd::device::parse_where)]
    pub(crate) device: Option<crate::cmd::device::Where>,
    /// The GPU of each rank, such as 0,0,1,1 [default: spread evenly over the GPUs]
    #[arg(long, value_name = "GPUS", value_parser = crate::cmd::spread::parse_map)]
    pub(crate) map: Option<crate::cmd::spread::Map>,
    /// How GPUs exchange values: auto, p2p (memory of each other), nccl, or host (memory of the host)
    /// [default: auto]
    #[arg(long, value_name = "WAY", value_parser = crate::cmd::spread::parse_wanted)]
    pub(crate) collectives: Option<glmc_runtime::device::cuda::Wanted>,
    /// Longest time in seconds that a step may take on a GPU before it is stopped
    /// [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = crate::cmd::spread::parse_seconds)]
    pub(crate) step_timeout: Option<std::time::Duration>,
    /// On a GPU, launch each step alone and wait for it: slow, but an error names the step
    #[arg(long)]
    pub(crate) eager: bool,
    /// How products on a GPU may round activations: exact (not so that it shows), or fast (to 8 bits for up to 8
    /// tokens, to bf16 for more) [default: exact]
    #[arg(long, value_name = "HOW", value_parser = crate::cmd::device::parse_precision)]
    pub(crate) activations: Option<glmc_codegen_cuda::program::Precision>,
    /// NVRTC library, or its folder [default: GLMC_NVRTC, CUDA toolkits, Python wheels, the system's loader]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvrtc: Option<PathBuf>,
}

/// What tests put into a run.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct FaultArgs {
    /// Corrupt a block of a rank's weight in memory, to see that checks find it: rank=R,weight=NAME,block=I[,kind=nan];
    /// or let a rank's thread die: rank=R,die[,step=I]
    #[arg(long, value_name = "FAULT", hide = true)]
    pub(crate) inject: Option<glmc_runtime::fault::Fault>,
}

impl DeviceArgs {
    /// Longest time of a step on a GPU.
    pub(crate) fn step_timeout(&self) -> std::time::Duration {
        self.step_timeout.unwrap_or(std::time::Duration::from_secs(10))
    }

    /// How products on a GPU may round activations.
    pub(crate) fn precision(&self) -> glmc_codegen_cuda::program::Precision {
        self.activations.unwrap_or_default()
    }

    /// The first flag that was given and means nothing on the processor.
    pub(crate) fn for_gpus(&self) -> Option<&'static str> {
        let given = [
            ("--collectives", self.collectives.is_some()),
            ("--step-timeout", self.step_timeout.is_some()),
            ("--eager", self.eager),
            ("--activations", self.activations.is_some()),
            ("--nvrtc", self.nvrtc.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}

#[derive(Debug, Args)]
pub(crate) struct CompileArgs {
    /// GGUF file; of a split model any part, or its folder
    pub(crate) model: PathBuf,
    /// Directory of the plan; an existing plan there is replaced
    #[arg(short = 'o', long = "output", value_name = "PLAN")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    /// Visible positions that the plan is optimised and its steps are costed for
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = glmc_passes::cost::TUNE_CTX, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tune_ctx: u64,
    /// Leave the kernels of a GPU plan to its first run
    #[arg(long)]
    pub(crate) no_kernels: bool,
    /// Print the IR after a pass, beside writing the plan: `after=PASS` (lift, canonicalise, rotate, specialise,
    /// saturate, prune, shard, lower, schedule), or `all`
    #[arg(long, value_name = "STAGE", conflicts_with = "json")]
    pub(crate) emit: Option<String>,
    /// Run every pass again on small dims and compare what the functions compute before and after; exit 5 if they differ
    #[arg(long)]
    pub(crate) check: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Plan directory, or GGUF file
    pub(crate) plan: PathBuf,
    /// Text to continue; with --chat the user's turn
    #[arg(long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// File with the text to continue
    #[arg(long, value_name = "FILE", group = "input")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Token ids to continue, as 1,2,3
    #[arg(long, value_name = "IDS", group = "input", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Use the model's chat template
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) chat: bool,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Most tokens to make
    #[arg(short = 'n', long = "max-tokens", value_name = "N", allow_negative_numbers = true, default_value_t = 256)]
    pub(crate) n: u64,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) top_k: usize,
    /// Keep the most likely tokens up to this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Keep tokens at least this fraction as likely as the best
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Start of the random sequence
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Go on past stop tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Write the logits of each made token to an .npy file
    #[arg(long, value_name = "FILE.npy")]
    pub(crate) logits: Option<PathBuf>,
    /// Poison what each step writes before it, and scan it after: the first number that is none stops the run; slow
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) fault: FaultArgs,
    #[command(flatten)]
    pub(crate) place: DeviceArgs,
    /// Sizes, when PLAN is a GGUF file
    #[command(flatten)]
    pub(crate) sizes: SizeArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// GGUF file or plan directory
    pub(crate) path: PathBuf,
    /// Visible positions that steps are costed at
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = glmc_passes::cost::TUNE_CTX, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tune_ctx: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Plan directory
    pub(crate) path: PathBuf,
    /// A value, weight or cache to explain alone, such as `blk.0.q_nope`
    pub(crate) value: Option<String>,
    /// Write one self-contained page
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    pub(crate) html: Option<PathBuf>,
    /// Visible positions that steps are costed at
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = glmc_passes::cost::TUNE_CTX, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) tune_ctx: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    /// Plan directory
    pub(crate) plan: PathBuf,
    /// Text (control tokens are recognised), or a JSON list of token ids: what begins with `[` and a number is a list
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Ids of a window; each window starts from an empty cache and is scored on its ids 1.. [default: 512, or what fits]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) window: Option<u64>,
    /// Poison what each step writes before it, and scan it after: the first number that is none stops the run; slow
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) fault: FaultArgs,
    #[command(flatten)]
    pub(crate) place: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Plan directory
    pub(crate) plan: PathBuf,
    /// Text to run [default: a short one]
    #[arg(long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Token ids to run, as 1,2,3
    #[arg(long, value_name = "IDS", group = "input", value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Tokens to decode after the prompt, each the likeliest
    #[arg(short = 'n', long = "steps", value_name = "N", allow_negative_numbers = true, default_value_t = 2)]
    pub(crate) n: u64,
    /// What to compare with: `interpreter` (the model as its file says it, in exact arithmetic) or `plain` (the model
    /// compiled without optimisation for one rank) [default: the interpreter for models of at most 256 MiB]
    #[arg(long, value_name = "REFERENCE", value_enum)]
    pub(crate) reference: Option<crate::cmd::verify::ReferenceKind>,
    /// Write one self-contained page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fault: FaultArgs,
    #[command(flatten)]
    pub(crate) place: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TargetsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Measure how fast the GPUs exchange values, pair by pair and way by way
    #[arg(long)]
    pub(crate) measure: bool,
    /// NVRTC library, or its folder [default: GLMC_NVRTC, CUDA toolkits, Python wheels, the system's loader]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvrtc: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    /// Which GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0", value_parser = crate::cmd::gpu::parse_device)]
    pub(crate) device: usize,
    /// Two cases of each family and type
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only collectives under replay, on all GPUs
    #[arg(long)]
    pub(crate) collectives: bool,
    /// Only faults planted in the kernels of every family: each must be seen
    #[arg(long, conflicts_with_all = ["collectives", "quick"])]
    pub(crate) faults: bool,
    /// Replays of a graph of 156 all-reduces [default: 100]
    #[arg(long, value_name = "N", requires = "collectives", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) replays: Option<u64>,
    /// Start of the random inputs [default: another one each time; it is printed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// NVRTC library, or its folder [default: GLMC_NVRTC, CUDA toolkits, Python wheels, the system's loader]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvrtc: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Plan directory, or GGUF file
    #[arg(required_unless_present = "kernels")]
    pub(crate) plan: Option<PathBuf>,
    /// Time the kernels that decoding spends its time in, without a plan
    #[arg(long, conflicts_with = "plan")]
    pub(crate) kernels: bool,
    /// Time many configurations of each and print the best
    #[arg(long, requires = "kernels", conflicts_with = "plan")]
    pub(crate) candidates: bool,
    /// Where to run: cpu, or a GPU as cuda:0 [default: what the plan is for; cuda:0 for --kernels]
    #[arg(long, value_name = "DEVICE", value_parser = crate::cmd::device::parse_where)]
    pub(crate) device: Option<crate::cmd::device::Where>,
    /// Make random weights on the device; of the model's file only the header is read, so it may be hollow
    #[arg(long, requires = "plan")]
    pub(crate) synthetic: bool,
    /// Seed of the random weights
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0, requires = "synthetic")]
    pub(crate) seed: u64,
    /// Run one rank of a plan alone on one GPU; local stand-ins take the place of its collectives
    #[arg(long, value_name = "R", allow_negative_numbers = true, requires = "plan")]
    pub(crate) rank: Option<usize>,
    /// Run the first N layers of the plan's model alone, compiled for the plan's machine
    #[arg(long, value_name = "N", allow_negative_numbers = true, requires = "synthetic", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) layers: Option<u64>,
    /// Sequences that are decoded together
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, conflicts_with = "kernels", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) batch: u64,
    /// Positions that a decoded token sees [default: 1024, or what the plan allows]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "kernels", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ctx: Option<u64>,
    /// Tokens of the prompt that prefill is timed with [default: the plan's chunk]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with = "kernels", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) prompt: Option<u64>,
    /// Machine to compile for, when PLAN is a GGUF file
    #[arg(long, value_name = "TARGET", conflicts_with = "kernels")]
    pub(crate) target: Option<String>,
    /// How products on a GPU may round activations: exact, or fast [default: exact]
    #[arg(long, value_name = "HOW", conflicts_with = "kernels", value_parser = crate::cmd::device::parse_precision)]
    pub(crate) activations: Option<glmc_codegen_cuda::program::Precision>,
    /// Write what ran when in a decode step, as Chrome trace events, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub(crate) trace: Option<PathBuf>,
    /// NVRTC library, or its folder [default: GLMC_NVRTC, CUDA toolkits, Python wheels, the system's loader]
    #[arg(long, value_name = "PATH")]
    pub(crate) nvrtc: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// The file; there may be none of its name
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Dims to begin with: glm-5, glm-5.2 or tiny
    #[arg(long, value_name = "NAME", default_value = "glm-5", value_parser = crate::cmd::synth::parse_preset)]
    pub(crate) preset: glmc_frontend_gguf::write::synth::Dims,
    /// Layers of the trunk
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) layers: Option<u64>,
    /// Layers at the start that have no experts
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) dense: Option<u64>,
    /// Experts of a layer
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) experts: Option<u64>,
    /// Other dims, as width=256,heads=4
    #[arg(long, value_name = "NAME=N", value_delimiter = ',', value_parser = crate::cmd::synth::parse_dim)]
    pub(crate) dims: Vec<(String, u64)>,
    /// Types of the weights: ud-q4_k_xl, q4_k_m, or one type such as q8_0
    #[arg(long, value_name = "MIX", default_value = "ud-q4_k_xl", value_parser = glmc_frontend_gguf::write::synth::Mix::named)]
    pub(crate) mix: glmc_frontend_gguf::write::synth::Mix,
    /// Seed of the random weights
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the header alone; the weights are a hole in the file
    #[arg(long)]
    pub(crate) hollow: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
