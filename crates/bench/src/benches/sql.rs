//! Pairs of lock and release in a database, beside a bare lock table: with two ways to commit, and each
//! on both kinds of runtime, the floor too.

use crate::{
    args::Plan,
    flavour::Flavour,
    pair::{Pair, Stack, Turns, in_turns},
    report::Report,
    rounds::Rounds,
};
use anyhow::Result;
use lockkeeper::Keeper;
use std::time::Duration;

/// The share of the floor that the whole stack must reach.
const SHARE: f64 = 0.8;

/// A way to commit.
pub(super) struct Commit {
    pub(super) what: &'static str,
    pub(super) url: String,
}

#[derive(Clone, Copy)]
struct Variant {
    commit: usize,
    flavour: Flavour,
}

fn variants() -> Vec<Variant> {
    let all = (0..2).flat_map(|commit| Flavour::BOTH.map(|flavour| (commit, flavour)));
    all.map(|(commit, flavour)| Variant { commit, flavour }).collect()
}

/// Measures the pairs. `open` makes the floor, and `begin` tells the server how to commit.
pub(super) fn pairs<P, F>(
    plan: &Plan,
    report: &mut Report,
    commits: &[Commit; 2],
    open: fn(String) -> F,
    begin: impl Fn(usize) -> Result<()>,
) -> Result<()>
where
    P: Pair,
    F: Future<Output = Result<P>> + Send + 'static,
{
    let variants = variants();
    let rounds = Rounds::run(plan.rounds, &variants, |variant| -> Result<Turns> {
        begin(variant.commit)?;
        let (url, time) = (commits[variant.commit].url.clone(), plan.round());
        variant.flavour.run(async move { compare(open(url.clone()).await?, &url, time).await })
    })?;
    for (i, variant) in variants.into_iter().enumerate() {
        let share = rounds.median(i, |turns| turns.share);
        for (which, who) in ["floor: upsert and update", "whole stack"].into_iter().enumerate() {
            let how = format!("{}, {}", commits[variant.commit].what, variant.flavour.word());
            let what = format!("{who}, {how}");
            let figures = [
                ("pairs_per_s", rounds.median(i, |turns| turns.speeds[which].pairs_per_s)),
                ("of_floor", if which == 1 { share } else { 1.0 }),
                ("cpu_us_per_pair", rounds.median(i, |turns| turns.speeds[which].cpu_us)),
            ];
            report.row(what.clone(), &figures);
            if which == 1 {
                report.at_least(format!("share of the floor: {what}"), SHARE, share);
            }
        }
    }
    Ok(())
}

/// The floor and the whole stack, in turns on one runtime.
async fn compare<P: Pair>(floor: P, url: &str, time: Duration) -> Result<Turns> {
    let keeper = Keeper::connect(url).await?;
    let stack = Stack { keeper: keeper.clone(), name: "pairs".to_owned() };
    let turns = in_turns(floor, stack, time).await;
    keeper.close().await;
    turns
}
