//! What is noise and what is not. Pure.

use statrs::{
    distribution::{ContinuousCDF as _, StudentsT},
    statistics::{Data, OrderStatistics as _},
};

use crate::stats::Spread;

/// Probability that an interval covers the true difference.
pub(super) const CONFIDENCE: f64 = 0.95;

/// So many robust standard deviations from the median a measurement is called an outlier.
pub(super) const OUTLIER_DEVIATIONS: f64 = 10.0;

/// Scales the median absolute deviation to the standard deviation of normal data.
const DEVIATION_PER_MAD: f64 = 1.4826;

/// Whether two means cannot be told apart: the interval of their difference contains 0 (B. L. Welch,
/// "The generalization of 'Student's' problem when several different population variances are
/// involved", 1947). Single measurements cannot be told apart from anything.
pub(super) fn alike(a: &Spread, b: &Spread) -> bool {
    let (Some(se_a), Some(se_b)) = (a.se, b.se) else {
        return true;
    };
    let (var_a, var_b) = (se_a.powi(2), se_b.powi(2));
    let difference = (a.mean - b.mean).abs();
    let variance = var_a + var_b;
    if variance == 0.0 {
        return difference == 0.0;
    }
    let degrees_of = |var: f64, n: usize| var.powi(2) / (n - 1) as f64;
    let freedom = variance.powi(2) / (degrees_of(var_a, a.n) + degrees_of(var_b, b.n));
    let student = StudentsT::new(0.0, 1.0, freedom).expect("two measurements or more are free");
    difference <= student.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * variance.sqrt()
}

/// How many of these times are outliers: more than [`OUTLIER_DEVIATIONS`] from the median, by the median
/// absolute deviation (B. Iglewicz and D. Hoaglin, "How to Detect and Handle Outliers", 1993; the rule
/// and the threshold of hyperfine, `src/outlier_detection.rs`).
pub(super) fn outliers(times_ns: &[u64]) -> usize {
    let median_of = |values: Vec<f64>| Data::new(values).median();
    let median = median_of(times_ns.iter().map(|ns| *ns as f64).collect());
    let deviation = |ns: &u64| (*ns as f64 - median).abs();
    // The clock tells no less than 1 ns apart.
    let mad = median_of(times_ns.iter().map(deviation).collect()).max(1.0);
    let most = OUTLIER_DEVIATIONS * DEVIATION_PER_MAD * mad;
    times_ns.iter().filter(|ns| deviation(ns) > most).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(of: &[f64]) -> Spread {
        Spread::of(of.iter().copied()).unwrap()
    }

    #[test]
    fn means_are_apart_from_a_known_distance_on() {
        let a = [
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ];
        let b = [
            27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.1,
            24.4,
        ];
        let (a, b) = (spread(&a), spread(&b));
        // By hand: means 2.807 apart, standard error of that 0.9803, 27.8 degrees of freedom. Tables of
        // Student's t have 2.052 for 27 and 2.048 for 28: the interval is 2.01 to each side.
        assert!(!alike(&a, &b));
        let moved = |by: f64| Spread {
            mean: b.mean - by,
            ..b
        };
        assert!(!alike(&a, &moved(0.79)) && alike(&a, &moved(0.81)));
    }

    #[test]
    fn few_or_equal_measurements() {
        let one = spread(&[1.0]);
        assert!(alike(&one, &spread(&[9.0, 9.1])));
        let (same, other) = (spread(&[2.0, 2.0]), spread(&[3.0, 3.0]));
        assert!(alike(&same, &same) && !alike(&same, &other));
    }

    #[test]
    fn outliers_are_far_from_the_median() {
        // Median 103, median absolute deviation 2: beyond 103 ± 29.65.
        assert_eq!(outliers(&[100, 101, 103, 104, 105, 132]), 0);
        assert_eq!(outliers(&[100, 101, 103, 105, 134]), 1);
        assert_eq!(outliers(&[100, 101, 103, 105, 70]), 1);
        assert_eq!(outliers(&[100, 100, 100, 100, 116]), 1);
        assert_eq!(outliers(&[100, 100, 100, 100, 114]), 0);
        assert_eq!(outliers(&[7]), 0);
    }
}
