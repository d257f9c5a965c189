//! From what was asked and what the machine offers to the runs to make. Pure.

use std::{collections::BTreeMap, fmt, path::Path};

use clap::{Args as _, FromArgMatches as _, parser::ValueSource};
use serde::{Deserialize, Serialize};

use super::{Args, Choice, Offer};
use crate::{facts::ThpEnabled, settings::Change, workload};

/// Something that is varied. In the order in which a table shows them: what differs from one row to the
/// next comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Factor {
    /// The workload's `--page-size`.
    PageSize,
    /// The workload's `--touch`.
    Touch,
    /// The setting of transparent huge pages.
    Thp,
    /// How hard a fault tries to get a huge page.
    Defrag,
    /// The preemption model.
    Preempt,
}

impl Factor {
    /// The word of the command line, of tables and of JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PageSize => "page-size",
            Self::Touch => "touch",
            Self::Thp => "thp",
            Self::Defrag => "defrag",
            Self::Preempt => "preempt",
        }
    }
}

/// One value of each factor that is varied, as on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Combination(pub BTreeMap<Factor, String>);

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self
            .0
            .iter()
            .map(|(factor, value)| format!("{} {value}", factor.as_str()))
            .collect();
        f.write_str(&values.join(", "))
    }
}

/// A combination that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Which.
    pub combination: Combination,
    /// The settings it needs, in the order in which they are to be written. All others are as they were.
    pub changes: Vec<Change>,
    /// The words after `hugeclear-trace workload`.
    pub words: Vec<String>,
}

/// What was asked for and cannot be run here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// What the combinations that are refused for this reason have in common.
    pub combination: Combination,
    /// Why, in one line.
    pub why: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { combination, why } = self;
        write!(f, "{combination}: {why}")
    }
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The workload's options make no sense, or help was asked for.
    #[error(transparent)]
    Words(clap::Error),
    /// An option of the workload that is the sweep's to give.
    #[error("--{0} is not for the workload: give it before its name, to the sweep")]
    Owned(&'static str),
    /// Every combination that the kernel has is refused for the same reason, which is the workload's.
    #[error(transparent)]
    Workload(workload::Error),
    /// Every combination is refused.
    #[error("nothing to run: {}", reasons(.0))]
    Nothing(Vec<Refused>),
}

impl Error {
    /// Whether what was asked for cannot be on this machine (exit status 2), rather than has failed
    /// or needs a setting changed (1).
    pub fn usage(&self) -> bool {
        match self {
            Self::Words(_) | Self::Owned(_) => true,
            Self::Workload(error) => error.usage(),
            Self::Nothing(_) => false,
        }
    }
}

/// Each reason once.
fn reasons(refused: &[Refused]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for Refused { why, .. } in refused {
        if !reasons.contains(&&**why) {
            reasons.push(why);
        }
    }
    reasons.join("; ")
}

/// What a sweep is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What can be run. Never empty.
    pub combinations: Vec<Planned>,
    /// What cannot.
    pub refused: Vec<Refused>,
}

impl Plan {
    /// Checks every combination against what the machine offers.
    ///
    /// # Errors
    /// If nothing can be run.
    pub fn new(args: &Args, offer: &Offer) -> Result<Self, Error> {
        let factors = args.factors();
        let given = given(&args.workload)?;
        for (option, is_owned) in [
            ("repeat", true),
            ("json", true),
            ("page-size", is_swept(&factors, Factor::PageSize)),
            ("touch", is_swept(&factors, Factor::Touch)),
        ] {
            if is_owned && given.iter().any(|given| given == option) {
                return Err(Error::Owned(option));
            }
        }

        let mut refused = Vec::new();
        let mut offered: Vec<(Factor, Vec<String>)> = Vec::new();
        for (factor, mut values) in factors {
            values.retain(|value| {
                let change = offer.change(factor, value);
                refused.extend(change.as_ref().err().map(|why| Refused {
                    combination: Combination(BTreeMap::from([(factor, value.clone())])),
                    why: why.clone(),
                }));
                change.is_ok()
            });
            offered.push((factor, values));
        }

        let mut combinations = Vec::new();
        let mut not_possible: Vec<(Combination, workload::Error)> = Vec::new();
        for combination in product(&offered) {
            match planned(&combination, args, offer)? {
                Ok(planned) => combinations.push(planned),
                Err(error) => not_possible.push((combination, error)),
            }
        }
        let reasons = by_reason(&not_possible);
        if combinations.is_empty() && reasons.len() == 1 {
            let (_, error) = not_possible.swap_remove(0);
            return Err(Error::Workload(error));
        }
        refused.extend(reasons);
        if combinations.is_empty() {
            return Err(Error::Nothing(refused));
        }
        Ok(Self {
            combinations,
            refused,
        })
    }

    /// The order of the runs, as places in [`Plan::combinations`]: each once per round, in random order
    /// within the round, so that what drifts on the machine favours none.
    pub fn order(&self, rounds: u32, seed: u64) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..rounds)
            .flat_map(|_| {
                let mut round: Vec<usize> = (0..self.combinations.len()).collect();
                random.shuffle(&mut round);
                round
            })
            .collect()
    }
}

