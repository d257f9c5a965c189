//! Statistics over plain slices; pure.

use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, Distribution as _, Max as _, Min as _, OrderStatistics as _};

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
    fn few_measurements() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([5.0]).unwrap();
        assert_eq!(
            (one.mean, one.median, one.sd, one.se),
            (5.0, 5.0, None, None)
        );
    }
}
