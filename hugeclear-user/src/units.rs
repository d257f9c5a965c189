//! Values as people write them: sizes in bytes (powers of 1024: `2M`, `64K`, `1G`, `16KiB`), lists of
//! numbers, times.

use std::time::Duration;

use parse_size::Config;

use crate::facts::source::number_list;

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no size: {why}; write bytes, or a number with K, M, G or T, as in `2M`")]
pub struct ParseBytesError {
    text: String,
    why: parse_size::Error,
}

/// Bytes of a text such as `4096`, `64K`, `2M`, `16KiB` or `1.5G`; suffixes are powers of 1024, with
/// or without `B` or `iB`, in either case. Fits clap's `value_parser`.
///
/// # Errors
/// The text is no number, has an unknown suffix or exceeds 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, ParseBytesError> {
    Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|why| ParseBytesError {
            text: text.to_owned(),
            why,
        })
}

/// Bytes with the largest suffix that loses nothing: `2M`, `64K`, `1536K`, `1000`.
pub fn format_bytes(bytes: u64) -> String {
    const SUFFIXES: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut value = bytes;
    let mut suffix = 0;
    while value != 0 && value.is_multiple_of(1024) && suffix + 1 < SUFFIXES.len() {
        value /= 1024;
        suffix += 1;
    }
    format!("{value}{}", SUFFIXES[suffix])
}

/// Numbers of a list such as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub Vec<u32>);

/// Reads them. Fits clap's `value_parser`.
///
/// # Errors
/// What is accepted.
pub fn numbers(text: &str) -> Result<Numbers, String> {
    let numbers = number_list(text).filter(|numbers| !numbers.is_empty());
    numbers
        .map(Numbers)
        .ok_or_else(|| "not a list of numbers such as 0-3,8".to_owned())
}

/// A positive number of seconds, fractions allowed. Fits clap's `value_parser`.
///
/// # Errors
/// What is accepted.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if seconds < 0.01 {
        return Err("at least 0.01 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// A duration with its unit, to three or four digits.
pub fn format_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// `0-3,6` of ascending numbers.
pub fn format_numbers(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            Some(_) | None => ranges.push((*number, *number)),
        }
    }
    let words: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("4096", 4096),
            ("16KiB", 16 << 10),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("2M", 2 << 20),
            ("2MB", 2 << 20),
            ("2 MiB", 2 << 20),
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("1T", 1 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "2X", "two", "99999999999G", "1..2"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_bytes("2X").unwrap_err().to_string(),
            "`2X` is no size: invalid digit found in string; write bytes, or a number with K, M, G or T, as in `2M`"
        );
    }

    #[test]
    fn printing_loses_nothing() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (16 << 10, "16K"),
            (1536 << 10, "1536K"),
            (2 << 20, "2M"),
            (1 << 30, "1G"),
            (5 << 40, "5T"),
            (2048 << 40, "2048T"),
        ] {
            assert_eq!(format_bytes(bytes), text);
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
    }

    #[test]
    fn seconds_are_positive_and_finite() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["0", "-1", "nan", "inf", "1e300", "1s", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_numbers_are_short() {
        assert_eq!(format_numbers(&[0, 1, 2, 3, 6]), "0-3,6");
        assert_eq!(format_numbers(&[0]), "0");
        assert_eq!(format_numbers(&[]), "");
    }
}
