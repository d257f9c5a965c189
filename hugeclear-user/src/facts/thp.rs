//! Transparent huge pages: the settings and the sizes on offer.

use serde::{Deserialize, Serialize};

use super::source::{Source, bracketed, page_size_of_name};

/// Where the settings live, without the leading `/`.
pub(crate) const DIR: &str = "sys/kernel/mm/transparent_hugepage";

/// A value of an `enabled` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThpEnabled {
    /// Every eligible mapping.
    Always,
    /// Only mappings that asked by `madvise(MADV_HUGEPAGE)`.
    Madvise,
    /// As the top-level setting says (sizes only, since 6.8).
    Inherit,
    /// No mapping.
    Never,
}

impl ThpEnabled {
    /// The word that the kernel's files use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Inherit => "inherit",
            Self::Never => "never",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Always, Self::Madvise, Self::Inherit, Self::Never]
            .into_iter()
            .find(|enabled| enabled.as_str() == word)
    }
}

/// Transparent huge page settings. Source: `/sys/kernel/mm/transparent_hugepage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thp {
    /// Top-level setting for anonymous memory.
    pub enabled: Option<ThpEnabled>,
    /// How hard a fault tries to get a huge page: `always`, `defer`, `defer+madvise`, ...
    pub defrag: Option<String>,
    /// Setting for shared memory: `always`, `within_size`, `advise`, `never`, `deny`, `force`.
    pub shmem_enabled: Option<String>,
    /// Whether a read fault may map the shared huge zero page.
    pub use_zero_page: Option<bool>,
    /// Bytes of the page a PMD maps. Source: `hpage_pmd_size`.
    pub pmd_size_bytes: Option<u64>,
    /// Sizes with a setting of their own, smallest first. Empty before 6.8, where the PMD size is
    /// the only one.
    pub sizes: Vec<ThpSize>,
}

/// One size of `hugepages-<n>kB`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThpSize {
    /// Bytes of such a page.
    pub bytes: u64,
    /// Its setting for anonymous memory; `None` if unreadable.
    pub enabled: Option<ThpEnabled>,
}

impl Thp {
    /// The setting in force for anonymous memory of this page size, `inherit` resolved.
    /// `None`: this kernel offers no such size, or its setting could not be read.
    pub fn anonymous(&self, bytes: u64) -> Option<ThpEnabled> {
        match self.sizes.iter().find(|size| size.bytes == bytes) {
            Some(ThpSize {
                enabled: Some(ThpEnabled::Inherit),
                ..
            }) => self.enabled,
            Some(ThpSize { enabled, .. }) => *enabled,
            None if self.sizes.is_empty() && self.pmd_size_bytes == Some(bytes) => self.enabled,
            None => None,
        }
    }

    /// Every page size on offer for anonymous memory, in bytes, smallest first.
    pub fn offered_bytes(&self) -> Vec<u64> {
        if self.sizes.is_empty() {
            self.pmd_size_bytes.into_iter().collect()
        } else {
            self.sizes.iter().map(|size| size.bytes).collect()
        }
    }

    pub(crate) fn read(source: &mut Source) -> Option<Self> {
        if !source.exists(DIR) {
            return None;
        }
        let enabled = |source: &mut Source, path: String| {
            source
                .text(path)
                .as_deref()
                .and_then(bracketed)
                .and_then(ThpEnabled::parse)
        };
        let choice = |source: &mut Source, name: &str| {
            source
                .text_if_present(format!("{DIR}/{name}"))
                .and_then(|text| bracketed(&text).map(str::to_owned))
        };
        let mut sizes: Vec<ThpSize> = source
            .names(DIR)
            .iter()
            .filter_map(|name| {
                let bytes = page_size_of_name(name)?;
                // Sizes for shared memory alone have no `enabled` (since 6.11).
                let path = format!("{DIR}/{name}/enabled");
                source.exists(&path).then(|| ThpSize {
                    bytes,
                    enabled: enabled(source, path),
                })
            })
            .collect();
        sizes.sort_by_key(|size| size.bytes);
        Some(Self {
            enabled: enabled(source, format!("{DIR}/enabled")),
            defrag: choice(source, "defrag"),
            shmem_enabled: choice(source, "shmem_enabled"),
            use_zero_page: source
                .text_if_present(format!("{DIR}/use_zero_page"))
                .map(|text| text != "0"),
            pmd_size_bytes: source
                .exists(format!("{DIR}/hpage_pmd_size"))
                .then(|| source.number(format!("{DIR}/hpage_pmd_size")))
                .flatten(),
            sizes,
        })
    }
}
