//! What is shown can be serialized, in the words and units of the command's JSON.

use lockkeeper::{
    Health, Keeper, Loss, Mode, Name, Owner, Sequencer, TicketId, store::memory::Memory,
};
use serde_json::{from_value, json, to_value};

#[tokio::test]
async fn a_line_has_its_times_in_milliseconds_and_its_label_as_text() {
    let owner = Owner::new("ci-7", 4121, "sh");
    let keeper = Keeper::builder().identity(owner).over(Memory::new()).unwrap();
    let guard = keeper.lock("a").label("nightly").await.unwrap();
    let line = to_value(keeper.get("a").await.unwrap()).unwrap();
    let ticket = &line["tickets"][0];
    assert_eq!(line["name"], "a");
    assert_eq!(ticket["id"], guard.ticket().to_string());
    assert_eq!((&ticket["mode"], &ticket["label"]), (&json!("exclusive"), &json!("nightly")));
    assert_eq!(ticket["owner"], json!({ "host": "ci-7", "pid": 4121, "program": "sh" }));
    assert_eq!(ticket["fence"], guard.fence());
    let ends_in = ticket["ends_in_ms"].as_u64().unwrap();
    assert!((14_000..=15_000).contains(&ends_in), "{ends_in}");
    let terms = to_value(guard.terms()).unwrap();
    assert_eq!((&terms["ttl_ms"], &terms["lock_delay_ms"]), (&json!(15_000), &json!(0)));

    let sequencer: Sequencer = from_value(to_value(guard.sequencer()).unwrap()).unwrap();
    assert_eq!(sequencer, guard.sequencer());
    let ticket: TicketId = from_value(ticket["id"].clone()).unwrap();
    assert_eq!(ticket, guard.ticket());
}

#[test]
fn words_and_names_read_back_as_they_were_written() {
    assert_eq!(to_value(Loss::SessionGone).unwrap(), Loss::SessionGone.word());
    assert_eq!(to_value(Health::Lost(Loss::Expired)).unwrap(), json!({ "lost": "expired" }));
    let permits = Mode::Permits { weight: 2, of: 4 };
    assert_eq!(from_value::<Mode>(to_value(permits).unwrap()).unwrap(), permits);
    assert_eq!(from_value::<Name>(json!("a/b")).unwrap().as_str(), "a/b");
    assert!(from_value::<Name>(json!("")).is_err());
}
