//! Names the order and size of the pieces of a cleared page. Pure.

use super::{Name, Piece};
use crate::facts::Strategy;

/// Names how a page of `pages` was cleared, with the fault at `hint`. Of several names that fit, such as
/// for a fault in the last page, `expected` is preferred.
pub(super) fn classify(
    pieces: &[Piece],
    pages: u64,
    hint: Option<u64>,
    expected: Option<Strategy>,
) -> Name {
    if let Err(why) = covers_once(pieces, pages) {
        return Name::Unknown(why);
    }
    expected
        .into_iter()
        .chain(Strategy::ALL)
        .find(|strategy| fits(pieces, pages, hint, *strategy))
        .map_or_else(
            || Name::Unknown(format!("{} pieces in another order", pieces.len())),
            Name::Known,
        )
}

/// Whether every sub-page was cleared, and none twice.
fn covers_once(pieces: &[Piece], pages: u64) -> Result<(), String> {
    let mut sorted: Vec<&Piece> = pieces.iter().collect();
    sorted.sort_by_key(|piece| piece.sub_page);
    let mut next = 0;
    for piece in sorted {
        if piece.sub_page > next {
            return Err(format!(
                "sub-pages {next} to {} were not seen",
                piece.sub_page - 1
            ));
        }
        if piece.sub_page < next {
            return Err(format!("sub-page {} was cleared twice", piece.sub_page));
        }
        next = piece.sub_page.saturating_add(piece.pages);
    }
    if next < pages {
        return Err(format!("sub-pages {next} to {} were not seen", pages - 1));
    }
    Ok(())
}

fn fits(pieces: &[Piece], pages: u64, hint: Option<u64>, strategy: Strategy) -> bool {
    let single = pieces.iter().all(|piece| piece.pages == 1);
    match strategy {
        Strategy::PagesForward => single && pieces.is_sorted_by_key(|piece| piece.sub_page),
        // Never farther from the fault than the page before.
        Strategy::PagesConverging => hint.is_some_and(|hint| {
            let distance = |piece: &Piece| std::cmp::Reverse(piece.sub_page.abs_diff(hint));
            single && pages > 1 && pieces.is_sorted_by_key(distance)
        }),
        Strategy::OneRange => pages > 1 && pieces.len() == 1,
        Strategy::RangesNeighbourhoodLast => hint.is_some_and(|hint| {
            let Some((last, before)) = pieces.split_last() else {
                return false;
            };
            !single
                && !before.is_empty()
                && before.len() <= 2
                && (last.sub_page..last.sub_page + last.pages).contains(&hint)
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    fn pieces(of: impl IntoIterator<Item = (u64, u64)>) -> Vec<Piece> {
        of.into_iter()
            .enumerate()
            .map(|(index, (sub_page, pages))| Piece {
                start_ns: index as u64,
                sub_page,
                pages,
            })
            .collect()
    }

    /// The order of 5.10 to 6.19, written from what was seen on them: 511, 510, … 0 for a fault in
    /// page 0; 0, 511, 1, 510, … 255, 256 for one in page 256.
    fn converging(pages: u64, hint: u64) -> Vec<Piece> {
        let right = pages - hint;
        let (far, first) = if hint < right {
            ((2 * hint..pages).rev().collect::<Vec<_>>(), 0)
        } else {
            ((0..hint - right).collect(), hint - right)
        };
        let near = pages - far.len() as u64;
        let pairs = (0..near / 2).flat_map(|i| [first + i, first + near - 1 - i]);
        pieces(far.into_iter().chain(pairs).map(|page| (page, 1)))
    }

    fn name(pieces: &[Piece], hint: u64) -> Name {
        classify(pieces, 512, Some(hint), None)
    }

    #[test]
    fn what_kernels_do_is_named() {
        use Strategy::{OneRange, PagesConverging, PagesForward, RangesNeighbourhoodLast};
        for hint in [0, 1, 255, 256, 300, 511] {
            assert_eq!(
                name(&converging(512, hint), hint),
                Name::Known(PagesConverging),
                "{hint}"
            );
        }
        let forward = pieces((0..512).map(|page| (page, 1)));
        assert_eq!(name(&forward, 256), Name::Known(PagesForward));
        // 7.0 and later.
        for (hint, ranges) in [
            (0, &[(3, 509), (0, 3)][..]),
            (256, &[(259, 253), (0, 254), (254, 5)]),
            (511, &[(0, 509), (509, 3)]),
        ] {
            let known = Name::Known(RangesNeighbourhoodLast);
            assert_eq!(name(&pieces(ranges.iter().copied()), hint), known);
        }
        assert_eq!(name(&pieces([(0, 512)]), 256), Name::Known(OneRange));
    }

    #[test]
    fn what_fits_two_names_has_the_expected_one() {
        let forward = pieces((0..512).map(|page| (page, 1)));
        for expected in [Strategy::PagesForward, Strategy::PagesConverging] {
            assert_eq!(
                classify(&forward, 512, Some(511), Some(expected)),
                Name::Known(expected)
            );
        }
        // But nothing is named only because it was expected.
        assert_eq!(
            classify(&forward, 512, Some(0), Some(Strategy::PagesConverging)),
            Name::Known(Strategy::PagesForward)
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let why = |pieces: &[Piece]| String::from(name(pieces, 256));
        let all = converging(512, 256);
        assert_eq!(
            why(&all[..511]),
            "unknown: sub-pages 256 to 511 were not seen".replace("256 to 511", "256 to 256")
        );
        assert_eq!(why(&[]), "unknown: sub-pages 0 to 511 were not seen");
        assert_eq!(
            why(&[all.clone(), vec![all[7]]].concat()),
            format!("unknown: sub-page {} was cleared twice", all[7].sub_page)
        );
        assert_eq!(
            why(&pieces([(254, 5), (0, 254), (259, 253)])),
            "unknown: 3 pieces in another order"
        );
    }

    proptest! {
        #[test]
        fn converging_is_named_for_every_fault(order in 1_u32..12, hint: u64) {
            let pages = 1 << order;
            let hint = hint % pages;
            let expected = Some(Strategy::PagesConverging);
            prop_assert_eq!(
                classify(&converging(pages, hint), pages, Some(hint), expected),
                Name::Known(Strategy::PagesConverging)
            );
        }

        #[test]
        fn noise_is_never_a_panic(
            noise in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            pages: u64,
            hint: Option<u64>,
        ) {
            let _ = classify(&pieces(noise), pages, hint, None);
        }
    }
}
