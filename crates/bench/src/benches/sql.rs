//! Pairs of lock and release in a database, beside a bare lock table: with two ways to commit, and each
//! on both kinds of runtime, the floor too.

use crate::{
    args::Plan,
    flavour::Flavour,
    pair::{Pair, Speed, speed, stack_speed},
    report::Report,
    rounds::Rounds,
};
use anyhow::Result;

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
    stack: bool,
}

/// Each floor comes just before the stack that is compared with it.
fn variants() -> Vec<Variant> {
    let all = (0..2).flat_map(|commit| Flavour::BOTH.map(|flavour| (commit, flavour)));
    let both = |(commit, flavour)| [false, true].map(|stack| Variant { commit, flavour, stack });
    all.flat_map(both).collect()
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
    let rounds = Rounds::run(plan.rounds, &variants, |variant| -> Result<Speed> {
        begin(variant.commit)?;
        let (url, time) = (commits[variant.commit].url.clone(), plan.round());
        match variant.stack {
            true => variant.flavour.run(stack_speed(url, time)),
            false => {
                variant.flavour.run(async move { speed(vec![open(url).await?], time, None).await })
            }
        }
    })?;
    for (i, variant) in variants.into_iter().enumerate() {
        let who = if variant.stack { "whole stack" } else { "floor: upsert and update" };
        let what = format!("{who}, {}, {}", commits[variant.commit].what, variant.flavour.word());
        let floor = i - usize::from(variant.stack);
        let share = rounds.ratio(i, floor, |speed| speed.pairs_per_s);
        report.row(
            what.clone(),
            &[
                ("pairs_per_s", rounds.median(i, |speed| speed.pairs_per_s)),
                ("of_floor", share),
                ("cpu_us_per_pair", rounds.median(i, |speed| speed.cpu_us)),
            ],
        );
        if variant.stack {
            report.at_least(format!("share of the floor: {what}"), SHARE, share);
        }
    }
    Ok(())
}
