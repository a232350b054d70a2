//! When buyers come: the shapes of a rush.

use std::time::Duration;

/// In a burst this share of its time is the mean wait after the opening: two thirds of the crowd are
/// there in the first sixth.
const BURST_MEAN: f64 = 1.0 / 6.0;

/// How arrivals are spread over the time given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Most at the opening, fewer and fewer after it.
    Burst,
    /// From nobody to a crowd, at an evenly rising rate.
    Ramp,
    /// The same rate all the time.
    Steady,
}

impl Curve {
    pub fn as_str(self) -> &'static str {
        match self {
            Curve::Burst => "burst",
            Curve::Ramp => "ramp",
            Curve::Steady => "steady",
        }
    }

    /// So many instants after the opening, in order, all within `over`. Each has an even share of the
    /// curve and a place in it that `dice` (from 0 to 1, without 1) draws.
    pub fn instants(
        self,
        count: usize,
        over: Duration,
        mut dice: impl FnMut() -> f64,
    ) -> Vec<Duration> {
        let share = |n: usize, dice: f64| (n as f64 + dice) / count as f64;
        (0..count).map(|n| over.mul_f64(self.at(share(n, dice())).clamp(0.0, 1.0))).collect()
    }

    /// By which part of the time this share of the crowd is there.
    fn at(self, share: f64) -> f64 {
        match self {
            Curve::Burst => {
                let whole = 1.0 - (-1.0 / BURST_MEAN).exp();
                -(1.0 - share * whole).ln() * BURST_MEAN
            }
            Curve::Ramp => share.sqrt(),
            Curve::Steady => share,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVER: Duration = Duration::from_secs(6);

    fn come(curve: Curve) -> Vec<Duration> {
        curve.instants(6_000, OVER, || 0.5)
    }

    fn by(instants: &[Duration], secs: u64) -> usize {
        instants.iter().filter(|at| **at < Duration::from_secs(secs)).count()
    }

    #[test]
    fn everybody_comes_in_order_and_in_time() {
        for curve in [Curve::Burst, Curve::Ramp, Curve::Steady] {
            let mut dice = fastrand::Rng::with_seed(7);
            let instants = curve.instants(6_000, OVER, || dice.f64());
            assert_eq!(instants.len(), 6_000);
            assert!(instants.is_sorted(), "{curve:?}");
            assert!(instants[5_999] <= OVER, "{curve:?}");
        }
        assert!(Curve::Burst.instants(0, OVER, || 0.5).is_empty());
        assert_eq!(Curve::Ramp.instants(2, Duration::ZERO, || 0.9), [Duration::ZERO; 2]);
    }

    #[test]
    fn each_curve_has_its_shape() {
        assert_eq!((by(&come(Curve::Steady), 1), by(&come(Curve::Steady), 3)), (1_000, 3_000));
        // The area of a triangle: a half of the time is a quarter of the crowd.
        assert_eq!(by(&come(Curve::Ramp), 3), 1_500);
        let burst = come(Curve::Burst);
        assert!((3_700..3_900).contains(&by(&burst, 1)), "{}", by(&burst, 1));
        assert!(by(&burst, 5) > 5_900);
    }
}
