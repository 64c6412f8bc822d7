//! Random histories, compared with a tiny reference.

use crate::{
    case::{Case, Need, Verdict},
    model::compare,
    subject::Subject,
};

const STEPS: usize = 40;

pub(crate) fn cases() -> Vec<Case> {
    let needs = [Need::Fair, Need::Fenced, Need::Shared, Need::Permits, Need::Cells];
    vec![Case::on_a_thread("model", "it_does_what_the_reference_does", &needs, same)]
}

/// I1, I3, I4, I6, I11: answers, order, grants, fences, notes and values over random histories of
/// open, close, renew, enter, leave, evict, annotate and write.
fn same(subject: &Subject) -> Verdict {
    let histories = if subject.can().durable { 24 } else { 64 };
    compare(subject, histories, STEPS)
}