impl Offer {
    /// What must be written for a factor to have this value: nothing, if it is an option of the workload.
    /// An error says why it cannot have it.
    fn change(&self, factor: Factor, value: &str) -> Result<Option<Change>, String> {
        let choice = match factor {
            Factor::PageSize | Factor::Touch => return Ok(None),
            Factor::Thp => &self.thp,
            Factor::Defrag => &self.defrag,
            Factor::Preempt => &self.preempt,
        };
        let Choice { path, words } = choice.as_ref().map_err(Clone::clone)?;
        if !words.iter().any(|word| word == value) {
            return Err(format!("this kernel has only {}", words.join(", ")));
        }
        Ok(Some(Change {
            path: path.clone(),
            value: value.to_owned(),
        }))
    }
}

/// The options of the workload that are given in these words, by their long names.
fn given(words: &[String]) -> Result<Vec<String>, Error> {
    let driver = driver();
    let matches = driver
        .clone()
        .try_get_matches_from(words)
        .map_err(Error::Words)?;
    let is_given = |option: &&clap::Arg| {
        matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    Ok(driver
        .get_arguments()
        .filter(is_given)
        .filter_map(|option| option.get_long().map(str::to_owned))
        .collect())
}

/// The workload's own command line.
fn driver() -> clap::Command {
    workload::Args::augment_args(
        clap::Command::new("hugeclear-trace workload").no_binary_name(true),
    )
}

fn is_swept(factors: &[(Factor, Vec<String>)], factor: Factor) -> bool {
    factors.iter().any(|(swept, _)| *swept == factor)
}

/// Every combination of the values, the last factor varying fastest.
fn product(factors: &[(Factor, Vec<String>)]) -> Vec<Combination> {
    factors.iter().fold(
        vec![Combination::default()],
        |combinations, (factor, values)| {
            let with = |combination: &Combination, value: &String| {
                let mut combination = combination.clone();
                combination.0.insert(*factor, value.clone());
                combination
            };
            combinations
                .iter()
                .flat_map(|combination| values.iter().map(|value| with(combination, value)))
                .collect()
        },
    )
}

/// The inner error says why this combination cannot run.
fn planned(
    combination: &Combination,
    args: &Args,
    offer: &Offer,
) -> Result<Result<Planned, workload::Error>, Error> {
    // Settings are the sweep's alone: they are saved once, and put back at the end.
    let is_configure = |word: &&String| *word == "--configure";
    let mut words: Vec<String> = args
        .workload
        .iter()
        .filter(|word| !is_configure(word))
        .cloned()
        .collect();
    words.extend(["--repeat=1".to_owned(), "--json".to_owned()]);
    let mut machine = offer.machine.clone();
    let mut of_factors = Vec::new();
    for (factor, value) in &combination.0 {
        // Values that cannot be had have been refused before.
        of_factors.extend(offer.change(*factor, value).ok().flatten());
        match factor {
            Factor::PageSize | Factor::Touch => {
                words.push(format!("--{}={value}", factor.as_str()));
            }
            Factor::Thp => {
                if let Some(thp) = &mut machine.thp {
                    thp.enabled = ThpEnabled::parse(value);
                }
            }
            Factor::Defrag => {
                if let Some(thp) = &mut machine.thp {
                    thp.defrag = Some(value.clone());
                }
            }
            Factor::Preempt => {}
        }
    }
    let parse = |words: &[String]| {
        let matches = driver().try_get_matches_from(words)?;
        workload::Args::from_arg_matches(&matches)
    };
    let mut workload = parse(&words).map_err(Error::Words)?;
    let may_configure = args.workload.iter().any(|word| is_configure(&word));
    let is_of_factor = |path: &Path| of_factors.iter().any(|change| change.path == path);
    let checked = match workload::Plan::check(&workload, &machine) {
        // Switched off by this very combination: it is compared on small pages.
        Err(workload::Error::ThpOff { path, .. }) if is_of_factor(&path) => {
            workload.allow_small = true;
            words.push("--allow-small".to_owned());
            workload::Plan::check(&workload, &machine)
        }
        Ok(_) | Err(_) => {
            workload.configure = may_configure;
            workload::Plan::check(&workload, &machine)
        }
    };
    Ok(checked.map(|plan| {
        // A factor has the last word.
        let needed = plan
            .changes()
            .iter()
            .filter(|change| !is_of_factor(&change.path));
        let needed: Vec<Change> = needed.cloned().collect();
        Planned {
            combination: combination.clone(),
            changes: [&needed[..], &of_factors].concat(),
            words,
        }
    }))
}

/// One refusal for each reason, with what those that it holds for have in common.
fn by_reason(not_possible: &[(Combination, workload::Error)]) -> Vec<Refused> {
    let mut refused: Vec<Refused> = Vec::new();
    for (combination, error) in not_possible {
        let why = error.to_string();
        match refused.iter_mut().find(|refused| refused.why == why) {
            Some(refused) => {
                (refused.combination.0)
                    .retain(|factor, value| combination.0.get(factor) == Some(value));
            }
            None => refused.push(Refused {
                combination: combination.clone(),
                why,
            }),
        }
    }
    refused
}

#[cfg(test)]
mod tests;
