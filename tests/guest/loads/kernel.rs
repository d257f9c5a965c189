//! What the kernel says of a load, and the settings that a load needs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use super::area::Area;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// A setting that is put back when this is dropped.
pub(crate) struct Setting {
    path: PathBuf,
    was: String,
}

impl Setting {
    pub(crate) fn set(path: impl AsRef<Path>, value: &str) -> Result<Self> {
        let path = path.as_ref();
        let was = read(path)?;
        fs::write(path, value).with_context(|| format!("{} = {value}", path.display()))?;
        // Of a choice, the word in brackets.
        let was = match was
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
        {
            Some((chosen, _)) => chosen.to_owned(),
            None => was.trim().to_owned(),
        };
        Ok(Self {
            path: path.to_owned(),
            was,
        })
    }

    /// A file below /sys/kernel/mm/transparent_hugepage.
    pub(crate) fn thp(file: &str, value: &str) -> Result<Self> {
        Self::set(Path::new(THP).join(file), value)
    }

    /// Pages of the hugetlb pool, in addition to those in use.
    pub(crate) fn pool(page: usize, pages: usize) -> Result<Self> {
        let path = format!(
            "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
            page >> 10
        );
        let setting = Self::set(&path, &pages.to_string())?;
        let has: usize = read(&path)?.trim().parse()?;
        anyhow::ensure!(has == pages, "the pool has {has} pages, not {pages}");
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // A load says what it did all the same.
        let _ = fs::write(&self.path, &self.was);
    }
}

pub(crate) fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Counters of /proc/vmstat that tell of huge pages, compaction and reclaim.
const COUNTERS: [&str; 6] = [
    "thp_",
    "compact_",
    "allocstall_",
    "pgsteal_",
    "htlb_",
    "pgmigrate_",
];

/// The counters at some time.
pub(crate) struct Vmstat(BTreeMap<String, u64>);

impl Vmstat {
    pub(crate) fn now() -> Result<Self> {
        let text = read("/proc/vmstat")?;
        let counters = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            let is_ours = COUNTERS.iter().any(|prefix| name.starts_with(prefix));
            Some((name.to_owned(), value.parse().ok()?)).filter(|_| is_ours)
        });
        Ok(Self(counters.collect()))
    }

    /// By how much each has grown since; those that have not are left out.
    pub(crate) fn growth(&self) -> Result<Value> {
        let grown = Self::now()?.0.into_iter().filter_map(|(name, now)| {
            let grown = now.checked_sub(*self.0.get(&name)?)?;
            (grown > 0).then(|| (name, Value::from(grown)))
        });
        Ok(Value::Object(grown.collect::<Map<_, _>>()))
    }
}

/// A field of /proc/meminfo, in bytes.
pub(crate) fn meminfo(field: &str) -> Result<usize> {
    kib_of(&read("/proc/meminfo")?, field)
}

/// The field of the area in /proc/self/smaps, in bytes.
pub(crate) fn smaps(area: &Area, field: &str) -> Result<usize> {
    let text = read("/proc/self/smaps")?;
    let start = format!("{:x}-", area.address());
    let at = text
        .find(&format!("\n{start}"))
        .context("the area is not in smaps")?;
    kib_of(&text[at + 1..], field)
}

fn kib_of(text: &str, field: &str) -> Result<usize> {
    let prefix = format!("{field}:");
    let line = text
        .lines()
        .find(|line| line.starts_with(&prefix))
        .with_context(|| format!("no {field}"))?;
    let kib = line[prefix.len()..].trim().trim_end_matches(" kB");
    Ok(kib.parse::<usize>().with_context(|| line.to_owned())? << 10)
}

/// Bytes of the area on each node, from /proc/self/numa_maps.
pub(crate) fn numa_maps(area: &Area) -> Result<BTreeMap<u32, usize>> {
    let text = read("/proc/self/numa_maps")?;
    let start = format!("{:x} ", area.address());
    let line = text
        .lines()
        .find(|line| line.starts_with(&start))
        .context("the area is not in numa_maps")?;
    let page: usize = line
        .split_once("kernelpagesize_kB=")
        .context("kernelpagesize_kB")?
        .1
        .trim()
        .parse()?;
    Ok(line
        .split(' ')
        .filter_map(|word| {
            let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
            let pages: usize = pages.parse().ok()?;
            Some((node.parse().ok()?, (pages * page) << 10))
        })
        .collect())
}

/// The pages of free memory at which the kernel begins to reclaim in the background, in bytes.
pub(crate) fn high_watermark() -> Result<usize> {
    let text = read("/proc/zoneinfo")?;
    let pages = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("high "))
        .filter_map(|pages| pages.trim().parse::<usize>().ok());
    Ok(pages.sum::<usize>() * super::area::BASE)
}
