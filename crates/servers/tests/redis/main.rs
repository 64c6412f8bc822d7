//! Real Redis servers in all their shapes, through all that can happen to them.

mod cluster;
mod redlock;
mod sentinel;
mod single;
mod support;

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use servers::{
    REDIS, REDIS_CLUSTER, REDIS_DURABLE, REDIS_SENTINEL, REDLOCK, Recipe, Require, Unavailable,
    install_missing,
};

/// A test: its recipe, its name and what it does.
type Case = (Recipe, &'static str, fn() -> Result<()>);

const CASES: &[Case] = &[
    (REDIS, "redis_is_frozen_thawed_killed_restarted_and_stopped", single::whole_life),
    (REDIS, "redis_goes_by_a_clock_that_can_be_moved", single::moved_clock),
    (REDIS_DURABLE, "redis_durable_keeps_its_data_when_killed", single::durable),
    (REDIS_SENTINEL, "redis_sentinel_loses_each_kind_of_node_and_gets_it_back", sentinel::parts),
    (REDIS_SENTINEL, "redis_sentinel_changes_the_roles_when_the_primary_dies", sentinel::failover),
    (REDIS_SENTINEL, "redis_sentinel_comes_back_after_a_power_cut", sentinel::power_cut),
    (REDIS_CLUSTER, "redis_cluster_loses_a_node_and_gets_it_back", cluster::parts),
    (REDIS_CLUSTER, "redis_cluster_comes_back_after_a_power_cut", cluster::power_cut),
    (REDIS_CLUSTER, "redis_cluster_can_be_left_running_and_stopped_later", cluster::detached),
    (REDLOCK, "redlock_is_five_servers_that_fail_alone", redlock::parts),
];

/// Without the usual harness, which has no way to say at run time that a test could not be run.
fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let recipes = [REDIS, REDIS_DURABLE, REDIS_SENTINEL, REDIS_CLUSTER, REDLOCK];
    let missing = install_missing(&recipes);
    let trials = CASES.iter().map(|(recipe, name, run)| {
        match missing.iter().find(|missing| missing.store == recipe.name) {
            None => Trial::test(*name, || Ok(run()?)),
            Some(missing) => failure_or_ignored(name, missing.clone()),
        }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn failure_or_ignored(name: &str, missing: Unavailable) -> Trial {
    let required = Require::from_env().wants(missing.store);
    if !required {
        eprintln!("ignored, {missing}");
    }
    Trial::test(name, move || Err(missing.into())).with_ignored_flag(!required)
}
