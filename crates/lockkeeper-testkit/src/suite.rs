//! All cases for all stores, as trials.

use crate::{
    case::{Case, Need},
    cases, invariants,
    report::{Mark, Report},
    subject::Subject,
};
use libtest_mimic::{Completion, Failed, Trial};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// All trials, and the report that they fill in while they run.
#[derive(Debug)]
pub struct Suite {
    /// What to run.
    pub trials: Vec<Trial>,
    /// What came of it, so far.
    pub report: Arc<Report>,
}

/// Makes the trials for these stores. `taker` is the program of that name, for the cases that need
/// other processes.
#[must_use]
pub fn suite(subjects: &[Subject], taker: Option<&Path>) -> Suite {
    let report = Arc::new(Report::default());
    let mut trials = vec![Trial::test("suite::every_invariant_has_its_cases", || {
        invariants::check(&cases::all()).map_err(Failed::from)
    })];
    for subject in subjects {
        let plan = plan(subject);
        trials.push(completeness(subject, plan.clone(), taker.is_some()));
        let one = |case| trial(subject.clone(), case, taker.map(Path::to_owned), report.clone());
        trials.extend(plan.into_iter().map(one));
    }
    Suite { trials, report }
}

/// Runs one case alone, named as `group::case`.
///
/// # Errors
/// Why it failed; also if there is no such case, or the store lacks what it needs.
pub fn run_one(subject: &Subject, name: &str) -> Result<(), String> {
    let is_it = |case: &Case| format!("{}::{}", case.group, case.name) == name;
    let case = plan(subject).into_iter().find(is_it).ok_or(format!("no case {name}"))?;
    match case.lacks(subject, false) {
        Some(need) => Err(format!("{name} needs {need:?}")),
        None => case.run(subject, None),
    }
}

fn plan(subject: &Subject) -> Vec<Case> {
    cases::all().into_iter().chain(subject.own_cases().iter().cloned()).collect()
}

fn trial(subject: Subject, case: Case, taker: Option<PathBuf>, report: Arc<Report>) -> Trial {
    let name = format!("{}::{}::{}", subject.name(), case.group, case.name);
    Trial::ignorable_test(name, move || {
        let began = Instant::now();
        let done = attempt(&subject, &case, taker);
        let mark = match &done {
            Ok(Completion::Completed) => Mark::Passed,
            Ok(Completion::Ignored { reason }) => Mark::Ignored(reason.clone().unwrap_or_default()),
            Err(_) => Mark::Failed,
        };
        report.note(subject.name(), &case, mark, began.elapsed());
        done
    })
}

fn attempt(subject: &Subject, case: &Case, taker: Option<PathBuf>) -> Result<Completion, Failed> {
    match subject.missing() {
        Some((reason, true)) => {
            return Err(format!("{} is required: {reason}", subject.name()).into());
        }
        Some((reason, false)) => return Ok(Completion::ignored_with(reason)),
        None => {}
    }
    if let Some(need) = case.lacks(subject, taker.is_some()) {
        return Ok(Completion::ignored_with(format!("needs {need:?}")));
    }
    case.run(subject, taker)?;
    Ok(Completion::Completed)
}

/// Every group is there for every store, and every capability that a store claims is put to the
/// test by a case that runs.
fn completeness(subject: &Subject, plan: Vec<Case>, taker: bool) -> Trial {
    let subject = subject.clone();
    let name = format!("{}::suite::every_group_and_capability_is_tested", subject.name());
    Trial::ignorable_test(name, move || match subject.missing() {
        Some((reason, false)) => Ok(Completion::ignored_with(reason)),
        _ => gaps(&subject, &plan, taker).map(|()| Completion::Completed).map_err(Failed::from),
    })
}

fn gaps(subject: &Subject, plan: &[Case], taker: bool) -> Result<(), String> {
    let missing = cases::GROUPS.iter().filter(|g| !plan.iter().any(|case| case.group == **g));
    let missing: Vec<_> = missing.collect();
    if !missing.is_empty() {
        return Err(format!("groups without cases: {missing:?}"));
    }
    let runs = |case: &&Case| case.lacks(subject, taker).is_none();
    let tested = |need| plan.iter().filter(runs).any(|case| case.needs.contains(need));
    let claimed = Need::CAPABILITIES.iter().filter(|need| subject.has(**need));
    let untested: Vec<_> = claimed.filter(|need| !tested(*need)).collect();
    if !untested.is_empty() {
        return Err(format!("claimed, but put to the test by no case: {untested:?}"));
    }
    Ok(())
}

/// Times shorter than this are not worth showing.
pub(crate) const SLOW: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::Capabilities;

    #[test]
    fn a_group_without_cases_is_a_gap() {
        let subject = Subject::memory();
        let mut plan = plan(&subject);
        assert_eq!(gaps(&subject, &plan, true), Ok(()));
        plan.retain(|case| case.group != "fence");
        assert!(gaps(&subject, &plan, true).is_err_and(|gap| gap.contains("fence")));
    }

    #[test]
    fn a_capability_that_no_case_tests_is_a_gap() {
        let can = Capabilities { survives_failover: true, ..Subject::memory().can() };
        let claims = || Subject::new("claims", can, || async { anyhow::bail!("not made") });
        let gap = gaps(&claims(), &plan(&claims()), true);
        assert!(gap.is_err_and(|gap| gap.contains("SurvivesFailover")));
        let own = Case::new("failover", "it_survives", &[Need::SurvivesFailover], async |_| Ok(()));
        let tested = claims().case(own);
        assert_eq!(gaps(&tested, &plan(&tested), true), Ok(()));
    }

    #[test]
    fn names_of_cases_are_unique() {
        let mut names: Vec<_> =
            cases::all().iter().map(|case| format!("{}::{}", case.group, case.name)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_case_that_fails_says_why() {
        let broken = Subject::new("broken", Subject::memory().can(), || async {
            anyhow::bail!("no such server")
        });
        let why = run_one(&broken, "contract::handles_share_their_data").expect_err("it fails");
        assert!(why.contains("no such server"), "{why}");
        assert!(run_one(&Subject::memory(), "contract::handles_share_their_data").is_ok());
        assert!(run_one(&Subject::memory(), "contract::nothing").is_err());
    }
}
