//! Is this build faster than that one? Both servers run at once, and one short crowd after the other
//! claims from each in turn, so that the machine's moods meet both. What counts is the ratio of each
//! pair, and how far the pairs lie apart: two copies of one build, compared like this on a shared
//! machine, differ by a few per cent.

use std::path::Path;

use checker::Answer;
use client::{ServerProcess, settled};

use crate::{
    Failure, Plan,
    http::{
        BUYERS, FEW_CONNECTIONS, Rate, SETTLED_WITHIN, crowd, open_sale, served, sold_out_item,
        start, tokens,
    },
    server_binary,
};

/// What makes this build count the addresses of the benchmark, which come from loopback and are exempt by
/// default, at a rate that refuses nobody: what a limit costs where it is passed. Claims of one buyer are
/// always counted.
const LIMITS_ON: [(&str, &str); 2] = [
    ("SECKILL_HTTP_EXEMPT_NETWORKS", "192.0.2.0/24"),
    ("SECKILL_LIMITS_CLAIMS_PER_ADDRESS", "10000000/s burst 10000000"),
];

/// One of the two, and an item of which nothing is left.
struct Side {
    server: ServerProcess,
    sold_out: i64,
}

pub(crate) async fn compare(plan: &Plan, data: &Path, other: &Path) -> Result<(), Failure> {
    if !other.is_file() {
        return Err(format!("--against: there is no {}", other.display()).into());
    }
    let settings = if plan.limits { &LIMITS_ON[..] } else { &[] };
    let ours = Side::start(&server_binary()?, &data.join("ours"), settings).await?;
    // A build from before the limits would not know the settings.
    let theirs = Side::start(other, &data.join("theirs"), &[]).await?;
    let sides = [&ours, &theirs];
    println!("this build ÷ {}, pair by pair", other.display());
    for connections in [plan.connections, FEW_CONNECTIONS] {
        for (what, claims) in [("sold-out answers", false), ("fsynced claims", true)] {
            let mut pairs = Vec::new();
            for round in 0..plan.rounds(30, 12) {
                let mut pair = [Rate::default(); 2];
                // Who goes first changes from pair to pair.
                for turn in 0..sides.len() {
                    let who = (round + turn) % sides.len();
                    pair[who] = sides[who].serve(connections, claims).await?;
                }
                pairs.push(pair);
            }
            let ratio = quartiles(pairs.iter().map(|[ours, theirs]| ours.per_s / theirs.per_s));
            let [cpu, their_cpu] =
                [0, 1].map(|who| quartiles(pairs.iter().map(|pair| pair[who].cpu_us))[1]);
            println!(
                "  {what}, {connections} sockets: {:.2} (half of the pairs {:.2} to {:.2}); \
                 µs of the server each: {cpu:.1} and {their_cpu:.1}",
                ratio[1], ratio[0], ratio[2]
            );
        }
    }
    ours.server.stop().await?;
    theirs.server.stop().await?;
    Ok(())
}

impl Side {
    async fn start(binary: &Path, data: &Path, settings: &[(&str, &str)]) -> Result<Side, Failure> {
        let server = start(binary, data, settings).await?;
        let sold_out = sold_out_item(&server).await?;
        Ok(Side { server, sold_out })
    }

    async fn serve(&self, connections: usize, claims: bool) -> Result<Rate, Failure> {
        let mut admin = self.server.admin();
        let item = if claims { open_sale(&mut admin, BUYERS).await? } else { self.sold_out };
        let crowd = crowd(self.server.address, item, connections);
        let rush = crowd.rush(tokens(item, "buyer", BUYERS));
        let (rate, report) = served(self.server.pid(), rush).await?;
        let expected = match claims {
            true => report.history.admitted(),
            false => report.history.count(|answer| *answer == Answer::SoldOut),
        };
        if expected != BUYERS {
            return Err(format!("only {expected} of {BUYERS} got the answer of this round").into());
        }
        settled(&mut admin, SETTLED_WITHIN).await?;
        Ok(rate)
    }
}

/// The first, the second (the median) and the third.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_a_quarter_apart() {
        assert_eq!(quartiles([5.0, 1.0, 4.0, 2.0, 3.0].into_iter()), [2.0, 3.0, 4.0]);
        assert_eq!(quartiles([7.0].into_iter()), [7.0; 3]);
    }
}
