//! GPU architectures: names and the few facts that decide whether a kernel can exist on one. Speeds are in target
//! files, never here.

use std::fmt;
use std::str::FromStr;

macro_rules! arches {
    ($($variant:ident $number:literal $shared:literal $doc:literal;)*) => {
        /// A GPU architecture that kernels can be compiled for.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Arch {
            $(#[doc = $doc] $variant,)*
        }

        impl Arch {
            /// Every architecture, oldest first.
            pub const ALL: &'static [Arch] = &[$(Arch::$variant),*];

            /// The number in `sm_NN`.
            pub const fn number(self) -> u32 {
                match self { $(Arch::$variant => $number),* }
            }

            /// The name that compilers and plans use.
            pub const fn name(self) -> &'static str {
                match self { $(Arch::$variant => concat!("sm_", $number)),* }
            }

            /// Bytes of shared memory that one block may have.
            pub const fn shared_per_block(self) -> u32 {
                match self { $(Arch::$variant => $shared),* }
            }
        }
    };
}

arches! {
    Sm80 80 166912 "A100.";
    Sm86 86 101376 "RTX 30.";
    Sm89 89 101376 "RTX 40, L40.";
    Sm90 90 232448 "H100, H200.";
    Sm100 100 232448 "B200.";
    Sm120 120 101376 "RTX 50, RTX PRO 6000 Blackwell.";
    Sm121 121 101376 "GB10.";
}

impl Arch {
    /// Whether bulk copies to shared memory and programmatic dependent launch exist.
    pub const fn has_bulk_copy(self) -> bool {
        self.number() >= 90
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let names = || Arch::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ");
        let found = Arch::ALL.iter().copied().find(|a| a.name() == s);
        found.ok_or_else(|| format!("`{s}` is no architecture that kernels are made for: {}", names()))
    }
}
