//! Statistics over plain slices; pure.

use serde::{Deserialize, Serialize};
use statrs::{
    distribution::{ContinuousCDF as _, StudentsT},
    statistics::{Data, Distribution as _, Max as _, Min as _, OrderStatistics as _},
};

/// How repeated measurements of one figure spread. The unit is that of the figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// How many measurements.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (divided by n - 1): how far single measurements lie from the mean.
    /// `None` of one measurement.
    pub sd: Option<f64>,
    /// Standard error of the mean, sd / sqrt(n): how far the mean is from that of endless
    /// repetition; what `perf stat -r` prints behind its `+-`. `None` of one measurement.
    pub se: Option<f64>,
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
}

impl Spread {
    /// Of these measurements; `None` of none.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut data = Data::new(measurements.into_iter().collect::<Vec<f64>>());
        let n = data.len();
        if n == 0 {
            return None;
        }
        let mean = data.mean()?;
        let sd = data.std_dev().filter(|_| n > 1);
        Some(Self {
            n,
            mean,
            sd,
            se: sd.map(|sd| sd / (n as f64).sqrt()),
            median: data.median(),
            min: data.min(),
            max: data.max(),
        })
    }

    /// How probable means that lie this far apart, or farther, would be if both measured the same: the
    /// two-sided p of a t-test that does not take the standard deviations for equal (B. L. Welch, "The
    /// generalization of Student's problem when several different population variances are involved",
    /// Biometrika 34, 1947). `None` if one of them is of one measurement.
    pub fn p_of_same_mean(&self, other: &Self) -> Option<f64> {
        let (a, b) = (self.se?.powi(2), other.se?.powi(2));
        let difference = (self.mean - other.mean).abs();
        if a + b == 0.0 {
            return Some(if difference == 0.0 { 1.0 } else { 0.0 });
        }
        let of_freedom = |spread: &Self| spread.n as f64 - 1.0;
        let freedom =
            (a + b).powi(2) / (a.powi(2) / of_freedom(self) + b.powi(2) / of_freedom(other));
        let students = StudentsT::new(0.0, 1.0, freedom).ok()?;
        Some(2.0 * students.sf(difference / (a + b).sqrt()))
    }
}

/// So many robust standard deviations from the median a measurement is called an outlier.
pub const OUTLIER_DEVIATIONS: f64 = 10.0;

/// Scales the median absolute deviation to the standard deviation of normal data.
const DEVIATION_PER_MAD: f64 = 1.4826;

/// Which of these times (ns) are outliers, as indices: more than [`OUTLIER_DEVIATIONS`] robust standard
/// deviations from the median, by the median absolute deviation (B. Iglewicz and D. Hoaglin, "How to Detect and
/// Handle Outliers", 1993; the rule and the threshold of hyperfine, `src/outlier_detection.rs`).
pub fn outliers(times_ns: &[u64]) -> Vec<usize> {
    let median_of = |values: Vec<f64>| Data::new(values).median();
    let median = median_of(times_ns.iter().map(|ns| *ns as f64).collect());
    let deviation = |ns: u64| (ns as f64 - median).abs();
    // The clock tells no less than 1 ns apart.
    let mad = median_of(times_ns.iter().copied().map(deviation).collect()).max(1.0);
    let most = OUTLIER_DEVIATIONS * DEVIATION_PER_MAD * mad;
    (0..times_ns.len())
        .filter(|index| deviation(times_ns[*index]) > most)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_sample() {
        // By hand: deviations -2, -1, 0, 3; squares sum to 14.
        let spread = Spread::of([2.0, 3.0, 4.0, 7.0]).unwrap();
        assert_eq!((spread.n, spread.mean, spread.median), (4, 4.0, 3.5));
        assert_eq!((spread.min, spread.max), (2.0, 7.0));
        let sd = (14.0_f64 / 3.0).sqrt();
        assert!((spread.sd.unwrap() - sd).abs() < 1e-12);
        assert!((spread.se.unwrap() - sd / 2.0).abs() < 1e-12);
    }

    #[test]
    fn means_apart_by_more_than_chance() {
        let p = |a: &[f64], b: &[f64]| {
            let of = |sample: &[f64]| Spread::of(sample.iter().copied()).unwrap();
            of(a).p_of_same_mean(&of(b))
        };
        // By hand: the squared standard errors are 1/3 each, so t = 1 / sqrt(2/3) with 4 degrees of freedom,
        // for which F(t) = 1/2 + 3/8 * t / sqrt(1 + t^2/4) * (1 - t^2 / (12 + 3 t^2)) = 0.85607.
        let close = p(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]).unwrap();
        assert!((close - 0.2879).abs() < 1e-4, "{close}");
        assert!(p(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]).unwrap() < 0.001);
        assert_eq!(p(&[1.0, 1.0], &[2.0, 2.0]), Some(0.0));
        assert_eq!(p(&[1.0, 1.0], &[1.0, 1.0]), Some(1.0));
        assert_eq!(p(&[1.0], &[2.0, 3.0]), None);
    }

    #[test]
    fn means_are_apart_from_a_known_distance_on() {
        let spread = |sample: &[f64]| Spread::of(sample.iter().copied()).unwrap();
        let a = spread(&[
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ]);
        let b = spread(&[
            27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.1,
            24.4,
        ]);
        // By hand: means 2.807 apart, standard error of that 0.9803, 27.8 degrees of freedom. Tables of
        // Student's t have 2.052 for 27 and 2.048 for 28: the 95 % interval is 2.01 to each side.
        let p_of_moved = |by: f64| {
            let moved = Spread {
                mean: b.mean - by,
                ..b
            };
            a.p_of_same_mean(&moved).unwrap()
        };
        assert!(p_of_moved(0.0) < 0.05);
        assert!(p_of_moved(0.79) < 0.05 && p_of_moved(0.81) > 0.05);
    }

    #[test]
    fn few_measurements() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([5.0]).unwrap();
        assert_eq!(
            (one.mean, one.median, one.sd, one.se),
            (5.0, 5.0, None, None)
        );
    }

    #[test]
    fn outliers_are_far_from_the_median() {
        // Median 103, median absolute deviation 2: beyond 103 ± 29.65.
        assert_eq!(outliers(&[100, 101, 103, 104, 105, 132]), [0; 0]);
        assert_eq!(outliers(&[100, 101, 103, 105, 134]), [4]);
        assert_eq!(outliers(&[70, 100, 101, 103, 105]), [0]);
        assert_eq!(outliers(&[100, 100, 100, 100, 116]), [4]);
        assert_eq!(outliers(&[100, 100, 100, 100, 114]), [0; 0]);
        assert_eq!(outliers(&[7]), [0; 0]);
        assert_eq!(outliers(&[]), [0; 0]);
    }
}
